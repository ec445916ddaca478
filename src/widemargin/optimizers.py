"""How weights are updated: SGD or AdamW; ``OPTIMIZERS`` takes those of your own.

An optimizer here is the configuration of one of torch's, which ``make`` makes. The gradient of a step, added up over
all processes, may be clipped to a length before the update: g <- g min(1, clip / |g|), |g| over all parameters.
Weight decay acts on every parameter, as all the methods do that the paper compares; modern recipes leave out the
parameters of normalization layers (Wang et al. 2023), or biases too.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from widemargin.core.checks import check_number
from widemargin.core.schema import added, one_of
from widemargin.errors import InputError
from widemargin.schedules import SCHEDULES, Constant, CyclesMomentum, Schedule

Group = dict[str, Any]
"""Parameters with the settings they share, as torch's optimizers take them."""
NORMALIZATIONS = (
    nn.modules.batchnorm._NormBase,  # batch and instance normalization, synchronized or not
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """What all have. One of your own derives from it and writes ``make``."""

    lr: float
    weight_decay: float = 0.0
    schedule: Schedule = one_of(SCHEDULES, default=Constant())
    clip: float | None = added(None)
    decay_norms: bool = added(True)
    decay_biases: bool = added(True)

    def __post_init__(self) -> None:
        self._check("lr", is_valid=self.lr > 0)
        self._check("weight_decay", is_valid=self.weight_decay >= 0)
        if self.clip is not None:
            hint = "1 is usual, none leaves gradients as they are"
            check_number("optimizer.clip", self.clip, is_valid=lambda n: n > 0, rule="a positive number", hint=hint)
        for field in ("decay_norms", "decay_biases"):
            if not getattr(self, field) and self.weight_decay == 0:
                raise InputError(f"optimizer.{field} has no effect without weight decay; remove it")
        self._check_momentum()

    def _check(self, field: str, *, is_valid: bool) -> None:
        value = getattr(self, field)
        if not (is_valid and math.isfinite(value)):
            raise InputError(
                f"optimizer.{field} is out of range: {value!r}; usual are lr 0.01 to 0.1, "
                "momentum 0.9, weight_decay 0 to 0.01"
            )

    def _check_momentum(self) -> None:
        """A schedule that sets the momentum needs an optimizer that has one, and makes its setting meaningless."""
        if not isinstance(self.schedule, CyclesMomentum):
            return
        fields = {name: field for name, field in self.__dataclass_fields__.items() if name in ("momentum", "betas")}
        if not fields:
            raise InputError(
                f"optimizer.schedule sets the momentum, and {type(self).__name__} has none; use a schedule that does "
                "not, such as one-cycle"
            )
        for name, field in fields.items():
            if getattr(self, name) != field.default:
                raise InputError(
                    f"optimizer.{name} has no effect with a schedule that sets the momentum; remove it, or change the "
                    "schedule"
                )

    @abstractmethod
    def make(self, groups: list[Group]) -> torch.optim.Optimizer:
        """Torch's optimizer of these parameters, which come with their weight decay."""


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """SGD with momentum, where asked for Nesterov's: the step looks ahead by one momentum."""

    momentum: float = 0.9
    nesterov: bool = added(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("momentum", is_valid=0 <= self.momentum < 1)
        if self.nesterov and self.momentum == 0:
            raise InputError("optimizer.nesterov has no effect without momentum; remove it, or set momentum = 0.9")

    def make(self, groups: list[Group]) -> torch.optim.Optimizer:
        """Torch's SGD; weight decay is part of the gradient."""
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov)


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter): weights shrink by lr times weight decay a step."""

    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(
                f"optimizer.betas must be two numbers in [0, 1), got {list(self.betas)}; [0.9, 0.999] are usual"
            )
        hint = "1e-8 is usual"
        check_number("optimizer.eps", self.eps, is_valid=lambda eps: eps > 0, rule="a positive number", hint=hint)

    def make(self, groups: list[Group]) -> torch.optim.Optimizer:
        """Torch's AdamW."""
        first, second = self.betas
        return torch.optim.AdamW(groups, lr=self.lr, betas=(float(first), float(second)), eps=float(self.eps))


OPTIMIZERS: dict[str, type] = {"sgd": SGD, "adamw": AdamW}


def make_optimizer(networks: Iterable[nn.Module], config: Optimizer) -> torch.optim.Optimizer:
    """One optimizer for all parameters of the networks."""
    optimizer = config.make(parameter_groups(networks, config))
    clip = config.clip
    if clip is not None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        optimizer.register_step_pre_hook(lambda *_: _clip(parameters, clip))
    return optimizer


def _clip(parameters: list[nn.Parameter], clip: float) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, clip)


def parameter_groups(networks: Iterable[nn.Module], config: Optimizer) -> list[Group]:
    """The parameters that decay, and those that the configuration leaves out, if it does."""
    whole = [(network, *named) for network in networks for named in network.named_parameters()]
    norms = {id(parameter) for network, *_ in whole for parameter in _of_normalizations(network)}
    biases = {id(p) for _, name, p in whole if name.rpartition(".")[2] == "bias" and id(p) not in norms}
    left_out: set[int] = set()
    for field, found in (("decay_norms", norms), ("decay_biases", biases)):
        if not getattr(config, field):
            if not found:
                what = "normalization layers with weights" if field == "decay_norms" else "biases"
                raise InputError(f"optimizer.{field} has no effect on a model without {what}; remove it")
            left_out |= found
    parts = [[p for *_, p in whole if id(p) not in left_out], [p for *_, p in whole if id(p) in left_out]]
    decays = (config.weight_decay, 0.0)
    return [{"params": part, "weight_decay": decay} for part, decay in zip(parts, decays, strict=True) if part]


def _of_normalizations(network: nn.Module) -> Iterable[nn.Parameter]:
    for module in network.modules():
        if isinstance(module, NORMALIZATIONS):
            yield from module.parameters(recurse=False)


def set_momentum(optimizer: torch.optim.Optimizer, momentum: float) -> None:
    """The momentum of the next step; of Adam's kin the first of the betas."""
    for group in optimizer.param_groups:
        if "betas" in group:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum


def momentum_now(optimizer: torch.optim.Optimizer) -> float:
    """The momentum of the next step, 0 for an optimizer without."""
    group = optimizer.param_groups[0]
    momentum: float = group["betas"][0] if "betas" in group else group.get("momentum", 0.0)
    return momentum


def can_fuse(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it has an update in one kernel, which a flag on the GPU can mask and a CUDA graph can hold."""
    return all("fused" in group for group in optimizer.param_groups)


def fuse(optimizer: torch.optim.Optimizer) -> None:
    """Let it update in one kernel, where it can; Adam's count of steps then lies on the GPU."""
    if not can_fuse(optimizer):
        return
    for group in optimizer.param_groups:
        group.update(fused=True, foreach=False)
        if "capturable" in group:
            group["capturable"] = True
    for parameter, state in optimizer.state.items():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].to(device=parameter.device, dtype=torch.float32)
