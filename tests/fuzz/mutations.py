"""Bytes changed as accidents and enemies change them: bits flipped, parts cut, doubled or moved, numbers made huge."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1)
FORMATS = ("<H", ">H", "<I", ">I", "<Q", ">Q")


@dataclass(frozen=True)
class Edit:
    """One change: what, where (a count from the start or from the end), how much, and with which bytes."""

    kind: str
    at: int
    size: int
    content: bytes

    def __call__(self, whole: bytes, others: Sequence[bytes]) -> bytes:
        """The bytes after the change."""
        at = self.at % (len(whole) + 1)
        return KINDS[self.kind](self, whole, at, others)


def _flip(edit: Edit, whole: bytes, at: int, others: Sequence[bytes]) -> bytes:
    changed = bytearray(whole)
    if at < len(changed):
        changed[at] ^= 1 << edit.size % 8
    return bytes(changed)


def _number(edit: Edit, whole: bytes, at: int, others: Sequence[bytes]) -> bytes:
    form = FORMATS[edit.size % len(FORMATS)]
    width = struct.calcsize(form)
    packed = struct.pack(form, NUMBERS[len(edit.content) % len(NUMBERS)] % 2 ** (8 * width))
    return whole[:at] + packed + whole[at + width :]


def _splice(edit: Edit, whole: bytes, at: int, others: Sequence[bytes]) -> bytes:
    other = others[edit.size % len(others)]
    return whole[:at] + other[at + len(edit.content) :]


KINDS: dict[str, Callable[[Edit, bytes, int, Sequence[bytes]], bytes]] = {
    "flip": _flip,
    "number": _number,
    "splice": _splice,
    "cut": lambda edit, whole, at, others: whole[:at],
    "drop": lambda edit, whole, at, others: whole[:at] + whole[at + edit.size :],
    "double": lambda edit, whole, at, others: whole[:at] + 2 * whole[at : at + edit.size] + whole[at + edit.size :],
    "insert": lambda edit, whole, at, others: whole[:at] + edit.content + whole[at:],
    "write": lambda edit, whole, at, others: whole[:at] + edit.content + whole[at + len(edit.content) :],
}

# near the start and near the end, where headers and directories are, or anywhere
_PLACES = st.one_of(st.integers(0, 200), st.integers(-200, -1), st.integers(0, 2**20))
EDITS = st.lists(
    st.builds(Edit, st.sampled_from(sorted(KINDS)), _PLACES, st.integers(1, 64), st.binary(max_size=16)),
    min_size=1,
    max_size=4,
)


def mutated(whole: bytes, edits: Sequence[Edit], others: Sequence[bytes]) -> bytes:
    """All changes, one after the other."""
    for edit in edits:
        whole = edit(whole, others)
    return whole
