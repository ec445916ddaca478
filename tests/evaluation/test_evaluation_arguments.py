"""Attacks and radii in whatever form people have them, or one line that says what is wanted."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from small_networks import pictures, taught_conv

import widemargin
from widemargin import InputError
from widemargin.core.schema import LiteralFloat
from widemargin.evaluation.settings import number, radii

QUICK = {"sanity": False, "margins": False}
NUMBERS = [0.25, "0.25", "1/4", np.float32(0.25), np.float64(0.25), np.array(0.25), torch.tensor(0.25), Fraction(1, 4)]


@pytest.mark.parametrize("eps", [*NUMBERS, Decimal("0.25"), torch.tensor(0.25, dtype=torch.float64)])
def test_a_number_of_any_kind_is_an_eps(eps):
    assert radii(eps) == radii([eps]) == (0.25,)


@pytest.mark.parametrize(
    "several", [(0.25, 0.5), ["1/4", 0.5], np.array([0.25, 0.5]), torch.tensor([0.25, 0.5]), {0.25: 1, 0.5: 2}.keys()]
)
def test_several(several):
    assert radii(several) == (0.25, 0.5)


def test_what_is_written_stays_written():
    assert [eps.text for eps in radii(["8/255", LiteralFloat("0.10")])] == ["8/255", "0.10"]
    assert type(radii(1)[0]) is int


def test_an_evaluation_takes_them(tmp_path):
    model, data = taught_conv(4), pictures(4, 6)
    expected = widemargin.evaluate(model, data, "fgsm", 0.25, step_size=0.125, **QUICK)
    for eps, step in ((np.float32(0.25), np.float32(0.125)), (torch.tensor(0.25), torch.tensor(0.125))):
        found = widemargin.evaluate(model, data, ["fgsm"], eps, step_size=step, out=tmp_path, **QUICK)
        assert found.settings == expected.settings
        assert found.accuracy == expected.accuracy


@pytest.mark.parametrize("wrong", [None, [None], torch.ones(2, 2), object(), 1j])
def test_what_is_no_number(wrong):
    with pytest.raises(InputError, match=r"evaluate\.eps must be a number such as 8/255, got "):
        radii(wrong)
    with pytest.raises(InputError, match=r"evaluate\.step_size must be a number such as 8/255, got None"):
        number("step_size", None)


@pytest.mark.parametrize(
    "attacks", [[widemargin.FGSM(eps=0.1)], widemargin.FGSM(eps=0.1), ["clean", widemargin.FGSM(eps=0.1)]]
)
def test_attacks_are_names(attacks):
    with pytest.raises(
        InputError,
        match=r"evaluate.attacks must be names such as 'fgsm' or 'pgd20', got FGSM\(eps=0.1.*; eps, norm and step_size",
    ):
        widemargin.evaluate(taught_conv(4), pictures(4, 6), attacks, 0.1)
