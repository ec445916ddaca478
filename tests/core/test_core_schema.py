"""Numbers that remember how they were written."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widemargin.core.schema import LiteralFloat
from widemargin.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [("8/255", 8 / 255), ("0.031", 0.031), ("1e-3", 1e-3), ("2", 2.0), ("-1/4", -0.25), (" 8 / 255 ", 8 / 255)],
)
def test_the_value_and_the_text(text: str, value: float) -> None:
    number = LiteralFloat(text)
    assert number == value
    assert number.text == str(number) == repr(number) == f"{number}" == text.strip()
    assert f"{number:.4f}" == f"{value:.4f}"


def test_it_is_a_float_in_arithmetic() -> None:
    eps = LiteralFloat("8/255")
    for result in (eps / 4, -eps, eps + eps, 2 * eps, abs(eps)):
        assert type(result) is float
    assert eps / 4 == 2 / 255
    assert hash(eps) == hash(8 / 255)
    assert {eps: 1}[8 / 255] == 1
    assert max(eps, 0.01) is eps


def test_a_number_and_a_written_number() -> None:
    assert LiteralFloat(0.1).text == "0.1"
    assert LiteralFloat(LiteralFloat("8/255")).text == "8/255"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))])
def test_copies_keep_the_text(copied) -> None:  # type: ignore[no-untyped-def]
    again = copied(LiteralFloat("8/255"))
    assert (type(again), again, again.text) == (LiteralFloat, 8 / 255, "8/255")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_text_reads_back_as_the_same_number(value: float) -> None:
    assert LiteralFloat(LiteralFloat(value).text) == value


@given(st.integers(-1000, 1000), st.integers(1, 1000))
def test_fractions(numerator: int, denominator: int) -> None:
    assert LiteralFloat(f"{numerator}/{denominator}") == numerator / denominator


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        (["", "eight", "8/0", "8/255/2", "/255", "8/", "0x10", "1,5", "8\\255"], "a number"),
        (["inf", "nan", "-inf", "1/nan", "1e308/1e-308"], "a finite number"),
    ],
)
def test_what_is_no_finite_number(texts: list[str], what: str) -> None:
    for text in texts:
        with pytest.raises(InputError, match=rf"is not {what}; write 0.031 or 8/255"):
            LiteralFloat(text)
