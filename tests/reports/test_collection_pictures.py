"""The pictures show the numbers that were collected."""

from itertools import pairwise

import pytest
from job_folders import write_job

from widemargin.reports.collection.collect import collect
from widemargin.reports.collection.curve_picture import curve_figure, over_seeds
from widemargin.reports.collection.distance_picture import distance_figure
from widemargin.reports.collection.generate import by_recipe
from widemargin.reports.collection.histogram_picture import BARS, histogram_figure
from widemargin.reports.collection.picture_plans import CURVES, GROUPS
from widemargin.reports.collection.tree import read_tree

PLANS = {plan.file: plan for plan in CURVES}
MNIST = GROUPS[0]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    place = tmp_path_factory.mktemp("jobs")
    for seed in (0, 1):
        write_job(place / "runs", "mnist-mlp/st-emr", seed, margin=2.0 + seed, clean=90.0 + seed, later=("distance",))
    write_job(place / "runs", "mnist-mlp/st-wd0.001", margin=1.0)
    collect([place / "runs"], place / "results")
    return by_recipe(read_tree(place / "results"))


def test_curves_are_means_over_seeds_with_a_band(jobs):
    figure = curve_figure(PLANS["figure2-mnist-margins.png"], jobs)
    axes = figure.axes[1]
    assert axes.get_title(loc="left") == "Standard training, test images"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [label.rsplit(": ", 1)[0] for label in labels] == ["weight decay 0.001", "EMR (2 seeds)"]
    first, second = (dict(job.run.curve("test_margin_mean")) for job in jobs["mnist-mlp/st-emr"])
    drawn = dict(axes.lines[1].get_xydata())
    assert len(drawn) == 50
    assert drawn[50] == pytest.approx((first[50] + second[50]) / 2)
    assert labels[1].endswith(f": {drawn[50]:.2f}")
    assert len(axes.collections) == 2


def test_margins_that_mean_nothing_are_not_drawn_and_no_panel_cuts_what_another_needs(tmp_path):
    write_job(tmp_path / "runs", "mnist-mlp/st-wd0.001", margin=1e14)  # a network that always says the same
    write_job(tmp_path / "runs", "mnist-mlp/st-emr", margin=2.0)
    collect([tmp_path / "runs"], tmp_path / "results")
    figure = curve_figure(PLANS["figure2-mnist-margins.png"], by_recipe(read_tree(tmp_path / "results")))
    for axes in figure.axes[:2]:
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        assert labels[0] == "weight decay 0.001: no boundary"
        low, high = axes.get_ylim()
        assert low == 0
        assert max(max(line.get_ydata(), default=0) for line in axes.lines) < high < 10


def test_accuracies_begin_at_zero_only_where_they_come_near_it(tmp_path):
    for name, clean in (("st-emr", 90.0), ("st-wd0.001", 95.0)):
        write_job(tmp_path / "runs", f"mnist-mlp/{name}", clean=clean)
    collect([tmp_path / "runs"], tmp_path / "results")
    figure = curve_figure(PLANS["accuracy-mnist-mlp.png"], by_recipe(read_tree(tmp_path / "results")))
    for axes in figure.axes[:2]:
        values = [value for line in axes.lines for value in line.get_ydata()]
        assert (axes.get_ylim()[0] == 0) == (min(values) < max(values) / 2)


def test_a_panel_without_runs_says_so_and_a_picture_without_any_is_not_drawn(jobs):
    figure = curve_figure(PLANS["figure2-mnist-margins.png"], jobs)
    assert [text.get_text() for text in figure.axes[2].texts] == ["not run yet"]
    assert curve_figure(PLANS["figure2-cifar-margins.png"], jobs) is None
    assert histogram_figure(GROUPS[1], jobs) is None
    assert distance_figure("cifar-cnn", jobs) is None


def test_epochs_that_one_seed_lacks_are_left_out(jobs, tmp_path):
    for seed, epochs in ((0, 5), (1, 3)):
        write_job(tmp_path / "runs", "mnist-mlp/at-emr", seed, epochs=epochs)
    collect([tmp_path / "runs"], tmp_path / "results")
    epochs, values = over_seeds(read_tree(tmp_path / "results"), "test_clean")
    assert epochs == [1, 2, 3]
    assert len(values) == 3


def test_histograms_have_every_image_once_and_an_edge_at_zero(jobs):
    figure = histogram_figure(MNIST, jobs)
    axes, _ = figure.axes
    outlines = [patch.get_data() for patch in axes.patches]
    assert len(outlines) == 4  # an outline and its filling for each of two
    for outline in outlines:
        assert sum(outline.values) == pytest.approx(100.0)
        assert len(outline.values) <= BARS + 1
        assert any(edge == 0 for edge in outline.edges)
        widths = [right - left for left, right in pairwise(outline.edges)]
        assert max(widths) == pytest.approx(min(widths))


def test_the_mean_of_a_histogram_is_that_of_the_images(jobs):
    axes = histogram_figure(MNIST, jobs).axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert float(labels[0].split()[-1]) == pytest.approx(1.0, abs=0.05)
    assert float(labels[1].split()[-1]) == pytest.approx(2.5, abs=0.05)


def test_distances_are_of_the_first_seed(jobs):
    (axes,) = distance_figure("mnist-mlp", jobs).axes
    assert axes.get_title(loc="left") == "st-emr, seed 0"
    points = axes.collections[0].get_offsets()
    assert [tuple(point) for point in points] == [tuple(pair) for pair in jobs["mnist-mlp/st-emr"][0].distance.pairs]
    assert axes.get_xlim() == axes.get_ylim()
    assert "rank correlation 0.912" in axes.texts[0].get_text()
