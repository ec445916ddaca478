"""Schedules: epochs passed -> factor."""

import math
from collections.abc import Callable

import pytest

from widemargin.errors import InputError
from widemargin.schedules import SCHEDULES, Constant, OneCycle, Piecewise, Schedule, Steps

EXAMPLES: dict[str, Schedule] = {
    "constant": Constant(),
    "steps": Steps(milestones=(2, 4)),
    "piecewise": Piecewise(points=((3, 0.5), (5, 0.1))),
    "one-cycle": OneCycle(epochs=10, peak=3),
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
    ],
)
def test_bad_settings(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
