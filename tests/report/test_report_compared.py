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


def with_config(folder, *, evaluated=None, **changes):
    """An evaluation that knows its run's configuration."""
    config = to_dict(find_recipe("cifar-resnet18/at").config)
    config |= {"data": config["data"] | changes.pop("data", {})} | changes
    write_evaluation(folder, count=20, config=config, **(evaluated or {}))


def without_config(**changes):
    return lambda folder: write_evaluation(folder, count=20, **changes)


def judged(**changes):
    return lambda folder: with_config(folder, evaluated=changes)


def trained(**changes):
    return lambda folder: with_config(folder, **changes)


def judged_on(name, count=20, **more):
    return {"data": {"name": name, "split": "test", "count": count} | more}


CLEAN, ATTACKED, CHANGED = "paper 83.39", "paper 50.88", "Differs from its recipe"
NOT, FIRST = "so it is not compared", "judged on the first 20 of "
ELSEWHERE = "it was judged on {}, its recipe's data is cifar10, so it is not compared with the paper"
STEPS = "its PGD has steps of {}, the recipe's of 0.00784, so it is not compared"
COMPARED = [
    (judged(), [CLEAN, ATTACKED], [NOT, CHANGED]),
    (judged(eps=[{"written": "8/255", "value": 8 / 255}]), [CLEAN, "under attack only at linf eps 0.031"], [ATTACKED]),
    (without_config(), ["its configuration is not known, so it is not compared with the paper"], [CLEAN, ATTACKED]),
    (trained(epochs=60), [CLEAN, CHANGED, ">epochs=60<"], [NOT]),
    (trained(epochs=50), [CLEAN], [NOT]),
    (trained(epochs=2), [f"it was trained for 2 epochs, its recipe for 100, {NOT} with the paper"], [CLEAN]),
    (trained(epochs=1), [f"it was trained for 1 epoch, its recipe for 100, {NOT} with the paper"], [CLEAN]),
    (trained(data={"train_limit": 500}), [f"it was trained on 500 images alone, {NOT} with the paper"], [CLEAN]),
    (judged(**judged_on("svhn")), [ELSEWHERE.format("svhn")], [CLEAN, ATTACKED]),
    (judged(**judged_on("cifar10-embedded")), [ELSEWHERE.format("cifar10-embedded")], [CLEAN, ATTACKED]),
    (without_config(**judged_on("cifar10")), [f"{FIRST}10,000 test images"], []),
    (without_config(**judged_on("cifar10", 10_000)), [], [FIRST]),
    (without_config(**judged_on("x")), [], [FIRST]),
    (without_config(**judged_on("mine.npz", whole=90)), [f"{FIRST}90 test images"], []),
    *((judged(step_size=step), [CLEAN, ATTACKED], [NOT]) for step in (0.0078, 2 / 255, None)),
    *((judged(step_size=step), [CLEAN, STEPS.format(f"{step:g}")], [ATTACKED]) for step in (1e-6, 0.025)),
    (lambda folder: write_run(folder, epochs=49), [NOT], [CLEAN]),
    (lambda folder: write_run(folder, epochs=50), [CLEAN], [NOT]),
]


@pytest.mark.parametrize(("make", "said", "unsaid"), COMPARED)
def test_what_is_compared_and_why_not(tmp_path, make, said, unsaid):
    make(tmp_path / "e")
    text = html.unescape(page_of(tmp_path))
    assert [words for words in said if words not in text] == []
    assert [words for words in unsaid if words in text] == []


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
    assert "- mnist-mlp/st-emr, mean of 2 seeds: ± over seeds." in lines
    assert "- All: made quick: a short run and short attacks, not to be compared." in lines
    result["config"]["batch_size"] = 7
    (tmp_path / "seed-1" / "result.json").write_text(json.dumps(result | {"quick": True}))
    page_of(tmp_path)
    text = (tmp_path.parent / f"{tmp_path.name}-out" / "report.md").read_text()
    assert text.count(" | epochs=2, batch\\_size=7 |\n") == 4  # of both seeds, of their mean, in the leaderboard


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


CELLS = [
    (("clean",), {}, [{"clean": 97.0}] * 2, "97.00±0.00 / -"),
    (("clean",), {}, [{"clean": 97.0}], "97.00 / -"),
    (("clean",), {"clean": 98.0}, [], "- / 98.00"),
    (("pgd",), {"pgd": 15.0}, [{"clean": 70.0, "pgd10": 16.0}], "16.00 / 15.00 (+1.00)"),
    *(
        (("clean",), {"clean": 98.0}, [{"clean": ours}], f"{ours:.2f} / 98.00 ({shown})")  # none is below by nothing
        for ours, shown in ((97.999, "+0.00"), (97.99, "-0.01"), (98.001, "+0.00"), (99.0, "+1.00"))
    ),
]


@pytest.mark.parametrize(("columns", "published", "ours", "shown"), CELLS)
def test_a_cell_in_words(columns, published, ours, shown):
    (cell,) = compare(columns, published, [numbers_of(**accuracy) for accuracy in ours]).values()
    assert cell.text() == shown


def test_markdown_has_a_line_per_row():
    rows = [("a", compare(("clean",), {"clean": 98.0}, [])), ("b", compare(("clean",), {}, [numbers_of(clean=97.0)]))]
    assert markdown("T", ("clean",), rows).splitlines()[-2:] == ["| a | - / 98.00 |", "| b | 97.00 / - |"]
