"""The contracts of the package: what attacks, objectives, regularizers, heads and models take, give and may offer.

Shape letters: B samples, K classes, C H W an image. Losses, penalties, margins and verdicts are per sample, (B,); the
single mean of training is taken in ``training/step.py``.

The first part is what every member of an axis must have. The second, "Optional", is what one may have besides: code
that can use it asks for the Protocol, and whoever offers the methods has it, without deriving from anything.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Norm = Literal["linf", "l2"]
RandomStart = Literal[False, "uniform", "gaussian"]
ModelMode = Literal["eval", "train", "batch"]
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


class Regularizer(Protocol):
    """A penalty (B,), differentiable in the parameters; leaves modes, statistics and .grad alone."""

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the penalty of each sample, with its graph."""

    def value(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the penalty of each sample without a graph, for logging."""


@dataclass(frozen=True)
class Nets:
    """The networks an objective trains; most train one, LBGAT a teacher too.

    ``memory`` is what an objective keeps from step to step (``HasMemory``): a module of buffers, without parameters. It
    is saved, resumed, handed to other processes and put back after a bad step as the networks' own buffers are.
    """

    model: nn.Module
    teacher: nn.Module | None = None
    memory: nn.Module | None = None

    def all(self) -> dict[str, nn.Module]:
        """Those there are, by name."""
        others = {"teacher": self.teacher, "memory": self.memory}
        return {"model": self.model} | {name: net for name, net in others.items() if net is not None}

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of all of them."""
        return [parameter for net in self.all().values() for parameter in net.parameters()]


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

    def perturb(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Tensor | None:
        """The adversarial images it would train on in this epoch, or None."""

    def __call__(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Outcome:
        """Return the loss of each sample."""


@runtime_checkable
class Head(Protocol):
    """The last layer, from features (B, d) to logits (B, K), which also says what training should see.

    ``head(features)`` gives the logits everybody sees: attacks, penalties, evaluation. It is never told the labels,
    because label-dependent logits inside an attack or a KL term go non-finite. ``training_logits`` gives those that the
    cross-entropy of training uses; a large-margin head makes the true class harder there, a linear head changes
    nothing.
    """

    def __call__(self, features: Tensor, /) -> Tensor:
        """The logits (B, K) of these features; no labels."""

    def training_logits(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        """The logits (B, K) for the cross-entropy of training; ``logits`` is ``head(features)``."""


MakeHead = Callable[[int, int], nn.Module]
"""(feature_size, num_classes) -> a module that fulfills :class:`Head`."""


class Tracker(Protocol):
    """Where a run is logged as it goes, such as TensorBoard (``integrations``): one object for one run folder.

    A run that goes on begins again and logs what it has measured so far once more: a step that is there is left alone.
    """

    def begin(self, config: Mapping[str, Any], name: str) -> None:
        """The run's complete configuration, as tables, and its name."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """What was measured after so many epochs."""

    def finish(self) -> None:
        """The run ends, or stops to be gone on with."""


@dataclass(frozen=True)
class Alarm:
    """A sign that a number should not be believed, and what it suggests."""

    name: str
    message: str
    suggestion: str


# Optional: what a part may offer besides.


class HeadedModel(Protocol):
    """A model whose head trains with other logits than it predicts with; forward(x) is head(features(x)).

    Found by its attributes, which may be submodules and may lie behind a wrapper that passes attributes on.
    """

    head: Head

    def features(self, x: Tensor) -> Tensor:
        """What the head takes (B, d)."""


@runtime_checkable
class HasPhases(Protocol):
    """An objective that says in which epochs it does the same thing.

    Within a phase a training step can be replayed as one CUDA graph; without this it is captured anew every epoch.
    """

    def phase(self, epoch: int) -> Hashable:
        """Equal for epochs whose steps are the same but for their numbers."""


@runtime_checkable
class LossAfterAttack(Protocol):
    """An objective whose loss can be had apart from its attack, ``objective(...)`` being the one after the other.

    AWP needs it: it takes the loss twice, on the same adversarial images (``perturb``, or None).
    """

    def outcome(self, nets: Nets, x: Tensor, x_adv: Any, y: Tensor, *, epoch: int) -> Outcome:
        """Return the loss of each sample: the forwards in training mode, no attack."""


@runtime_checkable
class HasMemory(Protocol):
    """An objective that keeps something from step to step, which it finds in ``nets.memory``."""

    def make_memory(self, *, image_shape: tuple[int, int, int], num_classes: int, batch_size: int) -> nn.Module:
        """A module of buffers as they are before the first step; it may have ``after_step`` and ``after_epoch``."""


@runtime_checkable
class Replays(Protocol):
    """An objective that takes several steps in a row on each batch."""

    @property
    def replays(self) -> int:
        """How many."""


@runtime_checkable
class TakesMixedLabels(Protocol):
    """An objective whose labels may be shares (B, K), as CutMix makes them; with CutMix no other is taken.

    The package's ``cross_entropy`` takes both.
    """

    takes_mixed_labels: bool


@runtime_checkable
class AfterStep(Protocol):
    """A module that does something once per optimizer step, such as projecting its weights or counting steps."""

    def after_step(self) -> None:
        """Called after the update."""


@runtime_checkable
class AfterEpoch(Protocol):
    """An objective's memory that does something once per epoch."""

    def after_epoch(self) -> None:
        """Called when the epoch's steps are done and measured, before they are saved as finished."""


@runtime_checkable
class AfterAverage(Protocol):
    """A module whose weights obey a constraint that a mean of weights, or a fresh draw of them, does not."""

    def after_average(self) -> None:
        """Called when the weights were averaged or drawn: restore the constraint."""


@runtime_checkable
class ShowsPictures(Protocol):
    """A tracker that shows more than curves; called before the ``log`` of the same step."""

    def histogram(self, name: str, values: Tensor, step: int) -> None:
        """How the values (N,) are spread."""

    def image(self, name: str, image: Tensor, step: int) -> None:
        """A picture (C, H, W) in [0, 1]."""


class Sweeps(Protocol):
    """The stages of an input-gradient penalty without double backward (``gradients/sweeps``).

    A tape is whatever ``record`` made; its ``output`` is the number of the logits, its ``reads`` the names of the
    parameters it reads. Adjoints are (M, B, ...) for M vectors c per sample; gradients go by the
    parameters' names; bends are vectors at some of the tape's values, by the value's number.
    """

    def record(self, x: Tensor, *, keep_activations: bool) -> tuple[Tensor, Any]:
        """(logits, tape)."""

    def adjoints(self, tape: Any, cotangents: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(g = J^T c, the adjoints of every operator)."""

    def tangents(
        self, tape: Any, adjoints: list[Tensor], v: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], dict[int, Tensor]]:
        """(J v, the gradients of <c, J v> at fixed activations, bends)."""

    def reverse(self, tape: Any, bends: dict[int, Tensor]) -> dict[str, Tensor]:
        """The gradients through the activations."""

    def to_parameters(self, tape: Any, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gradients of weights that were computed from parameters, taken on to these."""


@runtime_checkable
class HasSweeps(Protocol):
    """A model that brings the sweeps of its penalties, as the fast engine's networks do."""

    def penalty_stages(self) -> Sweeps:
        """The sweeps, with weights and statistics as they are now."""

    def note_double_backward(self, owner: str, reason: str) -> None:
        """Told when the penalty ``owner`` cannot sweep the model and differentiates twice instead."""


class FoldableNorm(Protocol):
    """A batch norm that in evaluation mode is scale x + shift by its running statistics, and may be folded into that.

    Torch's own classes are known. Another class says so in its own body: what is derived from it may do something else.
    """

    foldable_in_evaluation: ClassVar[bool]
