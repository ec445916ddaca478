"""What is said of the way a penalty takes is what it does."""

import pytest
import torch
from sweep_checks import Apply
from torch import nn

from oracles import images, relu_net
from widemargin import InputError
from widemargin.gradients.path import path_of


def test_sweeps() -> None:
    assert path_of(relu_net(3), images(3, 1, 3, 5)).way == "sweeps"


def test_double_backward_names_the_operator() -> None:
    path = path_of(nn.Sequential(nn.Linear(5, 6), Apply(lambda h: h.cumsum(1)), nn.Tanh()), torch.rand(3, 5))
    assert path.way == "double backward"
    assert "cumsum" in path.reason


def test_what_cannot_be_regularized_is_refused() -> None:
    with pytest.raises(InputError, match="couples the samples"):
        path_of(nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, track_running_stats=False)), torch.rand(3, 5))
