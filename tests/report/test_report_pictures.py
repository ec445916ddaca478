"""Pictures: every kind of margins can be drawn, and what is written is a picture."""

from dataclasses import replace

import matplotlib as mpl
import pytest
import torch
from PIL import Image

from widemargin import InputError
from widemargin.report.pictures import COLORS, RIGHT, WRONG, Twins, demo_figure, margin_figure, save_picture

NONE = torch.tensor([])
SOME = torch.linspace(-1, 3, 101)
CASES = {
    "one": {"a model": SOME},
    "several": {"plain": SOME, "EMR": 2 * SOME},
    "more than there are colors": {f"model {i}": SOME + i for i in range(len(COLORS) + 2)},
    "empty": {"nothing": NONE},
    "empty beside some": {"nothing": NONE, "some": SOME},
    "infinite": {"ignores its input": torch.tensor([torch.inf, -torch.inf, torch.nan])},
    "infinite among finite": {"mostly": torch.cat([SOME, torch.tensor([torch.inf])])},
    "a single image": {"one image": torch.tensor([0.5])},
    "all the same": {"constant": torch.zeros(10)},
    "all misclassified": {"wrong": -1 - SOME.abs()},
    "float64": {"double": SOME.double()},
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", CASES)
def test_margins_of_every_kind_can_be_drawn(case, tmp_path):
    margins = {name: tensor.clone() for name, tensor in CASES[case].items()}
    figure = margin_figure(margins, title="a title", unit="l2")
    save_picture(figure, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"
        assert min(image.size) > 300
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(labels) == len(margins)
    for label, (name, tensor) in zip(labels, margins.items(), strict=True):
        finite = tensor[tensor.isfinite()]
        assert label == (f"{name}: mean {finite.double().mean():.2f}" if len(finite) else f"{name}: none")


def test_the_histogram_counts_every_finite_image_once():
    figure = margin_figure({"a": torch.cat([SOME, torch.tensor([torch.inf])])}, title="t", unit="l2")
    bars = [patch for patch in figure.axes[0].patches if patch.__class__.__name__ == "Rectangle"]
    assert sum(bar.get_height() for bar in bars) == 101


def test_the_axis_says_what_it_measures():
    axes = margin_figure({"a": SOME}, title="my run: test images", unit="linf").axes[0]
    assert "effective margin (linf)" in axes.get_xlabel()
    assert axes.get_ylabel() == "images"
    assert axes.get_title(loc="left") == "my run: test images"


@pytest.mark.parametrize(("far", "said"), [(1, False), (50, True)])
def test_the_axis_says_where_margins_beyond_it_are(far, said):
    margins = torch.cat([torch.linspace(-1, 3, 5).repeat(1000), torch.full((2,), 3.0 * far)])
    axes = margin_figure({"a": margins}, title="t", unit="l2").axes[0]
    assert ("beyond the axis: in the last bars" in axes.get_xlabel()) is said


@pytest.fixture
def twins():
    generator = torch.Generator().manual_seed(0)
    clean = torch.rand(4, 1, 8, 8, generator=generator)
    labels = torch.tensor([3, 1, 4, 1])
    found = {
        "plain": Twins(images=1 - clean, predictions=torch.tensor([3, 7, 7, 7]), accuracy=24.04),
        "EMR": Twins(images=clean, predictions=labels, accuracy=87.8),
    }
    return clean, labels, found


@pytest.mark.filterwarnings("error")
def test_the_demo_picture(twins, tmp_path):
    clean, labels, found = twins
    figure = demo_figure({"plain": SOME, "EMR": 2 * SOME}, clean, labels, found, attack="PGD-20", eps=0.1)
    save_picture(figure, tmp_path / "demo.png")
    with Image.open(tmp_path / "demo.png") as image:
        assert image.format == "PNG"
        assert min(image.size) > 600
    _, bottom = figure.subfigs
    captions = [(axes.get_title(), axes.title.get_color()) for axes in bottom.axes]
    assert captions[:4] == [("3", "black"), ("1", "black"), ("4", "black"), ("1", "black")]
    assert captions[4:8] == [("3 ✓", RIGHT), ("7 ✗", WRONG), ("7 ✗", WRONG), ("7 ✗", WRONG)]
    assert captions[8:] == [("3 ✓", RIGHT), ("1 ✓", RIGHT), ("4 ✓", RIGHT), ("1 ✓", RIGHT)]
    rows = [axes.get_ylabel().replace("\n", " ") for axes in bottom.axes[::4]]
    assert rows == [
        "clean (true label)",
        "plain, PGD-20: 24.0% of all test digits",
        "EMR, PGD-20: 87.8% of all test digits",
    ]
    assert "(PGD-20, L∞ eps 0.1)" in bottom.get_suptitle()


def test_the_demo_picture_draws_color_images(twins, tmp_path):
    _, labels, found = twins
    color = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    found = {name: replace(twin, images=color) for name, twin in found.items()}
    figure = demo_figure({"plain": SOME}, color, labels, found, attack="PGD-20", eps=0.1)
    save_picture(figure, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").stat().st_size > 10_000


def test_drawing_leaves_the_users_style_and_backend_alone(tmp_path):
    with mpl.rc_context():
        mpl.rcdefaults()
        before = dict(mpl.rcParams)
        save_picture(margin_figure({"a": SOME}, title="t", unit="l2"), tmp_path / "a.png")
        assert dict(mpl.rcParams) == before


def test_a_picture_that_cannot_be_written_leaves_nothing(tmp_path):
    figure = margin_figure({"a": SOME}, title="t", unit="l2")
    with pytest.raises(InputError, match=r"cannot write .*: No such file or directory"):
        save_picture(figure, tmp_path / "nowhere" / "a.png")
    (tmp_path / "file").write_text("a file")
    with pytest.raises(InputError, match=r"cannot write .*: Not a directory"):
        save_picture(figure, tmp_path / "file" / "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
