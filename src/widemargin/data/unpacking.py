"""Images and labels out of a batch, in whatever form data loaders give one.

A tuple or list begins with the two; what follows, such as the indices of the samples, is left out. A mapping has them
under one of the names below: those of Hugging Face's data sets and image processors, and WebDataset's extensions.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widemargin.core.checks import check_tensor
from widemargin.errors import InputError

IMAGES = ("pixel_values", "image", "images", "img", "jpg", "jpeg", "png", "webp")
LABELS = ("labels", "label", "cls")
"""The first that is there counts."""


def is_batch(data: object) -> bool:
    """Whether the data is one batch, and not an iterable of batches."""
    if isinstance(data, Mapping):
        return True
    return isinstance(data, tuple | list) and any(isinstance(part, Tensor | np.ndarray) for part in data[:2])


def unpack(owner: str, batch: object) -> tuple[Tensor, Tensor]:
    """(images, labels) of a batch. Labels may come as an array, as WebDataset collates them."""
    images: Any
    labels: Any
    if isinstance(batch, Mapping):
        images, labels = (_entry(owner, batch, names, what) for names, what in ((IMAGES, "images"), (LABELS, "labels")))
    elif isinstance(batch, tuple | list) and len(batch) > 1:
        images, labels = batch[:2]
    else:
        raise InputError(f"{owner}: data must give pairs (images, labels) of tensors, got {type(batch).__name__}")
    check_tensor(owner, "images", images)
    labels = torch.as_tensor(labels) if isinstance(labels, np.ndarray) and labels.dtype.kind in "iuf" else labels
    check_tensor(owner, "labels", labels)
    return images, labels


def _entry(owner: str, batch: Mapping[Any, Any], names: tuple[str, ...], what: str) -> Any:
    found = next((name for name in names if name in batch), None)
    if found is None:
        has = ", ".join(map(repr, batch)) or "nothing"
        raise InputError(
            f"{owner}: a batch must hold its {what} under one of {', '.join(names)}, got {has}; rename them, or give "
            "pairs (images, labels)"
        )
    return batch[found]
