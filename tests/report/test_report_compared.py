"""What a page compares with the paper, what it does not, and what it says of either."""

import csv
import html
import io
import json
import re

import pytest

from report_folders import page_of, write_evaluation, write_result, write_run
from widemargin.config.toml import to_dict
from widemargin.recipes import find_recipe
from widemargin.report.compare import Cell, compare, markdown


def test_eps_is_given_as_written_and_as_a_number(tmp_path):
    with_config(tmp_path / "e", evaluated={"eps": [{"written": "8/255", "value": 8 / 255}]})
    text = page_of(tmp_path)
    assert "8/255 = 0.031373" in text
    assert "published under attack only at linf eps 0.031" in text
    assert "paper 50.88" not in text  # a number at another eps is no comparison
    assert "paper 83.39" in text


UNKNOWN = "its configuration is not known, so it is not compared with the paper"


def test_without_its_configuration_nothing_is_compared(tmp_path):
    report = write_evaluation(tmp_path / "e", count=20)
    text = page_of(tmp_path)
    assert UNKNOWN in text
    assert "paper 83.39" not in text
    config = to_dict(find_recipe("cifar-resnet18/at").config)
    for epochs, said in ((100, False), (60, True)):
        known = report | {"config": config | {"epochs": epochs}}
        (tmp_path / "e" / "report.json").write_text(json.dumps(known))
        text = page_of(tmp_path)
        assert UNKNOWN not in text
        assert "paper 83.39" in text
        assert ("changed from the recipe: epochs=60." in text) is said


@pytest.mark.parametrize(("data", "compared"), [("cifar10", True), ("svhn", False), ("cifar10-embedded", False)])
def test_what_was_judged_on_other_images_than_its_recipe_is_not_compared(tmp_path, data, compared):
    with_config(tmp_path / "e", evaluated={"data": {"name": data, "split": "test", "count": 20}})
    text = page_of(tmp_path)
    why = f"it was judged on {data}, its recipe's data is cifar10, so it is not compared with the paper"
    assert [number in text for number in ("paper 83.39", "paper 50.88")] == [compared] * 2
    assert (why in html.unescape(text)) is not compared


@pytest.mark.parametrize(
    ("data", "count", "said"), [("cifar10", 20, True), ("cifar10", 10_000, False), ("x", 20, False)]
)
def test_an_evaluation_on_the_first_images_says_so(tmp_path, data, count, said):
    write_evaluation(tmp_path / "e", count=20, data={"name": data, "split": "test", "count": count})
    assert ("judged on the first 20 of 10,000 test images" in page_of(tmp_path)) is said


def test_an_evaluation_on_the_first_of_own_images_says_so(tmp_path):
    write_evaluation(tmp_path / "e", count=20, data={"name": "mine.npz", "count": 20, "whole": 90})
    assert "judged on the first 20 of 90 test images" in page_of(tmp_path)


def test_a_quick_result_says_so_and_has_nothing_beside_it(tmp_path):
    result = write_result(tmp_path / "r")
    assert "paper 97.50" in page_of(tmp_path)
    (tmp_path / "r" / "result.json").write_text(json.dumps(result | {"quick": True}))
    text = page_of(tmp_path)
    assert "made quick" in text
    assert "paper 97.50" not in text
    lines = rows_of(tmp_path)
    assert {line["kind"] for line in lines} == {"quick reproduction"}
    assert {line["paper"] for line in lines} == {""}


def test_a_mean_says_what_holds_for_all_its_seeds(tmp_path):
    for seed in (0, 1):
        result = write_result(tmp_path / f"seed-{seed}", seed=seed)
        result["config"] |= {"epochs": 2, "batch_size": 7 + seed}
        (tmp_path / f"seed-{seed}" / "result.json").write_text(json.dumps(result | {"quick": True}))
    page_of(tmp_path)
    lines = (tmp_path.parent / f"{tmp_path.name}-out" / "report.md").read_text().splitlines()
    (mean,) = [line for line in lines if line.startswith("- mnist-mlp/st-emr, mean of 2 seeds: ")]
    assert mean.endswith(": ± over seeds; made quick: a short run and short attacks, not to be compared.")
    result["config"]["batch_size"] = 7
    (tmp_path / "seed-1" / "result.json").write_text(json.dumps(result | {"quick": True}))
    page_of(tmp_path)
    text = (tmp_path.parent / f"{tmp_path.name}-out" / "report.md").read_text()
    assert text.count("not to be compared; changed from the recipe: epochs=2, batch\\_size=7.") == 3


@pytest.mark.parametrize(
    ("step", "compared"), [(0.0078, True), (2 / 255, True), (None, True), (1e-6, False), (0.025, False)]
)
def test_pgd_with_another_step_than_the_recipes_is_not_compared(tmp_path, step, compared):
    with_config(tmp_path / "e", evaluated={"step_size": step})
    text = html.unescape(page_of(tmp_path))
    assert ("paper 50.88" in text) is compared
    assert "paper 83.39" in text
    said = f"its PGD has steps of {step or 0:g}, the recipe's of 0.00784, so it is not compared"
    assert (said in text) is not compared


def with_config(folder, *, evaluated=None, **changes):
    """An evaluation that knows its run's configuration."""
    config = to_dict(find_recipe("cifar-resnet18/at").config)
    config |= {"data": config["data"] | changes.pop("data", {})} | changes
    write_evaluation(folder, count=20, config=config, **(evaluated or {}))


SMALL = [
    ({"epochs": 2}, "it was trained for 2 epochs, its recipe for 100, so it is not compared with the paper"),
    ({"epochs": 1}, "it was trained for 1 epoch, its recipe for 100, so it is not compared with the paper"),
    ({"data": {"train_limit": 500}}, "it was trained on 500 images alone, so it is not compared with the paper"),
    ({"epochs": 50}, ""),
]


@pytest.mark.parametrize(("changes", "why"), SMALL)
def test_what_was_trained_far_less_than_its_recipe_is_not_compared(tmp_path, changes, why):
    with_config(tmp_path / "e", **changes)
    text = page_of(tmp_path)
    assert ("paper 83.39" in text) is not why
    assert why in text


@pytest.mark.parametrize(("epochs", "compared"), [(49, False), (50, True)])
def test_a_run_under_way_is_compared_from_its_middle_on(tmp_path, epochs, compared):
    write_run(tmp_path / "run", epochs=epochs)
    text = page_of(tmp_path)
    assert ("paper 83.39" in text) is compared
    assert ("so it is not compared with the paper" in text) is not compared


MEANS = [
    ({"seed": 1}, None, True),
    ({"seed": 0}, None, False),
    ({"seed": 1, "batch_size": 7}, None, False),
    ({"seed": 1}, {"norm": "l2"}, False),
    ({"seed": 1}, {"attacks": ["clean"]}, False),
]


@pytest.mark.parametrize(("changes", "evaluated", "joined"), MEANS)
def test_runs_that_differ_in_their_seed_alone_have_a_mean(tmp_path, changes, evaluated, joined):
    with_config(tmp_path / "a")
    with_config(tmp_path / "b", evaluated=evaluated, **changes)
    page_of(tmp_path)
    lines = rows_of(tmp_path)
    found = {line["name"] for line in lines if line["kind"] == "mean"}
    assert found == ({"cifar-resnet18/at, mean of 2 seeds"} if joined else set())


JOB = {"data": {"name": "mnist", "count": 300}, "eps": [{"written": "0.1", "value": 0.1}], "alarms": [{"name": "odd"}]}


def write_whole_job(folder):
    """A job with the evaluation that its numbers are from, and AutoAttack of the same images."""
    result = write_result(folder)
    for name, accuracy in (
        ("evaluation", result["accuracy"]),
        ("autoattack", {"clean": 97.4, "autoattack/apgd-ce": 50.0, "autoattack": 40.0}),
    ):
        report = write_evaluation(folder / name, name="mnist-mlp/st-emr", count=300, gallery=False)
        report |= JOB | {"accuracy": accuracy, "attacks": list(accuracy)}
        (folder / name / "report.json").write_text(json.dumps(report))
    return result


def rows_of(folder):
    text = (folder.parent / f"{folder.name}-out" / "report.csv").read_text()
    return list(csv.DictReader(io.StringIO(text)))


def test_a_job_is_one_row_with_what_its_folders_found(tmp_path):
    write_whole_job(tmp_path / "seed-0")
    text = page_of(tmp_path)
    rows = rows_of(tmp_path)
    assert {row["name"] for row in rows} == {"mnist-mlp/st-emr"}
    assert {row["images"] for row in rows} == {"300"}
    assert [row["value"] for row in rows if row["measure"] == "autoattack"] == ["40"]
    assert next((row["norm"], row["value"]) for row in rows if row["measure"] == "margin") == ("l2", "2.25")
    assert "1 evaluation, from" in text
    assert "Not checked for alarms" not in text
    assert text.count('<p class="alarm-name"><strong>odd</strong>') == 1
    (counts,) = re.findall(r"What AutoAttack&#39;s parts broke</title><desc[^>]*>([^<]*)", text)
    assert counts == "mnist-mlp/st-emr: Wrong unattacked 8, APGD-CE 142, Still right 150"


OTHERWISE = [
    {"accuracy": {"clean": 97.3, "pgd20": 87.4}},
    {"eps": [{"written": "0.2", "value": 0.2}]},
    {"data": {"name": "mnist", "count": 300, "split": "validation"}},
    {"norm": "l2"},
]


@pytest.mark.parametrize("changes", OTHERWISE, ids=lambda changes: next(iter(changes)))
def test_what_judged_something_else_keeps_its_row(tmp_path, changes):
    write_whole_job(tmp_path / "seed-0")
    path = tmp_path / "seed-0" / "evaluation" / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    page_of(tmp_path)
    assert len({row["name"] for row in rows_of(tmp_path)}) == 2


def test_a_result_of_unknown_images_has_no_row_of_zeros(tmp_path):
    result = write_result(tmp_path / "seed-0")
    result["accuracy"]["autoattack"] = 40.0
    (tmp_path / "seed-0" / "result.json").write_text(json.dumps(result))
    assert 'id="autoattack"' not in page_of(tmp_path)


def numbers_of(**accuracy):
    return {"accuracy": accuracy, "margin_train": {"mean": 1.0}, "margin_test": {"mean": accuracy["clean"] / 100}}


def test_mean_and_spread_over_seeds_and_the_difference():
    cells = compare(
        ("clean", "pgd20", "margin_test"),
        {"clean": 98.0, "margin_test": [1.5, 0.2]},
        [
            numbers_of(clean=97.0, pgd20=50.0),
            numbers_of(clean=99.0, pgd20=52.0),
        ],
    )
    assert cells["clean"] == Cell(ours=98.0, spread=pytest.approx(2**0.5), paper=98.0)
    assert cells["clean"].difference == 0
    assert cells["pgd20"].text() == "51.00±1.41 / -"
    assert cells["margin_test"].paper == 1.5
    assert cells["margin_test"].difference == pytest.approx(0.98 - 1.5)


def test_seeds_that_agree_have_a_spread_of_zero():
    assert compare(("clean",), {}, [numbers_of(clean=97.0)] * 2)["clean"].text() == "97.00±0.00 / -"
    assert compare(("clean",), {}, [numbers_of(clean=97.0)])["clean"].text() == "97.00 / -"


def test_a_row_not_run_has_the_papers_number_alone():
    assert compare(("clean",), {"clean": 98.0}, [])["clean"].text() == "- / 98.00"


@pytest.mark.parametrize(("ours", "shown"), [(97.999, "+0.00"), (97.99, "-0.01"), (98.001, "+0.00"), (99.0, "+1.00")])
def test_a_difference_that_rounds_to_nothing_is_not_below(ours, shown):
    assert compare(("clean",), {"clean": 98.0}, [numbers_of(clean=ours)])["clean"].text().endswith(f"({shown})")


def test_the_pgd_column_is_each_rows_own():
    assert (
        compare(("pgd",), {"pgd": 15.0}, [numbers_of(clean=70.0, pgd10=16.0)])["pgd"].text() == "16.00 / 15.00 (+1.00)"
    )


def test_markdown_has_a_line_per_row():
    rows = [("a", compare(("clean",), {"clean": 98.0}, [])), ("b", compare(("clean",), {}, [numbers_of(clean=97.0)]))]
    assert markdown("T", ("clean",), rows).splitlines()[-2:] == ["| a | - / 98.00 |", "| b | 97.00 / - |"]
