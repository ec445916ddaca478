"""Input-gradient regularization (IGR): ||d CE(z(x), y) / dx||^2, per sample, in evaluation mode.

The original (Ross and Doshi-Velez) squares the gradient of a batch mean, halves it, and has weights to match; here it
is per sample, as EMR is, and ``Penalty(scaling="released")`` gives the 1/B^2.

Rodriguez-Munoz, Wang and Torralba (ECCV 2024) take the L1 norm, not squared (``norm="linf", squared=False``): eps times
it is, to first order, what a Linf attack of size eps adds to the loss. Without any attack in training they reach 51.6%
under AutoAttack on ImageNet, where adversarial training has 56.1% (Swin-B, 4/255). Their loss is, g~ being the gradient
by normalized images,

    0.8 CE + 1.2 a (eps / 0.225) mean ||g~||_1,    eps = 4/255, a = 0 to 1 in the first 5 epochs.

Here images are in [0, 1] and normalized inside the model, by deviations of about 0.225, so g = g~ / 0.225; divided by
0.8 it is CE + weight mean ||g||_1 with weight = 1.5 eps = 6/255. (Clipped gradients: at 1 / 0.8 of the published norm.)
The rest of the recipe: smooth activations, a network that was trained before (``train --from``), which stays in
evaluation mode (``freeze_batch_norm``), and the ramp a = ``schedule = {kind = "warm-up", epochs = 5}``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from widemargin.core.checks import check_number
from widemargin.gradients.penalties import Cotangents
from widemargin.regularizers.regularizer import InputGradientPenalty, cross_entropy_cotangents
from widemargin.types import Norm


@dataclass(frozen=True, kw_only=True)
class InputGradient(InputGradientPenalty):
    """Penalizes the input gradient of the label's cross-entropy; it needs labels. The generator is not used.

    ``norm`` is that of the threat, whose dual is taken: L2 against "l2", L1 against "linf". ``label_smoothing`` is that
    of the cross-entropy.
    """

    norm: Norm = "l2"
    squared: bool = True
    label_smoothing: float = 0.0
    constant = False

    def __post_init__(self) -> None:
        super().__post_init__()
        name, rule, hint = "InputGradient.label_smoothing", "a number in [0, 1)", "take that of the objective"
        check_number(name, self.label_smoothing, is_valid=lambda share: 0 <= share < 1, rule=rule, hint=hint)

    def _cotangents(self, x: Tensor, y: Tensor | None, generator: torch.Generator | None) -> Cotangents:
        del generator
        return cross_entropy_cotangents("InputGradient", x, y, self.label_smoothing)
