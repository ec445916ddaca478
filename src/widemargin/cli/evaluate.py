"""``widemargin evaluate``: accuracy of a model, clean and under attack, with what a reader must know beside it."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from widemargin.checks import choice
from widemargin.cli.arguments import DataDir, Device, Json, Limit, number
from widemargin.config import EvaluationConfig
from widemargin.data import ImageSet, load
from widemargin.errors import InputError
from widemargin.evaluation import Report
from widemargin.evaluation import evaluate as judge
from widemargin.evaluation.settings import AUTOATTACK, written
from widemargin.evaluation.subject import Judgeable, load_judgeable
from widemargin.threat import THREATS
from widemargin.training.setup import choose_device
from widemargin.types import Norm

TARGET = "A run folder, a checkpoint, public weights (.pt, .pth, .safetensors) or package.module:factory."


def evaluate(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=TARGET)],
    attacks: Annotated[
        str | None,
        typer.Option(
            help="clean, fgsm, pgdN, autoattack; comma-separated. Default: the run's own.", show_default=False
        ),
    ] = None,
    eps: Annotated[
        str | None,
        typer.Option(help="Radius, e.g. 0.1 or 8/255; several give a curve: 2/255,8/255.", show_default=False),
    ] = None,
    norm: Annotated[
        str | None, typer.Option(help="linf or l2. Default: the run's own, else linf.", show_default=False)
    ] = None,
    step_size: Annotated[str | None, typer.Option(help="PGD's step; eps/4 unless given.", show_default=False)] = None,
    dataset: Annotated[str | None, typer.Option(help="Default: what it was trained on.", show_default=False)] = None,
    distance: Annotated[
        bool, typer.Option("--distance", help="Also the distance to the nearest adversarial image.")
    ] = False,
    limit: Limit = None,
    seed: Annotated[int, typer.Option(help="Seed of the attacks' random numbers.")] = 0,
    shard_size: Annotated[int, typer.Option(help="Images finished and written down together.")] = 500,
    batch_size: Annotated[int, typer.Option(help="Images attacked at once.")] = 250,
    head_scale: Annotated[
        float | None, typer.Option(help="Scale of a hypersphere head in public weights.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the records; the same command goes on there.", show_default=False)
    ] = None,
    as_json: Json = False,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Accuracy on the test images, clean and under each attack, with alarms where one should doubt the numbers."""
    if norm is not None:
        choice("", "--norm", norm, tuple(THREATS))
    chosen = _device(device)
    data = None if dataset is None else load(dataset, "test", data_dir=data_dir, limit=limit)
    subject = load_judgeable(target, image_shape=None if data is None else data.image_shape, head_scale=head_scale)
    data = data or _own_data(subject, data_dir, limit)
    subject.check_fits(data)
    plan, radii = _plan(
        subject.plan, attacks, eps, step_size, None if norm is None else "l2" if norm == "l2" else "linf"
    )
    report = judge(
        subject.model.to(chosen),
        data.to(chosen),
        plan.attacks,
        radii,
        plan.norm,
        plan.step_size,
        seed,
        out,
        shard_size=shard_size,
        batch_size=batch_size,
        distance=distance,
        subject=replace(subject.subject, data=data.name),
        console=Console(stderr=True, quiet=as_json),
    )
    if os.environ.get("RANK", "0") != "0":  # of several processes, one speaks
        return
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        _print(report)


def _device(name: str) -> torch.device:
    """As asked for; under "auto" each process that torchrun started here has a GPU of its own."""
    device = choose_device(name)
    if name == "auto" and device.type == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return device


def _own_data(subject: Judgeable, data_dir: str | None, limit: int | None) -> ImageSet:
    if subject.data is None:
        raise InputError(
            "--dataset is missing: this target does not say which images it wants; give e.g. --dataset cifar10"
        )
    return load(subject.data, "test", data_dir=data_dir, limit=limit)


def _plan(
    own: EvaluationConfig | None, attacks: str | None, eps: str | None, step_size: str | None, norm: Norm | None
) -> tuple[EvaluationConfig, tuple[float, ...]]:
    """The run's own plan, with what the command line says in its place, and the radii."""
    names = _names("--attacks", attacks) if attacks is not None else own.attacks if own else ("clean",)
    step = number("--step-size", step_size)
    radii = None if eps is None else tuple(number("--eps", text) or 0.0 for text in _names("--eps", eps))
    if own is not None and radii is None and norm in (None, own.norm):
        plan = replace(own, attacks=names, step_size=own.step_size if step is None else step)
        return plan, (own.eps,)
    attacked = [name for name in names if name != "clean"]
    if radii is None and attacked:
        raise InputError(f"--eps is missing for {', '.join(attacked)}; give e.g. --eps 8/255")
    radii = radii or (1.0,)
    chosen = norm or (own.norm if own else "linf")
    return EvaluationConfig(attacks=names, eps=radii[0], step_size=step, norm=chosen), radii


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise InputError(f"{option} must name at least one, got {text!r}; write e.g. clean,fgsm,pgd20 or 8/255")
    return names


def _print(report: Report) -> None:
    console = Console()
    settings, subject = report.settings, report.subject
    title = f"{subject.target}: {report.count:,} test images of {subject.data}"
    if set(settings.attacks) != {"clean"}:
        radii = ", ".join(f"{written(eps)} = {float(eps):.6g}" for eps in settings.eps)
        step = "eps/4" if settings.step_size is None else f"{settings.step_size:g}"
        title += f"; {settings.norm} eps {radii}; step {step}; seed {settings.seed}"
    console.print(Text(title), soft_wrap=True)
    table = Table("attack", "accuracy %")
    table.columns[1].justify = "right"
    for name, value in report.accuracy.items():
        part = name.startswith(f"{AUTOATTACK}/")
        table.add_row(f"  after {name.removeprefix(AUTOATTACK + '/')}" if part else name, f"{value:.2f}")
    console.print(table)
    _print_measured(console, report)
    weights = f"weights: {subject.weights}, {subject.selection}" + (
        f" (epoch {subject.epoch})" if subject.epoch else ""
    )
    console.print(Text(weights), soft_wrap=True)
    for alarm in report.alarms:
        console.print(f"[bold red]alarm {alarm.name}[/]: {alarm.message}. {alarm.suggestion}", highlight=False)
    if report.files is not None:
        console.print(Text(f"records: {report.files}"), soft_wrap=True)


def _print_measured(console: Console, report: Report) -> None:
    record = report.to_json()
    margins, distance = record["margins"], record["distance"]
    if margins is not None and margins["correct"]["mean"] is not None:
        correct = margins["correct"]
        console.print(
            f"effective margin ({record['norm']}): {correct['mean']:.4g} ± {correct['std']:.4g} if classified right",
            highlight=False,
        )
    if distance is not None and distance["median"] is not None:
        rank = distance["rank_correlation"]
        shown = "" if rank is None else f"; rank correlation with the margin {rank:.3f}"
        console.print(
            f"distance to the nearest adversarial image: median {distance['median']:.4g}{shown}", highlight=False
        )
