"""Files that are either whole or not there."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from widemargin.errors import InputError


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Write beside the target, flush to the disk, then rename over it: a crash leaves the old file or the new one."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        write(partial)
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror or error}; free space or choose another folder"
        ) from None
    finally:
        with suppress(OSError):  # a folder that cannot be written has nothing to clean up
            partial.unlink(missing_ok=True)


def write_text_whole(path: Path, text: str) -> None:
    """The same for text."""

    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8")

    write_whole(path, write)


def make_folder(path: Path) -> Path:
    """The folder, made if need be and seen to be writable."""
    probe = path / ".writable"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"cannot write to the folder {path}: {error.strerror or error}; choose another --out"
        ) from None
    return path


def _flush_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
