"""Files that are either whole or not there, and folders that one process works in.

A file is written beside its place, flushed to the disk, and renamed: a crash leaves the old one or the new one. The
name of the partial file says who writes it: the machine (or the container on it), the process and the thread. It is a
leftover when that writer is gone, and the next writer removes it. Writers elsewhere cannot be seen from here; theirs is
one when nobody has touched it for an hour.
"""

import errno
import os
import platform
import re
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from widemargin.errors import InputError

if sys.platform != "win32":
    import fcntl

ANOTHER = "choose another folder (--out at the command line)"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), f"free space or {ANOTHER}"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), f"get the right to write there or {ANOTHER}"),
}
_ENDLESS_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}
LONG_AGO = 3600.0  # seconds
_WRITER = re.compile(r"\.([^.].*)-(\d+)-(\d+)\.partial")
_OLD_PROBE = ".writable"  # with which earlier versions tried a folder
_PROBE = "writable"


def check_file(path: Path) -> None:
    """Refuse what is there and is neither file nor folder, before it is opened: reading it might never end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # whoever opens it says why it cannot be
        return
    if kind := _ENDLESS_KINDS.get(stat.S_IFMT(mode)):
        raise InputError(f"{path} is {kind}, not a file; replace it by a file or remove it")


@contextmanager
def readable(fault: str, remedy: str) -> Iterator[None]:
    """Inside a file is read: readers fail in many ways on bytes nobody wrote, which is told as fault (why); remedy."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{fault} ({error}); {remedy}") from error


def write_atomic(
    path: Path,
    write: Callable[[Path], object],
    *,
    verify: Callable[[Path], None] | None = None,
    keep: Path | None = None,
) -> None:
    """Write beside the target, flush to the disk, then rename over it: a crash leaves the old file or the new one.

    ``verify`` may look at the new file and raise before it counts. With ``keep``, the old file then goes on under that
    name; at no moment is there no file at ``path``.
    """
    remove_leftovers(path)
    partial = partial_of(path)
    try:
        write(partial)
        _flush(partial)
        if verify is not None:
            verify(partial)
        if keep is not None and path.exists():
            _name_also(path, keep)
        partial.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        raise refused(f"write {path}", error) from None
    finally:
        with suppress(OSError):  # a folder that cannot be written has nothing to clean up
            partial.unlink(missing_ok=True)


def write_text_atomic(path: Path, text: str) -> None:
    """The same for text."""
    write_atomic(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def make_folder(path: Path) -> Path:
    """The folder, made if need be and seen to be writable; any number of processes may ask at once."""
    probe = partial_of(path / _PROBE)
    try:
        path.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path / _PROBE)
        probe.touch()
        probe.unlink(missing_ok=True)
        entries = list(path.iterdir())
        if all(is_partial(entry) for entry in entries):  # nothing but what a kill left of a first write: empty it
            for entry in entries:
                remove_leftover(entry)
    except OSError as error:
        raise refused(f"write to the folder {path}", error) from None
    return path


def refused(what: str, error: OSError) -> InputError:
    """What the system refused, why, and what to do about it."""
    remedy = _REMEDIES.get(error.errno or 0, ANOTHER)
    return InputError(f"cannot {what}: {error.strerror or error}; {remedy}")


@contextmanager
def folder_lock(folder: Path, *, wait: bool = False, shared: bool = False) -> Iterator[int | None]:
    """The folder is this process's alone inside; a second one is refused, or waits. A kill lets go of it.

    The lock is on the folder itself, so no file is left behind. Where the system or the file system has none, nobody
    is refused. ``shared`` ones bear each other. A process that inherits the descriptor has the lock, too.
    """
    if sys.platform == "win32":
        yield None
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise refused(f"open the folder {folder}", error) from None
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise InputError(f"another process works in {folder}; wait for it to end, or {ANOTHER}") from None
        except OSError as error:  # a file system that knows no locks
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EINVAL):
                raise refused(f"lock the folder {folder}", error) from None
        yield descriptor
    finally:
        os.close(descriptor)


def drop_cached(path: Path) -> None:
    """Forget what the system remembers of the file, so that reading it reads the disk; where that can be asked for."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _name_also(path: Path, other: Path) -> None:
    """``other`` becomes a second name of the file, in one step; a copy where the file system has no second names."""
    remove_leftovers(other)
    partial = partial_of(other)
    partial.unlink(missing_ok=True)
    try:
        try:
            os.link(path, partial)
        except OSError:
            shutil.copyfile(path, partial)
            _flush(partial)
        partial.replace(other)  # of two names of one file this does nothing, so the partial may stay
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    with path.open("r+b") as stream:
        os.fsync(stream.fileno())


def _flush_folder(folder: Path) -> None:
    """The names in a folder reach the disk when the folder does; some file systems cannot be asked."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)


def partial_of(path: Path) -> Path:
    """Where this thread writes a file before it counts."""
    return path.with_name(f".{path.name}.{_place()}-{os.getpid()}-{threading.get_ident()}.partial")


def is_partial(path: Path) -> bool:
    """Whether this is no file that counts."""
    return (path.name.startswith(".") and path.name.endswith(".partial")) or path.name == _OLD_PROBE


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
