"""TensorBoard: event files in the run folder's ``tensorboard``; ``tensorboard --logdir runs`` shows them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """A ``Tracker`` and ``ShowsPictures``: curves, histograms of margins, adversarial images, the configuration."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder) / "tensorboard"
        self._writer: SummaryWriter | None = None
        self._last = 0

    def begin(self, config: Mapping[str, Any], name: str) -> None:
        """Open a file beside those of earlier calls, and see how far they go."""
        self._last = self._logged()
        self._writer = SummaryWriter(str(self._folder))
        if self._last == 0:
            text = tomli_w.dumps(dict(config))
            self._writer.add_text(
                "config", "\n".join([f"**{name}**", "", *(f"    {line}" for line in text.split("\n"))])
            )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One point of each curve, on disk when this returns."""
        if self._writer is not None and step > self._last:
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()
            self._last = step

    def histogram(self, name: str, values: Tensor, step: int) -> None:
        """How the values are spread."""
        if self._writer is not None and step > self._last and len(values):
            self._writer.add_histogram(name, values, step)

    def image(self, name: str, image: Tensor, step: int) -> None:
        """A picture."""
        if self._writer is not None and step > self._last:
            self._writer.add_image(name, image, step)

    def finish(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _logged(self) -> int:
        """The last step whose curves are there."""
        if not self._folder.is_dir():
            return 0
        found = EventAccumulator(str(self._folder), size_guidance={"scalars": 1, "images": 1, "histograms": 1})
        found.Reload()
        return max((found.Scalars(tag)[-1].step for tag in found.Tags()["scalars"]), default=0)
