"""Charts: round ticks, honest places, and no data that cannot be drawn."""

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from widemargin.report.charts import MOST_POINTS, Sample, histogram, line_chart, scatter
from widemargin.report.compare import changes, lead_to, toml_value
from widemargin.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Series, Text, span, ticks, whole_ticks
from widemargin.report.sweeps import luminance
from widemargin.report.tables import Entry, Head, Table
from widemargin.report.wording import duration

TEXT = Text(id="t", title="a title", description="words", x="across", y="up")
numbers = st.floats(-1e6, 1e6)


@given(st.lists(numbers, min_size=1), st.booleans())
@example([0.0, 5e-324], False)
@example([-1e-308, 1e-308], True)
@example([1e-200, 1.5e-200], False)
def test_ticks_cover_the_data_and_are_few(values, zero):
    low, high = span(values, zero=zero)
    marked = [tick.value for tick in ticks(low, high)]
    slack = 1e-6 * (high - low)
    assert marked[0] <= low + slack
    assert marked[-1] >= high - slack
    assert 2 <= len(marked) <= 8
    assert len({tick.text for tick in ticks(low, high)}) == len(marked)


@given(st.integers(1, 400), st.integers(0, 400))
def test_epochs_are_whole(first, more):
    marked = [tick.value for tick in whole_ticks(first, first + more)] if more else []
    assert all(value == int(value) and first <= value <= first + more for value in marked)
    assert len(marked) <= 8


def places(picture):
    return [tuple(map(float, pair)) for pair in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", picture)]


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=30, unique_by=lambda point: point[0]))
def test_lines_stay_inside_the_frame(points):
    picture = line_chart(TEXT, [Series(label="a", color=0, points=sorted(points))])
    for x, y in places(picture):
        assert LEFT - 1 <= x <= WIDTH - RIGHT + 1
        assert TOP - 1 <= y <= HEIGHT - BOTTOM + 1


@pytest.mark.parametrize("value", [0.0, 100.0, 37.5])
def test_a_flat_line_in_percent(value):
    picture = line_chart(TEXT, [Series(label="a", color=0, points=[(1, value), (2, value)])], percent=True)
    written = [float(text.replace("\N{MINUS SIGN}", "-")) for text in re.findall(r'end">([^<a-z]+)<', picture)]
    assert min(written) >= 0
    assert max(written) <= 100


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50))
def test_any_margins_make_a_histogram(values):
    picture = histogram(TEXT, [Sample("a", 0, values)])
    assert "nan" not in picture
    assert picture.count("<path") == 2


def test_a_cloud_is_thinned():
    points = [(k / 10000, math.sin(k)) for k in range(10000)]
    assert 1000 < len(re.findall("h0", scatter(TEXT, points, 0))) <= MOST_POINTS
    assert len(re.findall("h0", scatter(TEXT, [(0.0, 0.0)], 0))) == 1


def test_tables_stay_tables_whatever_the_words():
    table = Table(title="a_b", heads=[Head("x|y"), Head("z", "%")], rows=[[Entry("a|b\nc"), Entry("5 ± 1", ("p_q",))]])
    assert table.markdown().splitlines()[2] == r"| a\|b c | 5 ± 1 (p\_q) |"
    assert r"a|b c & 5 $\pm$ 1 (p\_q) \\" in table.latex()
    assert r"\caption{a\_b}" in table.latex()
    assert r"x|y & z (\%) \\" in table.latex()


def test_changes_are_what_set_takes():
    recipe = {"name": "r", "epochs": 3, "model": {"kind": "mlp", "hidden": [8]}, "emr": {"weight": 1.0}}
    ours = {"name": "r", "epochs": 4, "model": {"kind": "cnn", "width": 2}, "data": {"name": "x"}}
    assert changes(ours, recipe) == [
        "epochs=4",
        'model={kind = "cnn", width = 2}',
        "emr=none",
        'data={name = "x"}',
    ]
    assert lead_to(changes(ours, recipe), recipe, ours)
    assert not lead_to(["epochs=4"], recipe, ours)
    assert changes(recipe, recipe) == []
    assert toml_value([True, "8/255", 0.1]) == '[true, "8/255", 0.1]'


def test_black_and_white_are_as_bright_as_can_be():
    assert luminance([0, 0, 0]) == 0
    assert luminance([255, 255, 255]) == pytest.approx(1)


def test_durations():
    assert [duration(s) for s in (0.84, 59, 61, 3600, 3725)] == [
        "0.8 s",
        "59.0 s",
        "1 min 01 s",
        "1 h 00 min",
        "1 h 02 min",
    ]
