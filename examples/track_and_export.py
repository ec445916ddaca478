"""A run logged with TensorBoard and a tracker of one's own, and its network in onnxruntime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime
import torch

import widemargin
from widemargin.config.toml import with_overrides
from widemargin.data import load
from widemargin.integrations.onnx import export_onnx
from widemargin.integrations.tensorboard import TensorBoard
from widemargin.recipes import find_recipe
from widemargin.training import train


class Printed:
    """What a tracker is: three methods."""

    def begin(self, config: Mapping[str, Any], name: str) -> None:
        """The run begins, or goes on."""
        print(f"{name}: weight decay {config['optimizer']['weight_decay']}")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """An epoch has ended."""
        print(f"epoch {step}: loss {metrics['loss']:.3f}")

    def finish(self) -> None:
        """The run has ended."""


def main(out: Path = Path("runs/tracked")) -> widemargin.Report:
    """Train the paper's recipe with EMR for a moment, look at it from outside, then judge."""
    settings = [
        "epochs=2",
        "data.name=mnist-embedded",
        "data.train_limit=500",
        "data.test_limit=50",
        "model.hidden=[64]",
    ]
    config = with_overrides(find_recipe("mnist-mlp/st-emr").config, [*settings, "watch.margins=[]"])
    run = train(config, out=out, device="cpu", trackers=[TensorBoard(out), Printed()])

    model = widemargin.load(run.folder)
    export_onnx(model, out / "model.onnx", image_shape=(1, 28, 28), notes={"name": config.name})
    session = onnxruntime.InferenceSession(str(out / "model.onnx"), providers=["CPUExecutionProvider"])
    test = load("mnist-embedded", "test")
    images, labels = test.floats(slice(0, 50)), test.labels[:50]
    (logits,) = session.run(["logits"], {"images": images.numpy()})
    assert torch.allclose(torch.as_tensor(logits), model(images), atol=1e-4)
    return widemargin.evaluate(model, (images, labels), ["clean", "pgd5"], eps=0.1)


if __name__ == "__main__":
    print(main())
