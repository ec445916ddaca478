"""Steps as CUDA graphs: the whole step (attack, forwards, penalties, backward, update) is captured once and replayed.

A replay costs one launch, so small networks no longer wait for Python. What changes from step to step lies in tensors
at fixed addresses, filled before a replay: the batch, the learning rate, the penalties' factors, and the random
numbers' seeds; what stays as it was is not written again. A batch that is not made yet (``LazyBatch``) is made inside
the graph, from the positions of its images and what its augmentation has drawn: two small copies before a replay, where
making it outside takes a dozen launches.

A graph belongs to one kind of step: the batch's shape, which penalties are due, whether AWP has started, and the
objective's phase. An objective
that says nothing about its phases is captured again every epoch, because it may do something else in each.

The random numbers come from generators on the GPU, seeded for every step as on the CPU, so that a resumed run draws the
same; they are not the CPU's numbers. A generator that no step of a kind has drawn from is left out of its graph.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from widemargin.config.run import AWPConfig, RunConfig
from widemargin.data.batch_augmentation import apply, draw, is_drawn_before
from widemargin.data.batches import Batch, LazyBatch
from widemargin.data.extra import ExtraRows
from widemargin.data.image_set import ImageSet, as_floats
from widemargin.engine.cuda_graphs import Pace, capturing
from widemargin.engine.fast_model import FastNetwork
from widemargin.engine.plan import Plan, choosing_kernels
from widemargin.errors import WidemarginWarning
from widemargin.optimizers import fuse, momentum_now
from widemargin.regularizers.penalty import Penalty
from widemargin.training.state import TrainState
from widemargin.training.step import EagerSteps, StepContext, Steps, refresh_networks, take_step
from widemargin.types import HasPhases, Nets


class CopyInputs:
    """Holds a batch for a graph: the images and labels themselves."""

    def __init__(self, batch: Batch) -> None:
        self._images, self._labels = torch.empty_like(batch.images), torch.empty_like(batch.labels)

    def fill(self, batch: Batch) -> None:
        """Take over a batch of the same kind."""
        self._images.copy_(batch.images)
        self._labels.copy_(batch.labels)

    def read(self) -> tuple[Tensor, Tensor]:
        """(images, labels), inside the graph."""
        return self._images, self._labels


class GatherInputs:
    """Holds positions and draws; the images and labels are made of them inside the graph."""

    def __init__(self, batch: LazyBatch) -> None:
        self._data, self._augmentation = batch.data, batch.augmentation
        self._rows = torch.empty_like(batch.rows)
        self._draws = self._drawn(batch).to(batch.rows.device)
        self._extra = None if batch.extra is None else ExtraInputs(batch.extra, batch.data)

    def fill(self, batch: Batch) -> None:
        """Copy positions and draws."""
        if not isinstance(batch, LazyBatch):  # excluded by batch_key
            raise TypeError(f"these inputs hold a LazyBatch, got a {type(batch).__name__}")
        self._rows.copy_(batch.rows)
        if self._draws.numel():
            self._draws.copy_(self._drawn(batch), non_blocking=True)
        if self._extra is not None and batch.extra is not None:
            self._extra.fill(batch.extra, self._data)

    def read(self) -> tuple[Tensor, Tensor]:
        """The batch's images and labels."""
        images, labels = self._data.images[self._rows], self._data.labels[self._rows]
        if self._extra is not None:
            images, labels = self._extra.join(images, labels)
        images, labels = apply(self._augmentation, images, labels, self._data.num_classes, self._draws)
        return as_floats(images), labels

    def _drawn(self, batch: LazyBatch) -> Tensor:
        return draw(self._augmentation, batch.size, batch.generator())


class ExtraInputs:
    """Holds what a batch gets of a second source: images, labels, and their places in the batch."""

    def __init__(self, extra: ExtraRows, data: ImageSet) -> None:
        images, labels = extra.read(data)
        self._images, self._labels = torch.empty_like(images), torch.empty_like(labels)
        self._places = torch.empty_like(extra.places, device=data.device)

    def fill(self, extra: ExtraRows, data: ImageSet) -> None:
        """Read the images, and copy all."""
        images, labels = extra.read(data)
        self._images.copy_(images)
        self._labels.copy_(labels)
        self._places.copy_(extra.places, non_blocking=True)

    def join(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The set's own and these, in their places."""
        parts = (images, self._images), (labels, self._labels)
        images, labels = (torch.cat(pair)[self._places] for pair in parts)
        return images, labels


GraphInputs = CopyInputs | GatherInputs


def inputs_for(batch: Batch) -> GraphInputs:
    """What holds batches like this one."""
    if isinstance(batch, LazyBatch) and _is_gathered(batch):
        return GatherInputs(batch)
    return CopyInputs(batch)


def batch_key(batch: Batch) -> tuple[Any, ...]:
    """Equal for batches that the same inputs can hold."""
    if isinstance(batch, LazyBatch) and _is_gathered(batch):
        return id(batch.data), len(batch.rows), batch.size
    return tuple(batch.images.shape)


def _is_gathered(batch: LazyBatch) -> bool:
    return batch.share is None and is_drawn_before(batch.augmentation)


WARM_UP = 3
"""Steps of a kind that run before it is captured: they compile, choose kernels and allocate."""


@dataclass(frozen=True)
class GraphStepContext:
    """A step context in tensors and generators, whose contents change from step to step."""

    epoch: int
    device: torch.device
    generators: dict[str, torch.Generator]
    factors: dict[str, "Factor"]

    def generator(self, purpose: str) -> torch.Generator:
        """The generator of that purpose; it is seeded before the step."""
        if purpose not in self.generators:
            self.generators[purpose] = torch.Generator(self.device)
        return self.generators[purpose]

    def factor(self, penalty: Penalty, batch_size: int) -> Tensor:  # noqa: ARG002 - set before the step
        """The factor, in a tensor."""
        return self._factor(penalty).tensor

    def set_to(
        self, context: StepContext, penalties: tuple[Penalty, ...], batch_size: int, drawn: set[str] | None
    ) -> None:
        """Fill in the numbers of a step; of the generators only those that are drawn from, where that is known."""
        for purpose in _purposes(penalties):
            if drawn is None or purpose in drawn:
                self.generator(purpose).manual_seed(context.derived_seed(purpose))
        for penalty in penalties:
            self._factor(penalty).set_to(context.factor(penalty, batch_size))

    def drawn(self, penalties: tuple[Penalty, ...]) -> set[str]:
        """The purposes whose generators a step with these penalties, the last one taken, has drawn from."""
        return {purpose for purpose in _purposes(penalties) if has_drawn(self.generator(purpose))}

    def _factor(self, penalty: Penalty) -> "Factor":
        if penalty.name not in self.factors:
            self.factors[penalty.name] = Factor(torch.zeros((), device=self.device))
        return self.factors[penalty.name]


def _purposes(penalties: tuple[Penalty, ...]) -> tuple[str, ...]:
    return "attack", *(penalty.name for penalty in penalties)


def has_drawn(generator: torch.Generator) -> bool:
    """Since it was seeded; of a generator on a GPU."""
    return generator.get_offset() > 0


@dataclass
class Factor:
    """A penalty's factor, written when it changes."""

    tensor: Tensor
    value: float = 0.0

    def set_to(self, value: float) -> None:
        """Make it this."""
        if value != self.value:
            self.tensor.fill_(value)
            self.value = value


@dataclass
class CapturedStep:
    """One kind of step: what holds its batch, how often it ran, its graph once captured."""

    inputs: GraphInputs
    penalties: tuple[Penalty, ...]
    awp: AWPConfig | None
    context: "GraphStepContext"
    runs: int = 0
    drawn: set[str] = field(default_factory=set)
    """Which generators its steps have drawn from, once it has run."""
    graph: Any = None
    names: list[str] = field(default_factory=list)


class GraphedSteps:
    """Takes a run's steps; warns once and goes on without graphs if a step cannot be captured."""

    def __init__(self, state: TrainState, nets: Nets, config: RunConfig, plan: Plan) -> None:
        self._state, self._nets, self._plan = state, nets, plan
        self._objective, self._penalties, self._awp = config.objective, config.penalties(), config.awp
        self._device = next(nets.model.parameters()).device
        self._generators: dict[str, torch.Generator] = {}
        self._factors: dict[str, Factor] = {}
        self._kinds: dict[Any, CapturedStep] = {}
        self._totals: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] | None = None
        self._names: set[str] = set()
        self._pool: Any = None
        self._captures, self._pace = True, Pace(self._device)
        fuse(state.optimizer)  # a graph can hold one fused update, the learning rate in a tensor
        for group in state.optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)

    def __call__(self, batch: Batch, context: StepContext) -> None:
        """Update the networks and the sums."""
        kind = self._kind(batch, context)
        self._adopt_sums()
        drawn = None if kind.graph is None else kind.drawn
        kind.context.set_to(context, kind.penalties, batch.size, drawn)
        kind.inputs.fill(batch)
        if kind.graph is None:
            self._prepare(kind)
        if kind.graph is not None:
            kind.graph.replay()
        kind.runs += 1
        self._pace()
        self._names |= set(kind.names)
        self._state.sums = self._sums = {name: self._totals[name] for name in self._totals if name in self._names}

    def _prepare(self, kind: CapturedStep) -> None:
        """Capture the step, or take it as it is where it is too early for that or a capture has failed."""
        with choosing_kernels(self._plan, self._device):
            if self._captures and kind.runs >= WARM_UP:
                self._capture(kind)
            if kind.graph is None:
                self._on_side_stream(lambda: self._step(kind))
                kind.drawn |= kind.context.drawn(kind.penalties)

    def _kind(self, batch: Batch, context: StepContext) -> CapturedStep:
        due, awp = context.due(self._penalties), context.started(self._awp)
        phased = isinstance(self._objective, HasPhases)
        at = self._objective.phase(context.epoch) if isinstance(self._objective, HasPhases) else context.epoch
        momentum = momentum_now(self._state.optimizer)  # a number in the graph, which a schedule may change
        key = (batch_key(batch), tuple(penalty.name for penalty in due), awp, phased, at, momentum)
        if key not in self._kinds:
            self._kinds = {k: v for k, v in self._kinds.items() if (phased or k[-2] == at) and k[-1] == momentum}
            inputs = GraphStepContext(context.epoch, self._device, self._generators, self._factors)
            self._kinds[key] = CapturedStep(inputs_for(batch), due, awp, inputs)
        return self._kinds[key]

    def _step(self, kind: CapturedStep) -> None:
        refresh_networks(self._nets)
        x, y = kind.inputs.read()
        values = take_step(
            self._nets,
            self._state.optimizer,
            self._objective,
            kind.penalties,
            x,
            y,
            kind.context,
            guard=self._state.guard,
            awp=kind.awp,
        )
        kind.names = list(values)
        for name, value in values.items():
            if name not in self._totals:
                self._totals[name] = torch.zeros((), dtype=torch.float64, device=self._device)
            self._totals[name].add_(value.detach().sum(dtype=torch.float64))

    def _capture(self, kind: CapturedStep) -> None:
        graph = torch.cuda.CUDAGraph()
        for purpose in kind.drawn:
            graph.register_generator_state(self._generators[purpose])
        try:
            with capturing(graph, self._device, self._pool):
                self._step(kind)
        except RuntimeError as error:
            self._captures = False
            torch.cuda.synchronize(self._device)
            for purpose in kind.drawn:  # the old ones believe that the capture goes on
                seed = self._generators[purpose].initial_seed()
                self._generators[purpose] = torch.Generator(self._device).manual_seed(seed)
            warnings.warn(
                f"a step of {type(self._objective).__name__} cannot be captured as a CUDA graph "
                f"({str(error).splitlines()[0]}); training goes on without graphs",
                WidemarginWarning,
                stacklevel=2,
            )
            return
        self._pool = graph.pool()
        kind.graph = graph

    def _on_side_stream(self, run: Callable[[], None]) -> None:
        """On a stream of its own, as a capture needs it."""
        side, here = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            run()
        here.wait_stream(side)

    def _adopt_sums(self) -> None:
        """The epoch's sums go on in our totals, from zero or from where a resumed run was."""
        if self._state.sums is self._sums:
            return
        before = self._state.sums
        for name in {*self._totals, *before}:
            self._totals[name] = self._totals.get(name, torch.zeros((), dtype=torch.float64, device=self._device))
            self._totals[name].copy_(before.get(name, torch.zeros(())))
        self._names = set(before)


def make_steps(plan: Plan, state: TrainState, config: RunConfig) -> Steps:
    """How a run takes its steps under a plan; the state's networks stay the ones that are saved and evaluated."""
    nets = state.nets
    if plan.engine == "fast":
        state.lay_out(channels_last=plan.channels_last)
        teacher = None if nets.teacher is None else FastNetwork(nets.teacher, plan)
        nets = Nets(model=FastNetwork(nets.model, plan), teacher=teacher, memory=nets.memory)
        if plan.graphs:
            return GraphedSteps(state, nets, config, plan)
    return EagerSteps(state, nets, config, plan)
