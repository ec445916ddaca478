"""The command line: its verbs, each loaded when it is called, and what becomes of mistakes and interrupts.

Help and mistakes need not wait for torch, which takes seconds: what ``--help`` says of a verb is the first paragraph of
that verb's own help, written down here. A command ends with 0, or with 2 and one clear line when a person can put it
right. ``python -m paper`` and ``python -m benchmarks``, of the repository alone, are command lines of this kind too.
"""

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command, get_group

from widemargin.cli.completion import stand_in
from widemargin.cli.options import IMPORTED, Quiet, Verbose, import_own
from widemargin.core.files import refused
from widemargin.core.screen import USUAL, console_for, is_verbose, one_line, say, set_volume, unfailing_streams
from widemargin.core.signals import NOT_BEGUN, InterruptionError, begin_work, end_work
from widemargin.core.versions import installed_version, own_version
from widemargin.errors import InputError, WidemarginWarning

BEGINS_ANEW = "interrupted; the same command begins anew"
INTERRUPTED = 130
READ_ENOUGH = 141  # as after SIGPIPE


@dataclass(frozen=True)
class Verb:
    """Where a verb is: the module, and in it a function or a ``typer.Typer`` with verbs of its own."""

    module: str
    name: str
    help: str
    interrupted: str = BEGINS_ANEW
    """What a person who pressed Ctrl-C wants to know."""
    may_stand_alone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Options that need no value: what theirs may be, that of the option by itself first."""

    def with_values(self, arguments: Sequence[str]) -> list[str]:
        """The arguments, with the value that an option by itself stands for."""
        found: list[str] = []
        for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
            known = self.may_stand_alone.get(argument)
            found += [argument] if known is None or following in known else [argument, known[0]]
        return found

    def load(self) -> Any:
        """The real command, as typer builds it."""
        found = getattr(import_module(self.module), self.name)
        if isinstance(found, typer.Typer):
            command: Any = get_group(found)
        else:
            app = typer.Typer(add_completion=False)
            app.command(self.name)(found)
            command = get_command(app)
        for part in (command, *getattr(command, "commands", {}).values()):
            part.params += _volume_options()
            _show_flags(part)
        return command


@dataclass(frozen=True)
class CommandLine:
    """Verbs under one name; ``replaced`` says what to run in place of verbs of earlier versions."""

    name: str
    help: str
    verbs: Mapping[str, Verb]
    replaced: Mapping[str, str] = field(default_factory=dict)
    completed: bool = False
    """Whether shells complete it (``completion``)."""

    def command(self) -> Any:
        """Every verb, not loaded yet."""
        app = typer.Typer(
            name=self.name,
            help=self.help,
            no_args_is_help=True,
            add_completion=self.completed,
            pretty_exceptions_enable=False,
        )
        app.callback(help=self.help)(_common)
        for name, verb in self.verbs.items():
            app.command(name, cls=_loaded_when_called(verb, name), help=verb.help)(lambda: None)
        command = get_command(app)
        _show_flags(command)
        return command

    def asked(self, arguments: Sequence[str]) -> str:
        """The verb among the arguments, if any."""
        return next((argument for argument in arguments if argument in self.verbs), "")


def _show_flags(command: Any) -> None:
    """Flags take nothing, so the help shows no type beside them."""

    def get_help_option(context: Any, *, usual: Callable[[Any], Any] = command.get_help_option) -> Any:
        option = usual(context)
        if option is not None:
            option.metavar = ""
        return option

    for option in command.params:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    command.get_help_option = get_help_option


def _loaded_when_called(verb: Verb, name: str) -> type[TyperCommand]:
    class Deferred(TyperCommand):
        """Stands in a list of verbs for the real one, and becomes it when it is called."""

        def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
            """The context of the real command, which its group then invokes; a shell that completes need not wait."""
            if extra.get("resilient_parsing"):
                return stand_in(name).make_context(info_name, args, parent, **extra)
            context = verb.load().make_context(info_name, verb.with_values(args), parent, **extra)
            begin_work(verb.interrupted)
            if is_verbose():
                versions = (
                    f"widemargin {own_version()}, torch {installed_version('torch')}, python {sys.version.split()[0]}"
                )
                say(console_for(stderr=True), f"{versions}, {os.cpu_count()} CPUs")
            return context

    return Deferred


def _volume_options() -> list[Any]:
    """-q and -v as typer builds them: they may stand before a verb and after it."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def _says(quiet: Quiet = False, verbose: Verbose = False) -> None: ...

    options = [option for option in get_command(app).params if option.name in ("quiet", "verbose")]
    for option in options:
        option.expose_value = False  # to the verb's function
    return options


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"widemargin {own_version()}")
        raise typer.Exit


def _common(
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="A module of yours that adds models, losses, heads or data."),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_version, help="Print the version and a digest of the code."),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    del version, quiet, verbose
    IMPORTED.clear()
    for name in modules or []:
        import_own(name)


HELP = {
    "demo": "Train the paper's MLP twice on embedded MNIST digits, plain and with EMR, attack both, and draw the "
    "margins.",
    "train": "Train a recipe: progress on the screen, config, metrics and checkpoints in the run folder.",
    "evaluate": "Accuracy on the test images, clean and under each attack, with alarms where one should doubt the "
    "numbers.",
    "check": "What works with a model and what does not, how to fix it, how penalties are computed, and what a step "
    "costs.",
    "compare": "Which of two evaluated models is better: paired on the same images, over seeds where there are "
    "several.",
    "margins": "Effective margins: mean, spread and quantiles, over all and over correctly classified images, and a "
    "histogram.",
    "reproduce": "Train and judge the rows of tables, skipping what is done, and set our numbers beside the published "
    "ones.",
    "report": "Write one HTML page that needs no network, and its tables as Markdown, CSV and LaTeX; unfinished runs "
    "too.",
    "sweep": "Run every point of a grid once; start the same command on more machines and they share the work.",
    "status": "What runs where, what is done, failed and left, and the time it will take.",
    "export": "Write a trained network as ONNX, for any number of images in [0, 1]; onnxruntime must give the same "
    "logits.",
    "push": "Put a run's weights on Hugging Face's hub: safetensors, the configuration, and a card of what was "
    "measured.",
    "recipes": "List the recipes: data, epochs, what a run costs, published numbers; 'recipes show NAME' prints one.",
}
INTERRUPTED_MESSAGES = {
    **dict.fromkeys(("demo", "reproduce", "sweep"), "interrupted; the same command goes on where it stopped"),
    "train": "interrupted; a training run goes on from its last checkpoint when the same command is given again",
    "evaluate": "interrupted; with --out FOLDER the same command goes on from what is finished",
}
MAY_STAND_ALONE = {"evaluate": {"--distance": ("full", "quick", "fab-t")}}
VERBS = {
    name: Verb(
        f"widemargin.cli.{name}",
        name,
        text,
        INTERRUPTED_MESSAGES.get(name, BEGINS_ANEW),
        MAY_STAND_ALONE.get(name, {}),
    )
    for name, text in HELP.items()
}
WIDEMARGIN = CommandLine(
    "widemargin",
    "Train image classifiers whose decision boundary is far from the data, measure how far, test it under attack.",
    VERBS,
    completed=True,
    replaced={"results": "python -m paper collect", "bench": "python -m benchmarks step"},
)


def main(arguments: Sequence[str] | None = None, line: CommandLine = WIDEMARGIN) -> None:
    """Run the command line and exit."""
    out = unfailing_streams()
    code = run(sys.argv[1:] if arguments is None else arguments, line)
    end_work()
    sys.stdout.flush()
    if out.failure is not None and code == 0:  # standard output took not all of it
        read_enough = out.failure.errno == errno.EPIPE  # which is no mistake
        why = f"cannot write to standard output: {out.failure.strerror}; the rest is done, what it says is lost"
        code = READ_ENOUGH if read_enough else _refuse(why)
    sys.exit(code)


def run(arguments: Sequence[str], line: CommandLine = WIDEMARGIN) -> int:
    """Run one command; returns the exit code."""
    set_volume(USUAL)
    with warnings.catch_warnings():  # which also puts the usual display back
        warnings.showwarning = _display(warnings.showwarning)
        try:
            code = line.command()(args=list(arguments) or ["--help"], prog_name=line.name, standalone_mode=False)
        except InputError as error:
            if is_verbose():
                traceback.print_exception(error)
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
            if hasattr(error, "format_message"):  # the parser's own errors have it, whichever parser typer carries
                return _refuse(_usage(error.format_message(), getattr(error, "ctx", None), arguments, line))
            if not _is_about_memory(error):
                raise
            reason = next(iter(str(error).splitlines()), "no more to be had")
            return _refuse(f"not enough memory: {reason}; use smaller batches, fewer images or a smaller network")
    if code == INTERRUPTED:  # which typer, too, makes of a KeyboardInterrupt
        verb = line.verbs.get(line.asked(arguments))
        _say(verb.interrupted if verb else NOT_BEGUN)
    return code if isinstance(code, int) else 0


def _is_about_memory(error: Exception) -> bool:
    """torch has an exception of its own for it on a GPU alone."""
    words = ("out of memory", "can't allocate memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(part in str(error) for part in words)
    )


def _usage(message: str, context: Any, arguments: Sequence[str], line: CommandLine) -> str:
    """What the parser says, with the help that helps: that of the verb."""
    for verb, instead in line.replaced.items():
        if message.startswith(f"No such command '{verb}'"):
            return f"'{line.name} {verb}' is no more; in the repository run '{instead}' (see '{instead} --help')"
    path = getattr(context, "command_path", f"{line.name} {line.asked(arguments)}".rstrip())
    text = message if message.endswith("?") else f"{message.rstrip('.')}."
    if path == "widemargin train" and message.startswith("No such option"):
        text += " Settings are changed with --set, such as --set optimizer.lr=0.05."
    return f"{text} See '{path} --help'."


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
