"""How attacks, norms, columns, counts and times are called, for people."""

import re
from collections.abc import Sequence

MARGIN, MARGIN_TRAIN, ROBUST = "margin", "margin_train", "robust"
_TITLES = {
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
_COLUMNS = {"pgd": "PGD", "margin_test": "Test margin"}
_NORMS = {"linf": "L∞", "l2": "L2"}


def attack_title(name: str) -> str:
    """An attack's name as papers write it."""
    steps = re.fullmatch(r"pgd(\d+)", name)
    return f"PGD-{steps[1]}" if steps else _TITLES.get(name, name)


def column_title(column: str) -> str:
    """The head of a column of results."""
    return _COLUMNS.get(column) or attack_title(column)


def norm_title(norm: str) -> str:
    """A norm's name."""
    return _NORMS.get(norm, norm)


def margin_places(norm: str) -> int:
    """How many decimals a margin needs: those in linf are some hundredths."""
    return 4 if norm == "linf" else 3


def counted(number: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def minus(text: str) -> str:
    """A number with a true minus sign, as wide as the digits."""
    return text.replace("-", "\N{MINUS SIGN}")
