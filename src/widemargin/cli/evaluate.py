"""``widemargin evaluate``: accuracy of a model, clean and under attack, with what a reader must know beside it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
import typer
from rich.console import Console

from widemargin.attacks.names import AUTOATTACK
from widemargin.cli.options import (
    Attacks,
    BatchSize,
    Certify,
    DataDir,
    Dataset,
    Device,
    Distance,
    Eps,
    HeadScale,
    ImageSize,
    Json,
    Limit,
    NormalizeBy,
    NormName,
    Out,
    SaveAdversarial,
    Search,
    Seed,
    ShardSize,
    SplitName,
    StepSize,
    TargetName,
    Workers,
    check_split,
    listed,
    number,
)
from widemargin.config.run import EvaluationConfig
from widemargin.core import signals
from widemargin.core.checks import choice
from widemargin.core.device import choose_device
from widemargin.core.screen import console_for, say, show_table
from widemargin.data.datasets import open_images
from widemargin.data.image_stream import StoredImages
from widemargin.distributed.group import env_number, evaluation_processes, is_first_process
from widemargin.errors import InputError
from widemargin.evaluation.evaluator import evaluate as judge
from widemargin.evaluation.folder import ModelInfo, Radius
from widemargin.evaluation.report import Report
from widemargin.evaluation.settings import BATCH_SIZE, SHARD_SIZE
from widemargin.evaluation.target import LoadedModel, load_model
from widemargin.training.setup import held_out_images
from widemargin.types import Norm


def evaluate(
    target: TargetName,
    attacks: Attacks = None,
    eps: Eps = None,
    norm: NormName = None,
    step_size: StepSize = None,
    dataset: Dataset = None,
    split: SplitName = "test",
    distance: Distance = None,
    certify: Certify = None,
    limit: Limit = None,
    seed: Seed = 0,
    shard_size: ShardSize = SHARD_SIZE,
    batch_size: BatchSize = BATCH_SIZE,
    search: Search = "float32",
    save_adversarial: SaveAdversarial = False,
    head_scale: HeadScale = None,
    normalize: NormalizeBy = None,
    image_size: ImageSize = None,
    workers: Workers = None,
    out: Out = None,
    as_json: Json = False,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Accuracy on the test images, clean and under each attack, with alarms where one should doubt the numbers."""
    speaks = is_first_process()  # of several processes, one
    interrupted = "interrupted; nothing of this evaluation was kept: with --out FOLDER the same command could go on"
    if out is not None:
        interrupted = f"interrupted; what this evaluation finished is in {out}: the same command goes on from there"
    with signals.on_interrupt(interrupted), evaluation_processes(out) as group:
        with group.sync_errors():
            asked: Norm | None = None if norm is None else choice("", "--norm", norm, get_args(Norm))
            chosen = choose_device(device, local_rank=env_number("LOCAL_RANK", 0))
            how = {"data_dir": data_dir, "image_size": image_size, "workers": workers}
            found, data = _case(target, dataset, split, how, head_scale, normalize, chosen)
            plan, radii = _plan(found.plan, attacks, eps, step_size, asked)
            if found.target is not None and dataset is None and split == "test":
                limit = found.target.test_limit(limit)
        report = judge(
            found.model,
            data,
            plan.attacks,
            radii,
            plan.norm,
            plan.step_size,
            seed,
            out,
            shard_size=shard_size,
            batch_size=batch_size,
            distance=distance or False,
            certify=certify or False,
            search=search,
            save_adversarial=save_adversarial,
            limit=limit,
            subject=found.subject,
            console=console_for(stderr=True, quiet=as_json),
        )
    if not speaks:
        return
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        print_report(report)


def _case(
    target: str,
    dataset: str | None,
    split: str,
    how: Mapping[str, Any],
    head_scale: float | None,
    normalize: str | None,
    device: torch.device,
) -> tuple[LoadedModel, StoredImages]:
    """The model and the images to judge it on, on the device."""
    check_split(split, dataset, ("test", "validation"))
    if dataset is not None and Path(target).is_file():  # weights may not say what images they want
        data = open_images(dataset, "test", **how)
        found = load_model(target, image_shape=data.image_shape, head_scale=head_scale, normalize=normalize)
    else:
        found = load_model(target, image_shape=None, head_scale=head_scale, normalize=normalize)
        data = _images(found, dataset, split, how)
    found.check_fits(data)
    asked = dataset or found.data
    subject = replace(found.subject, data=data.name, source=None if asked == data.name else asked, split=split)
    return replace(found, model=found.model.to(device), subject=subject), data.to(device)


def _images(found: LoadedModel, dataset: str | None, split: str, how: Mapping[str, Any]) -> StoredImages:
    """The images asked for, or those of the run."""
    if split == "validation":
        if found.target is None:
            raise InputError("--split validation: only a run of ours says which images it held out; use --split test")
        if how["image_size"] is not None:
            raise InputError("--image-size: what a run held out is resized as the run did; leave it out")
        config = found.target.description.run_config()
        return held_out_images(config, data_dir=how["data_dir"], workers=how["workers"])
    name = dataset or found.data
    if name is None:
        raise InputError(
            "--dataset is missing: this target does not say which images it wants; give e.g. --dataset cifar10"
        )
    if dataset is None and found.target is not None and how["image_size"] is None:
        return open_images(name, "test", **{**how, **found.target.description.run_config().data.reading()})
    return open_images(name, "test", **how)


def _plan(
    own: EvaluationConfig | None, attacks: str | None, eps: str | None, step_size: str | None, norm: Norm | None
) -> tuple[EvaluationConfig, tuple[float, ...]]:
    """The run's own plan, with what the command line says in its place, and the radii."""
    names = _names("--attacks", attacks) if attacks is not None else own.attacks if own else ("clean",)
    step = number("--step-size", step_size)
    radii = None if eps is None else tuple(number("--eps", text) or 0.0 for text in _names("--eps", eps))
    if own is not None and radii in (None, (own.eps,)) and norm in (None, own.norm):
        plan = replace(own, attacks=names, step_size=own.step_size if step is None else step)
        return plan, radii or (own.eps,)
    attacked = [name for name in names if name != "clean"]
    if radii is None and attacked:
        raise InputError(f"--eps is missing for {', '.join(attacked)}; give e.g. --eps 8/255")
    radii = radii or (1.0,)
    chosen = norm or (own.norm if own else "linf")
    return EvaluationConfig(attacks=names, eps=radii[0], step_size=step, norm=chosen), radii


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(listed(text))
    if not names:
        example = "clean,fgsm,pgd20" if option == "--attacks" else "8/255"
        raise InputError(f"{option} must name at least one, got {text!r}; write e.g. {example}")
    return names


def print_report(report: Report) -> None:
    """Print it all."""
    console = console_for()
    say(console, _title(report))
    part = f"{AUTOATTACK}/"
    names = (f"  after {name.removeprefix(part)}" if name.startswith(part) else name for name in report.accuracy)
    values = (f"{value:.2f}" for value in report.accuracy.values())
    spans = (f"{low:.2f} to {high:.2f}" for low, high in report.intervals.values())
    show_table(console, ("attack", "accuracy %", "95% interval"), zip(names, values, spans, strict=True))
    for name, variants in report.to_json()["strongest"].items():
        told = ", ".join(f"{variant} {broke['first']} ({broke['alone']} alone)" for variant, broke in variants.items())
        say(console, f"{name}, images broken, in this order: {told}")
    _print_measured(console, report)
    say(console, f"weights: {described_weights(report.subject)}")
    for note in report.notes:
        say(console, f"note: {note}")
    for alarm in report.alarms:
        say(console, f"alarm {alarm.name}: {alarm.message}. {alarm.suggestion}", style="bold red")
    if report.files is not None:
        say(console, f"records: {report.files}")


def _title(report: Report) -> str:
    settings, subject = report.settings, report.subject
    what = "test" if subject.split == "test" else "held-out"
    count = f"{report.count:,}" if subject.whole is None else f"the first {report.count:,} of {subject.whole:,}"
    title = f"{subject.target}: {count} {what} images of {subject.data}"
    if set(report.attacks) == {"clean"}:
        return title
    radii = ", ".join(_spelled(eps) for eps in report.eps)
    size = "eps/4" if settings.step_size is None else f"{settings.step_size:g}"
    step = f"; step {size}" if any(name.startswith("pgd") for name in report.attacks) else ""
    return f"{title}; {settings.norm} eps {radii}{step}; seed {settings.seed}"


def _spelled(eps: Radius) -> str:
    """As written, with its value where that is another spelling."""
    value = f"{eps.value:.6g}"
    return value if eps.written == value else f"{eps.written} = {value}"


def _print_measured(console: Console, report: Report) -> None:
    record = report.to_json()
    margins, distance = record["margins"], record["distance"]
    if margins is not None and margins["correct"]["mean"] is not None:
        correct = margins["correct"]
        say(
            console,
            f"effective margin ({record['norm']}): {correct['mean']:.4g} ± {correct['std']:.4g} if classified right",
        )
    if distance is not None and distance["median"] is not None:
        rank = distance["rank_correlation"]
        shown = "" if rank is None else f"; rank correlation with the margin {rank:.3f}"
        say(
            console,
            f"distance ({record['norm']}) to the nearest adversarial image: median {distance['median']:.4g}{shown}; "
            f"{_winners(distance)}",
        )
    certified = record["certified"]
    if certified is not None:
        median = "none" if certified["median"] is None else f"{certified['median']:.4g}"
        at = ", ".join(f"{share:.2f}% at {eps}" for eps, share in certified["accuracy"].items())
        say(
            console,
            f"certified radius ({record['norm']}) of the first {certified['count']:,} images: median {median} if "
            f"classified right; certified accuracy {at}",
        )


def _winners(distance: Mapping[str, Any]) -> str:
    """Which attacks looked, and how often each was the nearest."""
    counts = ", ".join(f"{name} {count}" for name, count in distance["found_by"].items())
    return f"method {distance['method']}" + (f", found by {counts}" if counts else "")


def described_weights(subject: ModelInfo) -> str:
    """Which weights were judged, and how they were chosen."""
    epoch = f" (epoch {subject.epoch})" if subject.epoch is not None else ""
    return f"{subject.weights}, {subject.selection}{epoch}"
