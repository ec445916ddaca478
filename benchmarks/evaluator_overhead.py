"""What our evaluator adds to the bare AutoAttack backend: the same attack, timed in turn, round after round."""

import logging
import statistics
import time
from typing import Annotated

import torch
import typer
from pyautoattack import AutoAttack
from torch import nn

from widemargin.core.checks import check_count
from widemargin.core.screen import console_for, say
from widemargin.evaluation.evaluator import evaluate


def network() -> nn.Module:
    """A small convolutional network with batch norm, in evaluation mode."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    ).eval()  # fmt: skip


def evaluator_overhead(
    rounds: Annotated[int, typer.Option(help="How often each is timed.")] = 3,
    images: Annotated[int, typer.Option(help="Images attacked.")] = 50,
) -> None:
    """What the evaluator adds to the bare AutoAttack backend: the same attack, timed in turn.

    Both medians, their ratio, and the spread of the bare backend as the yardstick.
    """
    check_count("--rounds", rounds)
    check_count("--images", images)
    logging.disable(logging.INFO)
    model = network()
    x = torch.rand(images, 1, 28, 28)
    y = model(x).argmax(1)
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        AutoAttack(model, norm="Linf", eps=0.01, seed=0, version="standard").run_standard_evaluation(
            x, y, batch_size=50
        )
        bare.append(time.perf_counter() - began)
        began = time.perf_counter()
        evaluate(model, (x, y), ["autoattack"], 0.01, seed=0, batch_size=50, margins=False, sanity=False)
        ours.append(time.perf_counter() - began)
    ratio = statistics.median(ours) / statistics.median(bare)
    spread = (max(bare) - min(bare)) / statistics.median(bare)
    say(
        console_for(),
        f"bare backend {statistics.median(bare):.2f} s, evaluator {statistics.median(ours):.2f} s: ratio {ratio:.3f}; "
        f"the bare backend alone varies by {100 * spread:.0f}%",
    )
