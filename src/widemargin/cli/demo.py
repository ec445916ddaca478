"""``widemargin demo``: the paper's point in two minutes, on digits that come with the package."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from widemargin.attacks.pgd import PGD
from widemargin.core.screen import console_for, say, show_table
from widemargin.data.batches import in_order
from widemargin.data.datasets import load
from widemargin.data.image_set import ImageSet
from widemargin.distributed.group import check_single_process
from widemargin.evaluation.accuracy import MeasuredMargins, measure_margins, percent, verdicts
from widemargin.evaluation.target import load_target
from widemargin.recipes import find_recipe
from widemargin.recipes.demo import ATTACK
from widemargin.report.pictures import Twins, demo_figure, save_picture
from widemargin.report.wording import attack_title
from widemargin.training.trainer import train as train_run

MODELS = {"plain": "demo/plain", "EMR": "demo/emr"}
COLUMNS = 10


def demo(
    out: Annotated[Path, typer.Option(help="Folder for both runs and the picture.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of initialization and order.")] = 0,
) -> None:
    """Train the paper's MLP twice on embedded MNIST digits, plain and with EMR, attack both, and draw the margins."""
    check_single_process("demo", "it takes about two minutes")
    began = time.monotonic()
    console = console_for()
    test = load("mnist-embedded", "test")
    rows: dict[str, dict[str, float]] = {}
    margins: dict[str, MeasuredMargins] = {}
    twins: dict[str, Twins] = {}
    for name, recipe in MODELS.items():
        config = replace(find_recipe(recipe).config, seed=seed)
        say(console, f"{name}: training {config.name} on {config.data.name}", style="bold")
        train_run(config, out=out / config.name.split("/")[1], console=console)
        rows[name], margins[name], twins[name] = _judge(out / config.name.split("/")[1], test)
    picture = out / "demo.png"
    figure = demo_figure(
        {name: measured.margins for name, measured in margins.items()},
        test.floats(slice(0, COLUMNS)),
        test.labels[:COLUMNS],
        twins,
        attack=attack_title("pgd20"),
        eps=ATTACK.eps,
    )
    save_picture(figure, picture)
    _print(console, rows, margins, picture, len(test), time.monotonic() - began)


def _judge(folder: Path, test: ImageSet) -> tuple[dict[str, float], MeasuredMargins, Twins]:
    model = load_target(folder).model
    scores = {"clean": percent(verdicts(model, test)), "pgd20": percent(verdicts(model, test, ATTACK))}
    measured = measure_margins(model, in_order(test, 500))
    x, y = test.floats(slice(0, COLUMNS)), test.labels[:COLUMNS]
    x_adv = ATTACK(model, x, y)
    return scores, measured, Twins(x_adv, model(x_adv).argmax(1), scores["pgd20"])


def _print(
    console: Console,
    rows: dict[str, dict[str, float]],
    margins: dict[str, MeasuredMargins],
    picture: Path,
    count: int,
    seconds: float,
) -> None:
    attack: PGD = ATTACK
    title = f"{count:,} test digits; PGD20: {attack.steps} steps of {attack.step_size} inside linf {attack.eps}"
    means = {name: margins[name].over_all().mean for name in rows}
    lines = [
        (name, f"{row['clean']:.2f}", f"{row['pgd20']:.2f}", "-" if means[name] is None else f"{means[name]:.3f}")
        for name, row in rows.items()
    ]
    show_table(console, ("model", "clean %", "PGD20 %", "mean effective margin"), lines, title=title)
    gain = rows["EMR"]["pgd20"] - rows["plain"]["pgd20"]
    cost = rows["plain"]["clean"] - rows["EMR"]["clean"]
    say(
        console,
        f"EMR: {gain:+.1f} points under attack for {cost:.1f} of clean accuracy. Picture: {picture}. {seconds:.0f} s.",
    )
