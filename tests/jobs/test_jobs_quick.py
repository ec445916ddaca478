from dataclasses import fields, is_dataclass

import pytest

from widemargin.attacks import PGD
from widemargin.jobs.job import smoke
from widemargin.objectives import Mail
from widemargin.recipes import all_recipes
from widemargin.schedules import Constant, OneCycle

RECIPES = [name for name in all_recipes() if not name.startswith("demo/")]


def parts(value):
    yield value
    if is_dataclass(value):
        for field in fields(value):
            yield from parts(getattr(value, field.name))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_made_small_and_keeps_its_methods(name):
    full = all_recipes()[name].config
    small = smoke(full)
    assert (small.epochs, small.data.train_limit, small.data.test_limit) == (2, 64, 40)
    assert small.data.name == f"{full.data.name}-embedded"
    assert all(part.steps <= 2 for part in parts(small) if isinstance(part, PGD))
    for part in ("objective", "head", "emr", "igr", "teacher", "averaging", "model"):
        assert type(getattr(small, part)) is type(getattr(full, part))
    assert bool(small.data.held_out) == bool(full.data.held_out)
    if small.emr is not None:
        assert (small.emr.kind, small.emr.weight, small.emr.temperature) == (
            full.emr.kind,
            full.emr.weight,
            full.emr.temperature,
        )


@pytest.mark.parametrize("name", RECIPES)
def test_schedules_drop_as_often_as_in_full(name):
    full = all_recipes()[name].config
    for long, short in ((full.optimizer, smoke(full).optimizer), (full.emr, smoke(full).emr)):
        if long is None or isinstance(long.schedule, Constant | OneCycle):
            continue
        last_long, last_short = full.epochs - 1e-6, 2 - 1e-6
        assert short.schedule(last_short) == pytest.approx(long.schedule(last_long))


def test_mail_passes_through_both_phases():
    small = smoke(all_recipes()["cifar-wrn/trades-mail-emr"].config)
    assert isinstance(small.objective, Mail)
    assert 0 < small.objective.burn_in < small.epochs
