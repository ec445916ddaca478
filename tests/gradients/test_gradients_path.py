"""Which way a penalty takes: what is said is what is done, and the rule is the documented one."""

import warnings
from typing import Any

import pytest
import torch
from sweep_checks import Apply, gradients_of, penalties_slowly, penalty_of
from torch import nn

from oracles import assert_all_close, images, relu_net, seeded
from widemargin import InputError
from widemargin.errors import WidemarginWarning
from widemargin.gradients import penalties
from widemargin.gradients.path import path_of
from widemargin.gradients.sweeps import tape


def smooth(*first: nn.Module) -> nn.Module:
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(60, 40), nn.Tanh(), nn.Linear(40, 3))


def pooled(groups: int) -> nn.Module:
    """A convolution with 6,912 outputs for three images."""
    return smooth(nn.Conv2d(4, 4, 3, padding=1, groups=groups), nn.Tanh(), nn.AdaptiveAvgPool2d((3, 5)))


CASES: dict[str, Any] = {
    "piecewise linear": (lambda: nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)), (5,), 1, "sweeps"),
    "smooth, of matrices": (lambda: smooth(), (4, 3, 5), 1, "double backward"),
    "smooth, of matrices, many vectors": (lambda: smooth(), (4, 3, 5), 3, "sweeps"),
    "smooth, a small convolution": (lambda: smooth(nn.Conv2d(4, 4, 3, padding=1)), (4, 3, 5), 1, "double backward"),
    "smooth, a large convolution": (lambda: pooled(groups=1), (4, 24, 24), 1, "double backward"),
    "smooth, a convolution in groups": (lambda: pooled(groups=4), (4, 24, 24), 1, "sweeps"),
}


@pytest.fixture
def usual_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "WORTHWHILE", 1.0)
    monkeypatch.setattr(penalties, "_said", set())


@pytest.mark.usefixtures("usual_rule")
@pytest.mark.parametrize("name", CASES)
def test_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape, vectors, way = CASES[name]
    model, x = seeded(0, make), images(3, *shape)
    path = path_of(model, x, vectors=vectors)
    assert (path.way, path.known) == (way, True)
    taken = []
    usual = penalties.by_double_backward
    monkeypatch.setattr(penalties, "by_double_backward", lambda *a, **k: (taken.append(1), usual(*a, **k))[1])
    kind = "approximate" if vectors == 1 else "exact"
    for _ in range(2):  # the second time it is remembered
        penalty = penalty_of(kind, model, x)
        expected = penalties_slowly(model, x)[kind]
        torch.testing.assert_close(penalty, expected)
        assert_all_close(gradients_of(model, penalty), gradients_of(model, expected), rtol=1e-9, atol=1e-12)
    assert len(taken) == (2 if way == "double backward" else 0)


@pytest.mark.usefixtures("usual_rule")
def test_what_double_backward_takes_as_fast_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, recorded = seeded(0, smooth), []
    usual = tape.record
    monkeypatch.setattr(tape, "record", lambda *a: (recorded.append(1), usual(*a))[1])
    for batch in (2, 3, 2, 3):
        penalty_of("approximate", model, images(batch, 4, 3, 5))
    assert len(recorded) == 2  # what is worthwhile depends on the batch
    penalty_of("exact", model, images(2, 4, 3, 5))  # many vectors: another choice
    assert len(recorded) == 3


def unknown() -> nn.Module:
    return seeded(0, lambda: nn.Sequential(nn.Linear(5, 6), Apply(lambda h: h.cumsum(1)), nn.Tanh(), nn.Linear(6, 3)))


def test_double_backward_names_the_operator() -> None:
    path = path_of(unknown(), images(3, 5))
    assert (path.way, path.known, path.reason) == ("double backward", False, "no rule for cumsum of an activation")


@pytest.mark.usefixtures("usual_rule")
def test_an_unknown_operator_is_said_once() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", WidemarginWarning)
        for model in (unknown(), unknown()):
            penalty_of("exact", model, images(2, 5))
            penalty_of("approximate", model, images(2, 5))
        penalty_of("approximate", seeded(0, smooth), images(2, 4, 3, 5))  # known, and as fast: nothing to say
    assert [str(warning.message).partition(",")[0] for warning in said] == [
        "ExactEMR: no rule for cumsum of an activation"
    ]


def test_sweeps_say_why() -> None:
    assert path_of(relu_net(3), images(3, 1, 3, 5)).reason.endswith("piecewise linear")


def test_what_cannot_be_regularized_is_refused() -> None:
    with pytest.raises(InputError, match="couples the samples"):
        path_of(nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, track_running_stats=False)), torch.rand(3, 5))
