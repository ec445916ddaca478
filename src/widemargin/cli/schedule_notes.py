"""A note on the screen for each part of a schedule that a run never gets to."""

from collections.abc import Iterable

from rich.console import Console

from widemargin.config import RunConfig
from widemargin.config.unreached import unreached
from widemargin.screen import say


def note_unreached(configs: Iterable[RunConfig], console: Console) -> None:
    """Each note once, however many runs deserve it."""
    for text in dict.fromkeys(text for config in configs for text in unreached(config)):
        say(console, f"note: {text}", style="yellow")
