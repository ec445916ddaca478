"""The adversarial images that an evaluation kept (``--save-adversarial``), read back from its folder.

``adversarial/00000/pgd20@0.1.npz`` are those of the first shard: ``index`` and ``label`` (G,) of the images that the
attack broke, of those that were right before, and ``images`` (G, ...), float32. The shard has the digest of the file.
"""

import io
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widemargin.attacks.names import AUTOATTACK, variant_names
from widemargin.core.records import changed, digest_of_file
from widemargin.errors import InputError
from widemargin.evaluation.columns import Column, labels
from widemargin.evaluation.folder import SHARDS
from widemargin.evaluation.judged_shard import JudgedShard
from widemargin.evaluation.shards import Store

ARRAYS = ("index", "label", "images")
LARGEST = 2**32
"""Bytes of the images of a shard."""


@dataclass(frozen=True)
class AdversarialImages:
    """What broke which image: (G,) indices and labels, (G, ...) images."""

    index: Tensor
    label: Tensor
    images: Tensor


def read_adversarial(folder: Path | str, label: str) -> AdversarialImages:
    """The images under that label of the report; of AutoAttack and the strongest PGD those that broke it first."""
    store = Store(Path(folder))
    numbers = sorted(int(path.stem) for path in (Path(folder) / SHARDS).glob("*.jsonl"))
    found: list[dict[str, Any]] = []
    known: dict[str, None] = {}
    for number in numbers:
        shard = store.shard(number)
        names = {name: column for column, name in labels(shard.verdicts).items()}
        known |= dict.fromkeys(name for name, column in names.items() if _sources(shard, column))
        seen: set[int] = set()
        for column in _sources(shard, names[label]) if label in names else ():
            arrays = _read(store.images_file(number, column.piece), shard.images[column])
            new = np.array([index not in seen for index in arrays["index"].tolist()], dtype=bool)
            found.append({name: arrays[name][new] for name in ARRAYS})
            seen |= {*arrays["index"].tolist()}
    if label not in known:
        has = f"it has those of {', '.join(known)}" if known else "it has none; evaluate with --save-adversarial"
        raise InputError(f"{folder} has no adversarial images of {label!r}; {has}")
    joined = {name: torch.from_numpy(np.concatenate([arrays[name] for arrays in found])) for name in ARRAYS}
    order = joined["index"].argsort()
    return AdversarialImages(**{name: values[order] for name, values in joined.items()})


def _sources(shard: JudgedShard, column: Column) -> list[Column]:
    """The columns whose images those are, in their order."""
    if column.attack != AUTOATTACK and not variant_names(column.attack):
        return [column] if column in shard.images else []
    members = variant_names(column.attack)
    return [
        other
        for other in shard.images
        if (other.radius, other.step_size) == (column.radius, column.step_size)
        and (other.attack in members if members else other.is_part)
    ]


def _read(path: Path, digest: str) -> dict[str, Any]:
    """The arrays of a file, whose sizes are looked at before anything is inflated."""
    if not path.is_file():
        raise InputError(f"{path} is missing; evaluate again with --save-adversarial")
    if digest_of_file(path, LARGEST) != digest:
        raise changed(path, "remove it, and evaluate again with --save-adversarial")
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            if sum(member.file_size for member in archive.infolist()) > LARGEST:
                raise ValueError(f"more than {LARGEST:,} bytes")
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in ARRAYS}
    except Exception as error:  # zipfile, zlib and numpy fail in many ways
        raise InputError(f"{path} is not a readable .npz file ({error}); remove it, and evaluate again") from None
    if len({len(values) for values in arrays.values()}) != 1 or math.prod(arrays["index"].shape) != len(
        arrays["index"]
    ):
        raise InputError(f"{path} has arrays of other lengths; remove it, and evaluate again")
    return arrays
