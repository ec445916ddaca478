"""Which pictures there are, and which recipes each one shows: the paper's figures, and what it does not show.

Beside EMR are the paper's baselines at its weight decay, or the nearest the paper has, the one that resists best, and
where EMR's is another one, ours at its own. EMR is the last line of a panel, above all others. What is said once for
all pictures of a kind stands in a ``Section``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paper.style import BLUE, BROWN, COLLAPSED, DECAY_COLORS, GRAY, LIGHT_BLUE, LIGHT_RED, RED, YELLOW


@dataclass(frozen=True)
class Section:
    """Pictures that are read in the same way."""

    title: str
    said: str


ALL = (
    "Lines are means over seeds, in a band from the lowest seed to the highest; dashed ones have a single seed where "
    "others of the same picture have more. Dotted and pale are networks that collapsed: their clean accuracy is less "
    f"than {COLLAPSED:.0%} of the panel's best."
)
JUDGES = Section(
    "One network, several judges",
    "Rows by their accuracy under AutoAttack. Large points are means over seeds, small ones the seeds; the gray bar "
    "goes from what the table's PGD leaves to what AutoAttack leaves.",
)
MARGINS = Section(
    "Margins during training",
    "Of correctly classified images. Those of training images are at the points training sees: augmented, and attacked "
    "in adversarial training. Panels of adversarial training are close-ups; their axes do not begin at zero. Where a "
    "network classifies much less well than others, the legend says how well. Measured on 10,000 images of MNIST and "
    "2,000 of CIFAR-10, so last values differ a little from the tables', which have all.",
)
ACCURACIES = Section(
    "Accuracy during training",
    "Without an attack, and under the one that the panel names; of test images, or of held-out ones for ResNet-18 and "
    "WRN-34-10. The legend has the last value. Where a network collapsed, the axis is cut above it.",
)
HISTOGRAMS = Section(
    "Margin histograms",
    "Shares of all test images, all seeds together; misclassified ones lie left of zero, and the outermost bars hold "
    "the tails. The mean is over all images with a boundary.",
)
DISTANCES = Section(
    "Margins against distances",
    "Each point is a correctly classified test image: its effective margin, and the size of the smallest adversarial "
    "perturbation that an attack found, an upper bound of the true distance. On the dashed line they are equal.",
)
OVER_EPS = Section(
    "Accuracy against eps",
    "PGD-100, steps of eps/4, on the first 1,000 test images; at 0 without attack. The dashed vertical line is at the "
    "eps of training, or the table's where training has none; the legend has the accuracy at the eps nearest to it.",
)


@dataclass(frozen=True)
class Line:
    """A recipe, as one picture calls and colors it."""

    recipe: str
    label: str
    color: str


@dataclass(frozen=True)
class Panel:
    """Lines on common axes; ``key`` is what is drawn of each epoch."""

    title: str
    """``{attack}`` in it is the attack that the runs were watched with."""
    lines: Sequence[Line]
    key: str = ""
    unit: str = ""
    zoom: bool = False
    """A close-up: the vertical axis does not begin at zero, and is its own."""


@dataclass(frozen=True)
class CurvePlan:
    """A picture of what was measured in training; so many panels in a row, the first one takes cells that are left."""

    section: Section
    file: str
    title: str
    panels: Sequence[Panel]
    note: str = ""
    columns: int = 2
    same_scale: bool = False
    """Whether the panels of a row share the range of their vertical axis, but for close-ups."""


@dataclass(frozen=True)
class GroupPlan:
    """The networks of one architecture, of which margins, distances and accuracies are drawn, a panel for each kind."""

    name: str
    title: str
    panels: Sequence[Panel]
    histograms: Sequence[Panel]
    """The same panels without the lines that histograms cannot tell apart."""
    histogram_note: str = ""


MLP, CNN, RESNET, WRN = "mnist-mlp", "cifar-cnn", "cifar-resnet18", "cifar-wrn"
TITLES = {
    MLP: "MLP on MNIST",
    CNN: "CNN on CIFAR-10",
    RESNET: "ResNet-18 on CIFAR-10",
    WRN: "WRN-34-10 on CIFAR-10",
}
STRONG = {(MLP, "st"): "0.01", (CNN, "st"): "0.01", (CNN, "at"): "0.0001"}
"""The weight decay that resists best under attack, where it is not 1e-3."""
KINDS = {"st": "Standard training", "at": "Adversarial training", "trades": "TRADES"}
TEST, TRAIN, ACCURACY = "margin (L2), test", "margin (L2), training", "accuracy, %"


def _lines(prefix: str, *rows: tuple[str, str, str]) -> tuple[Line, ...]:
    return tuple(Line(f"{prefix}/{name}", label, color) for name, label, color in rows)


def _decays(prefix: str, kind: str, *decays: str) -> tuple[Line, ...]:
    """Training without anything but these weight decays."""
    labels = [f"weight decay {decay}" if decay != "0" else "no weight decay" for decay in decays]
    rows = [f"{kind}-wd{decay}" for decay in decays]
    return _lines(prefix, *zip(rows, labels, [DECAY_COLORS[decay] for decay in decays], strict=True))


def _compared(prefix: str, kind: str, *, few: bool = False) -> tuple[Line, ...]:
    """``few`` leaves out what the CNN's histograms cannot tell from weight decay 0.0005: 0.001, and m = 1."""
    own = {MLP: "0.001", CNN: "0.0005"}[prefix]
    strong = [STRONG[prefix, kind]] if (prefix, kind) in STRONG else []
    decays = sorted({own, *strong, *(() if few else ("0.001",))}, key=float)
    l_softmax = (f"{kind}-lsoftmax-wd0.001", "L-Softmax, weight decay 0.001", YELLOW)
    return (
        *_decays(prefix, kind, *decays),
        *_lines(prefix, *([] if few and prefix == CNN else [l_softmax])),
        *_lines(prefix, (f"{kind}-emr", f"EMR, weight decay {own}", BLUE)),
    )


def _regularized(prefix: str, kind: str) -> tuple[Line, ...]:
    name, decay = kind.upper(), {"at": "0.001", "trades": "0.0005"}[kind]
    of_he = {"at": "0.0005", "trades": "0.0002"}[kind]
    ours = prefix == RESNET and kind == "at"
    half = f"{name}, weight decay 0.0005"
    return _lines(
        prefix,
        (kind, f"{name}, weight decay {decay}", DECAY_COLORS[decay]),
        *([("at-wd0.0005", half, RED), ("at-wd0.0005-averaged", f"{half}, averaged", LIGHT_RED)] if ours else []),
        (f"{kind}-igr", f"{name}+IGR, weight decay {decay}", YELLOW),
        *([(f"{kind}-he", f"{name}+HE, weight decay {of_he}", BROWN)] if prefix == WRN else []),
        *([("at-emr-averaged", "AT+EMR, weight decay 0.0005, averaged", LIGHT_BLUE)] if ours else []),
        (f"{kind}-emr", f"{name}+EMR, weight decay 0.0005", BLUE),
    )


_FIGURE1 = CurvePlan(
    MARGINS,
    "figure1-margins.png",
    "Effective margins during training (the paper's Fig. 1b-d)",
    (
        Panel(
            "(b) MNIST, test images",
            (
                Line(f"{MLP}/st-wd0.001", "ST, weight decay 0.001", GRAY),
                Line(f"{MLP}/st-lsoftmax-wd0.001", "ST + L-Softmax, weight decay 0.001", YELLOW),
                Line(f"{MLP}/at-wd0.001", "AT, weight decay 0.001", BROWN),
                Line(f"{MLP}/st-emr", "ST + EMR, weight decay 0.001", BLUE),
            ),
            "test_margin_mean",
            TEST,
        ),
        Panel(
            "(c) CIFAR-10, by weight decay",
            _decays(CNN, "st", "0", "0.0001", "0.0005", "0.001", "0.01"),
            "test_margin_mean",
            TEST,
        ),
        Panel(
            "(d) MNIST, by weight decay",
            _decays(MLP, "st", "0", "0.0001", "0.001", "0.01", "0.1"),
            "test_margin_mean",
            TEST,
        ),
    ),
    "(c) and (d): standard training with different weight decays.",
)


def _figure2(prefix: str, letter: str) -> CurvePlan:
    panels = [
        Panel(
            f"{KINDS[kind]}, {split} images",
            _compared(prefix, kind),
            f"{key}_mean",
            unit,
            zoom=kind == "at",
        )
        for kind in ("st", "at")
        for split, key, unit in (("training", "train_margin", TRAIN), ("test", "test_margin", TEST))
    ]
    title = f"Margins on training and test images, {TITLES[prefix]} (the paper's Fig. 2)"
    return CurvePlan(MARGINS, f"figure2-{letter}-margins.png", title, panels, same_scale=True)


def _accuracies(prefix: str, kinds: Sequence[str], split: str) -> CurvePlan:
    panels = [
        Panel(f"{KINDS[kind]}, {what}", make(prefix, kind), f"{split}_{key}", ACCURACY)
        for kind in kinds
        for make in ((_compared if prefix in (MLP, CNN) else _regularized),)
        for what, key in (("clean", "clean"), ("{attack}", "robust"))
    ]
    return CurvePlan(ACCURACIES, f"accuracy-{prefix}.png", f"Accuracy during training, {TITLES[prefix]}", panels)


CURVES = (
    _FIGURE1,
    _figure2(MLP, "mnist"),
    _figure2(CNN, "cifar"),
    _accuracies(MLP, ("st", "at"), "test"),
    _accuracies(CNN, ("st", "at"), "test"),
    _accuracies(RESNET, ("at", "trades"), "validation"),
    _accuracies(WRN, ("at", "trades"), "validation"),
)


_LEFT_OUT = "Weight decay 0.001, with L-Softmax (m = 1) and without, is left out: to the eye it coincides with 0.0005."


def _group(prefix: str, kinds: Sequence[str]) -> GroupPlan:
    small = prefix in (MLP, CNN)
    panels = [Panel(KINDS[kind], (_compared if small else _regularized)(prefix, kind)) for kind in kinds]
    few = [Panel(KINDS[kind], _compared(prefix, kind, few=True)) for kind in kinds] if small else panels
    return GroupPlan(prefix, TITLES[prefix], panels, few, _LEFT_OUT if prefix == CNN else "")


GROUPS = (
    _group(MLP, ("st", "at")),
    _group(CNN, ("st", "at")),
    _group(RESNET, ("at", "trades")),
    _group(WRN, ("at", "trades")),
)
