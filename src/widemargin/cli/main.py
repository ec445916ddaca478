"""The commands by name, each loaded when it is called: help and mistakes need not wait for torch, which takes seconds.

What ``widemargin --help`` says of a command is the first paragraph of that command's own help, written down here.

The command ``widemargin``; it ends with 0, or with 2 and one clear line when a person can put it right.
"""

import errno
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command, get_group

from widemargin.cli.options import IMPORTED, import_own
from widemargin.core.files import refused
from widemargin.core.screen import lasting_streams, one_line
from widemargin.core.signals import NOT_BEGUN, InterruptionError, begin_work, end_work
from widemargin.core.versions import own_version
from widemargin.errors import InputError, WidemarginWarning


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
        "paper.__main__",
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
        "benchmarks.__main__",
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


INTERRUPTED = 130
READ_ENOUGH = 141  # as after SIGPIPE

app = typer.Typer(
    name="widemargin",
    help="Train image classifiers whose decision boundary is far from the data, measure how far, test it under attack.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"widemargin {own_version()}")
        raise typer.Exit


@app.callback()
def common(
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="A module of yours that adds models, losses, heads or data."),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_version, help="Print the version and a digest of the code."),
    ] = False,
) -> None:
    """Train image classifiers whose decision boundary is far from the data, measure how far, test it under attack."""
    del version
    IMPORTED.clear()
    for name in modules or []:
        import_own(name)


add_verbs(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    out = lasting_streams()
    code = run(sys.argv[1:] if arguments is None else arguments)
    end_work()
    sys.stdout.flush()
    if out.failure is not None and code == 0:
        code = _unwritten(out.failure)
    sys.exit(code)


def _unwritten(failure: OSError) -> int:
    """Standard output took not all of it; that its reader has seen enough is no mistake."""
    if failure.errno == errno.EPIPE:
        return READ_ENOUGH
    return _refuse(f"cannot write to standard output: {failure.strerror}; the rest is done, what it says is lost")


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    with warnings.catch_warnings():  # which also puts the usual display back
        warnings.showwarning = _display(warnings.showwarning)
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    try:
        code = app(args=list(arguments) or ["--help"], prog_name="widemargin", standalone_mode=False)
    except InputError as error:
        return _refuse(str(error))
    except InterruptionError as interrupt:
        _say(str(interrupt))
        return interrupt.code
    except OSError as error:  # a name too long, a folder deleted under us, a disk: not for us to put right
        where = error.filename if error.filename is not None else "what was asked for"
        return _refuse(str(refused(f"use {where}", error)))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # the parser's own errors have it, whichever parser typer carries
            if _is_about_memory(error):
                reason = next(iter(str(error).splitlines()), "no more to be had")
                return _refuse(f"not enough memory: {reason}; use smaller batches, fewer images or a smaller network")
            raise
        return _refuse(_usage(error.format_message(), getattr(error, "ctx", None), arguments))
    if code == INTERRUPTED:  # which typer, too, makes of a KeyboardInterrupt
        verb = VERBS.get(_verb(arguments))
        _say(verb.interrupted if verb else NOT_BEGUN)
    return code if isinstance(code, int) else 0


def _is_about_memory(error: Exception) -> bool:
    """torch has an exception of its own for it on a GPU alone."""
    words = ("out of memory", "can't allocate memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(part in str(error) for part in words)
    )


def _usage(message: str, context: Any, arguments: Sequence[str]) -> str:
    """What the parser says, with the help that helps: that of the command."""
    path = getattr(context, "command_path", f"widemargin {_verb(arguments)}".rstrip())
    text = message if message.endswith("?") else f"{message.rstrip('.')}."
    if path == "widemargin train" and message.startswith("No such option"):
        text += " Settings are changed with --set, such as --set optimizer.lr=0.05."
    return f"{text} See '{path} --help'."


def _verb(arguments: Sequence[str]) -> str:
    return next((argument for argument in arguments if argument in VERBS), "")


def _display(usual: Callable[..., None]) -> Callable[..., None]:
    """Our own warnings as one line without a place in the source; others as usual."""

    def show(message: Warning | str, category: type[Warning], *place: object) -> None:
        if issubclass(category, WidemarginWarning):
            _say(f"warning: {message}")
        else:
            usual(one_line(str(message)), category, *place)

    return show


def _refuse(message: str) -> int:
    _say(message)
    return 2


def _say(message: str) -> None:
    sys.stderr.write(f"widemargin: {one_line(message)}\n")
