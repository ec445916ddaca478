"""What the report says about how its numbers were made, whatever they are."""

import json
from dataclasses import replace

import pytest
from small_networks import pictures, taught_conv

import widemargin
from widemargin.evaluation.folder import ModelInfo
from widemargin.evaluation.report import notes_for, notes_on
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


@pytest.mark.parametrize(("search", "distance", "told"), [("float32", True, 0), ("tf32", False, 0), ("tf32", True, 1)])
def test_distances_are_said_to_be_searched_with_tf32_where_they_are(search, distance, told):
    settings = EvaluationSettings(attacks=("clean", "pgd20"), eps=(0.1,), search=search, distance=distance)
    notes = notes_for(settings, 10, again=7)
    assert len(notes) == told
    assert all(note.startswith("Distances were searched with TF32") and note.endswith(": 7.") for note in notes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, True),
        ({"epoch": 10}, False),
        ({"config": {"epochs": 10, "stopping": {"patience": 3}}}, False),  # it may have ended early
        ({"weights": "best"}, False),
        ({"epoch": None}, False),
        ({"config": None}, False),
    ],
)
def test_the_weights_of_a_run_under_way_are_told(changes, told):
    subject = replace(ModelInfo(weights="last", epoch=5, config={"epochs": 10}), **changes)
    expected = "The run is not finished: these are its weights after 5 of 10 epochs."
    assert notes_on(subject) == ((expected,) if told else ())
