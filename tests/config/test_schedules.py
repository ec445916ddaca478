"""Schedules: epochs passed -> factor."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from widemargin.errors import InputError
from widemargin.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    OneCycle,
    OneCycleMomentum,
    Piecewise,
    Schedule,
    Steps,
    Triangular,
    WarmUp,
)

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "schedules.npz")

EXAMPLES: dict[str, Schedule] = {
    "constant": Constant(),
    "steps": Steps(milestones=(2, 4)),
    "piecewise": Piecewise(points=((3, 0.5), (5, 0.1))),
    "one-cycle": OneCycle(epochs=10, peak=3),
    "one-cycle-momentum": OneCycleMomentum(epochs=10, rise=0.4, steps_per_epoch=7),
    "cosine": Cosine(epochs=10, start=2),
    "triangular": Triangular(epochs=10, peak=3),
    "warm-up": WarmUp(epochs=2, first=0.1, schedule=Steps(milestones=(5,))),
}


def test_every_schedule_has_an_example() -> None:
    assert {name: type(schedule) for name, schedule in EXAMPLES.items()} == SCHEDULES


@pytest.mark.parametrize("name", EXAMPLES)
def test_factors_are_between_zero_and_one(name: str) -> None:
    factors = [EXAMPLES[name](epoch / 7) for epoch in range(100)]
    assert all(0 <= factor <= 1 for factor in factors)
    assert max(factors) > 0.99


def test_constant_and_steps_that_drop_after_the_milestone_has_passed() -> None:
    assert [Constant()(epoch) for epoch in (0, 0.5, 99)] == [1.0, 1.0, 1.0]
    schedule = Steps(milestones=(30, 45), factor=0.1)
    at = {0: 1.0, 29.99: 1.0, 30: 0.1, 30.5: 0.1, 44.99: 0.1, 45: 0.01, 1000: 0.01}
    assert [schedule(epoch) for epoch in at] == pytest.approx(list(at.values()), rel=1e-15)
    assert Steps(milestones=())(50) == 1.0
    assert Steps(milestones=(0,), factor=0.5)(0) == 0.5


def test_piecewise() -> None:
    schedule = Piecewise(points=((0, 0.2), (1, 1.0), (75, 0.1)))
    at = {0: 0.2, 0.99: 0.2, 1: 1.0, 74.9: 1.0, 75: 0.1, 100: 0.1}
    assert [schedule(epoch) for epoch in at] == list(at.values())
    assert Piecewise(points=((2, 0.5),))(1) == 1.0


def test_one_cycle() -> None:
    schedule = OneCycle(epochs=10, peak=4)
    assert [schedule(epoch) for epoch in (0, 1, 2, 4, 10, 12)] == [0, 0.25, 0.5, 1, 0, 0]
    assert schedule(7) == pytest.approx(0.5)
    assert schedule(5.5) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_cosine() -> None:
    schedule = Cosine(epochs=10, start=2, floor=0.1)
    assert [schedule(epoch) for epoch in (0, 1.9, 2, 10, 11)] == pytest.approx([1, 1, 1, 0.1, 0.1])
    assert schedule(6) == pytest.approx(0.1 + 0.9 * 0.5)
    assert schedule(4) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))


def test_triangular() -> None:
    schedule = Triangular(epochs=30, peak=12)
    assert [schedule(epoch) for epoch in (0, 6, 12, 21, 30, 31)] == pytest.approx([0, 0.5, 1, 0.5, 0, 0])


def test_a_warm_up_leaves_the_milestones_of_the_other_schedule_where_they_are() -> None:
    schedule = WarmUp(epochs=4, first=0.2, schedule=Steps(milestones=(2, 8)))
    at = {0: 0.2, 1: 0.4, 2: 0.06, 3.999: 0.1, 4: 0.1, 7.9: 0.1, 8: 0.01}
    assert [schedule(epoch) for epoch in at] == pytest.approx(list(at.values()), rel=1e-3)
    deepmind = WarmUp(epochs=10, schedule=Cosine(epochs=400, start=10))
    assert [deepmind(epoch) for epoch in (0, 5, 10, 205, 400)] == pytest.approx([0, 0.5, 1, 0.5, 0])


ONE_CYCLES = {
    "e50": OneCycleMomentum(epochs=50, rise=0.025),
    "e80": OneCycleMomentum(epochs=80, rise=0.025),
    "e400": OneCycleMomentum(epochs=400, rise=0.025),
    "e20": OneCycleMomentum(epochs=20, rise=0.025),
    "e40_pct05": OneCycleMomentum(epochs=40, rise=0.05),
    "cyclic": OneCycleMomentum(epochs=5, rise=0.25, steps_per_epoch=7),
}


@pytest.mark.parametrize("name", ONE_CYCLES)
def test_learning_rates_and_momenta_of_the_published_code(name: str) -> None:
    """Of one change per epoch the value holds through the whole epoch."""
    schedule, per_epoch = ONE_CYCLES[name], 7
    steps = [epoch + step / per_epoch for epoch in range(schedule.epochs) for step in range(per_epoch)]
    repeats = per_epoch // schedule.steps_per_epoch
    rates, momenta = (np.repeat(GOLDEN[f"sched/{name}/{what}"], repeats) for what in ("lr", "momentum"))
    np.testing.assert_allclose([0.2 * schedule(epoch) for epoch in steps], rates, atol=1e-15)
    np.testing.assert_allclose([schedule.momentum(epoch) for epoch in steps], momenta, atol=1e-15)


def test_torchs_schedule_with_other_settings() -> None:
    ours = OneCycleMomentum(epochs=11, rise=0.37, divide=7.0, divide_last=50.0, most=0.9, least=0.2)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0, momentum=0.5)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 3.0, 11, pct_start=0.37, div_factor=7, final_div_factor=50, max_momentum=0.9, base_momentum=0.2
    )
    for epoch in range(11):
        (group,) = optimizer.param_groups
        assert (3 * ours(epoch), ours.momentum(epoch)) == pytest.approx((group["lr"], group["momentum"]), rel=1e-14)
        optimizer.step()
        if epoch < 10:
            theirs.step()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Steps(milestones=(30, 20)), r"Steps.milestones must be increasing epochs, got \[30, 20\]; write them"),
        (lambda: Steps(milestones=(30, 30)), r"Steps.milestones must be increasing epochs"),
        (lambda: Steps(milestones=(-1,)), r"Steps.milestones must be increasing epochs, got \[-1\]"),
        (lambda: Steps(milestones=(1,), factor=0), r"Steps.factor must be in \(0, 1\], got 0; 0.1 is usual"),
        (lambda: Steps(milestones=(1,), factor=10), r"Steps.factor must be in \(0, 1\], got 10"),
        (lambda: Piecewise(points=((2, 1.0), (1, 0.5))), r"Piecewise.points must be \[epoch, factor\] with increasing"),
        (lambda: Piecewise(points=((2, 1.0), (2, 0.5))), r"increasing epochs .*, got \[\[2, 1.0\], \[2, 0.5\]\]"),
        (lambda: Piecewise(points=((2,),)), r"Piecewise.points must be \[epoch, factor\]"),
        (lambda: Piecewise(points=((2, -0.5),)), r"Piecewise.points .* none below 0, got \[\[2, -0.5\]\]; write them"),
        (lambda: Piecewise(points=((-2, 0.5),)), r"Piecewise.points .* none below 0, got"),
        (lambda: Piecewise(points=((0, math.nan),)), r"Piecewise.points .* finite factors, .*, got \[\[0, nan\]\]"),
        (lambda: Piecewise(points=((0, math.inf),)), r"Piecewise.points .* finite factors, .*, got \[\[0, inf\]\]"),
        (lambda: Piecewise(points=((math.nan, 1.0),)), r"Piecewise.points .*, got \[\[nan, 1.0\]\]"),
        (lambda: Piecewise(points=((0, 1.0), (math.inf, 0.1))), r"Piecewise.points .*, got .*inf"),
        (lambda: OneCycle(epochs=10, peak=0), r"OneCycle.peak must be between 0 and epochs = 10, got 0; it is the"),
        (lambda: OneCycle(epochs=10, peak=10), r"OneCycle.peak must be between 0 and epochs = 10, got 10"),
        (lambda: Cosine(epochs=5, start=5), r"Cosine.start must be from 0 to below epochs = 5, got 5"),
        (lambda: Cosine(epochs=5, floor=1.0), r"Cosine.floor must be in \[0, 1\), got 1.0"),
        (lambda: Triangular(epochs=5, peak=0), r"Triangular.peak must be between 0 and epochs = 5, got 0"),
        (lambda: WarmUp(epochs=0), r"WarmUp.epochs must be a positive number, got 0"),
        (lambda: WarmUp(epochs=1, first=-0.1), r"WarmUp.first must be in \[0, 1\), got -0.1"),
        (lambda: WarmUp(epochs=1, schedule=OneCycleMomentum(epochs=9)), r"WarmUp.schedule must not be OneCycleMom"),
        (lambda: WarmUp(epochs=1, schedule=WarmUp(epochs=2)), r"WarmUp.schedule must not be WarmUp, which begins"),
        (lambda: OneCycleMomentum(epochs=40, rise=0.025), r"rise must not be 0.025 of 40 values, the first alone"),
        (lambda: OneCycleMomentum(epochs=9, rise=1.0), r"OneCycleMomentum.rise must be between 0 and 1, got 1.0"),
        (lambda: OneCycleMomentum(epochs=9, divide=0.5), r"OneCycleMomentum.divide must be at least 1, got 0.5"),
        (lambda: OneCycleMomentum(epochs=9, least=0.96), r"least and most must be momenta, .* got 0.96 and 0.95"),
        (lambda: OneCycleMomentum(epochs=0), r"OneCycleMomentum.epochs must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_settings(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
