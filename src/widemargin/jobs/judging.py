"""How a job is done: trained, judged as its recipe's plan says with the margins its table reports, and judged by more.

``result.json`` is the judgment of the table. A judgment beyond it is an evaluation folder beside it, named after it:

- ``autoattack`` is at the recipe's own eps, on all test images; ``strongest`` is, too: the table's PGD and, per image,
  the worst of it over several losses and scales. ``autoattack-1000`` is all three on the first 1,000, for a CPU.
- ``distance`` is in L2, in which the paper measures margins, of the first 1,000; ``certified`` adds the radius that is
  proven, of the first 100.
- ``eps`` is PGD-100 at several eps around the recipe's, with steps of eps/4, as the recipes have it on CIFAR-10, and
  ``autoattack-8-255`` is at the eps of RobustBench, which 0.031 is not; both of the first 1,000.

Averaged weights that another job's run keeps beside its own become a run folder of the job they are for: what that
job's own training would have left, without what resuming needs, so that whoever reads a job's folder finds it as usual.
Whatever is interrupted goes on.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import nn

from widemargin.attacks.names import AUTOATTACK, USUAL_STEPS
from widemargin.attacks.pgd import PGD
from widemargin.config.checkpoint import (
    AVERAGED,
    BEST,
    CONFIG,
    METRICS,
    load_checkpoint,
    save_checkpoint,
    software_versions,
)
from widemargin.config.run import EvaluationConfig, RunConfig
from widemargin.config.toml import to_dict, to_toml
from widemargin.core.device import choose_device, hardware_name
from widemargin.core.files import make_folder, write_text_atomic
from widemargin.core.records import sealed
from widemargin.data.batches import Images, in_order
from widemargin.data.datasets import open_images
from widemargin.data.extra import ExtraImages, open_extra
from widemargin.errors import InputError
from widemargin.evaluation.accuracy import MeasuredMargins, measure_margins
from widemargin.evaluation.evaluator import evaluate
from widemargin.evaluation.report import Report
from widemargin.evaluation.settings import BATCH_SIZE, SHARD_SIZE
from widemargin.evaluation.target import Target, load_target, model_info
from widemargin.evaluation.tf32_search import has_tf32
from widemargin.jobs.job import ATTACK_STEPS, RESULT, RUN, Job, Resources, Task
from widemargin.margins import WIDTHS, count_margins
from widemargin.models.classifier import ModelFactory, facts_of
from widemargin.training.alarms import new_alarms
from widemargin.training.run_folder import Line
from widemargin.training.setup import Splits, load_splits
from widemargin.training.trainer import RunResult, train
from widemargin.training.watch import MEASURED, batch_size, first_samples, training_points
from widemargin.types import Nets, Norm

NOISE = "noise.npz"
CHECKPOINT_PAUSE = 30.0
"""Seconds: an epoch of a small network takes no longer than its checkpoint; a kill costs half a minute at most."""
PREFIX, ALARMS = f"{AVERAGED}_", "alarms"
FIRST, FIRST_CERTIFIED = 1000, 100
"""So many test images are judged where it takes long, and are certified."""
RADII: dict[float, tuple[str, ...]] = {
    **dict.fromkeys((0.031, 8 / 255), ("2/255", "4/255", "6/255", "8/255", "10/255", "12/255", "16/255")),
    0.1: ("0.02", "0.05", "0.1", "0.15", "0.2", "0.3"),
}
"""The recipe's eps (Linf) -> those at which its network is attacked."""


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """An evaluation; ``step_size=None`` means eps/4 for each eps, ``limit=None`` all test images."""

    attacks: tuple[str, ...]
    eps: float | str | tuple[str, ...]
    norm: Norm = "linf"
    step_size: float | None = None
    limit: int | None = None
    distance: bool = False
    certify: bool = False


def judgment_of(config: RunConfig, name: str) -> Judgment:
    """The judgment of that name for a recipe; refused where it means nothing."""
    plan = config.evaluation
    if plan is None:
        raise InputError(f"--judge-with {name}: {config.name} has no evaluation plan, so no eps")
    return _JUDGMENTS[name](config, plan)


def _over_eps(config: RunConfig, plan: EvaluationConfig) -> Judgment:
    if plan.norm != "linf" or plan.eps not in RADII:
        known = " or ".join(f"{eps:g}" for eps in RADII)
        raise InputError(f"--judge-with eps is for rows judged at linf {known}, {_described(config, plan)}")
    return Judgment(attacks=("clean", "pgd100"), eps=RADII[plan.eps], limit=FIRST)


def _autoattack_8_255(config: RunConfig, plan: EvaluationConfig) -> Judgment:
    if (config.data.name, plan.norm, plan.eps) != ("cifar10", "linf", 0.031):
        raise InputError(
            f"--judge-with autoattack-8-255 is for rows on cifar10 at linf 0.031, {_described(config, plan)}"
        )
    return Judgment(attacks=("clean", "autoattack"), eps="8/255", limit=FIRST)


def _strongest(_: RunConfig, plan: EvaluationConfig, *more: str, limit: int | None = None) -> Judgment:
    """The plan's PGD with its steps, and the strongest PGD with the same ones; PGD-20 where it has none."""
    last = plan.strongest()
    steps = last.steps if isinstance(last, PGD) else USUAL_STEPS
    attacks = ("clean", f"pgd{steps}", f"pgd{steps}-strongest", *more)
    return Judgment(attacks=attacks, eps=plan.eps, norm=plan.norm, step_size=plan.step_size, limit=limit)


def _described(config: RunConfig, plan: EvaluationConfig) -> str:
    where = f"{config.name} is on {config.data.name} at {plan.norm} {plan.eps:g}"
    return f"but {where}; choose others with --judge-rows or --rows"


_JUDGMENTS: dict[str, Callable[[RunConfig, EvaluationConfig], Judgment]] = {
    "autoattack": lambda _, plan: Judgment(attacks=("clean", "autoattack"), eps=plan.eps, norm=plan.norm),
    "strongest": _strongest,
    "autoattack-1000": lambda config, plan: _strongest(config, plan, AUTOATTACK, limit=FIRST),
    "distance": lambda *_: Judgment(attacks=("clean",), eps=1.0, norm="l2", limit=FIRST, distance=True),
    "certified": lambda *_: Judgment(
        attacks=("clean",), eps=1.0, norm="l2", limit=FIRST_CERTIFIED, distance=True, certify=True
    ),
    "eps": _over_eps,
    "autoattack-8-255": _autoattack_8_255,
}
JUDGMENTS = tuple(_JUDGMENTS)
"""Their names."""


def perform(task: Task, resources: Resources, *, max_seconds: float, console: Console) -> None:
    """Do it, or as much of it as the time allows."""
    job, device = task.job, choose_device(resources.device)
    if task.judgment is not None:  # a finished job once more; the evaluation is in the folder of that name
        data, judgment = job.config.data, judgment_of(job.row.recipe.config, task.judgment)
        target = load_target(job.folder / RUN)
        test = open_images(data.name, "test", data_dir=resources.data_dir, limit=data.test_limit, **data.reading()).to(
            device
        )
        _evaluated(job, task.judgment, judgment, target.model.to(device), test, target)
        return
    config = job.trained_config
    own = replace(config.data, extra=None, extra_share=None) if job.quick else config.data
    splits = load_splits(own, seed=config.seed, data_dir=resources.data_dir, device=device)
    if own.extra != config.data.extra:
        splits = replace(splits, extra=_noise(job.folder / NOISE, splits.train))
    run = train(
        config,
        out=job.trained_in,
        device=resources.device,
        engine=resources.engine,
        splits=splits,
        max_seconds=max_seconds,
        console=console,
        checkpoint_pause=CHECKPOINT_PAUSE,
    )
    if run.finished:
        _judge(job, adopt_averaged(job, run), splits, device=device, workers=resources.workers)


def _noise(path: Path, like: Images) -> ExtraImages:
    """In place of the second source of a quick job: as many images as the set has, and such as it has."""
    make_folder(path.parent)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (len(like), *like.image_shape), dtype=np.uint8)
    np.savez(path, image=images, label=np.arange(len(like)) % like.num_classes)
    return open_extra(str(path.absolute()))


def adopt_averaged(job: Job, run: RunResult) -> RunResult:
    """The run to be judged: the one that was trained, or the job's part of it, in the job's own folder."""
    folder = job.folder / RUN
    if run.folder == folder:
        return run
    make_folder(folder)
    for path in sorted((run.folder / AVERAGED).glob("*.safetensors")):
        checkpoint = load_checkpoint(path)  # the same weights, under the name and the configuration of their job
        description = replace(checkpoint.description, config=to_dict(job.config))
        save_checkpoint(folder / path.name, replace(checkpoint, description=description))
    metrics: list[Line] = []
    for line in map(_averaged_line, run.metrics):  # with the alarms that it raises, as a run notes them
        alarms = new_alarms([*metrics, line], job.config)
        metrics.append(line | ({ALARMS: [alarm.name for alarm in alarms]} if alarms else {}))
    write_text_atomic(folder / METRICS, "".join(json.dumps(line) + "\n" for line in metrics))
    write_text_atomic(folder / CONFIG, to_toml(job.config))
    return RunResult(folder, run.finished, run.epoch, metrics)


def _averaged_line(line: Line) -> Line:
    """The line as the averaged weights' own: what was measured of the trained ones is left out."""
    shared = {key: value for key, value in line.items() if not key.startswith((ALARMS, PREFIX, *MEASURED))}
    return shared | {key.removeprefix(PREFIX): value for key, value in line.items() if key.startswith(PREFIX)}


def _judge(job: Job, run: RunResult, splits: Splits, *, device: torch.device, workers: int) -> None:
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
    plan = config.evaluation
    accuracy = {} if plan is None else _evaluated(job, "evaluation", plan, model, splits.test, target).accuracy
    measured = _margins(job, model, splits) if job.margins else {}
    lost = run.epoch - len(run.metrics)  # epochs without a line in the metrics: their time and curves are missing
    result = {
        "recipe": job.row.recipe.name,
        "seed": job.seed,
        "quick": job.quick,
        "accuracy": accuracy,
        **{name: asdict(margins.over_correct()) for name, margins in measured.items()},
        "histograms": {
            name: asdict(count_margins(margins.margins, width=WIDTHS["l2"])) for name, margins in measured.items()
        },
        "trained_as": job.trained.name,
        "weights": target.description.which,
        "selection": target.description.selection,
        "epoch": target.description.epoch,
        "training_seconds": round(sum(line["seconds"] for line in run.metrics), 3),
        **({"epochs_lost": lost} if lost else {}),
        "evaluation_seconds": round(time.monotonic() - began, 3),
        "workers": workers,
        "device": hardware_name(device),
        "engine": target.description.versions.get("engine", "unknown"),
        "versions": software_versions(),
        "config": to_dict(config),
    }
    write_text_atomic(job.folder / RESULT, json.dumps(sealed(result), indent=2) + "\n")


def _margins(job: Job, model: nn.Module, splits: Splits) -> dict[str, MeasuredMargins]:
    config = job.config
    points = training_points(Nets(model=model), splits.train, config, config.epochs)
    samples = config.watch.margin_samples if job.quick else None  # the curves may be of fewer images, the table is not
    return {
        "margin_train": measure_margins(model, first_samples(points, samples, batch_size(config, splits.train))),
        "margin_test": measure_margins(model, in_order(splits.test, batch_size(config, splits.test))),
    }


def _evaluated(
    job: Job,
    folder: str,
    plan: EvaluationConfig | Judgment,
    model: nn.Module,
    test: Images,
    target: Target,
) -> Report:
    """The evaluation in that folder of the job; an interrupted one goes on."""
    device = next(model.parameters()).device
    size = piece_size(job.config.model, device) if device.type == "cuda" else None
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
        distance=isinstance(plan, Judgment) and plan.distance,
        certify=isinstance(plan, Judgment) and plan.certify,
        limit=plan.limit if isinstance(plan, Judgment) else None,
        max_steps=ATTACK_STEPS if job.quick else None,
        sanity=not job.quick,
        search=search_for(job.config, plan.attacks) if has_tf32(device) else "float32",
        subject=replace(model_info(target), data=test.name),
        console=Console(quiet=True),  # several of these may share a screen
    )


def piece_size(network: ModelFactory, device: torch.device) -> int | None:
    """How many images such a network is judged on at once, on that GPU; None: the evaluation's own choice will do."""
    facts = facts_of(network)
    size = facts.judged_at_once
    if size is None:
        return None
    memory = torch.cuda.get_device_properties(device).total_memory / 2**20
    while size * facts.gradient_mib > memory / 4:
        size //= 2
    return size


def search_for(config: RunConfig, attacks: Sequence[str]) -> str:
    """Whether the attacks search with TF32, where there is TF32."""
    wanted = facts_of(config.model).tf32_search
    return "tf32" if wanted == "always" or (wanted == "autoattack" and AUTOATTACK in attacks) else "float32"
