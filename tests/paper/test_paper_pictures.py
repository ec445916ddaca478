"""The pictures show the numbers that were collected."""

import json
import re
from dataclasses import replace
from itertools import combinations, groupby, pairwise, product

import pytest
from matplotlib.colors import to_rgb
from paper.collect import collect
from paper.figures import BARS, _mean_bin, curve_figure, distance_figure, eps_figure, histogram_figure, mean_curve
from paper.page import by_recipe, generate
from paper.plans import CURVES, GROUPS
from paper.rows import method_title
from paper.style import limits
from paper.tree import over_seeds, read_tree

from job_folders import write_job
from widemargin.recipes import find_recipe

PLANS = {plan.file: plan for plan in CURVES}
MNIST = GROUPS[0]
RESNET = GROUPS[2]


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
    assert [label.rsplit(": ", 1)[0] for label in labels] == ["weight decay 0.001", "EMR, weight decay 0.001 (2 seeds)"]
    first, second = (dict(job.run.curve("test_margin_mean")) for job in jobs["mnist-mlp/st-emr"])
    drawn = dict(axes.lines[1].get_xydata())
    assert len(drawn) == 50
    assert drawn[50] == pytest.approx((first[50] + second[50]) / 2)
    assert labels[1].endswith(f": {drawn[50]:.2f}")
    assert len(axes.collections) == 1  # that of the two seeds


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


@pytest.mark.parametrize(("values", "zero"), [((90.0, 95.0), False), ((33.0, 96.0), False), ((31.0, 96.0), True)])
def test_accuracies_begin_at_zero_only_where_they_come_near_it(values, zero):
    low, high = limits(values, near_zero_only=True)
    assert (low == 0) is zero
    assert low < min(values) < max(values) < high


def test_an_axis_has_room_even_for_one_value():
    for values in ((0.0,), (2.0, 2.0)):
        for zoom in (False, True):
            low, high = limits(values, zoom=zoom)
            assert low <= min(values) < high


def test_a_panel_without_runs_is_left_out_and_a_picture_without_any_is_not_drawn(jobs):
    figure = curve_figure(PLANS["figure2-mnist-margins.png"], jobs)
    assert [axes.get_title(loc="left").partition(",")[0] for axes in figure.axes] == ["Standard training"] * 2
    assert len(histogram_figure(MNIST, jobs).axes) == 1
    assert curve_figure(PLANS["figure2-cifar-margins.png"], jobs) is None
    assert histogram_figure(GROUPS[1], jobs) is None
    assert distance_figure("cifar-cnn", jobs) is None
    assert eps_figure(MNIST, jobs) is None


def test_epochs_that_one_seed_lacks_are_left_out(jobs, tmp_path):
    for seed, epochs in ((0, 5), (1, 3)):
        write_job(tmp_path / "runs", "mnist-mlp/at-emr", seed, epochs=epochs)
    collect([tmp_path / "runs"], tmp_path / "results")
    epochs, values = over_seeds(read_tree(tmp_path / "results"), "test_clean")
    assert epochs == [1, 2, 3]
    assert len(values) == 3


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Every recipe that a picture shows, three seeds: the longest labels."""
    place = tmp_path_factory.mktemp("everything")
    shown = {line.recipe for plan in (*CURVES, *GROUPS) for panel in plan.panels for line in panel.lines}
    for recipe, seed in product(sorted(shown), range(3)):
        write_job(place / "runs", recipe, seed, epochs=2, later=() if recipe.startswith("mnist") else ("eps",))
    collect([place / "runs"], place / "results")
    return by_recipe(read_tree(place / "results"))


PICTURES = (
    *((curve_figure, plan) for plan in CURVES),
    *((histogram_figure, plan) for plan in GROUPS[:2]),
    *((eps_figure, plan) for plan in GROUPS[1:]),
)


@pytest.mark.parametrize(("draw", "plan"), PICTURES)
def test_no_legend_runs_into_its_neighbour(draw, plan, everything):
    _check_legends(draw(plan, everything))


@pytest.mark.parametrize(
    ("draw", "plan"), [(curve_figure, PLANS["figure2-mnist-margins.png"]), (histogram_figure, MNIST)]
)
def test_a_remark_on_a_collapsed_network_has_room(draw, plan, collapsed):
    _check_legends(draw(plan, collapsed))


def _check_legends(figure):
    figure.draw_without_rendering()
    legends = [axes.get_legend().get_window_extent() for axes in figure.axes if axes.get_legend()]
    assert not [pair for pair in combinations(legends, 2) if pair[0].overlaps(pair[1])]
    words = [
        text.get_window_extent()
        for axes in figure.axes
        for text in (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label)
        if text.get_text()
    ]
    assert not [pair for pair in product(legends, words) if pair[0].overlaps(pair[1])]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in legends)


def test_a_weight_decay_has_one_color_and_a_larger_one_is_darker(everything):
    figure = curve_figure(PLANS["figure1-margins.png"], everything)
    panels = [{_before_numbers(line.get_label()): line.get_color() for line in a.lines} for a in figure.axes[1:]]
    assert len(panels[0]) == len(panels[1]) == 5
    assert all(panels[1][name] == color for name, color in panels[0].items() if name in panels[1])
    for panel in panels:
        light = [sum(to_rgb(color)) for color in panel.values()]
        assert light == sorted(light, reverse=True)


def _before_numbers(label):
    return label.split(" (")[0]


@pytest.mark.parametrize(("epochs", "marker"), [(1, "o"), (2, "None")])
def test_a_curve_of_one_epoch_is_a_dot(tmp_path, epochs, marker):
    write_job(tmp_path / "runs", "mnist-mlp/st-emr", epochs=epochs)
    collect([tmp_path / "runs"], tmp_path / "results")
    figure = curve_figure(PLANS["figure2-mnist-margins.png"], by_recipe(read_tree(tmp_path / "results")))
    assert [line.get_marker() for axes in figure.axes for line in axes.lines] == [marker, marker]


def test_histograms_have_every_image_once_and_an_edge_at_zero(jobs):
    figure = histogram_figure(MNIST, jobs)
    (axes,) = figure.axes
    outlines = [patch.get_data() for patch in axes.patches]
    assert len(outlines) == 3  # an outline for each of two, EMR's with a filling
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


@pytest.mark.parametrize(("images", "said"), [(4000, " (50% without a boundary)"), (2010, ""), (300, "")])
def test_images_without_a_boundary_take_their_share_of_a_histogram(tmp_path, images, said):
    write_job(tmp_path / "runs", "mnist-mlp/st-emr")
    collect([tmp_path / "runs"], tmp_path / "results")
    path = tmp_path / "results" / "rows" / "mnist-mlp-st-emr" / "seed-0" / "evaluation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data": {"name": "mnist", "count": images}}))
    axes = histogram_figure(MNIST, by_recipe(read_tree(tmp_path / "results"))).axes[0]
    assert sum(axes.patches[0].get_data().values) == pytest.approx(100 * 2000 / max(images, 2000))
    label = axes.get_legend().get_texts()[0].get_text()
    assert label.endswith(said)
    assert ("without" in label) is bool(said)


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory):
    """A row that classifies less well, and one that has not learned; two seeds of one row."""
    place = tmp_path_factory.mktemp("collapsed")
    for recipe, clean in (("st-wd0.001", 98.0), ("st-wd0.01", 80.0), ("st-lsoftmax-wd0.001", 50.0), ("st-emr", 78.0)):
        for seed in range(2 if recipe == "st-wd0.001" else 1):
            write_job(place / "runs", f"mnist-mlp/{recipe}", seed, clean=clean, epochs=2, later=("distance",))
    collect([place / "runs"], place / "results")
    return by_recipe(read_tree(place / "results"))


def test_margins_of_a_network_that_classifies_badly_say_so(collapsed):
    margins = curve_figure(PLANS["figure2-mnist-margins.png"], collapsed).axes[1]
    assert ["clean" in line.get_label() for line in margins.lines] == [False, False, True, True]
    assert re.search(r": [\d.]+\n\(collapsed, clean \d\d%\)$", margins.lines[2].get_label())
    assert re.search(r": [\d.]+ \(clean 7\d%\)$", margins.lines[3].get_label())
    histogram = histogram_figure(MNIST, collapsed).axes[0].get_legend().get_texts()
    assert ["collapsed" in text.get_text() for text in histogram] == [False, False, True, False]
    clouds = distance_figure("mnist-mlp", collapsed).axes
    assert ["collapsed" in axes.texts[0].get_text() for axes in clouds] == [False, False, True, False]


def test_a_collapsed_network_is_dotted_and_a_single_seed_beside_several_dashed(collapsed):
    margins = curve_figure(PLANS["figure2-mnist-margins.png"], collapsed).axes[1]
    several, single, fallen, emr = margins.lines
    assert several.get_linestyle() == "-"
    assert single.get_linestyle() == emr.get_linestyle() == "--"
    assert [line.get_alpha() == 1 for line in margins.lines] == [True, True, False, True]
    assert fallen._dash_pattern != single._dash_pattern
    one_each = {recipe: found[:1] for recipe, found in collapsed.items()}
    alone = curve_figure(PLANS["figure2-mnist-margins.png"], one_each).axes[1]
    assert [line.get_linestyle() for line in alone.lines] == ["-", "-", "--", "-"]


def test_accuracies_of_a_collapsed_network_are_below_the_axis(collapsed):
    axes = curve_figure(PLANS["accuracy-mnist-mlp.png"], collapsed).axes[0]
    *_, fallen, emr = axes.lines
    assert fallen.get_label().endswith("\n(collapsed, below the axis)")
    assert not any("clean" in line.get_label() for line in axes.lines)
    assert max(fallen.get_ydata()) < axes.get_ylim()[0] < min(emr.get_ydata())


def test_every_line_of_several_seeds_has_a_band_and_a_close_up_its_own_axis(everything):
    for name in ("figure2-cifar-margins.png", "figure2-mnist-margins.png"):
        figure = curve_figure(PLANS[name], everything)
        seeds = [["seeds)" in text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
        assert [len(axes.collections) for axes in figure.axes] == [sum(several) for several in seeds]
        standard, beside, *close = figure.axes
        assert standard.get_ylim() == beside.get_ylim()
        assert standard.get_ylim()[0] == 0
        assert all(0 < axes.get_ylim()[0] < min(line.get_ydata().min() for line in axes.lines) for axes in close)
        ticks = [[tick.label1.get_visible() for tick in axes.yaxis.get_major_ticks()] for axes in figure.axes]
        assert all(all(shown) for shown in ticks)


def test_panels_name_the_attack(everything):
    for name, attack in (
        ("accuracy-mnist-mlp.png", "PGD-20, eps 0.1"),
        ("accuracy-cifar-cnn.png", "PGD-10, eps 0.031"),
    ):
        titles = [axes.get_title(loc="left") for axes in curve_figure(PLANS[name], everything).axes]
        kinds = ("Standard training", "Adversarial training")
        assert titles == [f"{kind}, {what}" for kind in kinds for what in ("clean", attack)]


def test_a_label_has_the_weight_decay_of_its_recipe():
    plans = [panel for plan in (*CURVES, *GROUPS) for panel in plan.panels]
    for line in (line for panel in (*plans, *(p for g in GROUPS for p in g.histograms)) for line in panel.lines):
        decay = find_recipe(line.recipe).config.optimizer.weight_decay
        said = re.search(r"weight decay ([\d.]+)", line.label)
        assert (float(said[1]) if said else 0.0) == decay, line


def test_a_setting_has_one_color_in_every_panel():
    small = [line for plan in CURVES[:5] for panel in plan.panels for line in panel.lines]
    small += [line for plan in GROUPS[:2] for panel in plan.panels for line in panel.lines]
    colors = {}
    for line in small:
        if line.recipe.split("/")[1] != "at-wd0.001" or not line.label.startswith("AT"):  # beside ST in one panel
            colors.setdefault(line.label.removeprefix("ST + ").removeprefix("ST, "), set()).add(line.color)
    assert all(len(found) == 1 for found in colors.values())
    for panel in (panel for plan in (*CURVES, *GROUPS) for panel in plan.panels):
        assert len({line.color for line in panel.lines}) == len(panel.lines)


@pytest.mark.parametrize(
    ("recipe", "title"),
    [
        ("st-lsoftmax-wd0.01", "ST + L-Softmax"),
        ("mnist-mlp/at-approximate-emr", "AT + approximate EMR"),
        ("at-wd0.0005-averaged", "AT, averaged weights"),
        ("trades-mail-emr", "TRADES + MAIL + EMR"),
        ("trades-emr-clean", "TRADES + EMR, at clean images"),
        ("st-wd0", "ST"),
    ],
)
def test_a_row_in_words(recipe, title):
    assert method_title(recipe) == title


def test_distances_are_of_the_first_seed(jobs):
    (axes,) = distance_figure("mnist-mlp", jobs).axes
    assert axes.get_title(loc="left") == "ST + EMR\nweight decay 0.001"
    points = axes.collections[0].get_offsets()
    assert [tuple(point) for point in points] == [tuple(pair) for pair in jobs["mnist-mlp/st-emr"][0].distance.pairs]
    assert axes.get_xlim() == axes.get_ylim()
    assert list(axes.get_xticks()) == list(axes.get_yticks())
    assert "images, seed 0\n" in axes.texts[0].get_text()
    assert "rank correlation 0.912" in axes.texts[0].get_text()


def test_distances_have_a_row_for_each_kind_baselines_first(tmp_path):
    names = (
        "at-wd0.0001",
        "at-emr",
        "at-wd0.0005",
        "at-lsoftmax-wd0.0001",
        "st-emr",
        "st-wd0.01",
        "st-lsoftmax-wd0.01",
    )
    for name in names:
        write_job(tmp_path / "runs", f"cifar-cnn/{name}", epochs=1, later=("distance",))
    collect([tmp_path / "runs"], tmp_path / "results")
    figure = distance_figure("cifar-cnn", by_recipe(read_tree(tmp_path / "results")))
    figure.draw_without_rendering()
    titles = [axes.get_title(loc="left").splitlines()[0] for axes in figure.axes]
    assert titles == ["ST", "ST + L-Softmax", "ST + EMR", "AT", "AT", "AT + L-Softmax", "AT + EMR"]
    boxes = [axes.get_position() for axes in figure.axes]
    assert len({round(box.y0, 6) for box in boxes[:3]}) == len({round(box.y0, 6) for box in boxes[3:]}) == 1
    assert boxes[0].y0 > boxes[3].y1
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    assert max(box.width for box in boxes) == pytest.approx(min(box.width for box in boxes))


def test_many_distances_of_one_kind_take_even_rows(tmp_path):
    names = ("at", "at-wd0.0005", "at-wd0.0005-averaged", "at-igr", "at-emr-averaged", "at-emr", "trades")
    for name in names:
        write_job(tmp_path / "runs", f"cifar-resnet18/{name}", epochs=1, later=("distance",))
    collect([tmp_path / "runs"], tmp_path / "results")
    figure = distance_figure("cifar-resnet18", by_recipe(read_tree(tmp_path / "results")))
    figure.draw_without_rendering()
    rows = [list(row) for _, row in groupby(figure.axes, key=lambda axes: round(axes.get_position().y0, 6))]
    titles = [[axes.get_title(loc="left").split("\n")[0] for axes in row] for row in rows]
    averaged = "averaged weights"
    assert titles == [["AT", "AT", f"AT, {averaged}"], ["AT + IGR", "AT + EMR", f"AT + EMR, {averaged}"], ["TRADES"]]
    words = [axes._left_title.get_window_extent() for axes in figure.axes]
    assert not [pair for pair in combinations(words, 2) if pair[0].overlaps(pair[1])]


@pytest.fixture(scope="module")
def over_eps(tmp_path_factory):
    """Judged over eps: two seeds of one row, one seed of others; a seed that was not."""
    place = tmp_path_factory.mktemp("eps")
    for seed in (0, 1):
        write_job(place / "runs", "mnist-mlp/st-emr", seed, clean=96.0 + seed, robust=80.0 + 2 * seed, later=("eps",))
    write_job(place / "runs", "mnist-mlp/at-emr", later=("eps",), robust=93.0)
    for name, robust in (("at", 48.0), ("at-emr", 51.0)):
        write_job(place / "runs", f"cifar-resnet18/{name}", clean=84.0, robust=robust, later=("eps",))
    write_job(place / "runs", "cifar-resnet18/at", 1, clean=10.0, robust=10.0)
    collect([place / "runs"], place / "results")
    return place / "results"


def shown(axes):
    """(curves as lists of points, place of the vertical line, labels)"""
    *curves, mark = axes.lines
    return [line.get_xydata() for line in curves], mark.get_xdata()[0], axes.get_legend_handles_labels()[1]


def test_accuracy_over_eps_begins_without_attack_and_is_a_mean_over_seeds(over_eps):
    standard, adversarial = eps_figure(MNIST, by_recipe(read_tree(over_eps))).axes
    assert standard.get_title(loc="left") == "Standard training"
    (curve,), mark, labels = shown(standard)
    assert [x for x, _ in curve] == pytest.approx([0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3])
    assert dict(curve.tolist())[0.0] == pytest.approx(96.5)
    assert dict(curve.tolist())[0.1] == pytest.approx(81.0)
    assert mark == 0.1
    assert labels == ["EMR, weight decay 0.001 (2 seeds): 81.0", "eps of the table 0.1"]  # standard training has no eps
    assert standard.get_xlabel() == "eps (L∞)"
    assert shown(adversarial)[2] == ["EMR, weight decay 0.001: 93.0", "eps of training 0.1"]
    assert standard.get_ylim() == adversarial.get_ylim() == (0, 100)


def test_eps_written_in_255ths_is_counted_in_them(over_eps):
    (adversarial,) = eps_figure(RESNET, by_recipe(read_tree(over_eps))).axes
    curves, mark, labels = shown(adversarial)
    for curve in curves:
        assert [x for x, _ in curve] == pytest.approx([0, 2, 4, 6, 8, 10, 12, 16], abs=1e-4)
        assert curve[0][1] == 84.0
    assert mark == pytest.approx(0.031 * 255)
    names = ["AT, weight decay 0.001", "AT+EMR, weight decay 0.0005", "eps of training 0.031"]
    assert [label.partition(":")[0] for label in labels] == names
    assert labels[1] == f"{names[1]}: {curves[1][4][1]:.1f}"  # at 8/255, the nearest
    assert "1/255" in adversarial.get_xlabel()


def test_sizes_that_one_seed_lacks_are_left_out(over_eps):
    first, second = by_recipe(read_tree(over_eps))["mnist-mlp/st-emr"]
    shorter = replace(second, over_eps=replace(second.over_eps, points=second.over_eps.points[:2]))
    assert [radius.written for radius, _ in mean_curve([first, shorter])] == ["0", "0.02", "0.05"]


def test_the_page_has_the_pictures_of_what_was_judged_over_eps(over_eps):
    names = [path.name for path in generate(over_eps, [])]
    pictures = [name for name in names if name.startswith("eps-") and name.endswith(".png")]
    assert pictures == ["eps-mnist-mlp.png", "eps-cifar-resnet18.png"]
    page = (over_eps / "README.md").read_text()
    assert page.count("\n### Accuracy against eps\n") == 1
    assert "\n#### Accuracy against eps, ResNet-18 on CIFAR-10\n" in page
    assert "(figures/eps-cifar-resnet18.png)" in page


def test_the_mean_of_counts_takes_each_image_at_the_middle_of_its_bin():
    assert _mean_bin({-1: 1, 0: 1, 3: 2}) == 1.75


def test_a_band_goes_from_the_lowest_seed_to_the_highest(jobs):
    axes = curve_figure(PLANS["figure2-mnist-margins.png"], jobs).axes[1]
    ends = [round(dict(job.run.curve("test_margin_mean"))[50], 6) for job in jobs["mnist-mlp/st-emr"]]
    vertices = axes.collections[0].get_paths()[0].vertices
    drawn = {round(float(y), 6) for x, y in vertices if x == 50}
    assert drawn == set(ends)
    assert ends[0] != ends[1]


def test_a_far_point_does_not_shrink_the_others_and_is_told(jobs):
    (first, *_) = jobs["mnist-mlp/st-emr"]
    pairs = [(1.0, 1.0)] * 999 + [(1.0, 50.0)]
    far = {"mnist-mlp/st-emr": [replace(first, distance=replace(first.distance, pairs=pairs))]}
    (axes,) = distance_figure("mnist-mlp", far).axes
    assert axes.get_xlim() == axes.get_ylim() == (0, pytest.approx(1.05))
    assert "1 beyond the axes" in axes.texts[0].get_text()
