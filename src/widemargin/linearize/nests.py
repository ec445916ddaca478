"""Nests of lists, tuples and dictionaries that hold tensors: the arguments and results of operators."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def mapped(value: Any, change: Callable[[Any], Any], of: type = Tensor) -> Any:
    """The same nest with every ``of`` changed; a special kind of list or tuple becomes a plain one."""
    if isinstance(value, of):
        return change(value)
    if isinstance(value, list):
        return [mapped(item, change, of) for item in value]
    if isinstance(value, tuple):
        return tuple(mapped(item, change, of) for item in value)
    if isinstance(value, dict):
        return {key: mapped(item, change, of) for key, item in value.items()}
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a nest, in order."""
    found: list[Tensor] = []
    mapped(value, found.append)
    return found
