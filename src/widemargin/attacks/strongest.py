"""The strongest PGD: per image the worst over several losses and scales of the logits, each climbed from the image.

No loss is the best for every network. The cross-entropy is, where logits are large; where they are small, as EMR keeps
them, the margin, or the cross-entropy of 3 z or 10 z, breaks more images. An image that any of them breaks is broken.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from widemargin.attacks.pgd import PGD, Found
from widemargin.core.checks import check_images, check_labels, check_model, logits_of
from widemargin.core.modes import evaluating, without_ddp
from widemargin.errors import InputError
from widemargin.losses import FEWEST_FOR_DLR, lead_of_another
from widemargin.types import Goal, Norm

SCALES = (3.0, 10.0)
"""Of the logits under the cross-entropy, besides 1."""


@dataclass(frozen=True, kw_only=True)
class StrongestPGD:
    """PGD on the cross-entropy of z, 3 z and 10 z, on the margin and on the DLR; per image the worst of the five."""

    eps: float
    step_size: float
    steps: int
    norm: Norm = "linf"

    def __post_init__(self) -> None:
        self.variants(FEWEST_FOR_DLR)

    def variants(self, num_classes: int) -> tuple[PGD, ...]:
        """Those that there are with so many classes: the DLR needs three."""
        usual = PGD(eps=self.eps, step_size=self.step_size, steps=self.steps, norm=self.norm)
        scaled = (replace(usual, logit_scale=scale) for scale in SCALES)
        others = (replace(usual, loss="margin"), replace(usual, loss="dlr"))
        return (usual, *scaled, *(others if num_classes >= FEWEST_FOR_DLR else others[:1]))

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
        """Attack the images x with labels y."""
        if goal is not None:
            raise InputError("StrongestPGD has goals of its own, so a goal has no effect; use PGD")
        check_model("StrongestPGD", model)
        check_images("StrongestPGD", x)
        check_labels("StrongestPGD", y, batch=len(x))
        judge, worst = without_ddp(model), None
        with evaluating(judge):
            with torch.no_grad():
                num_classes = logits_of(judge(x[:1])).shape[1]
            for variant in self.variants(num_classes):
                found = variant(model, x, y, start=start, generator=generator)
                found_by_it = Found.judged(judge, found, y, lead_of_another)
                worst = found_by_it if worst is None else worst.or_worse(found_by_it)
        assert worst is not None
        return worst.images
