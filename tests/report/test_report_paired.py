"""Models against a baseline, class by class, and the table that a paper has."""

import csv
import io
import json

import pytest
from test_report_leaderboard import cell

from report_folders import page_of, write_evaluation, write_result
from widemargin import InputError
from widemargin.cli.main import run
from widemargin.evaluation import compare
from widemargin.report.classes import SHOWN, accuracy_by_class
from widemargin.report.findings import search
from widemargin.report.paired import paired_differences

AT, EMR = "cifar-resnet18/at", "cifar-resnet18/at-emr"


def table_of(folder, baseline):
    parts = paired_differences(search([folder]), {}, baseline)
    return parts[0] if parts else None


def seeded(seed):
    return {"config": {"name": AT, "seed": seed}, "target": f"runs/{seed}"}


def test_one_evaluation_each_is_what_compare_says(tmp_path):
    write_evaluation(tmp_path / "at")
    write_evaluation(tmp_path / "emr", name=EMR, target="emr", gain=1.0, seed=4)
    table = table_of(tmp_path, AT)
    assert [row[0].text for row in table.rows] == [EMR]
    for column, by in (("Clean", "clean"), ("Attacked", "autoattack"), ("Distance found", "distance")):
        expected = compare(tmp_path / "emr", tmp_path / "at", by)
        found = cell(table, EMR, column)
        spell = "{:+.4g}" if by == "distance" else "{:+.2f}"
        told = (spell.format(value).replace("-", "\N{MINUS SIGN}") for value in (expected.low, expected.high))
        assert found.text == spell.format(expected.difference).replace("-", "\N{MINUS SIGN}")
        assert found.below[0] == " to ".join(told)
        assert found.best == expected.decided
    assert cell(table, EMR, "Attacked").below[-1] == "AutoAttack"
    assert cell(table, EMR, "Attacked").best  # so that this can fail
    assert table.heads[1].detail == "points"


def test_seeds_are_paired_with_seeds_and_one_with_its_own(tmp_path):
    for seed in (0, 1, 2):
        write_evaluation(tmp_path / f"at-{seed}", seed=seed, **seeded(seed))
        write_evaluation(
            tmp_path / f"emr-{seed}", name=EMR, gain=1.0, seed=9 + seed, **seeded(seed) | {"target": f"emr/{seed}"}
        )
    write_evaluation(tmp_path / "one", name="one", seed=1, **seeded(1) | {"target": "one"})
    table = table_of(tmp_path, AT)
    sides = [[tmp_path / f"{name}-{seed}" for seed in (0, 1, 2)] for name in ("emr", "at")]
    expected = compare(*sides, "autoattack")
    assert cell(table, EMR, "Attacked").text == f"{expected.difference:+.2f}"
    assert cell(table, EMR, "Attacked").below[1] == "3 seeds, paired"
    assert cell(table, "one", "Clean").text == "+0.00"  # the same numbers as the baseline's seed 1
    assert cell(table, "one", "Clean").below[1] == "p 1.000"


def test_what_was_judged_otherwise_is_not_compared(tmp_path):
    write_evaluation(tmp_path / "at")
    write_evaluation(tmp_path / "few", name="few", target="few", count=500)
    write_evaluation(tmp_path / "other", name="other", target="o", data={"name": "x", "split": "test", "count": 1000})
    write_result(tmp_path / "job" / "seed-0")
    assert table_of(tmp_path, AT) is None
    write_evaluation(tmp_path / "emr", name=EMR, target="emr", seed=4)
    table = table_of(tmp_path, AT)
    assert [[entry.text for entry in row[1:]] for row in table.rows if row[0].text == "few"] == [["-"] * 4]
    assert "Not judged in the same way on the same images: few." in table.notes
    assert "other" not in [row[0].text for row in table.rows]


def test_a_damaged_record_is_a_dash(tmp_path):
    write_evaluation(tmp_path / "at")
    write_evaluation(tmp_path / "emr", name=EMR, target="emr", seed=4)
    (tmp_path / "emr" / "examples.jsonl").write_text("{broken\n")
    assert table_of(tmp_path, AT) is None


@pytest.mark.parametrize(("name", "there"), [("nothing", f"there are {EMR}, {AT}"), ("", "there are")])
def test_a_baseline_that_is_not_there_is_refused(tmp_path, name, there):
    write_evaluation(tmp_path / "at")
    write_evaluation(tmp_path / "emr", name=EMR, target="emr", gain=1.0, seed=4)
    with pytest.raises(InputError, match=f"--baseline '{name}' is no model of this report; {there}"):
        table_of(tmp_path, name)


def with_classes(folder, shares, **options):
    accuracy = {"count": [10] * len(shares), "accuracy": {"clean": [99.0] * len(shares), "autoattack": shares}}
    write_evaluation(folder, classes=accuracy, **options)


def test_classes_are_those_of_the_strongest_attack_and_the_mean_over_seeds(tmp_path):
    with_classes(tmp_path / "a", [50.0, 30.0, None], seed=1, **seeded(1))
    with_classes(tmp_path / "b", [70.0, 20.0, None], seed=2, **seeded(2))
    _, table = accuracy_by_class(search([tmp_path]), {})
    ((name, lowest, mean, *shares),) = table.rows
    assert (name.text, name.below) == (AT, ("AutoAttack",))
    assert (lowest.text, lowest.below, mean.text) == ("25.0", ("class 1",), "42.5")
    assert [share.text for share in shares] == ["60", "25", "-"]
    assert shares[0].style != shares[1].style
    assert [head.title for head in table.heads[3:]] == ["Class 0", "Class 1", "Class 2"]


def test_of_many_classes_the_lowest_are_named(tmp_path):
    with_classes(tmp_path / "a", [90.0 - number for number in range(SHOWN + 1)])
    _, table = accuracy_by_class(search([tmp_path]), {})
    assert table.rows[0][3].text == "20: 70.0, 19: 71.0, 18: 72.0, 17: 73.0, 16: 74.0"


@pytest.mark.parametrize("share", ["much", 101, [1]])
def test_classes_that_are_no_shares_are_a_fault(tmp_path, share):
    with_classes(tmp_path / "a", [50.0, share])
    write_evaluation(tmp_path / "good", target="good")
    found = search([tmp_path])
    assert len(found.evaluations) == 1
    assert "classes.accuracy.autoattack" in found.faults[0]


def test_chosen_columns_are_all_that_a_paper_gets(tmp_path):
    for number, name in enumerate((AT, EMR)):
        write_evaluation(tmp_path / "in" / str(number), name=name, target=name, gain=float(number), seed=3 + number)
    out = tmp_path / "out.html"
    columns = "autoattack,clean,data"
    assert run(["report", str(tmp_path / "in"), "--out", str(out), "--columns", columns, "--baseline", AT]) == 0
    rows = list(csv.reader(io.StringIO(out.with_suffix(".csv").read_text())))
    assert rows[0] == [
        *("model", "seeds"),
        *("autoattack", "autoattack_low", "autoattack_high"),
        *("clean", "clean_low", "clean_high", "data"),
    ]
    accuracy = json.loads((tmp_path / "in" / "1" / "report.json").read_text())["accuracy"]
    assert rows[1][:2] == [EMR, "1"]
    assert float(rows[1][2]) == pytest.approx(accuracy["autoattack"])
    assert float(rows[1][3]) < accuracy["autoattack"] < float(rows[1][4])
    assert rows[1][-1] == "cifar10"
    latex, markdown = out.with_suffix(".tex").read_text(), out.with_suffix(".md").read_text()
    assert r"Model & AutoAttack (\%) & Clean (\%) & Data \\" in latex
    assert latex.count(r"\begin{table}") == 1
    assert f"\\textbf{{{accuracy['autoattack']:.2f}}} ({float(rows[1][3]):.1f} to {float(rows[1][4]):.1f})" in latex
    assert markdown.count("\n| Model |") == 1
    assert f"Against {AT}" in out.read_text()


@pytest.mark.parametrize("columns", ["clean,nonsense", "clean,clean"])
def test_columns_that_are_none_are_refused(refused, tmp_path, columns):
    write_evaluation(tmp_path / "e")
    line = refused("report", tmp_path / "e", "--out", tmp_path / "out.html", "--columns", columns)
    assert "there are data, threat, clean, autoattack, pgd, distance, certified, differs" in line
    assert not (tmp_path / "out.html").exists()


def test_a_note_on_many_rows_is_said_once(tmp_path):
    for number in range(5):
        write_evaluation(tmp_path / str(number), name=None, target=f"m{number}", count=500 if number else 1000)
    page_of(tmp_path)
    text = (tmp_path.parent / f"{tmp_path.name}-out" / "report.md").read_text()
    assert text.count("judged on the first 500 of 10,000 test images") == 1
    assert text.count(r"\[1\]") == 5  # at four rows, and at the note
    assert text.count("judged on the first 1,000 of 10,000 test images") == 1
