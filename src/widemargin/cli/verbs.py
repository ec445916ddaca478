"""The commands by name, each loaded when it is called: help and mistakes need not wait for torch, which takes seconds.

What ``widemargin --help`` says of a command is the first paragraph of that command's own help, written down here.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command, get_group

from widemargin.cli.interrupted import begin_work


@dataclass(frozen=True)
class Verb:
    """Where a command is: the module, and in it a function or a ``typer.Typer`` with commands of its own."""

    module: str
    name: str
    help: str
    interrupted: str = "interrupted; the same command begins anew"
    """What a person who pressed Ctrl-C wants to know."""


GOES_ON = "interrupted; the same command goes on where it stopped"

VERBS = {
    "demo": Verb(
        "widemargin.cli.demo",
        "demo",
        "Train the paper's MLP twice on embedded MNIST digits, plain and with EMR, attack both, and draw the margins.",
        interrupted=GOES_ON,
    ),
    "train": Verb(
        "widemargin.cli.train",
        "train",
        "Train a recipe: progress on the screen, config, metrics and checkpoints in the run folder.",
        interrupted="interrupted; a training run goes on from its last checkpoint when the same command is given again",
    ),
    "evaluate": Verb(
        "widemargin.cli.evaluate",
        "evaluate",
        "Accuracy on the test images, clean and under each attack, with alarms where one should doubt the numbers.",
        interrupted="interrupted; with --out FOLDER the same command goes on from what is finished",
    ),
    "margins": Verb(
        "widemargin.cli.margins",
        "margins",
        "Effective margins: mean, spread and quantiles, over all and over correctly classified images, and a "
        "histogram.",
    ),
    "reproduce": Verb(
        "widemargin.cli.reproduce",
        "reproduce",
        "Train and judge the rows of tables, skipping what is done, and set our numbers beside the published ones.",
        interrupted=GOES_ON,
    ),
    "report": Verb(
        "widemargin.cli.report",
        "report",
        "Write one HTML page that needs no network, and its tables as Markdown, CSV and LaTeX; unfinished runs too.",
    ),
    "results": Verb(
        "widemargin.cli.results",
        "results",
        "Collect finished jobs (no weights; the same job again replaces it), then write the page and its figures.",
    ),
    "sweep": Verb(
        "widemargin.cli.sweep",
        "sweep",
        "Run every point of a grid once; start the same command on more machines and they share the work.",
        interrupted=GOES_ON,
    ),
    "bench": Verb(
        "widemargin.cli.bench",
        "bench",
        "Time a training step on synthetic images; set it against the machine's ceilings and a loop written by hand.",
    ),
    "recipes": Verb("widemargin.cli.recipes", "recipes_app", "List the recipes; 'recipes show NAME' prints one."),
}


class Deferred(TyperCommand):
    """Stands in a list of commands for the one of its name, and becomes it when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command, which its group then invokes."""
        context = load(str(self.name)).make_context(info_name, args, parent, **extra)
        begin_work(VERBS[str(self.name)].interrupted)
        return context


def add_verbs(app: typer.Typer) -> None:
    """Every command, not loaded yet."""
    for name, verb in VERBS.items():
        app.command(name, cls=Deferred, help=verb.help)(_nothing)


def load(name: str) -> Any:
    """The real command of that name, as typer builds it."""
    verb = VERBS[name]
    found = getattr(import_module(verb.module), verb.name)
    if isinstance(found, typer.Typer):
        return get_group(found)
    alone = typer.Typer(add_completion=False)
    alone.command(name)(found)
    return get_command(alone)


def _nothing() -> None:
    """What a command does until it is loaded."""
