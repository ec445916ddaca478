"""``widemargin export``: a trained network as ONNX, its logits compared in onnxruntime."""

from pathlib import Path
from typing import Annotated

import typer

from widemargin.cli.options import TargetArgument
from widemargin.core.files import make_folder
from widemargin.core.screen import console_for, say
from widemargin.errors import InputError
from widemargin.evaluation.target import load_target
from widemargin.integrations import missing


def export(
    run: TargetArgument,
    path: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The file to write.")],
) -> None:
    """Write a trained network as ONNX, for any number of images in [0, 1]; onnxruntime must give the same logits."""
    if path.suffix != ".onnx":
        raise InputError(f"export writes ONNX, so the file must be named .onnx, got {path}")
    try:
        from widemargin.integrations.onnx import export_onnx
    except ImportError as error:
        raise missing("export", "onnx", error) from None
    target = load_target(run)
    description = target.description
    make_folder(path.parent)
    notes = {
        "name": description.run_config().name,
        "weights": f"{description.selection} (epoch {description.epoch})",
        "images": "in [0, 1]; the model normalizes by itself",
    }
    difference = export_onnx(target.model, path, image_shape=description.image_shape, notes=notes)
    say(
        console_for(),
        f"{path}: images {description.image_shape} to {description.num_classes} logits; onnxruntime's "
        f"differ by at most {difference:.2g}",
    )
