"""The words the package speaks: shapes and contracts.

Shape letters: B samples, K classes, C H W an image. Losses, penalties, margins and verdicts are per sample, (B,); the
single mean of training is taken in ``training/step.py``.

What a head is: the last layer, from features to logits.

A head answers two questions. ``head(features)`` gives the logits everybody sees: attacks, penalties,
evaluation. It is never told the labels, because label-dependent logits inside an attack or a KL term go
non-finite. ``training_logits`` gives the logits that the cross-entropy of training uses; a large-margin head
makes the true class harder there, a linear head changes nothing.

Signs that a robustness number should not be believed, each with what it suggests.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

Norm = Literal["linf", "l2"]
RandomStart = Literal[False, "uniform", "gaussian"]
ModelMode = Literal["eval", "train"]
Point = Literal["clean", "adversarial"]
Scaling = Literal["mean", "released"]

Goal = Callable[[Tensor, Tensor], Tensor]
"""(logits (B, K), labels (B,)) -> (B,): what an attack makes large."""


class Attack(Protocol):
    """Finds adversarial images: detached, inside the threat set and inside [0, 1]."""

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        goal: Goal | None = None,
        start: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return x_adv with the shape of x."""
        ...


class Regularizer(Protocol):
    """A penalty (B,), differentiable in the parameters; leaves modes, statistics and .grad alone."""

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the penalty of each sample, with its graph."""
        ...

    def value(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the penalty of each sample without a graph, for logging."""
        ...


@dataclass(frozen=True)
class Nets:
    """The networks an objective trains; most train one, LBGAT a teacher too."""

    model: nn.Module
    teacher: nn.Module | None = None

    def all(self) -> dict[str, nn.Module]:
        """The networks there are, by name."""
        return {"model": self.model} | ({} if self.teacher is None else {"teacher": self.teacher})


@dataclass(frozen=True)
class Outcome:
    """What an objective computed on one batch."""

    loss: Tensor
    """(B,), with its graph."""
    logits: Tensor
    """(B, K), detached: the logits the loss classified with, for the training accuracy."""
    x_adv: Tensor | None = None
    """The adversarial images, where an attack ran."""
    terms: dict[str, Tensor] = field(default_factory=dict)
    """Named parts of the loss, (B,) each, detached, for the log."""


class Objective(Protocol):
    """A training loss: attack in evaluation mode, then forwards in training mode. Stateless."""

    @property
    def attacks(self) -> bool:
        """Whether it makes adversarial images (a penalty may then be taken at them)."""
        ...

    def perturb(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Tensor | None:
        """The adversarial images it would train on in this epoch, or None."""
        ...

    def __call__(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Outcome:
        """Return the loss of each sample."""
        ...


class Head(Protocol):
    """A module from (B, d) features to (B, K) logits that also says what training should see."""

    def __call__(self, features: Tensor, /) -> Tensor:
        """The logits (B, K) of these features; no labels."""
        ...

    def training_logits(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        """The logits (B, K) for the cross-entropy of training; ``logits`` is ``head(features)``."""
        ...


MakeHead = Callable[[int, int], nn.Module]
"""(feature_size, num_classes) -> a module that fulfills :class:`Head`."""


@dataclass(frozen=True)
class Alarm:
    """A named warning."""

    name: str
    message: str
    suggestion: str
