"""``widemargin evaluate``: accuracy of a trained model, clean and under attack."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from widemargin.attacks import attack_named
from widemargin.checkpoints import software_versions
from widemargin.checks import choice
from widemargin.cli.arguments import DataDir, Device, Json, Limit, TargetArgument, number
from widemargin.config import EvaluationConfig
from widemargin.data import load
from widemargin.errors import InputError
from widemargin.evaluation import Target, load_target, percent, verdicts
from widemargin.threat import THREATS
from widemargin.training.setup import choose_device
from widemargin.types import Norm


def evaluate(
    target: TargetArgument,
    attacks: Annotated[
        str | None,
        typer.Option(help="Comma-separated: clean, fgsm, pgdN. Default: the run's own plan.", show_default=False),
    ] = None,
    eps: Annotated[str | None, typer.Option(help="Radius, e.g. 0.1 or 8/255.", show_default=False)] = None,
    step_size: Annotated[str | None, typer.Option(help="PGD's step; eps/4 unless given.", show_default=False)] = None,
    norm: Annotated[str, typer.Option(help="linf or l2.")] = "linf",
    dataset: Annotated[str | None, typer.Option(help="Default: what it was trained on.", show_default=False)] = None,
    limit: Limit = None,
    seed: Annotated[int, typer.Option(help="Seed of the attacks' random numbers.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Images attacked at once.")] = 500,
    as_json: Json = False,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Accuracy on the test images, clean and under each attack. FGSM and PGD start at the image itself."""
    choice("", "--norm", norm, tuple(THREATS))
    chosen = choose_device(device)
    model = load_target(target)
    plan = _plan(model, attacks, eps, step_size, "l2" if norm == "l2" else "linf")
    name = dataset or str(model.description.config["data"]["name"])
    data = load(name, "test", data_dir=data_dir, limit=limit).to(chosen)
    network = model.model.to(chosen)
    accuracy = {}
    for attack in track(plan.attacks, "attacking", console=Console(stderr=True), transient=True):
        found = (
            None if attack == "clean" else attack_named(attack, eps=plan.eps, step_size=plan.step_size, norm=plan.norm)
        )
        accuracy[attack] = percent(verdicts(network, data, found, batch_size=batch_size, seed=seed))
    _print(model, plan, accuracy, len(data), name, seed, as_json)


def _plan(target: Target, attacks: str | None, eps: str | None, step_size: str | None, norm: Norm) -> EvaluationConfig:
    own = target.description.run_config().evaluation
    names = tuple(name.strip() for name in attacks.split(",") if name.strip()) if attacks else None
    if names is None:
        names = own.attacks if own else ("clean",)
    radius = number("--eps", eps)
    if radius is None and own is None and set(names) != {"clean"}:
        raise InputError(f"--eps is missing for {', '.join(n for n in names if n != 'clean')}; give e.g. --eps 8/255")
    step = number("--step-size", step_size)
    if own is not None and radius is None:
        return EvaluationConfig(
            attacks=names, eps=own.eps, step_size=own.step_size if step is None else step, norm=norm
        )
    return EvaluationConfig(attacks=names, eps=1.0 if radius is None else radius, step_size=step, norm=norm)


def _print(
    target: Target, plan: EvaluationConfig, accuracy: dict[str, float], count: int, data: str, seed: int, as_json: bool
) -> None:
    description = target.description
    step = plan.eps / 4 if plan.step_size is None else plan.step_size
    if as_json:
        record = {
            "target": str(target.path),
            "weights": description.which,
            "selection": description.selection,
            "epoch": description.epoch,
            "data": data,
            "count": count,
            "norm": plan.norm,
            "eps": float(plan.eps),
            "eps_as_written": str(plan.eps),
            "step_size": float(step),
            "seed": seed,
            "accuracy": accuracy,
            "versions": software_versions(),
        }
        typer.echo(json.dumps(record, indent=2))
        return
    table = Table(title=f"{target.path}: {count:,} test images of {data}, {plan.norm} eps {plan.eps}, step {step:g}")
    table.add_column("attack")
    table.add_column("accuracy %", justify="right")
    for name, value in accuracy.items():
        table.add_row(name, f"{value:.2f}")
    console = Console()
    console.print(table)
    console.print(f"weights: {description.which}, {description.selection} (epoch {description.epoch})", highlight=False)
