"""The bare backend, called directly: what the evaluator's verdicts must equal."""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyautoattack.checks
import pytest
import torch
from pyautoattack import AutoAttack
from pyautoattack.state import EvaluationState
from torch import Tensor, nn

NORMS = {"linf": "Linf", "l2": "L2"}
STARTUP_CALLS = 7
"""Its own checks before the attack: five for randomness, one for the range, one for dynamic defenses."""
SHORT = {"apgd": 2, "fab": 3, "queries": 150}
VERY_SHORT = {"apgd": 2, "fab": 2, "queries": 10}


def shorten(reference, *, apgd: int, fab: int, queries: int):
    """Fewer iterations of every part: quick, and each part leaves work to the next."""
    reference.apgd.n_iter = reference.apgd_targeted.n_iter = apgd
    reference.fab.n_iter, reference.square.n_queries = fab, queries
    return reference


def shortened(make_reference: Callable, lengths: dict[str, int]) -> Callable:
    """``make_reference`` with short attacks."""

    def make(*args, **kwargs):
        return shorten(make_reference(*args, **kwargs), **lengths)

    return make


@dataclass(frozen=True)
class Official:
    """Who survives each part, (N,) bool, and the images at the end."""

    survivors: dict[str, Tensor]
    x_adv: Tensor


def officially(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float,
    norm: str = "linf",
    seed: int = 0,
    batch_size: int = 250,
    classes: int = 10,
    lengths: dict[str, int] | None = None,
    parts: list[str] | None = None,
) -> Official:
    """``run_standard_evaluation`` on a copy of the model, of these parts or all, noting the survivors after each."""
    attack = AutoAttack(copy.deepcopy(model), norm=NORMS[norm], eps=eps, seed=seed, version="standard", device="cpu")
    attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(9, classes - 1)
    if classes < 4:
        attack.attacks_to_run = [name for name in attack.attacks_to_run if name != "apgd-t"]
    if parts is not None:
        attack.attacks_to_run = parts
    if lengths is not None:
        shorten(attack, **lengths)
    survivors: dict[str, Tensor] = {}
    with _watched(survivors), _left_alone():
        x_adv, _ = attack.run_standard_evaluation(x.clone(), y.clone(), batch_size=batch_size)
    for part in attack.attacks_to_run:  # it stops early where nobody is left
        survivors.setdefault(part, torch.zeros(len(y), dtype=torch.bool))
    return Official(survivors, x_adv)


@contextmanager
def _watched(survivors: dict[str, Tensor]) -> Iterator[None]:
    finish = EvaluationState.add_run_attack

    def noted(state: EvaluationState, part: str) -> None:
        survivors[part] = state.robust_flags.clone()
        finish(state, part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EvaluationState, "add_run_attack", noted)
        yield


@contextmanager
def _left_alone() -> Iterator[None]:
    tracer = sys.gettrace()
    with torch.random.fork_rng(devices=[]):
        yield
    sys.settrace(tracer)
    pyautoattack.checks.funcs.update(dict.fromkeys(pyautoattack.checks.funcs, 0))


def assert_official(report, official: Official, suffix: str = "") -> None:
    """Verdicts after every part, and of the whole, are the backend's."""
    names = [name for name in report.verdicts if name.startswith("autoattack/") and name.endswith(suffix)]
    assert names == [f"autoattack/{part}{suffix}" for part in official.survivors]
    for part, expected in official.survivors.items():
        assert report.verdicts[f"autoattack/{part}{suffix}"].tolist() == expected.tolist(), part
    assert report.verdicts[f"autoattack{suffix}"].tolist() == list(official.survivors.values())[-1].tolist()


def assert_same(one, other) -> None:
    """Two reports with equal numbers."""
    assert one.accuracy == other.accuracy
    assert {name: flags.tolist() for name, flags in one.verdicts.items()} == {
        name: flags.tolist() for name, flags in other.verdicts.items()
    }
    for name in ("margin", "distance"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert mine is theirs is None or mine.equal(theirs), name
