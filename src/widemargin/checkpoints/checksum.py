r"""The checksum of a checkpoint, inside it: one file, so no kill can part the two.

It is the SHA-256 of the whole file, taken while the place of the digest itself holds zeros: a changed bit anywhere, in
the weights, the offsets or the description, is seen. The description is JSON text in a JSON header, so its quotes are
escaped once: ``\"checksum\": \"sha256:...\"``. Text of the user's is escaped twice there and cannot look like it.
"""

import hashlib
import re
import struct
from pathlib import Path
from typing import BinaryIO

from widemargin.errors import InputError
from widemargin.files import check_file

KEY = "checksum"
BLANK = "sha256:" + "0" * 64
_PLACE = re.compile(rb'\\"checksum\\": \\"sha256:([0-9a-f]{64})\\"')
_ENDS = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d{1,20}\s*,\s*(\d{1,20})\s*\]')
_LONGEST_HEADER = 100_000_000  # what the safetensors library itself allows
_CHUNK = 1 << 20


class DamagedError(InputError):
    """The file is not what was written; ``reason`` says how that shows."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is not a readable checkpoint: {reason}; put back a copy of it, or choose another")
        self.reason = reason


def seal(content: bytes) -> list[memoryview]:
    """The same bytes with the digest in place of the blank one, in pieces, since a copy would double the memory."""
    length = header_length(content[:8])
    place = _PLACE.search(content, 8, 8 + length)
    if place is None:  # a bug of ours: whoever saves puts the blank there
        raise ValueError("the header has no place for the checksum")
    digest = hashlib.sha256(content).hexdigest().encode()
    whole = memoryview(content)
    return [whole[: place.start(1)], memoryview(digest), whole[place.end(1) :]]


def check_whole(path: Path) -> bool:
    """Read every byte; a file whose checksum does not fit is damaged. False where there is no checksum to compare."""
    check_file(path)
    with path.open("rb") as stream:
        header = read_header(stream, path)
        place = _PLACE.search(header)
        if place is None:
            return False
        described = 8 + len(header) + max((int(end) for end in _ENDS.findall(header)), default=0)
        if described < (size := path.stat().st_size):  # which may be terabytes of nothing
            raise DamagedError(path, f"it has {size} bytes, {size - described} more than it describes")
        blank = header[: place.start(1)] + b"0" * 64 + header[place.end(1) :]
        running = hashlib.sha256(struct.pack("<Q", len(header)) + blank)
        while chunk := stream.read(_CHUNK):
            running.update(chunk)
    if running.hexdigest().encode() != place.group(1):
        raise DamagedError(path, "its bytes do not fit its checksum")
    return True


def read_checksum(path: Path) -> str | None:
    """What a checkpoint carries, ``sha256:...``, by its header alone; None where there is none to be read."""
    try:
        check_file(path)
        with path.open("rb") as stream:
            place = _PLACE.search(read_header(stream, path))
    except (InputError, OSError):
        return None
    return None if place is None else f"sha256:{place.group(1).decode()}"


def read_header(stream: BinaryIO, path: Path) -> bytes:
    """The JSON header, if the file can hold one of the length it claims."""
    size = path.stat().st_size
    start = stream.read(8)
    if len(start) < 8:
        raise DamagedError(path, f"it has {size} bytes in all")
    length = header_length(start)
    if length > min(size - 8, _LONGEST_HEADER):
        if stream.read(1) != b"{":
            raise DamagedError(path, "it does not begin as a safetensors file does, so it holds something else")
        raise DamagedError(path, f"it claims a header of {length} bytes and has {size} bytes in all")
    return stream.read(length)


def header_length(start: bytes) -> int:
    """The number the first eight bytes hold."""
    (length,) = struct.unpack("<Q", start)
    return int(length)
