"""No network larger than the weights that are to fill it.

A file says how large its network is, and a small file may say that it is enormous. While such a network is built, every
new tensor is counted before it is allocated, and so is how many there are: one that the file's weights could never fill
ends in one line to the user.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from widemargin.errors import InputError

_ROOM = 2**20  # values beyond the weights themselves: buffers that are not stored, scratch space of initializations
_FEW, _MANY = 1000, 20_000  # tensors beyond those of the file, and in all: a thousand layers have fewer than 10,000
_FACTORIES = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye})


@contextmanager
def no_larger_than(weights: Mapping[str, object], *, source: str) -> Iterator[None]:
    """Modules made inside may hold about as many values as ``weights``, and not many times more."""
    sizes = [value.numel() for value in weights.values() if isinstance(value, Tensor) and not value.is_meta]
    with _Budget(4 * sum(sizes) + _ROOM, 4 * len(sizes) + _FEW, source):
        yield


class _Budget(TorchFunctionMode):
    """Counts what the factories of torch are asked for."""

    def __init__(self, values: int, tensors: int, source: str) -> None:
        super().__init__()
        self._values, self._tensors, self._source = values, min(tensors, _MANY), source
        self._too_many = tensors > _MANY

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run it, if it does not ask for too much."""
        del types
        if func in _FACTORIES:
            self._spend(args)
        return func(*args, **(kwargs or {}))

    def _spend(self, args: tuple[Any, ...]) -> None:
        sizes = args[0] if args and isinstance(args[0], tuple | list) else args
        self._values -= math.prod(size for size in sizes if isinstance(size, int))
        self._tensors -= 1
        if self._values < 0 or self._tensors < 0:
            found = f"has more than {_MANY} tensors" if self._too_many else "is far larger than the weights it holds"
            raise InputError(
                f"{self._source}: the network it describes {found}; the description is damaged or of another file"
            )
