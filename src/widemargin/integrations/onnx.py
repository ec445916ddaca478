"""ONNX: a classifier as a file that onnxruntime and others run, kept only if onnxruntime gives the model's logits."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import onnxscript  # torch's exporter needs it
import torch
from torch import nn

from widemargin.core import randomness
from widemargin.core.files import write_atomic
from widemargin.errors import InputError

CHECKED = (1, 5)
"""Sizes of the batches that are compared; the file takes any."""
TOLERANCE = 1e-4
"""Of the largest logit: onnxruntime multiplies in float32 in another order."""


def export_onnx(model: nn.Module, path: Path, *, image_shape: tuple[int, int, int], notes: Mapping[str, str]) -> float:
    """Write it: "images" (B, C, H, W) in [0, 1] to "logits" (B, K). Returns the largest difference found."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        program: Any = torch.onnx.export(
            model.eval(),
            (torch.rand(2, *image_shape, generator=randomness.derived(0, "onnx")),),
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    finally:
        exporter.setLevel(level)
    made = program.model_proto
    onnx.helper.set_model_props(made, {**notes, "onnxscript": onnxscript.__version__})
    onnx.checker.check_model(made)
    content = made.SerializeToString()
    difference = _largest_difference(model, content, image_shape)
    write_atomic(path, lambda partial: partial.write_bytes(content))
    return difference


def _largest_difference(model: nn.Module, content: bytes, image_shape: tuple[int, int, int]) -> float:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    largest = 0.0
    for size in CHECKED:
        x = torch.rand(size, *image_shape, generator=randomness.derived(0, "onnx", size))
        with torch.no_grad():
            expected = model(x)
        (found,) = session.run(None, {"images": x.numpy()})
        difference = float((torch.from_numpy(found) - expected).abs().max())
        if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
            raise InputError(
                f"export: onnxruntime {onnxruntime.__version__} gives other logits than the model, by up to "
                f"{difference:.3g}; nothing was written; try another version of onnxruntime or onnxscript"
            )
        largest = max(largest, difference)
    return largest
