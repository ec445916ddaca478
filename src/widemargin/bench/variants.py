"""Steps to be timed, built and warmed up one by one, each with the memory that it alone needed at its peak."""

import gc
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from widemargin.bench.case import Case
from widemargin.bench.naive import naive_step
from widemargin.bench.timing import WARM_UP, Step
from widemargin.data import Batch
from widemargin.engine import Plan, make_plan
from widemargin.errors import InputError
from widemargin.training.nonfinite import make_guard
from widemargin.training.setup import make_state
from widemargin.training.step import Moment, set_learning_rate
from widemargin.training.steps import make_steps

MOST_COMPILATIONS = 128
SETTLED = 2
"""After this many steps kernels have been chosen, and memory is what a step needs."""


@dataclass(frozen=True)
class Variant:
    """A warm step; ``peak_bytes`` is None where memory is not measured (on the CPU)."""

    step: Step
    peak_bytes: int | None


def plan_of(case: Case, engine: str, device: torch.device) -> Plan:
    """What the engine would compute a case with."""
    data = case.data(device)
    return make_plan(engine, make_state(case.config(), data).nets.model, data.image_shape, device)


def engine_variant(case: Case, plan: Plan, device: torch.device) -> Variant:
    """The package's own step under a plan, as training takes it: with the guard against values that are not finite."""

    def make() -> Step:
        config, data = case.config(), case.data(device)
        state = make_state(config, data)
        steps = make_steps(plan, state, config)
        fuse = plan.engine == "fast" and device.type == "cuda"
        state.guard = guard = make_guard(state.nets, state.optimizer, "stop", fuse=fuse)
        images, labels, numbers = data.floats(), data.labels, itertools.count()
        indices = torch.arange(len(labels), device=device)

        def step() -> None:
            moment = Moment(seed=0, epoch=0, step=next(numbers), steps_per_epoch=1_000_000)
            guard.begin(moment.total_steps)
            set_learning_rate(state.optimizer, config.optimizer.lr)
            steps(Batch(moment.step, indices, images, labels), moment)

        return step

    try:
        with _compiling(plan):
            return _warm(make, device)
    except torch.OutOfMemoryError:
        raise InputError(
            f"bench: {case.label()} of {case.model} at --batch-size {case.batch_size} does not fit the memory of "
            f"{device}; use a smaller --batch-size"
        ) from None


def naive_variant(case: Case, device: torch.device) -> Variant | None:
    """The step written by hand; None where it does not fit the memory."""

    def make() -> Step:
        config, data = case.config(), case.data(device)
        state = make_state(config, data)
        images, labels = data.floats(), data.labels
        generator = torch.Generator(device).manual_seed(0)

        def step() -> None:
            naive_step(config, state.nets, state.optimizer, images, labels, generator=generator)

        return step

    try:
        return _warm(make, device)
    except torch.OutOfMemoryError:
        pass  # and forget the exception: it holds what was allocated
    gc.collect()
    torch.cuda.empty_cache()
    return None


def _compiling(plan: Plan) -> AbstractContextManager[object]:
    """Room for every variant's compilations: past a limit of eight torch would stop compiling, and only warn."""
    if plan.compiler is None:
        return nullcontext()
    import torch._dynamo.config as settings  # with it comes the compiler, seconds that others need not wait

    room: AbstractContextManager[object] = settings.patch(recompile_limit=MOST_COMPILATIONS)
    return room


def _warm(make: Callable[[], Step], device: torch.device) -> Variant:
    if device.type != "cuda":
        step = make()
        for _ in range(WARM_UP):
            step()
        return Variant(step, None)
    gc.collect()
    torch.cuda.synchronize(device)
    others = torch.cuda.memory_allocated(device)
    step = make()
    for number in range(WARM_UP):
        if number == SETTLED:
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        step()
    torch.cuda.synchronize(device)
    return Variant(step, torch.cuda.max_memory_allocated(device) - others)
