"""How a trained job is judged: as its recipe's plan says, with the margins its table reports; and later by more.

``result.json`` is the judgment of the table. A later judgment (``judgments.py``) is an evaluation folder beside it,
named after it. Whatever is interrupted goes on.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from widemargin.checkpoints import software_versions
from widemargin.config import EvaluationConfig, RunConfig
from widemargin.config_files import to_dict
from widemargin.data import ImageSet, in_order, load
from widemargin.errors import InputError
from widemargin.evaluation import Report, Target, evaluate, load_target, measure_margins
from widemargin.evaluation.margins import MeasuredMargins
from widemargin.evaluation.searched import has_tf32
from widemargin.evaluation.settings import AUTOATTACK, BATCH_SIZE, SHARD_SIZE
from widemargin.evaluation.subject import subject_of
from widemargin.evaluation.target import BEST
from widemargin.experiments.hardware import hardware_name
from widemargin.experiments.job import RESULT, RUN, Job
from widemargin.experiments.judgments import Judgment, judgment_of
from widemargin.experiments.quick import ATTACK_STEPS
from widemargin.files import write_text_whole
from widemargin.margins.histogram import WIDTHS, count_margins
from widemargin.models import CNNConfig, MLPConfig, ResNet18Config
from widemargin.records import sealed
from widemargin.training import RunResult
from widemargin.training.setup import Splits
from widemargin.training.watch import batch_size, first_samples, training_points
from widemargin.types import Nets

PIECES: dict[type, int] = {MLPConfig: 10_000, CNNConfig: 10_000, ResNet18Config: 2500}
"""Images that a GPU takes at once: fewer launches, and enough for an attack to work on when most are broken already.
The evaluation records it."""
EACH: dict[type, float] = {MLPConfig: 0.1, CNNConfig: 0.4, ResNet18Config: 4.5}
"""MiB that the gradient of an image needs; a quarter of a GPU's memory may hold them, so smaller ones take fewer."""


def judge(job: Job, run: RunResult, splits: Splits, *, device: torch.device, workers: int) -> None:
    """Write the job's ``result.json``; the images are those of the run, on the device."""
    began = time.monotonic()
    config = job.config
    target = load_target(run.folder)
    if config.data.held_out and target.description.which != "best":
        raise InputError(
            f"{run.folder} has lost its best weights, by which the row is judged; put back a copy of {BEST}, or "
            "remove the folder to train again"
        )
    model = target.model.to(device)
    accuracy = _accuracy(job, model, splits.test, target)
    measured = _margins(job, model, splits) if job.margins else {}
    result = {
        "recipe": job.row.recipe.name,
        "seed": job.seed,
        "quick": job.quick,
        "accuracy": accuracy,
        **{name: asdict(margins.over_correct()) for name, margins in measured.items()},
        "histograms": {name: asdict(_counted(margins)) for name, margins in measured.items()},
        "trained_as": job.trained.name,
        "weights": target.description.which,
        "selection": target.description.selection,
        "epoch": target.description.epoch,
        "training_seconds": round(sum(line["seconds"] for line in run.metrics), 3),
        **_lost(run),
        "evaluation_seconds": round(time.monotonic() - began, 3),
        "workers": workers,
        "device": hardware_name(device),
        "engine": target.description.versions.get("engine", "unknown"),
        "versions": software_versions(),
        "config": to_dict(config),
    }
    write_text_whole(job.folder / RESULT, json.dumps(sealed(result), indent=2) + "\n")


def _lost(run: RunResult) -> dict[str, int]:
    """How many epochs have no line in the metrics, where some were lost: their time and curves are missing."""
    lost = run.epoch - len(run.metrics)
    return {"epochs_lost": lost} if lost else {}


def _margins(job: Job, model: nn.Module, splits: Splits) -> dict[str, MeasuredMargins]:
    config = job.config
    points = training_points(Nets(model=model), splits.train, config, config.epochs)
    samples = config.watch.margin_samples if job.quick else None  # the curves may be of fewer images, the table is not
    return {
        "margin_train": measure_margins(model, first_samples(points, samples, batch_size(config, splits.train))),
        "margin_test": measure_margins(model, in_order(splits.test, batch_size(config, splits.test))),
    }


def _counted(measured: MeasuredMargins) -> Any:
    return count_margins(measured.margins, width=WIDTHS["l2"])


def _accuracy(job: Job, model: nn.Module, test: ImageSet, target: Target) -> dict[str, float]:
    """As the recipe's plan says, with the records beside the run; an interrupted evaluation goes on."""
    plan = job.config.evaluation
    return {} if plan is None else _evaluated(job, "evaluation", plan, model, test, target).accuracy


def _evaluated(
    job: Job,
    folder: str,
    plan: EvaluationConfig | Judgment,
    model: nn.Module,
    test: ImageSet,
    target: Target,
    *,
    limit: int | None = None,
    distance: bool = False,
) -> Report:
    """The evaluation in that folder of the job."""
    device = next(model.parameters()).device
    size = piece_size(type(job.config.model), device) if device.type == "cuda" else None
    return evaluate(
        model,
        test,
        plan.attacks,
        plan.eps,
        plan.norm,
        plan.step_size,
        job.seed,
        job.folder / folder,
        shard_size=size or SHARD_SIZE,
        batch_size=size or BATCH_SIZE,
        distance=distance,
        limit=limit,
        max_steps=ATTACK_STEPS if job.quick else None,
        sanity=not job.quick,
        search=search_for(job.config, plan.attacks) if has_tf32(device) else "float32",
        subject=replace(subject_of(target), data=test.name),
    )


def piece_size(network: type, device: torch.device) -> int | None:
    """How many images such a network is judged on at once, on that GPU; None: the evaluation's own choice will do."""
    size = PIECES.get(network)
    if size is None:
        return None
    memory = torch.cuda.get_device_properties(device).total_memory / 2**20
    while size * EACH[network] > memory / 4:
        size //= 2
    return size


def search_for(config: RunConfig, attacks: Sequence[str]) -> str:
    """Where there is TF32: large networks are searched with it, the CNN by AutoAttack alone, which takes longest."""
    if isinstance(config.model, MLPConfig):
        return "float32"
    return "tf32" if not isinstance(config.model, CNNConfig) or AUTOATTACK in attacks else "float32"


def judge_with(job: Job, name: str, *, data_dir: str | None, device: torch.device) -> None:
    """Judge a finished job once more; the evaluation is in the folder of that name."""
    data = job.config.data
    plan = judgment_of(job.row.recipe.config, name)
    target = load_target(job.folder / RUN)
    test = load(data.name, "test", data_dir=data_dir, limit=data.test_limit).to(device)
    model = target.model.to(device)
    _evaluated(job, name, plan, model, test, target, limit=plan.limit, distance=plan.distance)
