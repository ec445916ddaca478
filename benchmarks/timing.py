"""What the numbers were measured on.

What a person sees on standard error while the bench works: a bar on a terminal, a line per phase in a log.

Time on a device: by events on a GPU, by the clock elsewhere; variants in turn, so that a busy machine slows all.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from widemargin.core.precision import convolutions_use_tf32, products_use_tf32
from widemargin.core.screen import say
from widemargin.engine.plan import Plan


def surroundings(device: torch.device, plan: Plan, rounds: int) -> dict[str, Any]:
    """What the numbers were measured on and with, for the record."""
    gpu, threads = device.type == "cuda", torch.get_num_threads()
    cpu = f"{device.type}, {threads} thread{'s' * (threads > 1)}"
    tf32 = {"convolutions": gpu and convolutions_use_tf32(), "products": gpu and products_use_tf32()}
    return {
        "device": torch.cuda.get_device_name(device) if gpu else cpu,
        "torch": torch.__version__,
        "plan": plan.describe(),
        "tf32": tf32,
        "rounds": rounds,
    }


def memory(peak_bytes: int | None) -> dict[str, float]:
    """The entry of a record; none where memory was not measured."""
    return {} if peak_bytes is None else {"peak_memory_gib": peak_bytes / 2**30}


class Phases:
    """Says what is going on; ``Console(quiet=True)`` shows nothing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, what: str, steps: int | None = None) -> None:
        """A new phase, of so many steps where that is known."""
        self._progress.update(self._task, description=what, total=steps, completed=0)
        if not self._console.is_terminal:
            say(self._console, what)

    def advance(self) -> None:
        """One of them is done."""
        self._progress.advance(self._task)


Step = Callable[[], None]

WARM_UP = 6
"""Steps before timing: kernels are chosen and compiled in the first, a CUDA graph is captured in the fourth."""
SECONDS_A_ROUND = 0.1
"""On a GPU a round is as many steps as take this long, without waiting in between, as in training."""
MOST_STEPS_A_ROUND = 50


@dataclass(frozen=True)
class Timing:
    """Seconds of a step: the median over the rounds, the quickest and the slowest."""

    median: float
    low: float
    high: float


def milliseconds(timing: Timing) -> dict[str, float]:
    """The median and the spread."""
    return {name: 1000 * seconds for name, seconds in asdict(timing).items()}


@dataclass(frozen=True)
class Clock:
    """Times work on a device."""

    device: torch.device

    def seconds(self, step: Step, steps: int = 1) -> float:
        """Seconds a step, over ``steps`` in a row."""
        if self.device.type != "cuda":
            began = time.perf_counter()
            for _ in range(steps):
                step()
            return (time.perf_counter() - began) / steps
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            before.record()
            for _ in range(steps):
                step()
            after.record()
            torch.cuda.synchronize()
        return float(before.elapsed_time(after)) / 1000 / steps

    def steps_a_round(self, step: Step) -> int:
        """How many steps make a round."""
        if self.device.type != "cuda":
            return 1
        return max(1, min(MOST_STEPS_A_ROUND, math.ceil(SECONDS_A_ROUND / self.seconds(step))))

    def median(self, step: Step, *, rounds: int, steps: int) -> float:
        """Median seconds of one thing alone, after a warm-up."""
        for _ in range(2):
            step()
        return statistics.median(self.seconds(step, steps) for _ in range(rounds))


def interleaved(
    variants: Mapping[str, Step], clock: Clock, rounds: int, advance: Callable[[], None] = lambda: None
) -> dict[str, Timing]:
    """Each variant in turn, round after round; all of them are warm."""
    counts = {name: clock.steps_a_round(step) for name, step in variants.items()}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, step in variants.items():
            times[name].append(clock.seconds(step, counts[name]))
        advance()
    return {name: Timing(statistics.median(values), min(values), max(values)) for name, values in times.items()}
