import pytest

from widemargin.report.compare import Cell, compare, markdown


def result(**accuracy):
    return {"accuracy": accuracy, "margin_train": {"mean": 1.0}, "margin_test": {"mean": accuracy["clean"] / 100}}


def test_mean_and_spread_over_seeds_and_the_difference():
    cells = compare(
        ("clean", "pgd20", "margin_test"),
        {"clean": 98.0, "margin_test": [1.5, 0.2]},
        [
            result(clean=97.0, pgd20=50.0),
            result(clean=99.0, pgd20=52.0),
        ],
    )
    assert cells["clean"] == Cell(ours=98.0, spread=pytest.approx(2**0.5), paper=98.0)
    assert cells["clean"].difference == 0
    assert cells["pgd20"].text() == "51.00±1.41 / -"
    assert cells["margin_test"].paper == 1.5
    assert cells["margin_test"].difference == pytest.approx(0.98 - 1.5)


def test_seeds_that_agree_have_a_spread_of_zero():
    assert compare(("clean",), {}, [result(clean=97.0)] * 2)["clean"].text() == "97.00±0.00 / -"
    assert compare(("clean",), {}, [result(clean=97.0)])["clean"].text() == "97.00 / -"


def test_a_row_not_run_has_the_papers_number_alone():
    assert compare(("clean",), {"clean": 98.0}, [])["clean"].text() == "- / 98.00"


@pytest.mark.parametrize(("ours", "shown"), [(97.999, "+0.00"), (97.99, "-0.01"), (98.001, "+0.00"), (99.0, "+1.00")])
def test_a_difference_that_rounds_to_nothing_is_not_below(ours, shown):
    assert compare(("clean",), {"clean": 98.0}, [result(clean=ours)])["clean"].text().endswith(f"({shown})")


def test_the_pgd_column_is_each_rows_own():
    assert compare(("pgd",), {"pgd": 15.0}, [result(clean=70.0, pgd10=16.0)])["pgd"].text() == "16.00 / 15.00 (+1.00)"


def test_markdown_has_a_line_per_row():
    rows = [("a", compare(("clean",), {"clean": 98.0}, [])), ("b", compare(("clean",), {}, [result(clean=97.0)]))]
    assert markdown("T", ("clean",), rows).splitlines()[-2:] == ["| a | - / 98.00 |", "| b | 97.00 / - |"]
