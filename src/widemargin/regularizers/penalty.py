"""A regularizer put to work in training: its weight, when and where it is taken, and in whose scaling the weight is.

Penalties run the model in evaluation mode and after every train-mode forward of the step, so they see the batch-norm
statistics this batch has already updated, as the released code does. ``scaling`` says what a published weight
multiplies: the paper's batch mean, or the released code's sum over the batch divided by B^2, which is the mean
divided by B. Exact EMR's published weights are in the mean, the approximation's in the released scaling (docs/paper-
vs-code.md).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from widemargin.core.checks import check_count, check_number, choice
from widemargin.errors import InputError
from widemargin.schedules import Constant, Schedule
from widemargin.types import Point, Regularizer, Scaling


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """weight x schedule(epoch) x regularizer at the clean or at the adversarial images, every ``every``-th step."""

    name: str
    regularizer: Regularizer
    weight: float
    at: Point = "clean"
    scaling: Scaling = "mean"
    every: int = 1
    schedule: Schedule = Constant()

    def __post_init__(self) -> None:
        hint = "0 switches it off"
        check_number(f"{self.name}.weight", self.weight, is_valid=lambda w: w >= 0, rule="a number >= 0", hint=hint)
        check_count(f"{self.name}.every", self.every)
        choice(self.name, "at", self.at, ("clean", "adversarial"))
        choice(self.name, "scaling", self.scaling, ("mean", "released"))

    def due(self, step: int) -> bool:
        """Whether this step takes the penalty."""
        return step % self.every == 0

    def factor(self, epoch: float, batch_size: int) -> float:
        """What multiplies each sample's penalty inside the batch mean.

        A penalty taken every k-th step counts k times, so that its pull over an epoch stays the same.
        """
        per_sample = 1.0 if self.scaling == "mean" else 1.0 / batch_size
        return self.weight * self.schedule(epoch) * self.every * per_sample

    def __call__(
        self, model: nn.Module, x: Tensor, x_adv: Tensor | None, y: Tensor, *, generator: torch.Generator
    ) -> Tensor:
        """(B,), unweighted, at the point asked for."""
        if self.at == "adversarial" and x_adv is None:
            raise InputError(f'{self.name}.at = "adversarial" needs an objective that attacks; use "clean"')
        point = x_adv if self.at == "adversarial" and x_adv is not None else x
        return self.regularizer(model, point, y, generator=generator)
