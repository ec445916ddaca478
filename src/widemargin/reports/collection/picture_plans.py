"""Which pictures there are, and which recipes each one shows: the paper's figures, and what it does not show.

Beside EMR are the paper's baselines at its weight decay, or the nearest the paper has, the one that resists best, and
where EMR's is another one, ours at its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

GRAY, BLUE, RED, GREEN, YELLOW, PURPLE = "#8a8d91", "#1768ac", "#d1495b", "#2e933c", "#edae49", "#5f4b8b"
DECAY_COLORS = {
    "0": "#bddf26",
    "0.0001": "#4ac16d",
    "0.0005": "#1fa187",
    "0.001": "#2a788e",
    "0.01": "#414487",
    "0.1": "#440154",
}
"""The darker, the larger: the same in every picture."""


@dataclass(frozen=True)
class Line:
    """A recipe, as one picture calls and colors it."""

    recipe: str
    label: str
    color: str


@dataclass(frozen=True)
class Panel:
    """Lines on common axes; ``key`` is what is drawn of each epoch, with ``spread`` around it."""

    title: str
    lines: Sequence[Line]
    key: str = ""
    unit: str = ""
    spread: str = ""


@dataclass(frozen=True)
class CurvePlan:
    """A picture of what was measured in training; so many panels in a row."""

    file: str
    title: str
    caption: str
    panels: Sequence[Panel]
    columns: int
    same_scale: bool = False
    """Whether the panels of a row share their vertical axis."""


@dataclass(frozen=True)
class GroupPlan:
    """The networks of one architecture, of which margins, distances and accuracies are drawn, a panel for each kind."""

    name: str
    title: str
    panels: Sequence[Panel]


_RESNET_AT = (
    ("at-wd0.0005", "AT, weight decay 0.0005, as EMR", RED),
    ("at-wd0.0005-averaged", "the same, averaged", PURPLE),
    ("at-emr-averaged", "AT+EMR, averaged", GREEN),
)


def _lines(prefix: str, *rows: tuple[str, str, str]) -> tuple[Line, ...]:
    return tuple(Line(f"{prefix}/{name}", label, color) for name, label, color in rows)


def _decays(prefix: str, *decays: str) -> tuple[Line, ...]:
    labels = [f"weight decay {decay}" if decay != "0" else "no weight decay" for decay in decays]
    rows = [f"st-wd{decay}" for decay in decays]
    return _lines(prefix, *zip(rows, labels, [DECAY_COLORS[decay] for decay in decays], strict=True))


def _compared(prefix: str, kind: str) -> tuple[Line, ...]:
    own = [(f"{kind}-wd0.0005", "weight decay 0.0005, as EMR", RED)] if prefix == CNN else []
    strong = STRONG.get((prefix, kind))
    return _lines(
        prefix,
        (f"{kind}-wd0.001", "weight decay 0.001", GRAY),
        *([(f"{kind}-wd{strong}", f"weight decay {strong}", PURPLE)] if strong else []),
        *own,
        (f"{kind}-lsoftmax-wd0.001", "L-Softmax, weight decay 0.001", YELLOW),
        (f"{kind}-emr", "EMR", BLUE),
    )


def _regularized(prefix: str, kind: str) -> tuple[Line, ...]:
    name = kind.upper()
    rows = [(kind, name, GRAY), (f"{kind}-igr", f"{name}+IGR", YELLOW), (f"{kind}-emr", f"{name}+EMR", BLUE)]
    he = [(f"{kind}-he", f"{name}+HE", PURPLE)] if prefix == WRN else []
    ours = _RESNET_AT if (prefix, kind) == (RESNET, "at") else ()
    return _lines(prefix, *rows, *he, *ours)


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
BAND = (
    "Lines: mean over correctly classified images, and over seeds; bands: one standard deviation over images, where "
    "there is room for them. Where a network classifies much less well than others, the legend says how well. Measured "
    "on 10,000 images of MNIST and 2,000 of CIFAR-10, so last values differ a little from the tables', which have all."
)

_FIGURE1 = CurvePlan(
    "figure1-margins.png",
    "Effective margins during training (the paper's Fig. 1b-d)",
    f"{BAND} (c) and (d): standard training with different weight decays.",
    (
        Panel(
            "(b) MNIST, test images",
            (
                Line(f"{MLP}/st-wd0.001", "weight decay 0.001", GRAY),
                Line(f"{MLP}/st-lsoftmax-wd0.001", "L-Softmax, weight decay 0.001", YELLOW),
                Line(f"{MLP}/st-emr", "EMR, weight decay 0.001", BLUE),
                Line(f"{MLP}/at-wd0.001", "AT, weight decay 0.001", RED),
            ),
            "test_margin_mean",
            TEST,
            "test_margin_std",
        ),
        Panel(
            "(c) CIFAR-10, by weight decay",
            _decays(CNN, "0", "0.0001", "0.0005", "0.001", "0.01"),
            "test_margin_mean",
            TEST,
        ),
        Panel(
            "(d) MNIST, by weight decay",
            _decays(MLP, "0", "0.0001", "0.001", "0.01", "0.1"),
            "test_margin_mean",
            TEST,
        ),
    ),
    3,
)


def _figure2(prefix: str, letter: str) -> CurvePlan:
    panels = [
        Panel(f"{KINDS[kind]}, {split} images", _compared(prefix, kind), f"{key}_mean", unit, f"{key}_std")
        for kind in ("st", "at")
        for split, key, unit in (("training", "train_margin", TRAIN), ("test", "test_margin", TEST))
    ]
    title = f"Margins on training and test images, {TITLES[prefix]} (the paper's Fig. 2)"
    note = (
        "Margins of training images are at the points training sees: augmented, and attacked in adversarial training."
    )
    return CurvePlan(f"figure2-{letter}-margins.png", title, f"{BAND} {note}", panels, 2, same_scale=True)


def _accuracies(prefix: str, kinds: Sequence[str], split: str) -> CurvePlan:
    shown = {"test": "test images", "validation": "held-out images"}[split]
    panels = [
        Panel(f"{KINDS[kind]}, {what}", make(prefix, kind), f"{split}_{key}", ACCURACY)
        for kind in kinds
        for make in ((_compared if prefix in (MLP, CNN) else _regularized),)
        for what, key in (("clean", "clean"), ("attacked", "robust"))
    ]
    caption = f"Accuracy on {shown} after each epoch, clean and under the PGD that the recipe watches; mean over seeds."
    return CurvePlan(f"accuracy-{prefix}.png", f"Accuracy during training, {TITLES[prefix]}", caption, panels, 2)


CURVES = (
    _FIGURE1,
    _figure2(MLP, "mnist"),
    _figure2(CNN, "cifar"),
    _accuracies(MLP, ("st", "at"), "test"),
    _accuracies(CNN, ("st", "at"), "test"),
    _accuracies(RESNET, ("at", "trades"), "validation"),
    _accuracies(WRN, ("at", "trades"), "validation"),
)

GROUPS = tuple(
    GroupPlan(
        prefix,
        TITLES[prefix],
        [Panel(KINDS[kind], (_compared if prefix in (MLP, CNN) else _regularized)(prefix, kind)) for kind in kinds],
    )
    for prefix, kinds in ((MLP, ("st", "at")), (CNN, ("st", "at")), (RESNET, ("at", "trades")), (WRN, ("at", "trades")))
)
