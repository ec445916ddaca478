"""How a step that is captured gets its batch: from tensors at fixed addresses that are filled before a replay.

A batch that is only picked yet is made inside the graph, from the positions of its images and what its augmentation has
drawn: two small copies before a replay, where making it outside takes a dozen launches.
"""

from typing import Any, Protocol, cast

import torch
from torch import Tensor

from widemargin.data import Batch, DrawnBefore, Picked, as_floats, is_drawn_before


class Inputs(Protocol):
    """Holds a batch for a graph."""

    def fill(self, batch: Batch) -> None:
        """Take over a batch of the same kind."""
        ...

    def read(self) -> tuple[Tensor, Tensor]:
        """(images, labels), inside the graph."""
        ...


class Copied:
    """The images and labels themselves."""

    def __init__(self, batch: Batch) -> None:
        self._images, self._labels = torch.empty_like(batch.images), torch.empty_like(batch.labels)

    def fill(self, batch: Batch) -> None:
        """Copy them."""
        self._images.copy_(batch.images)
        self._labels.copy_(batch.labels)

    def read(self) -> tuple[Tensor, Tensor]:
        """The copies."""
        return self._images, self._labels


class Gathered:
    """Positions and draws; the images and labels are made of them."""

    def __init__(self, batch: Picked, augmentation: DrawnBefore) -> None:
        self._data, self._augmentation = batch.data, augmentation
        self._rows = torch.empty_like(batch.rows)
        self._draws = self._drawn(batch).to(batch.rows.device)

    def fill(self, batch: Batch) -> None:
        """Copy positions and draws."""
        if not isinstance(batch, Picked):  # the kind of a step says so
            raise TypeError(f"a picked batch is due, this is a {type(batch).__name__}")
        self._rows.copy_(batch.rows)
        if self._draws.numel():
            self._draws.copy_(self._drawn(batch), non_blocking=True)

    def read(self) -> tuple[Tensor, Tensor]:
        """The batch's images and labels."""
        images = self._augmentation.apply(self._data.images[self._rows], self._draws)
        return as_floats(images), self._data.labels[self._rows]

    def _drawn(self, batch: Picked) -> Tensor:
        return self._augmentation.draw(len(batch.rows), batch.generator())


def inputs_for(batch: Batch) -> Inputs:
    """What holds batches like this one."""
    if isinstance(batch, Picked) and _is_made_inside(batch):
        return Gathered(batch, cast(DrawnBefore, batch.augmentation))
    return Copied(batch)


def kind_of(batch: Batch) -> tuple[Any, ...]:
    """Equal for batches that the same inputs can hold."""
    if isinstance(batch, Picked) and _is_made_inside(batch):
        return id(batch.data), len(batch.rows)
    return tuple(batch.images.shape)


def _is_made_inside(batch: Picked) -> bool:
    return batch.share is None and is_drawn_before(batch.augmentation)
