"""The leaderboard: which evaluations are one model, which models one row, and what is said of each."""

import pytest

from report_folders import ALARM, page_of, write_evaluation, write_result, write_run
from widemargin.evaluation.comparison import wilson
from widemargin.report.findings import search
from widemargin.report.leaderboard import NUMBERS, models, ranking, standings
from widemargin.report.tables import Table


def rows_of(folder, references=None):
    return standings(models(search([folder])), references or {})


def table_of(folder) -> Table:
    (table,) = ranking(search([folder]), {})
    assert isinstance(table, Table)
    return table


def cell(table, row, column):
    place = [head.title for head in table.heads].index(column)
    return next(entries[place] for entries in table.rows if entries[0].text == row)


def test_an_attack_here_and_a_distance_there_are_one_model(tmp_path):
    write_run(tmp_path / "runs" / "at", epochs=3)
    write_evaluation(tmp_path / "attacked", target=str(tmp_path / "runs" / "at"), distance=None)
    write_evaluation(
        tmp_path / "far",
        target=str(tmp_path / "runs" / "at"),
        norm="l2",
        eps=[{"written": "1", "value": 1.0}],
        attacks=["clean"],
        accuracy={"clean": 91.0},
        distance={"count": 900, "median": 0.75, "rank_correlation": 0.9},
    )
    table = table_of(tmp_path)
    assert [row[0].text for row in table.rows] == ["cifar-resnet18/at"]
    assert cell(table, "cifar-resnet18/at", "Threat").text == "L∞ 0.031"
    assert cell(table, "cifar-resnet18/at", "Distance found").text == "0.75"
    assert cell(table, "cifar-resnet18/at", "Distance found").below == ("L2, 900 images",)
    assert "Certified" not in [head.title for head in table.heads]  # nobody has one


def test_one_seed_has_the_interval_of_its_images_and_its_alarms(tmp_path):
    report = write_evaluation(tmp_path / "one", alarms=(ALARM,))
    table = table_of(tmp_path)
    low, high = wilson(round(10 * report["accuracy"]["autoattack"]), 1000)
    autoattack = cell(table, "cifar-resnet18/at", "AutoAttack")
    assert autoattack.text == f"{report['accuracy']['autoattack']:.2f}"
    assert autoattack.below == (f"{low:.1f} to {high:.1f}",)
    assert not autoattack.best  # alone
    assert cell(table, "cifar-resnet18/at", "Strongest PGD").below[-1] == "PGD-100"
    assert cell(table, "cifar-resnet18/at", "Model").below == (f"alarms: {ALARM['name']}",)


def test_seeds_of_one_configuration_are_one_row_with_students_interval(tmp_path):
    for seed, clean in enumerate((97.0, 97.4, 98.1)):
        write_result(tmp_path / "st-emr" / f"seed-{seed}", seed=seed, clean=clean)
    write_result(tmp_path / "other" / "seed-0", seed=0, clean=90.0, recipe="mnist-mlp/st-wd0.01")
    table = table_of(tmp_path)
    assert [row[0].text for row in table.rows] == ["mnist-mlp/st-emr", "mnist-mlp/st-wd0.01"]
    clean = cell(table, "mnist-mlp/st-emr", "Clean")
    assert clean.text == "97.50"
    assert clean.below == ("± 1.38",)  # 4.303 * 0.5568 / sqrt(3)
    assert clean.best
    assert not cell(table, "mnist-mlp/st-wd0.01", "Clean").best
    assert cell(table, "mnist-mlp/st-emr", "Model").below == ("3 seeds",)


def test_other_settings_data_and_quick_jobs_are_other_rows(tmp_path):
    write_evaluation(tmp_path / "a")
    write_evaluation(tmp_path / "b", data={"name": "cifar10", "split": "validation", "count": 1000})
    write_evaluation(tmp_path / "c", data={"name": "elsewhere", "split": "test", "count": 1000})
    write_result(tmp_path / "quick" / "seed-0", seed=0, quick=True)
    rows = rows_of(tmp_path)
    assert len(rows) == 4
    assert [row.label.startswith("quick ") for row in rows].count(True) == 1
    assert {row.data for row in rows} == {"cifar10", "cifar10, validation", "elsewhere", "mnist"}


def test_two_of_one_name_are_told_apart(tmp_path):
    write_evaluation(tmp_path / "a", target="a")
    write_evaluation(tmp_path / "b", target="b", gain=1.0, seed=4)
    first, second = rows_of(tmp_path)
    assert first.label != second.label


def test_the_best_is_marked_on_the_same_data_under_the_same_threat(tmp_path):
    write_evaluation(tmp_path / "weak", name="weak", target="weak")
    write_evaluation(tmp_path / "strong", name="strong", target="strong", gain=1.0, seed=4)
    write_evaluation(
        tmp_path / "apart", name="apart", target="apart", data={"name": "other", "split": "test", "count": 1000}
    )
    table = table_of(tmp_path)
    assert [cell(table, name, "AutoAttack").best for name in ("strong", "weak", "apart")] == [True, False, False]
    assert table.rows[0][0].text == "strong"
    assert r"\textbf{" in table.latex()
    assert r"\label{tab:leaderboard}" in table.latex()
    assert "**" in table.markdown()


def test_the_threat_is_that_of_the_configuration(tmp_path):
    eps = [{"written": "0.01", "value": 0.01}, {"written": "0.031", "value": 0.031}]
    accuracy = {"clean": 90.0, "pgd10@0.01": 70.0, "pgd10@0.031": 40.0}
    write_run(tmp_path / "at", epochs=3)
    write_evaluation(
        tmp_path / "e", target=str(tmp_path / "at"), eps=eps, accuracy=accuracy, attacks=["clean", "pgd10"]
    )
    (row,) = rows_of(tmp_path)
    assert row.threat == "L∞ 0.031"
    assert [
        column.number(row.models[0]) and column.number(row.models[0]).value for column in [*NUMBERS.values()][:3]
    ] == [
        90,
        None,
        40,
    ]


def test_nothing_judged_is_no_leaderboard(tmp_path):
    write_run(tmp_path / "at", epochs=2)
    assert ranking(search([tmp_path]), {}) == []


def test_it_comes_first_and_the_other_numbers_are_folded(tmp_path):
    write_evaluation(tmp_path / "runs" / "e")
    html = page_of(tmp_path / "runs")
    assert html.index('id="leaderboard"') < html.index('id="alarms"') < html.index('id="results"')
    assert "<summary>Every number, by evaluation and by seed</summary>" in html


@pytest.mark.parametrize("name", ["<b>x</b>", '"><script>alert(1)</script>', "a|b*c"])
def test_names_from_files_are_text(tmp_path, name):
    write_evaluation(tmp_path / "runs" / "e", name=name)
    html = page_of(tmp_path / "runs")
    assert name not in html.replace("a|b*c", "") or "<" not in name
