"""Whether to believe a file that says how large its contents are.

Headers are read before anything is allocated. A size that the file could not possibly hold, or that this machine could
not hold, ends in one line to the user and not in a ``MemoryError`` or a killed process.
"""

import os

from widemargin.errors import InputError

DEFLATE_LIMIT = 1032  # deflate (gzip, zip) cannot shrink data further than 1032 to 1
_FALLBACK_MEMORY = 16 * 2**30


def check_claim(where: str, *, claimed: int, stored: int, deflated: bool) -> None:
    """``where`` says it holds ``claimed`` bytes in ``stored`` bytes of disk: possible, and not too much to hold?"""
    most = (stored + 1) * DEFLATE_LIMIT if deflated else stored
    if claimed > most:
        raise InputError(
            f"{where}: the header promises {claimed} bytes, more than {stored} stored bytes can hold; "
            "the file is damaged or cut short, fetch it again"
        )
    if claimed > memory_limit():
        raise InputError(
            f"{where}: the header promises {claimed} bytes, more than half of this machine's memory; "
            "use fewer or smaller images"
        )


def memory_limit() -> int:
    """Half of the physical memory, in bytes: images are held whole, and something must be left to work with."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):  # not a POSIX machine
        return _FALLBACK_MEMORY // 2
