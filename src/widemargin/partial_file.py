"""The file that is written before the one that counts: each writer has its own, and what a kill left of one is removed.

Its name says who writes it: the machine (or the container on it), the process and the thread. It is a leftover when
that writer is gone. Writers elsewhere cannot be seen from here; theirs is one when nobody has touched it for an hour.
"""

import os
import platform
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

LONG_AGO = 3600.0
_WRITER = re.compile(r"\.([^.].*)-(\d+)-(\d+)\.partial")
_EARLIER_PROBE = ".writable"  # with which earlier versions tried a folder


def partial_of(path: Path) -> Path:
    """Where this thread writes a file before it counts."""
    return path.with_name(f".{path.name}.{_place()}-{os.getpid()}-{threading.get_ident()}.partial")


def is_partial(path: Path) -> bool:
    """Whether this is no file that counts."""
    return (path.name.startswith(".") and path.name.endswith(".partial")) or path.name == _EARLIER_PROBE


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers left of this file."""
    with suppress(OSError):  # a folder that cannot be read, or that is none: whoever writes there says so
        for other in path.parent.iterdir():
            if other.name.startswith(f".{path.name}.") and is_partial(other):
                remove_leftover(other)


def remove_leftover(partial: Path) -> None:
    """Remove a partial file, unless somebody may still be writing it."""
    with suppress(FileNotFoundError):  # somebody else removed it
        if _is_left(partial):
            partial.unlink()


def _is_left(partial: Path) -> bool:
    writer = _WRITER.fullmatch(partial.name)
    if writer is None:  # earlier versions did not say who writes
        return True
    here = f".{writer[1]}".endswith(f".{_place()}")
    if here and not _is_alive(int(writer[2])):
        return True
    return time.time() - partial.lstat().st_mtime > LONG_AGO


def _is_alive(process: int) -> bool:
    if process == os.getpid() or sys.platform == "win32":  # whose threads clean up after themselves; no such question
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's
        return True
    return True


def _place() -> str:
    """This machine, or the container on it: where processes see each other."""
    with suppress(OSError):
        return f"{platform.node()}-{Path('/proc/self/ns/pid').stat().st_ino}"
    return platform.node()
