"""What the report says about how its numbers were made, whatever they are."""

import json

import pytest
from small_networks import pictures, taught_conv

import widemargin
from widemargin.evaluation.notes import notes_for
from widemargin.evaluation.settings import EvaluationSettings

WITHOUT = "AutoAttack ran without its part apgd-t, whose loss needs 4 classes; this model has {}."


@pytest.mark.parametrize(("classes", "told"), [(2, True), (3, True), (4, False), (10, False)])
@pytest.mark.parametrize("attacks", [("clean", "autoattack"), ("clean", "pgd20")])
def test_a_part_left_out_is_told(classes, told, attacks):
    settings = EvaluationSettings(attacks=attacks, eps=(0.1,))
    expected = (WITHOUT.format(classes),) if told and "autoattack" in attacks else ()
    assert notes_for(settings, classes) == expected


@pytest.mark.parametrize("classes", [3, 4])
def test_the_notes_agree_with_the_parts_that_ran(very_short, tmp_path, classes):
    for _ in range(2):  # the second time nothing is judged again
        report = widemargin.evaluate(
            taught_conv(classes), pictures(classes, 6), ["clean", "autoattack"], 0.1, out=tmp_path, sanity=False
        )
        left_out = "autoattack/apgd-t" not in report.accuracy
        assert left_out == (classes == 3)
        assert report.notes == ((WITHOUT.format(3),) if left_out else ())
        assert json.loads((tmp_path / "report.json").read_text())["notes"] == list(report.notes)
