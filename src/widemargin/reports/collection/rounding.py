"""Numbers cut to what a reader or a figure can use, so that the tree stays small and diffs are legible."""

from typing import Any

KEPT = 6
"""Significant digits of what training measured."""


def rounded(value: Any, digits: int = KEPT) -> Any:
    """The value with every float in it rounded to so many significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item, digits) for item in value]
    return value
