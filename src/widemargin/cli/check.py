"""``widemargin check``: will it work with this model, how are penalties computed, and what does a step cost?"""

import json
from typing import Annotated

import torch
import typer

from widemargin.cli.options import DataDir, Device, HeadScale, Json, NormalizeBy, TargetName
from widemargin.core.device import choose_device
from widemargin.core.screen import console_for, say
from widemargin.data.datasets import load
from widemargin.errors import InputError
from widemargin.evaluation.model_check import IMAGES
from widemargin.evaluation.model_check import check as check_model
from widemargin.evaluation.target import LoadedModel, load_model

Shape = tuple[int, int, int]


def check(
    target: TargetName,
    dataset: Annotated[
        str | None, typer.Option(help="Look at its first test images. Default: random ones.", show_default=False)
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="C,H,W", help="Of random images, such as 3,32,32. Default: the run's.", show_default=False
        ),
    ] = None,
    head_scale: HeadScale = None,
    normalize: NormalizeBy = None,
    as_json: Json = False,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """What works with a model and what does not, how to fix it, how penalties are computed, and what a step costs."""
    if dataset is not None and shape is not None:
        raise InputError("--shape is of random images, --dataset names other ones; give one of them")
    chosen = choose_device(device)
    images = None if dataset is None else load(dataset, "test", data_dir=data_dir, limit=IMAGES).floats()
    given = None if shape is None else _parsed(shape)
    known = given if images is None else (images.shape[1], images.shape[2], images.shape[3])
    found = load_model(target, image_shape=known, head_scale=head_scale, normalize=normalize, pretrained=False)
    if images is None:
        images = torch.rand(IMAGES, *_shape(found, given, target), generator=torch.Generator().manual_seed(0))
    result = check_model(found.model.to(chosen), images.to(chosen))
    if as_json:
        typer.echo(json.dumps({"target": target} | result.to_json(), indent=2))
        return
    console = console_for()
    say(console, f"{target}, on {'the first images of ' + dataset if dataset else 'random images'}:")
    for line in str(result).splitlines():
        say(console, line)


def _parsed(text: str) -> Shape:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--shape must be C,H,W, such as 3,32,32, got {text!r}")
    channels, height, width = (int(part) for part in parts)
    return channels, height, width


def _shape(found: LoadedModel, given: Shape | None, target: str) -> Shape:
    """As asked, or as the run had it."""
    if given is not None:
        return given
    if found.image_shape is not None:
        return found.image_shape
    if found.target is not None:
        return found.target.description.image_shape
    raise InputError(f"{target} does not say which images it wants; give --shape, such as 3,32,32, or --dataset")
