"""Time on a device: by events on a GPU, by the clock elsewhere; variants in turn, so that a busy machine slows all."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

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
