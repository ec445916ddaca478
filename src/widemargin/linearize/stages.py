"""The four stages of a penalty: record, adjoints, tangents, reverse. Run as they are, or compiled by the engine."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from widemargin.linearize.layers import Gradients
from widemargin.linearize.record import Tape, record
from widemargin.linearize.sweeps import Values, adjoint_sweep, reverse_sweep, tangent_sweep


class Stages(Protocol):
    """What :func:`squared_products` asks of a network; a tape is whatever ``record`` made of it."""

    def record(self, x: Tensor, *, keep_activations: bool) -> tuple[Tensor, Any]:
        """(logits, tape)."""
        ...

    def adjoints(self, tape: Any, cotangents: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(g, adjoints)."""
        ...

    def tangents(self, tape: Any, adjoints: list[Tensor], v: Tensor) -> tuple[Tensor, Gradients, Values]:
        """(J v, gradients, bends)."""
        ...

    def reverse(self, tape: Any, bends: Values) -> Gradients:
        """The gradients through the activations."""
        ...

    def output(self, tape: Any) -> int:
        """The number of the logits."""
        ...

    def reads(self, tape: Any) -> frozenset[str]:
        """The names of the parameters that the tape reads."""
        ...


@dataclass(frozen=True)
class PlainStages:
    """The stages of a model, operator by operator."""

    model: nn.Module
    trained: frozenset[str]

    def record(self, x: Tensor, *, keep_activations: bool) -> tuple[Tensor, Tape]:
        """Run the model; keep the activations if asked to or if some operator is curved."""
        logits, tape = record(self.model, x, self.trained)
        return logits, tape if keep_activations or tape.curved else tape.forget_activations()

    def adjoints(self, tape: Tape, cotangents: Tensor) -> tuple[Tensor, list[Tensor]]:
        """From the logits to the images."""
        return adjoint_sweep(tape, cotangents)

    def tangents(self, tape: Tape, adjoints: list[Tensor], v: Tensor) -> tuple[Tensor, Gradients, Values]:
        """From the images to the logits."""
        return tangent_sweep(tape, adjoints, v)

    def reverse(self, tape: Tape, bends: Values) -> Gradients:
        """Backwards from the bends."""
        return reverse_sweep(tape, bends)

    def output(self, tape: Tape) -> int:
        """The number of the logits."""
        return tape.output

    def reads(self, tape: Tape) -> frozenset[str]:
        """The names of the parameters that the tape reads."""
        return tape.reads
