"""Numbers as people write them: an eps of "8/255" stays "8/255" on the page and is 0.0313... in the arithmetic.

The field confuses 0.031, 0.0314 and 8/255, half a point of robust accuracy apart; a result that keeps the literal can
be compared.
"""

import math
from typing import Self

from widemargin.errors import InputError


class Written(float):
    """A float that remembers how it was written."""

    text: str

    def __new__(cls, value: "str | float") -> Self:
        """Read "8/255", "0.031" or a number."""
        number = super().__new__(cls, _read(value) if isinstance(value, str) else value)
        number.text = value.text if isinstance(value, Written) else str(value).strip()
        return number

    def __repr__(self) -> str:
        return self.text

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (self.text,)


def _read(text: str) -> float:
    numerator, slash, denominator = text.partition("/")
    try:
        value = float(numerator) / float(denominator) if slash else float(numerator)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{text!r} is not a number; write 0.031 or 8/255") from None
    if not math.isfinite(value):
        raise InputError(f"{text!r} is not a finite number; write 0.031 or 8/255")
    return value
