"""Every operator without a layer written by hand, by torch's own forward and reverse derivatives of it.

Most are linear (pooling, reshaping, padding) and cheap. The curved ones (smooth activations, a product of two
activations, normalizations) bend the tangent with the activations: their curvature starts the ordinary reverse pass.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from widemargin.gradients.sweeps.layers import Bent, Gradients, Vectors


def mapped(value: Any, change: Callable[[Any], Any], of: type = Tensor) -> Any:
    """The same nest with every ``of`` changed; a special kind of list or tuple becomes an ordinary one."""
    if isinstance(value, of):
        return change(value)
    if isinstance(value, list):
        return [mapped(item, change, of) for item in value]
    if isinstance(value, tuple):
        return tuple(mapped(item, change, of) for item in value)
    if isinstance(value, dict):
        return {key: mapped(item, change, of) for key, item in value.items()}
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a nest, in order."""
    found: list[Tensor] = []
    _collect(value, found)
    return found


_PLAIN = {int, float, bool, str, type(None), type(Ellipsis), slice, torch.dtype, torch.device}


def _collect(value: Any, found: list[Tensor]) -> None:
    if type(value) in _PLAIN:
        return
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, found)


Kind = Literal["linear", "piecewise", "curved"]
"""Of the dependence on the activations; a tangent through a curved operator depends on where they are."""


_TRANSFORMS = torch.enable_grad()
"""No graph is made; but torch's batched group norm of bfloat16 fails where gradients are off."""
_one_thread_at_a_time = threading.RLock()
"""Torch's forward derivatives count their nesting for the whole process."""


Unread = Callable[[], Tensor]
"""What is left of a tensor whose numbers nobody will read: makes one laid out like it."""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """y = call(inputs): images' descendants first, then parameters."""

    call: Callable[..., Tensor]
    """Of all the inputs; constants are inside."""
    constants: list[Tensor]
    kind: Kind
    inputs: list[Tensor | Unread]
    """Values at the forward pass; of a linear operator the layout is enough."""
    names: list[str]
    """The parameters' names, for the inputs at the end."""
    multiplies: bool = False
    """Whether it is a product or a quotient."""
    homogeneous: bool = False
    """Whether it is linear without an offset: a tangent goes the way of the activations."""

    @property
    def factors(self) -> list[str]:
        """The parameters that change a tangent wherever the activations are."""
        return self.names if self.multiplies else []

    @property
    def curved(self) -> bool:
        """Whether a tangent through it depends on the activations."""
        return self.kind == "curved"

    def _apply(self, *inputs: Tensor) -> Tensor:
        return self.call(self.constants, *inputs)

    @property
    def _slots(self) -> int:
        return len(self.inputs) - len(self.names)

    @property
    def _values(self) -> list[Tensor]:
        return [_apart(value.detach()) if isinstance(value, Tensor) else value() for value in self.inputs]

    def _of_slots(self, *slots: Tensor) -> Tensor:
        return self._apply(*slots, *self._values[self._slots :])

    @_TRANSFORMS
    def adjoint(self, a: Tensor) -> Vectors:
        """Torch's own reverse derivative."""
        pull = _pullback(self._of_slots, self._values[: self._slots])
        return list(_for_each(pull, a))

    @_TRANSFORMS
    def tangent(self, tangents: Vectors) -> Tensor:
        """Torch's own forward derivative."""
        if self.homogeneous:
            return _for_each(lambda *vectors: (self._of_slots(*vectors),), *tangents)[0]
        slots = self._values[: self._slots]

        def push(*vectors: Tensor) -> tuple[Tensor]:
            with _one_thread_at_a_time:
                return (torch.func.jvp(self._of_slots, tuple(slots), vectors)[1],)

        return _for_each(push, *tangents)[0]

    def weight_gradients(self, tangents: Vectors, a: Tensor) -> Gradients:
        """d <a, tangent> / d parameters."""
        if not self.names or not (self.multiplies or self.curved):
            return {}
        return dict(zip(self.names, self._second(tangents, a)[1 + self._slots :], strict=True))

    def bend(self, tangents: Vectors, a: Tensor) -> Bent:
        """What <a, tangent> depends on; by a it is the tangent."""
        if not self.curved:
            return self.tangent(tangents), self.weight_gradients(tangents, a), []
        tangent, *found = self._second(tangents, a)
        gradients = dict(zip(self.names, found[self._slots :], strict=True))
        return tangent, gradients, list(found[: self._slots])

    @_TRANSFORMS
    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """The ordinary backward pass."""
        gradients = _pullback(self._apply, self._values)(b)
        return list(gradients[: self._slots]), dict(zip(self.names, gradients[self._slots :], strict=True))

    def forget(self) -> "Operator":
        """A linear operator without parameters keeps shapes only."""
        if self.kind != "linear" or self.names:
            return self
        return replace(self, inputs=[_unread(value) for value in self._values])

    @_TRANSFORMS
    def _second(self, tangents: Vectors, a: Tensor) -> tuple[Tensor, ...]:
        """d <a, tangent> / d (a, inputs), as d <adjoint, t>: torch's reverse over forward is wrong for layer norm."""

        def along(vectors: Tensor, *inputs: Tensor) -> Tensor:
            slots, parameters = inputs[: self._slots], inputs[self._slots :]
            pull = _pullback(lambda *values: self._apply(*values, *parameters), slots)
            pairs = zip(_for_each(pull, vectors), tangents, strict=True)
            return torch.stack([(back * t).sum() for back, t in pairs]).sum()

        values = self._values
        gradients: tuple[Tensor, ...] = torch.func.grad(along, argnums=tuple(range(1 + len(values))))(a, *values)
        return gradients


def _apart(value: Tensor) -> Tensor:
    """A copy of a tensor whose elements may share memory: torch lays derivatives out like it, and writes there."""
    reach = 0
    for stride, size in sorted(
        (stride, size) for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1
    ):
        if stride <= reach:
            return value.contiguous()
        reach += stride * (size - 1)
    return value


def _unread(value: Tensor) -> Unread:
    value = _apart(value)
    return partial(torch.empty_strided, value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _pullback(function: Callable[..., Tensor], values: Sequence[Tensor]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    pull: Callable[[Tensor], tuple[Tensor, ...]] = torch.func.vjp(function, *values)[1]
    return pull


def _for_each(function: Callable[..., tuple[Tensor, ...]], *vectors: Tensor) -> tuple[Tensor, ...]:
    """The function on each of the M vectors."""
    if len(vectors[0]) == 1:
        return tuple(result.unsqueeze(0) for result in function(*[vector[0] for vector in vectors]))
    try:
        batched: tuple[Tensor, ...] = torch.func.vmap(function)(*vectors)
        return batched
    except RuntimeError:  # layer norm under autocast on a CPU, for one, has no batched form
        results = [function(*each) for each in zip(*vectors, strict=True)]
    return tuple(torch.stack(slot) for slot in zip(*results, strict=True))
