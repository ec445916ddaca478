"""The options of the verbs: those that several share, those of ``evaluate``, how numbers and durations are written.

``widemargin --help`` reads this file, so nothing here imports torch before it is needed.
"""

import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from widemargin.core.schema import LiteralFloat
from widemargin.core.screen import QUIET, VERBOSE, say, set_volume
from widemargin.errors import InputError

if TYPE_CHECKING:
    from widemargin.config.run import RunConfig

TargetArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A run folder (what train --out named) or a .safetensors file."),
]
DataDir = Annotated[
    str | None,
    typer.Option(help="Folder with the data files; default $WIDEMARGIN_DATA, else a cache folder.", show_default=False),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="auto (fast on a GPU; on a CPU attacks search in bfloat16 where that pays), eager (the float32 reference) "
        "or fast (a CPU then multiplies everything in bfloat16).",
    ),
]
OnNonfinite = Annotated[
    str, typer.Option(help="At a NaN or an infinity: stop, and keep that step; or skip it and go on.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Processes that decode streamed images (folders, tar shards); default: one per CPU.",
        show_default=False,
    ),
]
ImageSize = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS",
        help="Resize the images of a folder or of tar shards; default: as the run did.",
        show_default=False,
    ),
]
Limit = Annotated[int | None, typer.Option(help="Use only the first N images.", show_default=False)]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        callback=lambda asked: asked and set_volume(QUIET),
        help="Standard error has warnings and mistakes alone: no progress, no notes.",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        callback=lambda asked: asked and set_volume(VERBOSE),
        help="Say more: the versions, progress in a log too, where a mistake was found.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

Launcher = Annotated[
    str, typer.Option(help="Where jobs run: local (this machine), slurm (needs submitit) or ray. See docs/clusters.md.")
]
SlurmOptions = Annotated[
    str | None,
    typer.Option(
        "--slurm",
        metavar="OPTION=VALUE,...",
        help="sbatch's options for each job, e.g. partition=gpu,gpus-per-node=1,time=24:00:00.",
        show_default=False,
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Ray's cluster: auto, HOST:6379 or ray://HOST:10001; what a job takes may follow: auto,gpus=0.5,cpus=2.",
        show_default=False,
    ),
]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AMOUNT = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"

IMPORTED: list[str] = []
"""What this command was given with --import."""


def import_own(name: str) -> None:
    """Import a user's module, from the current folder too, so that what it adds to the registries is known."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"--import {name!r} is no module's name; give it as Python imports it, such as package.module")
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"--import {name!r}: {error}; give a module's name as Python imports it") from None
    IMPORTED.append(name)


def listed(text: str) -> list[str]:
    """The parts of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def number(option: str, text: str | None) -> LiteralFloat | None:
    """A number such as 0.031 or 8/255, as written."""
    if text is None:
        return None
    try:
        return LiteralFloat(text)
    except InputError as error:
        raise InputError(f"{option}: {error}") from None


def seconds(option: str, text: str | None) -> float:
    """A duration such as 90s, 25m, 1.5h or 1h30m; without one, forever."""
    if text is None:
        return float("inf")
    if not re.fullmatch(rf"{_AMOUNT}|({_AMOUNT}[smhd])+", text.strip()):
        raise InputError(f"{option}: {text!r} is not a duration; write 90s, 25m or 1h30m")
    total = sum(float(value) * _UNITS[unit] for value, unit in re.findall(rf"({_AMOUNT})([smhd]?)", text))
    if total <= 0:
        raise InputError(f"{option}: {text!r} is no time at all; write 90s, 25m or 1h30m")
    return total


TargetName = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A run folder, a checkpoint, public weights (.pt, .pth, .safetensors), timm:NAME, hf:NAME, "
        "torchvision:NAME or package.module:factory.",
    ),
]
Attacks = Annotated[
    str | None,
    typer.Option(
        help="clean, fgsm, pgdN (pgd20-margin, pgd20x10, pgd-strongest), autoattack or one of apgd-ce, apgd-t, fab-t, "
        "square; comma-separated. Default: the run's own.",
        show_default=False,
    ),
]
Eps = Annotated[
    str | None, typer.Option(help="Radius, e.g. 0.1 or 8/255; several give a curve: 2/255,8/255.", show_default=False)
]
NormName = Annotated[
    str | None, typer.Option(help="linf or l2. Default: the run's own, else linf.", show_default=False)
]
StepSize = Annotated[
    str | None,
    typer.Option(
        help="PGD's step; else the run's own where eps is (one of several or not), and eps/4 elsewhere.",
        show_default=False,
    ),
]
Dataset = Annotated[str | None, typer.Option(help="Default: what it was trained on.", show_default=False)]
SplitName = Annotated[str, typer.Option("--split", help="test, or validation: what the run held out.")]
Distance = Annotated[
    str | None,
    typer.Option(
        metavar="[full|quick]",
        help="Also the distance to the nearest adversarial image: full, the default, is the minimum over more attacks.",
        show_default=False,
    ),
]
Certify = Annotated[
    str | None,
    typer.Option(
        metavar="N|all",
        help="Also a proven radius for each of the first N images, or of all: without adversarial images inside.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the attacks' random numbers.")]
ShardSize = Annotated[int, typer.Option(help="Images finished and written down together.")]
BatchSize = Annotated[int, typer.Option(help="Images attacked at once.")]
Search = Annotated[
    str,
    typer.Option(
        help="How attacks search: float32; tf32 (GPUs); folded or bfloat16 (CPUs). Finds are checked in float32."
    ),
]
SaveAdversarial = Annotated[
    bool, typer.Option("--save-adversarial", help="Keep the adversarial images found, in OUT/adversarial.")
]
HeadScale = Annotated[
    float | None, typer.Option(help="Scale of a hypersphere head in public weights.", show_default=False)
]
NormalizeBy = Annotated[
    str | None,
    typer.Option(
        "--normalize",
        metavar="MEAN,STD",
        help="What public weights were trained behind: numbers (means, then stds), none, or data such as cifar10.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the records; the same command goes on there.", show_default=False)
]

Share = Annotated[
    str | None,
    typer.Option(
        metavar="K/N",
        help="Judge only every N-th shard, from the K-th on (0 is the first); without it the command gathers them.",
        show_default=False,
    ),
]
Jobs = Annotated[
    int | None, typer.Option(help="With --launcher slurm or ray: so many jobs share the shards.", show_default="1")
]


def given_again(context: typer.Context, without: Iterable[str]) -> list[str]:
    """The command's arguments as they were given, but for these options."""
    words: list[str] = []
    positional: list[str] = []
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params.get(str(parameter.name))
        if name in without or value is None or value == parameter.get_default(context):
            continue
        if parameter.param_type_name == "argument":
            positional.append(str(value))
        elif value is True:
            words.append(parameter.opts[0])
        else:
            values = value if isinstance(value, list | tuple) else [value]
            words += [word for one in values for word in (parameter.opts[0], str(one))]
    return [*positional, *words]


def check_split(split: str, dataset: str | None, among: tuple[str, ...]) -> None:
    """One of those; what a run held out is of its own data alone."""
    from widemargin.core.checks import choice  # here: it brings torch, for which help need not wait

    choice("", "--split", split, among)
    if split == "validation" and dataset is not None:
        raise InputError("--split validation is of the run's own data; leave out --dataset")


def note_unreached(configs: Iterable["RunConfig"], console: Console) -> None:
    """Each note once, however many runs deserve it."""
    from widemargin.config.run import unreached  # here: it brings torch, for which help need not wait

    for text in dict.fromkeys(text for config in configs for text in unreached(config)):
        say(console, f"note: {text}", style="yellow")
