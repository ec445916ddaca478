"""The only thing that changes during training: networks, optimizer, position in the run, sums over the epoch.

Weight averaging (EMA) is a second copy of the model that follows the first slowly: after every update

    average <- d average + (1 - d) model,    d = min(decay, (1 + n) / (10 + n)),

so that the first steps are forgotten; in a warm-up n < 0 and d = 0, then n counts from its end. Batch-norm statistics
are averaged too, or copied where that is asked for, other buffers copied; a head with unit rows is put back on its
sphere. Averaging alone is worth more than many published gains, so a comparison gives it to
both arms or to none.

Several processes hold the same state: the first hands out its own (``broadcast_state``), so a run may be resumed by any
number of processes, and every epoch checks that their weights are still equal.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from widemargin.distributed.group import Processes
from widemargin.distributed.sync_batch_norm import STATISTICS
from widemargin.errors import InputError
from widemargin.training.nonfinite import NO_GUARD, Guard
from widemargin.types import AfterAverage, AfterEpoch, Nets

Tensors = dict[str, Tensor]
MOMENTUM = "momentum_buffer"
"""In a checkpoint momentum/parameter; what else an optimizer keeps of a parameter is optimizer/its name/parameter."""
BEST_TENSORS = ("best", "best_beside")
"""The names in a checkpoint of the best epoch, and of the best one of averaged weights evaluated in addition."""


@dataclass(frozen=True)
class Best:
    """The epoch that did best on the validation split so far."""

    score: float
    epoch: int


def score_of(measured: Mapping[str, Any]) -> float | None:
    """What epochs are compared by (under attack, where that is watched); None without a validation split."""
    score: float | None = measured.get("validation_robust", measured.get("validation_clean"))
    return score


@dataclass
class TrainState:
    """Everything a resumed run needs; see ``tensors`` and ``restore``."""

    nets: Nets
    optimizer: torch.optim.Optimizer
    average: nn.Module | None = None
    """The averaged copy of the model, where weights are averaged."""
    average_is_eval_model: bool = True
    """Whether that copy is evaluated in the model's place; else it is evaluated in addition to it."""
    epoch: int = 0
    """Epochs finished."""
    step: int = 0
    """Steps done in the current epoch."""
    sums: Tensors = field(default_factory=dict)
    """Per-sample sums over the current epoch, on the device: reading them is the only time training waits."""
    best: Best | None = None
    best_averaged: Best | None = None
    metrics: dict[int, int] = field(default_factory=dict)
    """Epoch -> the digest of its line in the metrics (``run_folder``)."""
    initial_weights: str | None = None
    """Which weights of another network the run began with, for its record (``fine_tuning``)."""
    engine: str | None = None
    """What a run that goes on was computed with so far, as its checkpoint says; None where it begins."""
    guard: Guard = NO_GUARD
    """What looks for values that are not finite; no part of what a resumed run needs."""
    saved_at: float = -math.inf
    """When the last checkpoint was written, by ``time.monotonic``; no part of it either."""
    unsaved: tuple[Mapping[str, float], Mapping[str, float]] | None = None
    """The scores, and those of averaged weights, of an epoch that ended too soon after the last checkpoint."""

    @property
    def eval_model(self) -> nn.Module:
        """The model that is validated, selected and evaluated: the averaged one where that stands in its place."""
        return self.nets.model if self.average is None or not self.average_is_eval_model else self.average

    @property
    def averaged(self) -> nn.Module | None:
        """The averaged copy, where it is evaluated in addition to the model."""
        return None if self.average_is_eval_model else self.average

    def add(self, values: Tensors) -> None:
        """Add per-sample values (B,) to the sums."""
        for name, value in values.items():
            total = value.detach().sum(dtype=torch.float64)
            self.sums[name] = self.sums[name] + total if name in self.sums else total

    def end_epoch(self) -> None:
        """The epoch's steps are done and measured."""
        self.epoch, self.step, self.sums = self.epoch + 1, 0, {}
        if issubclass(type(self.nets.memory), AfterEpoch):
            cast(AfterEpoch, self.nets.memory).after_epoch()

    def lay_out(self, *, channels_last: bool) -> None:
        """Put convolution weights, their momenta and their averages into the layout convolutions prefer."""
        layout = torch.channels_last if channels_last else torch.contiguous_format
        averaged = [] if self.average is None else self.average.parameters()
        for parameter in (*(trained for _, trained in self._parameters()), *averaged):
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=layout)
                followed = self.optimizer.state.get(parameter, {})
                for name, value in followed.items():
                    if isinstance(value, Tensor) and value.dim() == 4:
                        followed[name] = value.contiguous(memory_format=layout)

    def tensors(self) -> Tensors:
        """What resuming needs besides the weights of ``eval_model``."""
        stored = {f"sums/{name}": value for name, value in self.sums.items()}
        for name, parameter in self._parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if value is not None:  # a momentum of 0 leaves none
                    prefix = "momentum" if key == MOMENTUM else f"optimizer/{key}"
                    stored[f"{prefix}/{name}"] = _storable(key, value)
        for name, net in self._other_networks().items():
            stored |= {f"{name}/{key}": value for key, value in net.state_dict().items()}
        for name, best in zip(BEST_TENSORS, (self.best, self.best_averaged), strict=True):
            if best is not None:
                stored[name] = torch.tensor([best.score, best.epoch], dtype=torch.float64)
        if self.metrics:
            stored["metrics"] = torch.tensor(list(self.metrics.items()), dtype=torch.int64)
        return stored

    def restore(self, stored: Tensors, *, epoch: int, step: int) -> None:
        """Take back what ``tensors`` gave."""
        self.epoch, self.step = epoch, step
        device = next(self.nets.model.parameters()).device
        self.sums = {name: value.to(device) for name, value in _with_prefix("sums", stored).items()}
        parameters = dict(self._parameters())
        for path, value in stored.items():
            first, _, rest = path.partition("/")
            key, _, name = (MOMENTUM, "/", rest) if first == "momentum" else rest.partition("/")
            if first in ("momentum", "optimizer") and name in parameters:
                # torch keeps a count of steps on the CPU, unless the update is fused
                self.optimizer.state[parameters[name]][key] = value if key == "step" else value.to(device)
        for name, net in self._other_networks().items():
            net.load_state_dict(_with_prefix(name, stored))
        found = (stored[name].tolist() if name in stored else None for name in BEST_TENSORS)
        self.best, self.best_averaged = (None if best is None else Best(best[0], int(best[1])) for best in found)
        self.metrics = dict(stored["metrics"].tolist()) if "metrics" in stored else {}

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for net_name, net in self.nets.all().items():
            for name, parameter in net.named_parameters():
                yield f"{net_name}/{name}", parameter

    def _other_networks(self) -> dict[str, nn.Module]:
        """Those whose weights are not the checkpoint's own: a teacher, an objective's memory, and of model and average
        the other one."""
        networks = self.nets.all() | ({} if self.average is None else {"average": self.average})
        return {name: net for name, net in networks.items() if net is not self.eval_model}


def _storable(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise InputError(
            f"optimizer: its state {name!r} must be a tensor, which checkpoints can hold, got {type(value).__name__}; "
            "keep it in one"
        )
    return value


def _with_prefix(prefix: str, stored: Tensors) -> Tensors:
    return {key.removeprefix(f"{prefix}/"): value for key, value in stored.items() if key.startswith(f"{prefix}/")}


def mean_loss(state: TrainState) -> float:
    """The mean loss of the epoch so far; no number while every step was skipped."""
    return float(state.sums["total"] / state.sums["samples"])


def make_average(model: nn.Module) -> nn.Module:
    """A copy that is not trained, in evaluation mode."""
    return copy.deepcopy(model).eval().requires_grad_(False)


@torch.no_grad()
def update_average(
    average: nn.Module, model: nn.Module, *, decay: float, updates: float, copies_statistics: bool = False
) -> None:
    """Move the average towards the model, after ``updates`` updates; below 0 it becomes the model."""
    rate = 1 - min(decay, (1 + updates) / (10 + updates)) if updates >= 0 else 1.0
    averaged, trained = (_averaged_tensors(net, statistics=not copies_statistics) for net in (average, model))
    torch._foreach_lerp_(list(averaged.values()), [trained[name] for name in averaged], rate)
    source = dict(model.named_buffers())
    for name, buffer in average.named_buffers():
        if name not in averaged:
            buffer.copy_(source[name])
    for module in average.modules():
        if issubclass(type(module), AfterAverage):
            cast(AfterAverage, module).after_average()


def has_statistics(model: nn.Module) -> bool:
    """Whether batch norms of the model keep running statistics."""
    return any(name.endswith(STATISTICS) for name, _ in model.named_buffers())


def _averaged_tensors(model: nn.Module, *, statistics: bool) -> dict[str, Tensor]:
    buffers = {name: buffer for name, buffer in model.named_buffers() if statistics and name.endswith(STATISTICS)}
    return dict(model.named_parameters()) | buffers


def broadcast_state(state: TrainState, group: Processes) -> None:
    """Every process takes the state of the first one: weights, statistics, momenta, sums, position in the run."""
    if group.count == 1:
        return
    position = [(state.epoch, state.step)]
    dist.broadcast_object_list(position, src=0)
    device = next(state.nets.model.parameters()).device
    weights = _broadcast_tensors(dict(state.eval_model.state_dict()), device, group)
    training = _broadcast_tensors(state.tensors(), device, group)
    if not group.first:
        state.eval_model.load_state_dict(weights)
        epoch, step = position[0]
        state.restore(training, epoch=epoch, step=step)


def _broadcast_tensors(tensors: dict[str, Tensor], device: torch.device, group: Processes) -> dict[str, Tensor]:
    layout = [[(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]]
    dist.broadcast_object_list(layout, src=0)
    received = {}
    for name, shape, dtype in layout[0]:
        mine = tensors[name].detach() if group.first else torch.empty(shape, dtype=dtype)
        received[name] = mine.to(device).contiguous()
        dist.broadcast(received[name], src=0)
    return received


def check_same_weights(state: TrainState, group: Processes) -> None:
    """The weights of all processes must be equal, bit for bit: they made the same updates."""
    if group.count == 1:
        return
    named = [(name, value) for net in state.nets.all().values() for name, value in net.state_dict().items()]
    sums = torch.stack([_checksum(value) for _, value in named]).cpu()
    low, high = sums.clone(), sums.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    differing = [name for (name, _), a, b in zip(named, low.tolist(), high.tolist(), strict=True) if a != b]
    if differing:
        raise InputError(
            f"the processes' weights differ (first in {differing[0]}): an objective, head or model of your own does "
            "not do the same in every process; see docs/clusters.md"
        )


def _checksum(value: Tensor) -> Tensor:
    """The sum of the bits as whole numbers, which no order of adding changes."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.itemsize]
    return value.detach().contiguous().view(whole).sum(dtype=torch.int64)
