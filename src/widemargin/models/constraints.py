"""What every architecture asks of its numbers, with errors that name owner, field and remedy."""

import math
from typing import TypeGuard

from widemargin.errors import InputError

ImageShape = tuple[int, int, int]
"""(channels, height, width) of one image."""


def is_count(value: object) -> TypeGuard[int]:
    """Whether this is an integer of one or more; ``True`` is not a count."""
    return type(value) is int and value >= 1


def require_count(name: str, value: object, *, remedy: str) -> None:
    """Refuse anything but an integer of one or more. ``name`` is ``Owner.field``."""
    if not is_count(value):
        raise InputError(f"{name} must be an integer of at least 1, got {value!r}; {remedy}")


def require_counts(name: str, values: object, *, remedy: str) -> None:
    """Refuse anything but a tuple of integers of one or more."""
    if not isinstance(values, tuple) or not all(is_count(value) for value in values):
        raise InputError(f"{name} must be a tuple of integers of at least 1, got {values!r}; {remedy}")


def require_finite(name: str, values: object) -> None:
    """Refuse anything but a tuple of at least one finite number."""
    if not isinstance(values, tuple) or not values or not all(_is_finite_number(value) for value in values):
        raise InputError(f"{name} must be a tuple of finite numbers, got {values!r}; give one number per channel")


def require_image_shape(name: str, shape: object) -> None:
    """Refuse anything but (channels, height, width)."""
    remedy = "give (channels, height, width), such as (3, 32, 32)"
    require_counts(name, shape, remedy=remedy)
    if isinstance(shape, tuple) and len(shape) != 3:
        raise InputError(f"{name} must have three entries, got {shape!r}; {remedy}")


def require_num_classes(name: str, value: object) -> None:
    """Refuse anything but an integer of two or more."""
    if not is_count(value) or value < 2:
        raise InputError(f"{name} must be an integer of at least 2, got {value!r}; count the classes of the data set")


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
