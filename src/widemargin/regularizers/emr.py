"""Effective margin regularization (EMR): penalties on the input Jacobian J = dz/dx of the logits, per sample.

- Exact, equation 5 of the paper: ||J||_F^2 = sum_j ||dz_j/dx||^2. It costs K input gradients.
- Approximate: ||d/dx sum_j p_j z_j||^2 with p = softmax(z / t) held constant, one input gradient in place of K. A small
  temperature t penalizes the predicted class's gradient; a large one the mean logit's, which moves no margin
  (docs/paper-vs-code.md).
- Stochastic, not in the paper: an unbiased estimate of the exact one at a cost that does not grow with K. For n
  orthonormal random directions v in logit space, uniformly turned, E[(K/n) sum_v ||v J||^2] = ||J||_F^2. One direction
  costs one input gradient, as the approximation does; n = K directions give the exact value. The estimator is the
  random projection of Hoffman, Roberts and Yaida (2019), drawn independently for every sample: one direction shared by
  a batch would make the parameter gradient several times noisier.

These are for L2 margins, |z_y - z_j| / ||w_y - w_j||_2. Against a Linf threat a margin is divided by the L1 norm, and
with ``norm="linf"`` so is what is penalized; not in the paper, its scaling kept:

- Exact: sum_j ||dz_j/dx||_1^2.
- Approximate: ||d/dx sum_j p_j z_j||_1^2.
- Stochastic: (K/n) sum_j ||dz_j/dx||_1^2 over n classes drawn without replacement, which is unbiased too. Directions
  other than the classes' own are not: an L1 norm changes when logits are turned.

As ||w||_2 <= ||w||_1 <= sqrt(D) ||w||_2 for D numbers in an image, these values are up to D times those for L2, and the
weight must be that much smaller.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from widemargin.core import randomness
from widemargin.core.checks import check_count, check_number
from widemargin.errors import InputError
from widemargin.gradients.jacobian import EveryClass
from widemargin.gradients.penalties import Cotangents
from widemargin.regularizers.regularizer import InputGradientPenalty
from widemargin.types import Norm


@dataclass(frozen=True, kw_only=True)
class ExactEMR(InputGradientPenalty):
    """Penalizes the squared Frobenius norm of the logits' input Jacobian. Labels and generator are not used.

    With ``norm="linf"`` it is the sum of the squared L1 norms of its rows.

    Up to ``classes_at_once`` classes are swept as one batch and all that their gradient needs is kept. Beyond, the
    classes are taken that many at a time, and a chunk's backward pass is done again when gradients are asked for:
    memory is that of ``classes_at_once`` classes for any K.
    """

    classes_at_once: int = 16
    norm: Norm = "l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("ExactEMR.classes_at_once", self.classes_at_once)

    def _cotangents(self, x: Tensor, y: Tensor | None, generator: torch.Generator | None) -> Cotangents:
        del x, y, generator
        return EveryClass

    def _at_once(self, *, training: bool) -> int:
        del training
        return self.classes_at_once


@dataclass(frozen=True, kw_only=True)
class ApproximateEMR(InputGradientPenalty):
    """Penalizes the input gradient of the probability-weighted logit. Labels and generator are not used.

    With ``norm="linf"`` it is the square of that gradient's L1 norm.
    """

    temperature: float = 1.0
    norm: Norm = "l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        rule, hint = "a positive number", "the paper uses 0.1 to 40"
        check_number("ApproximateEMR.temperature", self.temperature, is_valid=lambda t: t > 0, rule=rule, hint=hint)

    def _cotangents(self, x: Tensor, y: Tensor | None, generator: torch.Generator | None) -> Cotangents:
        del x, y, generator
        return lambda logits: torch.softmax(logits / self.temperature, dim=1).unsqueeze(0)


@dataclass(frozen=True, kw_only=True)
class StochasticEMR(InputGradientPenalty):
    """Penalizes the input gradients of ``projections`` random directions of the logits, fresh at every call.

    Random numbers come from ``generator`` or, without one, from its own. Labels are not used. With ``norm="linf"`` the
    directions are those of random classes.
    """

    projections: int = 1
    seed: int | None = None
    norm: Norm = "l2"
    _own: torch.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("StochasticEMR.projections", self.projections)
        own = randomness.fresh() if self.seed is None else randomness.derived(self.seed, "stochastic-emr")
        object.__setattr__(self, "_own", own)

    def _cotangents(self, x: Tensor, y: Tensor | None, generator: torch.Generator | None) -> Cotangents:
        del x, y
        generator = self._own if generator is None else generator
        drawn: list[Tensor] = []

        def directions(logits: Tensor) -> Tensor:
            """Drawn once a call: a way to the gradients that is given up must not change the numbers of the next."""
            if not drawn:
                drawn.append(draw_directions(logits))
            return drawn[0].to(logits.dtype)

        def draw_directions(logits: Tensor) -> Tensor:
            num_classes = logits.shape[1]
            if self.projections > num_classes:
                raise InputError(
                    f"StochasticEMR.projections must be at most the number of classes, {num_classes}, got "
                    f"{self.projections}; {num_classes} projections are already exact"
                )
            scale = math.sqrt(num_classes / self.projections)
            draw = orthonormal_directions if self.norm == "l2" else random_classes
            return draw(logits, self.projections, generator) * scale

        return directions

    def _at_once(self, *, training: bool) -> int:
        """Drawn once, so kept whole in training; their values need no graph and are taken as the others' are."""
        return self.projections if training else super()._at_once(training=False)


def orthonormal_directions(logits: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(count, B, K): for each sample ``count`` orthonormal vectors, turned uniformly at random."""
    batch, num_classes = logits.shape
    gaussian = randomness.normal((batch, num_classes, count), generator=generator, dtype=logits.dtype)
    basis: Tensor
    if count == 1:  # a Gaussian vector of unit length has the same distribution, without a factorization
        basis = gaussian / torch.linalg.vector_norm(gaussian, dim=1, keepdim=True)
    else:
        basis = torch.linalg.qr(gaussian).Q
    return basis.permute(2, 0, 1).to(logits.device)


def random_classes(logits: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(count, B, K): for each sample the unit vectors of ``count`` different classes, each set of them as likely."""
    order = randomness.uniform(logits.shape, generator=generator, dtype=torch.float64).argsort(dim=1)
    classes = order[:, :count].T.unsqueeze(2).to(logits.device)
    return logits.new_zeros(count, *logits.shape).scatter_(2, classes, 1.0)
