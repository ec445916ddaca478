"""The columns of the results: an attack at one size, or a margin in one norm."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from widemargin.reports.inputs.evaluation import Radius

MARGIN, MARGIN_TRAIN, ROBUST = "margin", "margin_train", "robust"
_NAMES = {
    "clean": "Clean",
    "fgsm": "FGSM",
    "autoattack": "AutoAttack",
    MARGIN: "Margin",
    MARGIN_TRAIN: "Training margin",
    ROBUST: "Watched attack",
    "apgd-ce": "APGD-CE",
    "apgd-t": "APGD-T",
    "fab-t": "FAB-T",
    "square": "Square",
}
_ORDER = ("clean", "fgsm", "pgd", "", "autoattack", ROBUST, MARGIN, MARGIN_TRAIN)
_NORMS = {"linf": "L∞", "l2": "L2"}


@dataclass(frozen=True)
class Measure:
    """One column."""

    attack: str
    radius: Radius | None = None
    norm: str = ""

    @property
    def is_margin(self) -> bool:
        """Whether it is a distance and not an accuracy."""
        return self.attack in (MARGIN, MARGIN_TRAIN)

    @property
    def title(self) -> str:
        """The head of the column."""
        return attack_title(self.attack)

    @property
    def detail(self) -> str:
        """The unit: the norm and size of the attack, or the norm of the margin."""
        if self.is_margin:
            return norm_title(self.norm)
        if self.radius is not None:
            return f"%, {norm_title(self.norm)} {self.radius.written}"
        return "%"

    @property
    def key(self) -> str:
        """A name for machines."""
        return f"{self.attack}_{self.norm}" if self.is_margin else self.attack

    def number(self, value: float | None, *, signed: bool = False) -> str:
        """A value of this measure as it is printed everywhere."""
        if value is None:
            return ""
        places = margin_places(self.norm) if self.is_margin else 2
        return f"{value:+.{places}f}" if signed else f"{value:.{places}f}"


def margin_places(norm: str) -> int:
    """How many decimals a margin needs: those in linf are some hundredths."""
    return 4 if norm == "linf" else 3


def clean() -> Measure:
    """Accuracy without an attack."""
    return Measure("clean")


def attack_title(name: str) -> str:
    """An attack's name as papers write it."""
    steps = re.fullmatch(r"pgd(\d+)", name)
    return f"PGD-{steps[1]}" if steps else _NAMES.get(name, name)


def norm_title(norm: str) -> str:
    """A norm's name."""
    return _NORMS.get(norm, norm)


def in_order(measures: Iterable[Measure]) -> list[Measure]:
    """Every measure once, weak attacks first, small eps first."""
    return sorted(dict.fromkeys(measures), key=_place)


def _place(measure: Measure) -> tuple[int, int, str, str, float]:
    steps = re.fullmatch(r"pgd(\d+)", measure.attack)
    family = "pgd" if steps else measure.attack if measure.attack in _ORDER else ""
    size = measure.radius.value if measure.radius else 0.0
    return _ORDER.index(family), int(steps[1]) if steps else 0, measure.attack, measure.norm, size
