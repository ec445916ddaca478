"""What an evaluation folder is for, so that what is found later may stand beside what was found before.

A folder belongs to one model on one data set, in one norm, with one seed, cut into shards and batches in one way (the
random numbers of attacks depend on these), with one way to search. Attacks, eps, steps, images, margins, distances and
certificates may come later: each piece says itself what it depends on (``columns.py``).
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from widemargin.attacks.names import AUTOATTACK
from widemargin.core.records import Record
from widemargin.evaluation.folder import UNKNOWN, ModelInfo
from widemargin.evaluation.own_attacks import weights_digest
from widemargin.evaluation.settings import EvaluationSettings, eps_text

TF32 = "tf32, every attack and distance, pushed"
"""There were versions in which TF32 was for AutoAttack alone, and some in which nothing was pushed."""
BOUND = (
    *("batch_size", "data", "max_steps", "norm", "seed", "shard_size", "weights"),
    *("search", "split", "head_scale", "normalize"),
)
"""What must be equal; the last four are left out where they are as usual."""


def begun_with(model: nn.Module, settings: EvaluationSettings, subject: ModelInfo) -> Record:
    """What ``settings.json`` holds: the identity, and the attacks and eps that it was begun with."""
    sizes = [float(eps) for eps in settings.eps]
    step = settings.step_at(sizes[0]) if len(sizes) == 1 else settings.step_size
    table: Record = {
        "attacks": list(settings.attacks),
        "eps": [eps_text(eps) for eps in settings.eps],
        "radii": sizes,
        "step_size": None if [step] == [size / 4 for size in sizes] else step,
        "distance": settings.distance or False,
        "margins": settings.margins,
        "sanity": settings.sanity,
        "norm": settings.norm,
        "seed": settings.seed,
        "shard_size": settings.shard_size,
        "batch_size": settings.batch_size,
        "max_steps": settings.max_steps,
        "data": subject.data,
        "weights": weights_digest(model),
    }
    if settings.search != "float32":
        table["search"] = TF32.replace("tf32", settings.search)
    if subject.split != "test":
        table["split"] = subject.split
    if subject.head_scale is not None:
        table["head_scale"] = subject.head_scale  # which no tensor holds
    if subject.normalize not in (None, "none", UNKNOWN):
        table["normalize"] = subject.normalize  # nor this
    return table


def bound(table: Mapping[str, Any]) -> Record:
    """The part of ``settings.json`` that must be equal, in whatever version it was written."""
    found = {key: table.get(key) for key in BOUND}
    what = "every attack and distance" if table.get("distance") else "every attack"
    if found["search"] == f"tf32, {what}" + (", pushed" if AUTOATTACK in table.get("attacks", ()) else ""):
        found["search"] = TF32
    return found
