"""AutoAttack through our evaluator against the bare backend, in turn: processor time and verdicts, network by network.

Two networks learn 5,000 embedded digits for a moment, the one as they are, the other under FGSM with a random start:
most images of a standard network break at once, a robust network's survivors go through all four parts.
"""

import logging
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from pyautoattack import AutoAttack
from torch import Tensor, nn

from widemargin.core.checks import check_count, choice
from widemargin.core.screen import console_for, say
from widemargin.data.datasets import load
from widemargin.evaluation.evaluator import evaluate
from widemargin.evaluation.settings import SEARCHES

EPS = {"standard": 0.1, "robust": 0.1}
STEPS, BATCH = 400, 100


def network(*, robust: bool) -> tuple[nn.Module, Tensor, Tensor]:
    """A small convolutional network with batch norm, and the test digits."""
    torch.manual_seed(0)
    train, test = load("mnist-embedded", "train"), load("mnist-embedded", "test")
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(STEPS):
        picked = torch.randint(len(train), (BATCH,))
        x, y = train.floats(picked), train.labels[picked]
        if robust:
            start = (x + EPS["robust"] * (2 * torch.rand_like(x) - 1)).requires_grad_(True)
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(start), y), start)
            moved = (start - x + 1.25 * EPS["robust"] * gradient.sign()).clamp(-EPS["robust"], EPS["robust"])
            x = (x + moved).clamp(0, 1).detach()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval(), test.floats(slice(None)), test.labels


def autoattack(
    rounds: Annotated[int, typer.Option(help="How often each is timed.")] = 3,
    images: Annotated[int, typer.Option(help="Images attacked.")] = 64,
    search: Annotated[str, typer.Option(help="How our attacks search: float32, or folded or bfloat16.")] = "float32",
) -> None:
    """AutoAttack through our evaluator against the bare backend, timed in turn, and how many verdicts differ."""
    check_count("--rounds", rounds)
    check_count("--images", images)
    choice("", "--search", search, tuple(SEARCHES))
    logging.disable(logging.INFO)
    for name, eps in EPS.items():
        model, x, y = network(robust=name == "robust")
        x, y = x[:images], y[:images]
        options: dict[str, Any] = {"seed": 0, "batch_size": images, "margins": False, "sanity": False, "search": search}
        ratios, differing = [], 0
        for _ in range(rounds):
            bare, found = _seconds(lambda: _bare(model, x, y, eps))  # noqa: B023  called at once
            ours, report = _seconds(lambda: evaluate(model, (x, y), ["autoattack"], eps, **options))  # noqa: B023
            ratios.append(bare / ours)
            differing = int((report.verdicts["autoattack"] != found).sum())
        say(
            console_for(),
            f"{name}: {int(found.sum())} of {images} images survive; bare backend {statistics.median(ratios):.2f} "
            f"times the processor time of the evaluator with search {search} ({min(ratios):.2f} to {max(ratios):.2f}); "
            f"verdicts that differ: {differing}",
        )


def _bare(model: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    attack = AutoAttack(model, norm="Linf", eps=eps, seed=0, version="standard")
    x_adv, _ = attack.run_standard_evaluation(x, y, batch_size=len(x))
    with torch.no_grad():
        right: Tensor = model(x_adv).argmax(1) == y
    return right


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    found = work()
    return time.process_time() - began, found
