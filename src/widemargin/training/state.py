"""The only thing that changes during training: networks, optimizer, where we are, and what this epoch added up to."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from widemargin.config import OptimizerConfig
from widemargin.training.nonfinite import Guard
from widemargin.types import Nets

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Best:
    """The epoch that did best on the validation split so far."""

    score: float
    epoch: int


@dataclass
class TrainState:
    """Everything a resumed run needs; see ``tensors`` and ``restore``."""

    nets: Nets
    optimizer: torch.optim.SGD
    average: nn.Module | None = None
    """The averaged copy of the model, where weights are averaged."""
    average_counts: bool = True
    """Whether that copy is judged in the model's place; else it is judged beside it."""
    epoch: int = 0
    """Epochs finished."""
    step: int = 0
    """Steps done in the epoch under way."""
    sums: Tensors = field(default_factory=dict)
    """Per-sample sums over the epoch under way, on the device: reading them is the only time training waits."""
    best: Best | None = None
    best_beside: Best | None = None
    metrics: dict[int, int] = field(default_factory=dict)
    """Epoch -> the digest of its line in the metrics (``log``)."""
    guard: Guard | None = None
    """What looks for values that are not finite; no part of what a resumed run needs."""
    saved_at: float = -math.inf
    """When the last checkpoint was written, by ``time.monotonic``; no part of it either."""
    unsaved: tuple[Mapping[str, float], Mapping[str, float]] | None = None
    """The scores (those beside last) of an epoch that ended too soon after the last checkpoint for one of its own."""

    @property
    def judged(self) -> nn.Module:
        """The model that is validated, kept and judged: the averaged one where there is one, and it counts."""
        return self.nets.model if self.average is None or not self.average_counts else self.average

    @property
    def beside(self) -> nn.Module | None:
        """The averaged copy, where it is judged beside the model."""
        return None if self.average_counts else self.average

    def add(self, values: Tensors) -> None:
        """Add per-sample values (B,) to the sums."""
        for name, value in values.items():
            total = value.detach().sum(dtype=torch.float64)
            self.sums[name] = self.sums[name] + total if name in self.sums else total

    def lay_out(self, *, channels_last: bool) -> None:
        """Put convolution weights, their momenta and their averages into the layout convolutions prefer."""
        layout = torch.channels_last if channels_last else torch.contiguous_format
        for _, parameter in self._parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=layout)
                momentum = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
                if momentum is not None:
                    self.optimizer.state[parameter]["momentum_buffer"] = momentum.contiguous(memory_format=layout)
        for parameter in [] if self.average is None else self.average.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=layout)

    def make_capturable(self) -> None:
        """Let a CUDA graph hold the update: one fused kernel, the learning rate in a tensor."""
        for group in self.optimizer.param_groups:
            device = group["params"][0].device
            group.update(fused=True, foreach=False, lr=torch.tensor(float(group["lr"]), device=device))

    def tensors(self) -> Tensors:
        """What resuming needs besides the weights that are judged."""
        stored = {f"sums/{name}": value for name, value in self.sums.items()}
        for name, parameter in self._parameters():
            momentum = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                stored[f"momentum/{name}"] = momentum
        for name, net in self._unjudged().items():
            stored |= {f"{name}/{key}": value for key, value in net.state_dict().items()}
        for name, best in (("best", self.best), ("best_beside", self.best_beside)):
            if best is not None:
                stored[name] = torch.tensor([best.score, best.epoch], dtype=torch.float64)
        if self.metrics:
            stored["metrics"] = torch.tensor(list(self.metrics.items()), dtype=torch.int64)
        return stored

    def restore(self, stored: Tensors, *, epoch: int, step: int) -> None:
        """Take back what ``tensors`` gave."""
        self.epoch, self.step = epoch, step
        device = next(self.nets.model.parameters()).device
        self.sums = {name: value.to(device) for name, value in _below("sums", stored).items()}
        momenta = _below("momentum", stored)
        for name, parameter in self._parameters():
            if name in momenta:
                self.optimizer.state[parameter]["momentum_buffer"] = momenta[name].to(device)
        for name, net in self._unjudged().items():
            net.load_state_dict(_below(name, stored))
        self.best, self.best_beside = (_best(stored.get(name)) for name in ("best", "best_beside"))
        self.metrics = dict(stored["metrics"].tolist()) if "metrics" in stored else {}

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for net_name, net in self.nets.all().items():
            for name, parameter in net.named_parameters():
                yield f"{net_name}/{name}", parameter

    def _unjudged(self) -> dict[str, nn.Module]:
        """The networks whose weights are not the checkpoint's own: a teacher, the model under an average, or that."""
        networks = self.nets.all() | ({} if self.average is None else {"average": self.average})
        return {name: net for name, net in networks.items() if net is not self.judged}


def _best(stored: Tensor | None) -> Best | None:
    return None if stored is None else Best(score=float(stored[0]), epoch=int(stored[1]))


def _below(prefix: str, stored: Tensors) -> Tensors:
    return {key.removeprefix(f"{prefix}/"): value for key, value in stored.items() if key.startswith(f"{prefix}/")}


def make_optimizer(nets: Nets, config: OptimizerConfig) -> torch.optim.SGD:
    """SGD on every parameter of every network."""
    parameters = [parameter for net in nets.all().values() for parameter in net.parameters()]
    return torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
