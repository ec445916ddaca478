"""A NaN or an infinity in a loss, a penalty or a gradient is noticed before it reaches the weights.

``take_step`` shows every step's values to a guard, between backward and update. There are two. ``HostGuard`` looks at
once. ``DeviceGuard`` never makes the host wait for a GPU: the update is masked on the device (fused SGD takes a
flag for that), buffers are put back on the device, and the number of the first bad step stays there until somebody
looks, every ``LOOK_EVERY`` steps and before anything is saved. From a bad step on, a run that will stop changes nothing
any more, so its weights are still those before that step; a run that skips leaves out that step alone.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from widemargin.core import batch_share
from widemargin.optimizers import fuse as fuse_update
from widemargin.types import AfterStep, Nets

OnNonfinite = Literal["stop", "skip"]
ON_NONFINITE: tuple[OnNonfinite, ...] = ("stop", "skip")
LOOK_EVERY = 100
"""Steps between two looks at what a GPU has noted."""
SKIPPED = "skipped_steps"
GRADIENT = "gradient"
NEVER = 2**62

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class NonfiniteStep:
    """A step that was not finite: its number since the beginning, what was at fault, and the values where known."""

    step: int
    names: tuple[str, ...]
    values: Tensors = field(default_factory=dict)


class Guard:
    """Looks at a step's values (see the module); this one lets everything pass."""

    def begin(self, step: int) -> None:
        """The number, since the beginning, of the next step."""

    def remember(self) -> None:
        """Before the step: keep what its forwards may change."""

    def passes(self, values: Tensors) -> bool:
        """After backward: whether the update may be made."""
        del values
        return True

    def settle(self, values: Tensors) -> Tensors:
        """After the step, updated or not: put back what a bad one changed; the values that count."""
        return values

    def found(self, *, wait: bool) -> NonfiniteStep | None:
        """The step to stop at, if there was one; without ``wait`` only where that is known."""
        del wait
        return None


NO_GUARD = Guard()


def make_guard(nets: Nets, optimizer: torch.optim.Optimizer, on_nonfinite: str, *, fuse: bool = False) -> Guard:
    """The guard for this optimizer: a fused one, which it becomes with ``fuse``, can be masked."""
    if fuse:
        fuse_update(optimizer)
    skips = on_nonfinite == "skip"
    if all(group.get("fused") for group in optimizer.param_groups):
        return DeviceGuard(nets, optimizer, skips=skips)
    return HostGuard(nets, skips=skips)


class HostGuard(Guard):
    """Looks at every step at once; a bad one is not taken."""

    def __init__(self, nets: Nets, *, skips: bool) -> None:
        self._skips = skips
        self._parameters = nets.parameters()
        self._kept = _Snapshot(_buffers(nets))
        self._step = 0
        self._refused = False
        self._found: NonfiniteStep | None = None

    def begin(self, step: int) -> None:
        """Note the number."""
        self._step, self._refused = step, False

    def remember(self) -> None:
        """Copy the buffers: batch-norm statistics move in the forward passes."""
        self._kept.take()

    def passes(self, values: Tensors) -> bool:
        """False, with every buffer as it was, if anything is not finite."""
        bad = _bad(values, self._parameters)
        flags = bad.tolist()
        self._refused = any(flags)
        if self._refused:
            self._kept.put_back(bad.amax() > 0)
            names = [name for name, flag in zip(_names(values), flags, strict=True) if flag]
            seen = {name: value.detach().clone() for name, value in values.items()}
            self._found = None if self._skips else NonfiniteStep(self._step, tuple(names), seen)
        return not self._refused

    def settle(self, values: Tensors) -> Tensors:
        """A skipped step counts as nothing but a skipped step."""
        return _counted(values, torch.tensor(self._refused, device=values["samples"].device)) if self._skips else values

    def found(self, *, wait: bool) -> NonfiniteStep | None:
        """The step this guard refused."""
        del wait
        return self._found


class DeviceGuard(Guard):
    """Never waits: bad steps are masked on the device, and noted there."""

    def __init__(self, nets: Nets, optimizer: torch.optim.Optimizer, *, skips: bool) -> None:
        self._skips = skips
        self._parameters = nets.parameters()
        device = self._parameters[0].device
        self._now = torch.zeros((), dtype=torch.int64, device=device)
        self._bad = torch.zeros((), dtype=torch.float32, device=device)
        self._first: dict[tuple[str, ...], Tensor] = {}
        self._kept = _Snapshot([*_buffers(nets), *_changed_after_updates(nets)])
        _start_momenta(optimizer)
        optimizer.found_inf = self._bad  # type: ignore[attr-defined]  # what fused SGD reads: 1 means no update

    def begin(self, step: int) -> None:
        """Fill in the number, on the device."""
        self._now.fill_(step)

    def remember(self) -> None:
        """Copy buffers, and weights that a head changes after an update."""
        self._kept.take()

    def passes(self, values: Tensors) -> bool:
        """Always; a bad step sets the flag that masks the update."""
        flags, names = _bad(values, self._parameters), _names(values)
        if names not in self._first:
            self._first[names] = torch.full((len(names),), NEVER, dtype=torch.int64, device=flags.device)
        first = self._first[names]
        first.copy_(torch.where(flags > 0, torch.minimum(first, self._now), first))
        self._bad.copy_(flags.amax() if self._skips else torch.maximum(self._bad, flags.amax()))
        return True

    def settle(self, values: Tensors) -> Tensors:
        """Put back, where the flag is set."""
        bad = self._bad > 0
        self._kept.put_back(bad)
        return _counted(values, bad) if self._skips else values

    def found(self, *, wait: bool) -> NonfiniteStep | None:
        """The first bad step, once the device is asked."""
        if self._skips or not wait:
            return None
        noted = {names: first.tolist() for names, first in self._first.items()}
        step = min((min(steps) for steps in noted.values()), default=NEVER)
        if step == NEVER:
            return None
        at_fault = [name for names, steps in noted.items() for name, at in zip(names, steps, strict=True) if at == step]
        return NonfiniteStep(step, tuple(at_fault))


class _Snapshot:
    """Copies of tensors that can be put back under a flag on the device, in a few kernels however many they are."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        types = dict.fromkeys(tensor.dtype for tensor in tensors)
        self._groups = [[tensor for tensor in tensors if tensor.dtype == dtype] for dtype in types]
        self._flat: list[Tensor] = []

    @torch.no_grad()
    def take(self) -> None:
        self._flat = [_joined(group) for group in self._groups]

    @torch.no_grad()
    def put_back(self, flag: Tensor) -> None:
        for group, kept in zip(self._groups, self._flat, strict=True):
            pieces = torch.where(flag, kept, _joined(group)).split([tensor.numel() for tensor in group])
            torch._foreach_copy_(group, [piece.view(t.shape) for piece, t in zip(pieces, group, strict=True)])


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _checked(values: Tensors) -> Tensors:
    """What must be finite: the loss, its terms, the penalties and the total, but no counts."""
    return {name: value for name, value in values.items() if value.is_floating_point() and not name.endswith("samples")}


def _names(values: Tensors) -> tuple[str, ...]:
    return (*_checked(values), GRADIENT)


def _bad(values: Tensors, parameters: Iterable[nn.Parameter]) -> Tensor:
    """1 for each name that has a value which is not finite, in any of the processes that share the batch, else 0."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None and parameter.numel()]
    parts = [*(value.detach() for value in _checked(values).values()), _extremes(gradients)]
    # 0 x is 0, and NaN where x is not finite: fewer kernels than isfinite has
    flags = torch.stack([part.mul(0).sum(dtype=torch.float32) for part in parts]).isnan().float()
    if batch_share.current() is not None:
        dist.all_reduce(flags, dist.ReduceOp.MAX)
    return flags


def _extremes(gradients: Sequence[Tensor]) -> Tensor:
    """Numbers that are finite where every gradient is: few kernels on a GPU, the fastest that carry a NaN elsewhere."""
    if gradients[0].is_cuda:
        return torch.nn.utils.get_total_norm(gradients, norm_type=math.inf)
    return torch.stack([extreme for gradient in gradients for extreme in torch.aminmax(gradient)])


def _counted(values: Tensors, bad: Tensor) -> Tensors:
    """A skipped step counts as nothing but a skipped step, one over all the processes that share the batch."""
    share = batch_share.current()
    one = 1.0 if share is None else 1.0 / (share.processes * share.weight)
    counted = {name: torch.where(bad, torch.zeros_like(value), value) for name, value in values.items()}
    return counted | {SKIPPED: bad.float() * one}


def _buffers(nets: Nets) -> list[Tensor]:
    return [buffer for net in nets.all().values() for buffer in net.buffers()]


def _changed_after_updates(nets: Nets) -> list[Tensor]:
    """Weights of heads that project them after an update (``heads.training.after_update``)."""
    modules = [module for net in nets.all().values() for module in net.modules() if issubclass(type(module), AfterStep)]
    return [parameter for module in modules for parameter in module.parameters()]


def _start_momenta(optimizer: torch.optim.Optimizer) -> None:
    """Zeros, which make the same first step: a fused first step that is masked would leave them unset."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("momentum") else []:
            optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
