"""How our pictures look: quiet axes, two colors that survive gray printing and color blindness."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from widemargin.files import write_whole

COLORS = ("#8a8d91", "#1768ac", "#d1495b", "#2e933c", "#edae49", "#5f4b8b")

_SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.dpi": 150,
    "legend.frameon": False,
}


@contextmanager
def styled() -> Iterator[None]:
    """Our settings within, the user's own outside."""
    with mpl.rc_context(_SETTINGS):
        yield


def save_picture(figure: Figure, path: Path) -> None:
    """Write the figure as PNG, whole or not at all."""
    with styled():
        write_whole(path, lambda partial: figure.savefig(partial, format="png", bbox_inches="tight"))
