"""How a line is drawn: a single seed beside several is dashed, a network that collapsed dotted and pale."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from widemargin.reports.collection.seeds import clean_accuracy
from widemargin.reports.collection.tree import CollectedJob

WELL = 0.8
"""A network with less than this share of the best one's clean accuracy has margins of another kind."""
COLLAPSED = 0.6
"""With less than this share it has not learned to tell the classes apart."""

Style = Literal["solid"] | tuple[float, Sequence[float]]
_DASHED, _DOTTED = (0.0, (3.2, 1.2)), (0.0, (1.0, 1.4))


@dataclass(frozen=True)
class Stroke:
    """The style of a line, as matplotlib takes it."""

    style: Style = "solid"
    alpha: float = 1.0


def most_seeds(members: Iterable[Sequence[CollectedJob]]) -> int:
    """How many the line of a picture that has most of them has."""
    return max((len(found) for found in members), default=0)


def best_clean(members: Iterable[Sequence[CollectedJob]]) -> float:
    """The clean accuracy with which the others of a panel are compared."""
    return max((clean_accuracy(found) for found in members), default=0.0)


def is_collapsed(found: Sequence[CollectedJob], best: float) -> bool:
    """Whether a line's networks have not learned to tell the classes apart."""
    return 0 < clean_accuracy(found) < COLLAPSED * best


def stroke(found: Sequence[CollectedJob], *, best: float, most: int) -> Stroke:
    """Of one line, in a panel with that best clean accuracy, in a picture with that many seeds."""
    if is_collapsed(found, best):
        return Stroke(_DOTTED, 0.55)
    return Stroke(_DASHED) if len(found) == 1 < most else Stroke()


def how_well(found: Sequence[CollectedJob], best: float) -> str:
    """What a reader of its margins must know; nothing where it classifies about as well as the best."""
    clean = clean_accuracy(found)
    said = "collapsed, " if is_collapsed(found, best) else ""
    return f"{said}clean {clean:.0f}%" if 0 < clean < WELL * best else ""


def remarks(*texts: str) -> str:
    """The end of a label, in parentheses; on a line of its own where a network collapsed, for that is long."""
    told = "; ".join(text for text in texts if text)
    return f"{chr(10) if told.startswith('collapsed') else ' '}({told})" if told else ""
