"""Train and judge the rows of one table of the paper; what is done is skipped, what was interrupted goes on.

Each row and seed has a folder, ``OUT/<recipe>/seed-<n>``, with its run inside and, when judged, a ``result.json``.
Tables that share a row share its folder.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from widemargin.checkpoints import software_versions
from widemargin.config import RunConfig
from widemargin.config_files import to_dict
from widemargin.data import ImageSet, in_order
from widemargin.errors import InputError
from widemargin.evaluation import Subject, Target, evaluate, load_target, measure_margins
from widemargin.experiments.quick import ATTACK_STEPS, quick
from widemargin.files import write_text_whole
from widemargin.recipes.tables import Row, Table
from widemargin.training import RunResult, train
from widemargin.training.setup import choose_device, load_splits
from widemargin.training.watch import first_samples, training_points
from widemargin.types import Nets

RESULT = "result.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One row with one seed."""

    row: Row
    seed: int
    folder: Path
    quick: bool
    margins: bool
    """Whether the table reports margins."""

    @property
    def config(self) -> RunConfig:
        """What is trained."""
        config = replace(self.row.recipe.config, seed=self.seed)
        return quick(config) if self.quick else config

    def result(self) -> dict[str, Any] | None:
        """What was found, if it is done."""
        path = self.folder / RESULT
        if not path.is_file():
            return None
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if result["quick"] != self.quick:
            raise InputError(
                f"{path} is of a run {_kind(result['quick'])}, this one is {_kind(self.quick)}; choose another --out"
            )
        return result


def _kind(is_quick: bool) -> str:
    return "made quick" if is_quick else "of full length"


def choose_rows(table: Table, names: Sequence[str] | None) -> list[Row]:
    """The rows asked for by recipe name (whole or its last part), or all."""
    if names is None:
        return list(table.rows)
    chosen = []
    for name in names:
        fits = [row for row in table.rows if name in (row.recipe.name, row.recipe.name.split("/")[1])]
        if not fits:
            known = ", ".join(row.recipe.name for row in table.rows)
            raise InputError(f"--rows: {name!r} is not in this table; its rows are {known}")
        chosen += fits
    return chosen


def jobs(table: Table, rows: Sequence[Row], seeds: Sequence[int], out: Path, *, is_quick: bool) -> list[Job]:
    """Every row with every seed."""
    margins = "margin_test" in table.columns
    return [
        Job(
            row=row,
            seed=seed,
            folder=out / row.recipe.name.replace("/", "-") / f"seed-{seed}",
            quick=is_quick,
            margins=margins,
        )
        for row in rows
        for seed in seeds
    ]


def reproduce(
    work: Sequence[Job], *, data_dir: str | None, device: str, max_seconds: float, console: Console
) -> Iterator[Job]:
    """Do the jobs that are not done; yields each one that is. Stops when time is out."""
    deadline = time.monotonic() + max_seconds
    for number, job in enumerate(work, start=1):
        label = f"{number}/{len(work)} {job.row.recipe.name}, seed {job.seed}"
        if job.result() is None:
            console.print(f"[bold]{label}[/bold]", highlight=False)
            left = deadline - time.monotonic()
            if left <= 0:
                return
            run = train(
                job.config, out=job.folder / "run", data_dir=data_dir, device=device, max_seconds=left, console=console
            )
            if not run.finished:
                return
            _judge(job, run, data_dir=data_dir, device=choose_device(device))
        else:
            console.print(f"{label}: done before", highlight=False)
        yield job


def _accuracy(job: Job, model: nn.Module, test: ImageSet, target: Target) -> dict[str, float]:
    """As the recipe's plan says, with the records beside the run; an interrupted evaluation goes on."""
    plan = job.config.evaluation
    if plan is None:
        return {}
    subject = Subject(
        target=str(target.path),
        name=job.config.name,
        weights=target.description.which,
        selection=target.description.selection,
        epoch=target.description.epoch,
        data=test.name,
    )
    report = evaluate(
        model,
        test,
        plan.attacks,
        plan.eps,
        plan.norm,
        plan.step_size,
        job.seed,
        job.folder / "evaluation",
        max_steps=ATTACK_STEPS if job.quick else None,
        sanity=not job.quick,
        subject=subject,
    )
    return report.accuracy


def _judge(job: Job, run: RunResult, *, data_dir: str | None, device: torch.device) -> None:
    began = time.monotonic()
    config = job.config
    target = load_target(run.folder)
    model = target.model.to(device)
    splits = load_splits(config.data, seed=config.seed, data_dir=data_dir, device=device)
    accuracy = _accuracy(job, model, splits.test, target)
    margins = {}
    if job.margins:
        points = training_points(Nets(model=model), splits.train, config, config.epochs)
        train_margins = measure_margins(model, first_samples(points, config.watch.margin_samples))
        margins["margin_train"] = asdict(train_margins.over_correct())
        margins["margin_test"] = asdict(measure_margins(model, in_order(splits.test, 500)).over_correct())
    result = {
        "recipe": job.row.recipe.name,
        "seed": job.seed,
        "quick": job.quick,
        "accuracy": accuracy,
        **margins,
        "weights": target.description.which,
        "selection": target.description.selection,
        "epoch": target.description.epoch,
        "training_seconds": sum(line["seconds"] for line in run.metrics),
        "evaluation_seconds": round(time.monotonic() - began, 3),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "versions": software_versions(),
        "config": to_dict(config),
    }
    write_text_whole(job.folder / RESULT, json.dumps(result, indent=2) + "\n")
