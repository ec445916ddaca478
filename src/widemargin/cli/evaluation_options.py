"""The options of ``widemargin evaluate`` that no other verb has."""

from pathlib import Path
from typing import Annotated

import typer

TargetName = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A run folder, a checkpoint, public weights (.pt, .pth, .safetensors) or package.module:factory.",
    ),
]
Attacks = Annotated[
    str | None,
    typer.Option(help="clean, fgsm, pgdN, autoattack; comma-separated. Default: the run's own.", show_default=False),
]
Eps = Annotated[
    str | None, typer.Option(help="Radius, e.g. 0.1 or 8/255; several give a curve: 2/255,8/255.", show_default=False)
]
NormName = Annotated[
    str | None, typer.Option(help="linf or l2. Default: the run's own, else linf.", show_default=False)
]
StepSize = Annotated[
    str | None,
    typer.Option(help="PGD's step; unless given the run's own at its own eps, else eps/4.", show_default=False),
]
Dataset = Annotated[str | None, typer.Option(help="Default: what it was trained on.", show_default=False)]
SplitName = Annotated[str, typer.Option("--split", help="test, or validation: what the run held out.")]
Distance = Annotated[bool, typer.Option("--distance", help="Also the distance to the nearest adversarial image.")]
Seed = Annotated[int, typer.Option(help="Seed of the attacks' random numbers.")]
ShardSize = Annotated[int, typer.Option(help="Images finished and written down together.")]
BatchSize = Annotated[int, typer.Option(help="Images attacked at once.")]
Search = Annotated[
    str,
    typer.Option(help="How attacks search: float32, or tf32, faster on GPUs; what they find is checked in float32."),
]
HeadScale = Annotated[
    float | None, typer.Option(help="Scale of a hypersphere head in public weights.", show_default=False)
]
NormalizeBy = Annotated[
    str | None,
    typer.Option(
        "--normalize",
        metavar="MEAN,STD",
        help="What public weights were trained behind: numbers (all means, then all stds), cifar10, mnist or none.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the records; the same command goes on there.", show_default=False)
]
