"""Shell completion that need not wait for torch: verbs, options and names are written down in ``completions.json``.

typer asks a verb for its parameters; while a shell completes, a stand-in answers that is made of that file. It has the
names of recipes, tables, data sets, models and settings too. ``scripts/completions.py`` writes it anew after a
change of any of these; a test says when that is due.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

FILE = Path(__file__).with_name("completions.json")
VALUES: dict[str, str | tuple[str, ...]] = {
    "RECIPE": "recipes",
    "TABLE": "tables",
    "--set": "settings",
    "--grid": "settings",
    "--dataset": "data",
    "--model": "models",
    "--attacks": ("clean", "fgsm", "pgd20", "pgd-strongest", "autoattack", "apgd-ce", "apgd-t", "fab-t", "square"),
    "--norm": ("linf", "l2"),
    "--split": ("test", "validation"),
    "--at": ("clean", "adversarial"),
    "--distance": ("full", "quick"),
    "--search": ("float32", "tf32", "folded", "bfloat16"),
    "--engine": ("auto", "eager", "fast"),
    "--device": ("auto", "cpu", "cuda"),
    "--on-nonfinite": ("stop", "skip"),
    "--log": ("tensorboard", "wandb", "mlflow"),
    "--certify": ("all",),
    "--columns": ("data", "threat", "clean", "autoattack", "pgd", "distance", "certified", "differs"),
}
"""What follows an option or stands for an argument: words, or a list of the file. Others are files and folders."""


def stand_in(verb: str) -> Any:
    """The command of the same parameters that does nothing."""
    return _command(_known()["verbs"][verb])


def _command(known: dict[str, Any]) -> Any:
    app = typer.Typer(add_completion=False, invoke_without_command=True)
    if known["commands"]:
        app.callback()(_function(known))
        for name, part in known["commands"].items():
            app.command(name, help=part["help"])(_function(part))
    else:
        app.command()(_function(known))
    return get_command(app)


def _function(known: dict[str, Any]) -> Callable[..., None]:
    """One whose signature, which typer reads, has the verb's parameters."""

    def nothing(**_: Any) -> None: ...

    parameters: list[tuple[str, Any, Any]] = []
    for number, names in enumerate(known["arguments"]):
        argument = typer.Argument(None, metavar=names, autocompletion=_completer(names))
        parameters.append((f"argument{number}", list[str] | None if names.endswith("...") else str | None, argument))
    for number, (text, told) in enumerate((known["options"] | known["flags"]).items()):
        names, flag = text.split(), text in known["flags"]
        option = typer.Option(None, *names, help=told, autocompletion=None if flag else _completer(names[0]))
        parameters.append((f"option{number}", bool | None if flag else list[str] | None, option))
    nothing.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, annotation, default in parameters
        ]
    )
    nothing.__annotations__ = {name: annotation for name, annotation, _ in parameters}
    return nothing


def _completer(name: str) -> Callable[[str], list[str]]:
    values = VALUES.get(name.strip("{}"), ())

    def complete(incomplete: str) -> list[str]:
        """The words that begin so; in a list the last one."""
        before, comma, last = incomplete.rpartition(",")
        words: Sequence[str] = _known()[values] if isinstance(values, str) else values
        if values == "recipes":
            words = [*words, *map(str, Path().glob("*.toml"))]
        given = before.split(",")
        return [f"{before}{comma}{word}" for word in words if word.startswith(last) and word not in given]

    return complete


@cache
def _known() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return known
