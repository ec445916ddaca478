"""The sweeps of a penalty as compiled functions.

Each stage is traced once per shape into a flat graph of operators (the tape's Python is gone) and compiled. Between the
stages travel the tensors of the tape: weights stand for themselves, masks and scales are stored, adjoints only beside
convolutions and products, where they exist in memory anyway; the others are computed again where they are used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from widemargin.gradients.sweeps.layers import BatchNorm, Gradients, Slopes, Sum
from widemargin.gradients.sweeps.tape import EagerSweeps, Entry, Tape, Values, add_to

Function = Callable[..., Any]
CHEAP = (Slopes, BatchNorm, Sum)


@dataclass(frozen=True)
class TensorReference:
    """A tensor of the tape: one of the network's own, or one that the recording made."""

    own: bool
    index: int


@dataclass(frozen=True)
class CompiledTape(Tape):
    """What a compiled recording gave: the tape with references for tensors, and the tensors it made."""

    made: list[Tensor] = field(default_factory=list)
    key: Any = None


class CompiledSweeps:
    """The stages of a network, traced and compiled on first use for each shape."""

    def __init__(self, network: nn.Module, trained: frozenset[str], compiler: str) -> None:
        self._network, self._eager, self._compiler = network, EagerSweeps(network, trained), compiler
        self._functions: dict[Any, tuple[Function, Any]] = {}

    def record(self, x: Tensor, *, keep_activations: bool) -> tuple[Tensor, CompiledTape]:
        """Run the network."""
        names, own = self._network_tensors()
        key = ("record", x.shape, x.dtype, x.stride(), keep_activations)

        def trace(tensors: list[Tensor], images: Tensor) -> tuple[list[Tensor], Tape]:
            recording = _Recording(self._eager, keep_activations)
            logits, tape = torch.func.functional_call(recording, dict(zip(names, tensors, strict=True)), (images,))
            layout, made = _with_references(tape, tensors)
            return [logits, *made], layout

        (logits, *made), layout = self._run(key, trace, own, x)
        return logits, CompiledTape(layout.entries, layout.output, layout.reads, layout.computed, made, key)

    def adjoints(self, tape: CompiledTape, cotangents: Tensor) -> tuple[Tensor, list[Tensor]]:
        """From the logits to the images; only the adjoints beside heavy operators come out."""

        def stage(whole: Tape, vectors: Tensor) -> tuple[list[Tensor], None]:
            g, adjoints = self._eager.adjoints(whole, vectors)
            return [g, *(a for a, keep in zip(adjoints, _stored(whole), strict=True) if keep)], None

        (g, *stored), _ = self._run_on(tape, ("adjoints", cotangents.shape), stage, cotangents)
        return g, stored

    def tangents(self, tape: CompiledTape, adjoints: list[Tensor], v: Tensor) -> tuple[Tensor, Gradients, Values]:
        """From the images to the logits."""

        def stage(whole: Tape, stored: list[Tensor], vectors: Tensor) -> tuple[list[Tensor], Any]:
            tangent, gradients, bends = self._eager.tangents(whole, _all_adjoints(whole, stored), vectors)
            return [tangent, *gradients.values(), *bends.values()], (list(gradients), list(bends))

        (tangent, *found), (names, numbers) = self._run_on(tape, ("tangents", v.shape), stage, adjoints, v)
        gradients = dict(zip(names, found[: len(names)], strict=True))
        return tangent, gradients, dict(zip(numbers, found[len(names) :], strict=True))

    def reverse(self, tape: CompiledTape, bends: Values) -> Gradients:
        """Backwards from the bends."""
        numbers = tuple(bends)

        def stage(whole: Tape, vectors: list[Tensor]) -> tuple[list[Tensor], list[str]]:
            gradients = self._eager.reverse(whole, dict(zip(numbers, vectors, strict=True)))
            return list(gradients.values()), list(gradients)

        found, names = self._run_on(tape, ("reverse", numbers), stage, list(bends.values()))
        return dict(zip(names, found, strict=True))

    def to_parameters(self, tape: CompiledTape, gradients: Gradients) -> Gradients:
        """Through what was computed from parameters."""
        names = tuple(gradients)
        if not tape.computed:
            return gradients

        def stage(whole: Tape, values: list[Tensor]) -> tuple[list[Tensor], list[str]]:
            found = self._eager.to_parameters(whole, dict(zip(names, values, strict=True)))
            return list(found.values()), list(found)

        found, kept = self._run_on(tape, ("parameters", names), stage, list(gradients.values()))
        return dict(zip(kept, found, strict=True))

    def _network_tensors(self) -> tuple[list[str], list[Tensor]]:
        named = dict(self._network.named_parameters()) | dict(self._network.named_buffers())
        wanted = {f"network.{name}": tensor.detach() for name, tensor in named.items()}
        return list(wanted), list(wanted.values())

    def _run_on(self, tape: CompiledTape, key: Any, stage: Callable[..., Any], *inputs: Any) -> Any:
        def trace(own: list[Tensor], made: list[Tensor], *given: Any) -> Any:
            return stage(_with_tensors(tape, own, made), *given)

        return self._run((*key, tape.key), trace, self._network_tensors()[1], tape.made, *inputs)

    def _run(self, key: Any, trace: Callable[..., tuple[list[Tensor], Any]], *inputs: Any) -> tuple[list[Tensor], Any]:
        if key not in self._functions:
            extra: list[Any] = []

            def flat(*arguments: Any) -> list[Tensor]:
                tensors, more = trace(*arguments)
                extra.append(more)
                return tensors

            graph = make_fx(flat)(*inputs)
            graph.graph.eliminate_dead_code()  # questions about shapes, which break a graph; stages have no effects
            graph.recompile()
            self._functions[key] = torch.compile(graph, backend=self._compiler, dynamic=False), extra[-1]
        function, more = self._functions[key]
        with torch.no_grad():
            return function(*inputs), more


class _Recording(nn.Module):
    """Recording as a module, so that its tensors can be swapped for the trace's."""

    def __init__(self, sweeps: EagerSweeps, keep_activations: bool) -> None:
        super().__init__()
        self.network, self.sweeps, self.keep_activations = sweeps.model, sweeps, keep_activations

    def forward(self, x: Tensor) -> tuple[Tensor, Tape]:
        return self.sweeps.record(x, keep_activations=self.keep_activations)


def _stored(tape: Tape) -> list[bool]:
    """Which adjoints, in the tape's order, exist in memory anyway: those beside a heavy operator."""
    beside = {number for entry in tape.entries if not isinstance(entry.layer, CHEAP) for number in entry.inputs}
    return [not isinstance(entry.layer, CHEAP) or entry.output in beside for entry in tape.entries]


def _all_adjoints(tape: Tape, stored: Sequence[Tensor]) -> list[Tensor]:
    """All adjoints, the cheap ones computed again."""
    beside = [entry.output for entry, keep in zip(tape.entries, _stored(tape), strict=True) if keep]
    given = dict(zip(beside, stored, strict=True))
    at: Values = dict(given)
    for entry in reversed(tape.entries):
        if not isinstance(entry.layer, CHEAP):
            continue
        vectors = zip(entry.inputs, entry.layer.adjoint(at[entry.output]), strict=True)
        add_to(at, [(number, vector) for number, vector in vectors if number not in given])
    return [at[entry.output] for entry in tape.entries]


def _with_references(tape: Tape, own: Sequence[Tensor]) -> tuple[Tape, list[Tensor]]:
    """(the tape with every tensor replaced by a reference, the tensors that are not the network's own)."""
    known = {id(tensor): TensorReference(True, i) for i, tensor in enumerate(own)}
    made: list[Tensor] = []

    def reference(tensor: Tensor) -> TensorReference:
        if id(tensor) not in known:
            known[id(tensor)] = TensorReference(False, len(made))
            made.append(tensor)
        return known[id(tensor)]

    return _replaced(tape, Tensor, reference), made


def _with_tensors(tape: Tape, own: Sequence[Tensor], made: Sequence[Tensor]) -> Tape:
    """The tape with every reference replaced by its tensor."""
    return _replaced(tape, TensorReference, lambda reference: (own if reference.own else made)[reference.index])


def _replaced(tape: Tape, kind: type, change: Callable[[Any], Any]) -> Tape:
    """The tape with everything of a kind changed, in the fields of its layers and in lists there."""

    def changed(layer: Any) -> Any:
        found: dict[str, Any] = {}
        for name in (each.name for each in fields(layer)):
            value = getattr(layer, name)
            if isinstance(value, kind):
                found[name] = change(value)
            elif isinstance(value, list):
                found[name] = [change(item) if isinstance(item, kind) else item for item in value]
        return replace(layer, **found)

    entries = [Entry(entry.inputs, entry.output, changed(entry.layer)) for entry in tape.entries]
    computed = [
        replace(made, sources={}, layer=None if made.layer is None else changed(made.layer)) for made in tape.computed
    ]
    return replace(tape, entries=entries, computed=tuple(computed))
