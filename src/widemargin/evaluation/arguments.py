"""What people give to ``evaluate`` for its attacks and radii, as the settings hold it."""

from collections.abc import Iterable
from typing import Any

from widemargin.errors import InputError
from widemargin.written import Written


def attack_names(attacks: Any) -> tuple[str, ...]:
    """One name or several."""
    given = list(attacks) if isinstance(attacks, Iterable) and not isinstance(attacks, str) else [attacks]
    for name in given:
        if not isinstance(name, str):
            raise InputError(
                f"evaluate.attacks must be names such as 'fgsm' or 'pgd20', got {name!r}; eps, norm and step_size are "
                "given beside them"
            )
    return tuple(given)


def radii(eps: Any) -> tuple[float, ...]:
    """One eps or several; an array or a tensor of no dimension is one."""
    single = isinstance(eps, str) or not isinstance(eps, Iterable) or getattr(eps, "ndim", None) == 0
    return tuple(number("eps", value) for value in ([eps] if single else list(eps)))


def number(field: str, value: Any) -> float:
    """A number of any kind, or one written as "8/255", which stays so."""
    if isinstance(value, str):
        return Written(value)
    if isinstance(value, int | float):  # as it is: it may remember how it was written
        return value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"evaluate.{field} must be a number such as 8/255, got {value!r}") from None
