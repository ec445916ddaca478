"""One case measured: time, arithmetic, ceilings, memory, the penalty's share, and the loop by hand, all in one run."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console

from benchmarks.case import NUM_CLASSES, Case, Variant, engine_variant, naive_variant, plan_of
from benchmarks.ceilings import convolution_ceiling, dominant_convolutions, matrix_ceiling
from benchmarks.flops import network_work, step_passes
from benchmarks.timing import Clock, Phases, Timing, describe_device, interleaved, tf32_settings
from widemargin.core.precision import allowing_tf32
from widemargin.engine.plan import Plan
from widemargin.training.setup import make_state


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one run of the bench found. Times are seconds, rates FLOPs a second, memory bytes."""

    case: Case
    device: str
    torch: str
    plan: Plan
    rounds: int
    tf32: dict[str, bool]
    step: Timing
    flops: float
    forward_flops: float
    matrix_ceiling: float
    convolution_ceiling: float | None
    peak_bytes: int | None
    without_penalty: Timing | None
    naive: Timing | None
    naive_peak_bytes: int | None
    naive_note: str

    @property
    def rate(self) -> float:
        """FLOPs a second of the step."""
        return self.flops / self.step.median

    @property
    def images_per_second(self) -> float:
        """Images a second."""
        return self.case.batch_size / self.step.median

    @property
    def penalty_seconds(self) -> float | None:
        """The step with the penalty minus the step without."""
        return None if self.without_penalty is None else self.step.median - self.without_penalty.median

    @property
    def naive_ratio(self) -> float | None:
        """How many times longer the loop by hand takes."""
        return None if self.naive is None else self.naive.median / self.step.median

    def record(self) -> dict[str, Any]:
        """For JSON: milliseconds, TFLOP/s, percent, GiB."""
        convolutions = self.convolution_ceiling
        found: dict[str, Any] = {
            **asdict(self.case),
            "device": self.device,
            "torch": self.torch,
            "plan": self.plan.describe(),
            "tf32": self.tf32,
            "rounds": self.rounds,
            "step_ms": milliseconds(self.step),
            "images_per_second": self.images_per_second,
            "forward_flops_per_image": self.forward_flops,
            "flops_per_step": self.flops,
            "tflops": self.rate / 1e12,
            "matrix_ceiling_tflops": self.matrix_ceiling / 1e12,
            "matrix_ceiling_percent": 100 * self.rate / self.matrix_ceiling,
            "convolution_ceiling_tflops": None if convolutions is None else convolutions / 1e12,
            "convolution_ceiling_percent": None if convolutions is None else 100 * self.rate / convolutions,
            "penalty": self._penalty_record(),
            "naive": self._naive_record(),
        }
        return found | ({} if self.peak_bytes is None else {"peak_memory_gib": self.peak_bytes / 2**30})

    def _penalty_record(self) -> dict[str, Any] | None:
        if self.without_penalty is None or self.penalty_seconds is None:
            return None
        return {
            "name": self.case.penalty,
            "step_ms_without": milliseconds(self.without_penalty),
            "ms": 1000 * self.penalty_seconds,
            "share_percent": 100 * self.penalty_seconds / self.step.median,
        }

    def _naive_record(self) -> dict[str, Any] | None:
        if self.naive is None:
            return {"note": self.naive_note} if self.naive_note else None
        found: dict[str, Any] = {"step_ms": milliseconds(self.naive), "ratio": self.naive_ratio}
        memory = self.naive_peak_bytes
        return found | ({} if memory is None else {"peak_memory_gib": memory / 2**30})


def milliseconds(timing: Timing) -> dict[str, float]:
    """The median and the spread."""
    return {name: 1000 * seconds for name, seconds in asdict(timing).items()}


def measure(
    case: Case, *, engine: str, device: torch.device, rounds: int, naive: bool = True, console: Console | None = None
) -> Measured:
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
        arithmetic = _arithmetic(case, plan, clock)
    return Measured(
        case=case,
        device=describe_device(device),
        torch=torch.__version__,
        plan=plan,
        rounds=rounds,
        tf32=tf32_settings(device),
        step=times["step"],
        flops=arithmetic.flops,
        forward_flops=arithmetic.forward_flops,
        matrix_ceiling=arithmetic.matrix,
        convolution_ceiling=arithmetic.convolutions,
        peak_bytes=variants["step"].peak_bytes,
        without_penalty=times.get("without"),
        naive=times.get("naive"),
        naive_peak_bytes=None if by_hand is None else by_hand.peak_bytes,
        naive_note="out of memory" if naive and by_hand is None else "",
    )


@dataclass(frozen=True)
class _Arithmetic:
    flops: float
    forward_flops: float
    matrix: float
    convolutions: float | None


def _arithmetic(case: Case, plan: Plan, clock: Clock) -> _Arithmetic:
    """The step's FLOPs and the ceilings for its mix of passes."""
    data = case.data(clock.device)
    nets = make_state(case.config(), data).nets.all()
    passes = step_passes(case.config(), NUM_CLASSES)
    works = {name: network_work(net, data.image_shape) for name, net in nets.items()}
    flops = case.batch_size * sum(work.of(passes[name]) for name, work in works.items())
    shapes = dominant_convolutions(nets["model"], data.image_shape)
    with allowing_tf32() if plan.tf32 else nullcontext():
        convolutions = convolution_ceiling(shapes, passes["model"], case.batch_size, plan, clock)
        matrix = matrix_ceiling(plan, clock)
    return _Arithmetic(flops, works["model"].forward, matrix, convolutions)
