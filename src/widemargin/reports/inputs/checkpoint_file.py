"""A checkpoint, of which a report needs its checksum alone: it tells these weights from all others.

A report reads files and nothing of the package that trains; ``checkpoints.read_checksum`` must say the same.
"""

import json
from pathlib import Path

from widemargin.records import TEXT

METADATA, CHECKSUM = "widemargin", "checksum"


def read_checksum(path: Path) -> str:
    """As the header has it, without a look at the weights; empty where there is none to be read."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length)) if length <= TEXT else {}
        return str(json.loads(header["__metadata__"][METADATA])[CHECKSUM])
    except (OSError, KeyError, TypeError, ValueError, RecursionError):
        return ""
