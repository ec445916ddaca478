"""The sweeps over a tape: adjoints from the logits to the images, tangents from the images to the logits.

For vectors c at the logits, g = J^T c is the adjoint that arrives at the images. For vectors v at the images, the
gradient of <c, J v> by a weight W is d<a, W t>/dW with a the adjoint after W and t the tangent before it: one ordinary
weight-gradient kernel per layer, on numbers the two sweeps have at hand. Where an operator is curved, or c depends on
the logits, a plain reverse pass adds what reaches the weights through the activations.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from widemargin.linearize.layers import Gradients
from widemargin.linearize.operators import Operator
from widemargin.linearize.record import Tape

Values = dict[int, Tensor]
"""Vectors at some of the tape's values, by the value's number."""


def adjoint_sweep(tape: Tape, cotangents: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(g (M, B, ...), the adjoint (M, B, ...) of every operator's result, in the tape's order)."""
    at: Values = {tape.output: cotangents}
    kept: list[Tensor] = []
    for entry in reversed(tape.entries):
        a = at.pop(entry.output)
        kept.append(a)
        _add(at, zip(entry.inputs, entry.layer.adjoint(a), strict=True))
    return at[0], kept[::-1]


def tangent_sweep(tape: Tape, adjoints: Sequence[Tensor], v: Tensor) -> tuple[Tensor, Gradients, Values]:
    """(J v, the weights' gradients of <c, J v> at fixed activations, what it adds to the activations (B, ...))."""
    at: Values = {0: v}
    gradients: Gradients = {}
    bends: Values = {}
    last_use = {number: i for i, entry in enumerate(tape.entries) for number in entry.inputs}
    for i, (entry, a) in enumerate(zip(tape.entries, adjoints, strict=True)):
        layer = entry.layer
        tangents = [at.get(number) for number in entry.inputs]
        add_gradients(gradients, layer.weight_gradients(tangents, a))
        if isinstance(layer, Operator) and layer.curved:
            _add(bends, zip(entry.inputs, layer.curvature(tangents, a), strict=True))
        at[entry.output] = layer.tangent(tangents)
        for number in entry.inputs:
            if last_use[number] == i:
                at.pop(number, None)
    return at[tape.output], gradients, bends


def reverse_sweep(tape: Tape, bends: Mapping[int, Tensor]) -> Gradients:
    """The plain backward pass from ``bends``."""
    at = dict(bends)
    gradients: Gradients = {}
    for entry in reversed(tape.entries):
        b = at.pop(entry.output, None)
        if b is not None:
            vectors, found = entry.layer.reverse(b)
            add_gradients(gradients, found)
            _add(at, zip(entry.inputs, vectors, strict=True))
    return gradients


def add_gradients(total: Gradients, more: Gradients) -> None:
    """Add to the gradients of the same name."""
    for name, gradient in more.items():
        total[name] = total[name] + gradient if name in total else gradient


def _add(at: Values, vectors: "zip[tuple[int, Tensor | None]]") -> None:
    for number, vector in vectors:
        if vector is not None:
            at[number] = at[number] + vector if number in at else vector
