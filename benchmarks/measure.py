"""One case measured: time, arithmetic, ceilings, memory, the penalty's share, and the loop by hand, all in one run.

What was found is a record for JSON: milliseconds, FLOPs, TFLOP/s, percent, GiB; None where there is nothing.
"""

from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console

from benchmarks.case import NUM_CLASSES, Case, Variant, engine_variant, naive_variant, plan_of
from benchmarks.ceilings import convolution_ceiling, dominant_convolutions, matrix_ceiling
from benchmarks.timing import Clock, Phases, Timing, interleaved, memory, milliseconds, surroundings
from widemargin.core.precision import allowing_tf32
from widemargin.engine.plan import Plan
from widemargin.jobs.cost import network_work, step_passes
from widemargin.training.setup import make_state


def measure(
    case: Case, *, engine: str, device: torch.device, rounds: int, naive: bool = True, console: Console | None = None
) -> dict[str, Any]:
    """Build the variants, time them in turn, then the ceilings."""
    clock = Clock(device)
    with Phases(console or Console(quiet=True)) as phases:
        plan = plan_of(case, engine, device)
        phases.say(f"{case.label()}, {plan.describe()}: warming up")
        variants: dict[str, Variant] = {"step": engine_variant(case, plan, device)}
        if case.penalty is not None:
            phases.say(f"without {case.penalty.upper()}: warming up")
            variants["without"] = engine_variant(case.without_penalty(), plan, device)
        by_hand = None
        if naive:
            phases.say("the loop by hand: warming up")
            by_hand = naive_variant(case, device)
        if by_hand is not None:
            variants["naive"] = by_hand
        phases.say("timing", rounds)
        times = interleaved({name: v.step for name, v in variants.items()}, clock, rounds, phases.advance)
        phases.say("the machine's ceilings")
        arithmetic = _arithmetic(case, plan, clock, seconds=times["step"].median)
    found = asdict(case) | surroundings(device, plan, rounds) | {"step_ms": milliseconds(times["step"])}
    found |= {"images_per_second": case.batch_size / times["step"].median} | arithmetic
    found["penalty"] = _penalty(case, times["step"], times["without"]) if "without" in times else None
    found["naive"] = {"note": "out of memory"} if naive else None
    if by_hand is not None:
        ratio = times["naive"].median / times["step"].median
        found["naive"] = {"step_ms": milliseconds(times["naive"]), "ratio": ratio, **memory(by_hand.peak_bytes)}
    return found | memory(variants["step"].peak_bytes)


def _penalty(case: Case, step: Timing, without: Timing) -> dict[str, Any]:
    """The step with the penalty minus the step without."""
    seconds = step.median - without.median
    return {
        "name": case.penalty,
        "step_ms_without": milliseconds(without),
        "ms": 1000 * seconds,
        "share_percent": 100 * seconds / step.median,
    }


def _arithmetic(case: Case, plan: Plan, clock: Clock, *, seconds: float) -> dict[str, float | None]:
    """The step's FLOPs, their rate, and the ceilings for its mix of passes."""
    data = case.data(clock.device)
    nets = make_state(case.config(), data).nets.all()
    passes = step_passes(case.config(), NUM_CLASSES)
    works = {name: network_work(net, data.image_shape) for name, net in nets.items()}
    flops = case.batch_size * sum(work.of(passes[name]) for name, work in works.items())
    shapes = dominant_convolutions(nets["model"], data.image_shape)
    with allowing_tf32() if plan.tf32 else nullcontext():
        convolutions = convolution_ceiling(shapes, passes["model"], case.batch_size, plan, clock)
        matrix = matrix_ceiling(plan, clock)
    rate = flops / seconds
    return {
        "forward_flops_per_image": works["model"].forward,
        "flops_per_step": flops,
        "tflops": rate / 1e12,
        "matrix_ceiling_tflops": matrix / 1e12,
        "matrix_ceiling_percent": 100 * rate / matrix,
        "convolution_ceiling_tflops": None if convolutions is None else convolutions / 1e12,
        "convolution_ceiling_percent": None if convolutions is None else 100 * rate / convolutions,
    }
