"""A checkpoint, of which a report needs its checksum alone: it tells these weights from all others.

A report reads files and nothing of the package that trains; ``checkpoints.read_checksum`` must say the same.
"""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

METADATA, CHECKSUM = "widemargin", "checksum"


def read_checksum(path: Path) -> str:
    """As the header has it, without a look at the weights; empty where there is none to be read."""
    try:
        with safe_open(path, framework="numpy") as stream:
            return str(json.loads((stream.metadata() or {})[METADATA])[CHECKSUM])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError):
        return ""
