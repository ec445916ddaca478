"""No network larger than the weights that are to fill it.

A file says how large its network is, and a small file may say that it is enormous. While such a network is built, every
new tensor is counted before it is allocated; one that the file's weights could never fill ends in one line to the user.
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
_FACTORIES = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye})


@contextmanager
def no_larger_than(weights: Mapping[str, object], *, source: str) -> Iterator[None]:
    """Modules made inside may hold about as many values as ``weights``, and not many times more."""
    held = sum(value.numel() for value in weights.values() if isinstance(value, Tensor) and not value.is_meta)
    with _Budget(4 * held + _ROOM, source):
        yield


class _Budget(TorchFunctionMode):
    """Counts what the factories of torch are asked for; an empty tensor counts too, so nothing goes on for ever."""

    def __init__(self, limit: int, source: str) -> None:
        super().__init__()
        self._left, self._source = limit, source

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
        self._left -= 1 + math.prod(size for size in sizes if isinstance(size, int))
        if self._left < 0:
            raise InputError(
                f"{self._source}: the network it describes is far larger than the weights it holds; "
                "the description is damaged or of another file"
            )
