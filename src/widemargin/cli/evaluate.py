"""``widemargin evaluate``: accuracy of a trained model, clean and under attack."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

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
    norm: Annotated[
        str | None, typer.Option(help="linf or l2. Default: the run's own, else linf.", show_default=False)
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Default: what it was trained on.", show_default=False)] = None,
    limit: Limit = None,
    seed: Annotated[int, typer.Option(help="Seed of the attacks' random numbers.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Images attacked at once.")] = 500,
    as_json: Json = False,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Accuracy on the test images, clean and under each attack. FGSM and PGD start at the image itself."""
    if norm is not None:
        choice("", "--norm", norm, tuple(THREATS))
    chosen = choose_device(device)
    model = load_target(target)
    plan = _plan(model, attacks, eps, step_size, None if norm is None else "l2" if norm == "l2" else "linf")
    name = dataset or str(model.description.config["data"]["name"])
    data = load(name, "test", data_dir=data_dir, limit=limit).to(chosen)
    model.check_fits(data)
    network = model.model.to(chosen)
    accuracy = {}
    console = Console(stderr=True)
    for attack in track(plan.attacks, "attacking", console=console, transient=True, disable=not console.is_terminal):
        found = plan.attack(attack)
        accuracy[attack] = percent(verdicts(network, data, found, batch_size=batch_size, seed=seed))
    _print(model, plan, accuracy, len(data), name, seed, as_json)


def _plan(
    target: Target, attacks: str | None, eps: str | None, step_size: str | None, norm: Norm | None
) -> EvaluationConfig:
    """The run's own plan, with what the command line says in its place."""
    own = target.description.run_config().evaluation
    names = _names(attacks) if attacks is not None else own.attacks if own else ("clean",)
    radius, step = number("--eps", eps), number("--step-size", step_size)
    if own is not None and radius is None and norm in (None, own.norm):
        return EvaluationConfig(
            attacks=names, eps=own.eps, step_size=own.step_size if step is None else step, norm=own.norm
        )
    attacked = [name for name in names if name != "clean"]
    if radius is None and attacked:
        raise InputError(f"--eps is missing for {', '.join(attacked)}; give e.g. --eps 8/255")
    chosen = norm or (own.norm if own else "linf")
    return EvaluationConfig(attacks=names, eps=1.0 if radius is None else radius, step_size=step, norm=chosen)


def _names(attacks: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in attacks.split(",") if name.strip())
    if not names:
        raise InputError(f"--attacks must name at least one, got {attacks!r}; write e.g. clean,fgsm,pgd20")
    return names


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
    console = Console()
    title = f"{target.path}: {count:,} test images of {data}"
    if plan.strongest() is not None:
        title += f", {plan.norm} eps {plan.eps}, step {step:g}"
    console.print(title, highlight=False, soft_wrap=True)
    table = Table()
    table.add_column("attack")
    table.add_column("accuracy %", justify="right")
    for name, value in accuracy.items():
        table.add_row(name, f"{value:.2f}")
    console.print(table)
    console.print(f"weights: {description.which}, {description.selection} (epoch {description.epoch})", highlight=False)
