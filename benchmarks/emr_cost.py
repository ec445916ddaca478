"""What EMR costs on this machine, as ratios measured in one run: the numbers behind docs/performance.md.

Every variant is timed in turn, round after round, so that a busy machine slows all of them alike; medians are compared.
"""

import json
from collections.abc import Callable
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from benchmarks.naive import naive_penalty
from benchmarks.timing import Clock, Phases, Step, interleaved
from widemargin.cli.options import Json
from widemargin.core.checks import check_count
from widemargin.core.screen import console_for, show_table
from widemargin.models.mlp import MLP
from widemargin.regularizers.emr import ApproximateEMR, ExactEMR, StochasticEMR
from widemargin.types import Regularizer


def loop_over_classes(model: nn.Module, x: Tensor) -> Tensor:
    """Exact EMR as the paper describes it: one input gradient per class, one after the other."""
    return naive_penalty(ExactEMR(), model, x, torch.zeros(len(x), dtype=torch.long))


def training_step(
    model: nn.Module, x: Tensor, y: Tensor, penalty: Callable[[nn.Module, Tensor], Tensor] | None
) -> Step:
    """Loss, penalty, backward and an SGD update."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        if penalty is not None:
            loss = loss + 1e-4 * penalty(model, x).mean()
        loss.backward()
        optimizer.step()

    return step


def penalty_only(model: nn.Module, x: Tensor, penalty: Callable[[nn.Module, Tensor], Tensor]) -> Step:
    """The penalty and its gradient, without a loss."""

    def step() -> None:
        model.zero_grad(set_to_none=True)
        penalty(model, x).mean().backward()

    return step


def medians(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """Median seconds of each step over interleaved rounds, after one warm-up."""
    for step in steps.values():
        step()
    with Phases(console_for(stderr=True)) as phases:
        phases.say("timing", rounds)
        times = interleaved(steps, Clock(torch.device("cpu")), rounds, phases.advance)
    return {name: timing.median for name, timing in times.items()}


def emr_cost(rounds: Annotated[int, typer.Option(help="How often each is timed.")] = 15, as_json: Json = False) -> None:
    """What each form of EMR costs on this machine's CPU, as ratios measured in one run."""
    check_count("--rounds", rounds)
    torch.manual_seed(0)
    model = MLP()
    x, y = torch.rand(100, 1, 28, 28), torch.randint(0, 10, (100,))
    forms: dict[str, Regularizer] = {
        "approximate": ApproximateEMR(),
        "stochastic": StochasticEMR(),
        "exact": ExactEMR(),
    }
    steps = {"plain step": training_step(model, x, y, None)}
    steps |= {f"step + {name}": training_step(model, x, y, form) for name, form in forms.items()}
    steps["step + exact, plain loop"] = training_step(model, x, y, loop_over_classes)
    steps["exact alone"] = penalty_only(model, x, ExactEMR())
    steps["exact alone, plain loop"] = penalty_only(model, x, loop_over_classes)
    seconds = medians(steps, rounds)
    ratios = {
        "step + approximate / plain step": seconds["step + approximate"] / seconds["plain step"],
        "step + stochastic / plain step": seconds["step + stochastic"] / seconds["plain step"],
        "step + exact / plain step": seconds["step + exact"] / seconds["plain step"],
        "exact, plain loop / exact": seconds["exact alone, plain loop"] / seconds["exact alone"],
    }
    if as_json:
        typer.echo(json.dumps({"seconds": seconds, "ratios": ratios, "threads": torch.get_num_threads()}, indent=2))
        return
    times = [(name, f"{1000 * value:.1f}") for name, value in seconds.items()]
    title = f"MLP 4 x 1024, batch 100, 10 classes, {torch.get_num_threads()} threads"
    show_table(console_for(), ("what", "ms"), times, title=title)
    bars = ("at most 2.8", "at most 2.8", "-", "at least 1.3")
    goals = [(name, f"{value:.2f}", bar) for (name, value), bar in zip(ratios.items(), bars, strict=True)]
    show_table(console_for(), ("ratio", "measured", "bar"), goals, title="ratios of this run")
