"""docs/api.md has every public name, with its signature and its fields."""

import dataclasses
import inspect
import math
import re
from pathlib import Path

import pytest

import widemargin

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
SIGNATURES = dict(re.findall(r"^([\w.]+)\((.*?)\)(?:  [^\n]*)?$", BLOCKS, re.DOTALL | re.MULTILINE))
PENALTIES = (widemargin.ApproximateEMR, widemargin.ExactEMR, widemargin.StochasticEMR)
ATTACKS = (widemargin.FGSM, widemargin.PGD)
CALLS = [("emr", part.__call__) for part in PENALTIES]
CALLS += [("emr.value", part.value) for part in PENALTIES]
CALLS += [("attack", part.__call__) for part in ATTACKS]
ALONE = ("certified_margin", "check", "effective_margin", "summarize", "evaluate", "load", "pixels", "Normalize")
TRAINING = ("Splits", "train")
CALLS += [(part.__name__, part) for part in (*PENALTIES, *ATTACKS)]
CALLS += [(name, getattr(widemargin, name)) for name in (*ALONE, *TRAINING)]
CALLS += [("Splits.from_loaders", widemargin.Splits.from_loaders)]


def test_every_public_name_has_its_place():
    assert sorted(re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE)) == sorted(widemargin.__all__)


@pytest.mark.parametrize(("shown", "function"), CALLS)
def test_signatures_are_those_of_the_code(shown, function):
    names = {"math": math}
    exec(f"def written({SIGNATURES[shown]}): ...", names)
    written, real = (
        [(part.name, part.kind, part.default) for part in inspect.signature(part).parameters.values()]
        for part in (names["written"], function)
    )
    assert written == [part for part in real if part[0] != "self"]


@pytest.mark.parametrize("part", [widemargin.MarginSummary, widemargin.ModelCheck, widemargin.Report])
def test_every_field_is_told(part):
    section = PAGE.partition(f"### `{part.__name__}`")[2].partition("\n#")[0]
    told = {
        name for cell in re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }
    assert told == {field.name for field in dataclasses.fields(part)}


def test_every_argument_of_evaluate_is_told():
    section = PAGE.partition("### `evaluate`")[2].partition("\n#")[0]
    assert all(
        f"`{name}`" in section
        for name in inspect.signature(widemargin.evaluate).parameters
        if name not in ("model", "norm")
    )
