"""What a person sees of a run, and that nobody waits for a device to show what nobody sees."""

import io
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from widemargin import InputError
from widemargin.training import train, trainer
from widemargin.training.nonfinite_step import check_finite
from widemargin.training.progress import describe_epoch
from widemargin.types import Nets


def test_the_line_of_an_epoch_has_both_penalties():
    line = {"epoch": 3, "loss": 0.5, "seconds": 1.25, "emr": 0.01234, "igr": 2.5}
    assert describe_epoch(line, 12) == "epoch  3/12  loss 0.5000  emr 0.0123  igr 2.5  1.2 s"


@pytest.mark.parametrize(
    ("options", "read"),
    [({"force_terminal": True}, True), ({}, False), ({"force_terminal": True, "quiet": True}, False)],
)
def test_the_loss_is_read_where_it_is_shown(tiny, tmp_path, monkeypatch, options, read):
    asked = []

    def mean_loss(state):
        asked.append(state.step)
        return 1.0

    monkeypatch.setattr(trainer, "mean_loss", mean_loss)
    monkeypatch.setattr(trainer, "REFRESH_SECONDS", -1.0)
    console = Console(file=io.StringIO(), **options)
    train(tiny("epochs=1", "watch.margins=[]"), out=tmp_path, console=console)
    assert asked == ([1, 2, 3, 4] if read else [])


class Waits(TorchDispatchMode):
    """Counts the numbers that the host asks of the device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name == "aten::_local_scalar_dense"
        return func(*args, **(kwargs or {}))


def state_of(layers):
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
    sums = {"total": torch.tensor(1.0), "samples": torch.tensor(2.0)}
    return SimpleNamespace(nets=Nets(model), sums=sums, epoch=0)


def test_the_weights_are_looked_at_in_one_wait_however_many_they_are(tiny):
    counts = []
    for layers in (1, 7):
        with Waits() as waits:
            check_finite(state_of(layers), tiny())
        counts.append(waits.count)
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_one_bad_weight_among_many_is_seen(tiny, number):
    state = state_of(7)
    with torch.no_grad():
        state.nets.model[5].bias[1] = number
    with pytest.raises(InputError, match=r"a weight became infinite or not a number in epoch 1; lower optimizer.lr"):
        check_finite(state, tiny())
