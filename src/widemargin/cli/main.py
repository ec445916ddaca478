"""The command ``widemargin``; it ends with 0, or with 2 and one clear line when a person can put it right."""

import sys
from collections.abc import Sequence

import typer

from widemargin.cli.demo import demo
from widemargin.cli.evaluate import evaluate
from widemargin.cli.margins import margins
from widemargin.cli.recipes import recipes_app
from widemargin.cli.train import train
from widemargin.errors import InputError

app = typer.Typer(
    name="widemargin",
    help="Train image classifiers whose decision boundary is far from the data, measure how far, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo)
app.command("train")(train)
app.command("evaluate")(evaluate)
app.command("margins")(margins)
app.add_typer(recipes_app, name="recipes")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    try:
        code = app(args=list(arguments) or ["--help"], prog_name="widemargin", standalone_mode=False)
    except InputError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on from the last checkpoint")
        return 130
    except typer.Abort:
        return 130
    except Exception as error:
        if not hasattr(error, "format_message"):  # the parser's own errors have it, whichever parser typer carries
            raise
        return _refuse(f"{error.format_message()} See 'widemargin --help'.")
    return code if isinstance(code, int) else 0


def _refuse(message: str) -> int:
    _say(" ".join(message.split()))
    return 2


def _say(message: str) -> None:
    sys.stderr.write(f"widemargin: {message}\n")
