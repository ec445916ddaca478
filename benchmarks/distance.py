"""What distances cost and how short they are: each attack alone, and the methods of ``--distance``, on small networks.

Three networks are trained here on the embedded digits: the paper's MLP, plain and with stochastic EMR, and a small
convolutional one under PGD in Linf, on which attacks differ most. Time is that of the processor, which other work on
the machine changes little.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from benchmarks.evaluator_overhead import network
from benchmarks.timing import Phases
from widemargin.attacks.alma import ALMA
from widemargin.attacks.ddn import DDN
from widemargin.attacks.pgd import PGD
from widemargin.attacks.threat import THREATS
from widemargin.cli.options import Json
from widemargin.core import randomness
from widemargin.core.checks import check_count, choice
from widemargin.core.screen import console_for, show_table
from widemargin.data.datasets import load
from widemargin.evaluation.autoattack import make_reference, undisturbed
from widemargin.evaluation.distance import minimal_distance
from widemargin.evaluation.minimal_norm import FULL, ONLY_FAB, QUICK, SCALES, NearestSearch
from widemargin.losses import predicted
from widemargin.models.mlp import MLP
from widemargin.regularizers.emr import StochasticEMR
from widemargin.types import Norm

NETWORKS = ("plain MLP", "EMR MLP", "CNN under PGD")
EMR_WEIGHT, LARGEST_EPS, BATCH = 0.03, 0.3, 100


@dataclass(frozen=True)
class Measured:
    """How long the distances of one network's images are, and what they cost."""

    network: str
    attack: str
    median: float
    mean: float
    seconds: float
    share_of_fab: float
    """Of the time of FAB-T at all classes, on the same images."""
    found: int
    """Images for which it found anything."""


def trained(name: str, epochs: int, images: int) -> nn.Module:
    """The network of that name after so many epochs on so many embedded digits, in evaluation mode."""
    data = load("mnist-embedded", "train", limit=images)
    x, y = data.floats(slice(0, len(data))), data.labels
    with randomness.initialized_from(0):
        model = network() if name.startswith("CNN") else MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(epochs):
        generator = randomness.derived(0, "order", epoch)
        for rows in torch.randperm(len(x), generator=generator).split(BATCH):
            points = x[rows]
            if name.startswith("CNN"):  # the radius grows over the first half, else nothing is learned
                eps = LARGEST_EPS * min(1.0, 2 * (epoch + 0.1) / epochs)
                attack = PGD(eps=eps, step_size=eps / 5, steps=10, random_start="uniform")
                points = attack(model, points, y[rows], generator=generator)
            model.train()
            loss = F.cross_entropy(model(points), y[rows])
            if name.startswith("EMR"):
                loss = loss + EMR_WEIGHT * StochasticEMR()(model, points, generator=generator).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    return model.eval()


def measured(name: str, model: nn.Module, x: Tensor, y: Tensor, norm: Norm) -> Iterator[Measured]:
    """Every attack and every method on correctly classified images; FAB-T at all classes is the yardstick."""
    reference = make_reference(model, eps=1.0, norm=norm, seed=0, num_classes=10, device=torch.device("cpu"))

    def by_method(method: str) -> Tensor:
        search = NearestSearch(reference=reference, norm=norm, method=method)
        return minimal_distance(model, x, y, search=search, batch_size=len(x)).values

    def by_attack(attack: DDN | ALMA) -> Tensor:
        x_adv = attack(model, x, y)
        return torch.where(predicted(model(x_adv), y), torch.inf, THREATS[norm](1.0).size(x_adv - x))

    runs: dict[str, Callable[[], Tensor]] = {ONLY_FAB: lambda: by_method(ONLY_FAB)}
    if norm == "l2":
        for scale in SCALES:
            runs[f"ddn-{scale}z"] = lambda scale=scale: by_attack(DDN(logit_scale=scale))  # type: ignore[misc]
        runs["alma"] = lambda: by_attack(ALMA())
    for method in (FULL, QUICK):
        runs[f"--distance {method}"] = lambda method=method: by_method(method)  # type: ignore[misc]
    whole = 0.0
    for attack, run in runs.items():
        began = time.process_time()
        with undisturbed(model), torch.no_grad():
            sizes = run()
        seconds = time.process_time() - began
        whole = seconds if attack == ONLY_FAB else whole
        found = sizes[sizes.isfinite()]
        median, mean = float(sizes.quantile(0.5)), float(found.mean())
        yield Measured(name, attack, median, mean, seconds, seconds / whole, len(found))


def distance(
    images: Annotated[int, typer.Option(help="Correctly classified test digits.")] = 50,
    norm: Annotated[str, typer.Option(help="l2 or linf.")] = "l2",
    epochs: Annotated[int, typer.Option(help="Of training.")] = 6,
    train_images: Annotated[int, typer.Option(help="Digits that the networks are trained on.")] = 12_000,
    as_json: Json = False,
) -> None:
    """How short distances are and what they cost: each attack alone and the methods of --distance."""
    for option, value in (("--images", images), ("--epochs", epochs), ("--train-images", train_images)):
        check_count(option, value)
    chosen: Norm = choice("", "--norm", norm, ("l2", "linf"))
    logging.disable(logging.INFO)
    rows: list[Measured] = []
    test = load("mnist-embedded", "test")
    with Phases(console_for(stderr=True)) as phases:
        for name in NETWORKS:
            phases.say(f"training the {name}")
            model = trained(name, epochs, train_images)
            x, y = test.floats(slice(0, len(test))), test.labels
            with torch.no_grad():
                right = predicted(model(x), y)
            phases.say(f"attacking the {name}")
            rows += measured(name, model, x[right][:images], y[right][:images], chosen)
    threads = torch.get_num_threads()
    if as_json:
        record: dict[str, Any] = {"norm": chosen, "images": images, "epochs": epochs, "threads": threads}
        typer.echo(json.dumps(record | {"rows": [asdict(row) for row in rows]}, indent=2))
        return
    lines = [
        (row.network, row.attack, *(f"{value:.4f}" for value in (row.median, row.mean)), f"{row.seconds:.1f}", share)
        for row, share in ((row, f"{row.share_of_fab:.2f}") for row in rows)
    ]
    title = f"distances in {chosen} of {images} digits, {threads} threads"
    head = ("network", "attack", "median", "mean", "CPU s", "of FAB-T's")
    show_table(console_for(), head, lines, left=2, title=title, notes=_verdicts(rows))


def _verdicts(rows: list[Measured]) -> list[str]:
    """Whether the minimum keeps its promises: half of FAB-T's time, and a median no longer than any attack's."""
    notes = []
    for name in dict.fromkeys(row.network for row in rows):
        ours = next(row for row in rows if row.network == name and row.attack.endswith(FULL))
        shortest = min(row.median for row in rows if row.network == name and not row.attack.startswith("--"))
        is_shorter = "no longer than" if ours.median <= shortest else "longer than"
        notes.append(
            f"{name}: full takes {ours.share_of_fab:.2f} of FAB-T's time, its median {ours.median:.4f} is {is_shorter} "
            f"the best attack's {shortest:.4f}"
        )
    return notes
