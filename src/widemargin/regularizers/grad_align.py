"""GradAlign (Andriushchenko and Flammarion, 2020): 1 - cos(g(x), g(x + u)), per sample, u uniform in the threat set.

g is the input gradient of the label's cross-entropy. Training with FGSM, one step, works as long as the loss is nearly
linear in the ball around an image. When it suddenly is not (catastrophic overfitting), gradients at two random points
of the ball are not aligned either, and this penalty keeps them so. Published: weight 0.2 at eps = 8/255 with FGSM from
the image itself, larger for larger eps.

As in the published code g(x) is a constant, and an image where one of the gradients is zero counts nothing. Otherwise
than there, both are taken in evaluation mode, as every penalty here; the random point is cut to [0, 1]; and an image
that counts nothing is a 0 in the mean, which there is over the others.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from widemargin.attacks.threat import make_threat
from widemargin.core import randomness
from widemargin.core.checks import check_model, usable
from widemargin.core.modes import frozen, outside_inference_mode, without_ddp
from widemargin.gradients.double_backward import uncompiled
from widemargin.gradients.jacobian import logits_and_leaf, vector_jacobian_products
from widemargin.gradients.norms import Misalignment
from widemargin.gradients.penalties import Cotangents, input_gradient_penalty, input_gradient_penalty_value
from widemargin.losses import wide
from widemargin.regularizers.regularizer import cross_entropy_cotangents
from widemargin.types import Norm

_NAME = "GradAlign"


@dataclass(frozen=True, kw_only=True)
class GradAlign:
    """Penalizes the angle between the loss's input gradients at an image and at a random point near it.

    It needs labels. Random numbers come from ``generator``, fresh ones without it.
    """

    eps: float
    norm: Norm = "linf"

    def __post_init__(self) -> None:
        make_threat(self.norm, self.eps)

    @uncompiled
    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), differentiable in the parameters."""
        cotangents = cross_entropy_cotangents(_NAME, x, y, 0.0)
        point, measure = self._prepared(model, x, cotangents, generator)
        return input_gradient_penalty(_NAME, model, point, cotangents, norm=measure, constant=False)

    @uncompiled
    def value(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), without a graph."""
        cotangents = cross_entropy_cotangents(_NAME, x, y, 0.0)
        point, measure = self._prepared(model, x, cotangents, generator)
        return input_gradient_penalty_value(_NAME, model, point, cotangents, norm=measure)

    def _prepared(
        self, model: nn.Module, x: Tensor, cotangents: Cotangents, generator: torch.Generator | None
    ) -> tuple[Tensor, Misalignment]:
        """The random point, and the angle to the gradient at the image."""
        check_model(_NAME, model)
        generator = randomness.fresh() if generator is None else generator
        with outside_inference_mode():
            with torch.enable_grad(), frozen(without_ddp(model)):
                logits, leaf = logits_and_leaf(model, x, owner=_NAME)
                (reference,) = vector_jacobian_products(logits, leaf, cotangents(logits.detach())[:])
            images = usable(x) if x.grad_fn is not None else usable(x).detach()
            noise = make_threat(self.norm, self.eps).random(wide(images), generator)
            return (images + noise).clamp(0, 1).to(images.dtype), Misalignment(reference=reference)
