"""Adversarial weight perturbation (AWP; Wu, Xia and Wang 2020): the loss is lowered where nearby weights make it worst.

With x' made by the weights as they are, each weight w with more than one dimension (so no bias and no batch norm) is
moved along the gradient g of the training loss on x', by a share gamma of its own length,

    w <- w + gamma ||w|| g / ||g||;

the forward passes, the backward pass and the update happen there, weight decay included, and then the same difference
is taken away again. The published code gets it by a step of SGD on a copy of the network, whose learning rate cancels;
this is its closed form, one more forward and backward pass. The statistics of batch norm do not see that pass: those
that last are of the forwards at the moved weights, as published.

The gradient is that of the objective alone, as published, and the weights are those of the model, not of a teacher. A
penalty (EMR, IGR) is taken at the moved weights, like the loss, so it widens margins in a neighborhood of the weights
and not at them alone. The direction does not look for where the penalty is largest: that would cost a second penalty.

In floating point, w + d - d is not w. So the weights before (w0) and the moved ones (w1) are both remembered, and the
result is w0 - (w1 - w): what the update did, at the old place; where nothing was updated it is w0 to the last bit.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from widemargin.core import batch_share
from widemargin.core.checks import check_number
from widemargin.core.modes import with_values
from widemargin.distributed.sync_batch_norm import reduce_gradients
from widemargin.errors import InputError
from widemargin.types import Nets

UNPERTURBED_LOSS = "unperturbed_loss"
"""The objective's loss before the weights were moved, in a step's values and in the metrics."""


@contextmanager
def perturbed_weights(nets: Nets, loss: Callable[[], Tensor], *, gamma: float) -> Iterator[Tensor]:
    """Inside, the model's weights are moved to make ``loss()``, (B,), larger; after it, the differences are taken back.

    The loss must come from images that are already attacked. Gives the loss before, (B,), detached. Gradients in
    ``.grad`` and all buffers stay as they are.
    """
    check_number("AWP's gamma", gamma, is_valid=lambda g: 0 < g < 1, rule="in (0, 1)", hint="0.005 and 0.01 are usual")
    weights = [weight for weight in nets.model.parameters() if weight.dim() > 1 and weight.requires_grad]
    if not weights:
        raise InputError(
            f"AWP moves weights of more than one dimension, and {type(nets.model).__name__} has none that is trained; "
            "train without awp"
        )
    unperturbed, gradients = _loss_and_gradients(nets, loss, weights)
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        _ascend(weights, gradients, gamma)
    moved = [weight.detach().clone() for weight in weights]
    try:
        yield unperturbed
    finally:
        with torch.no_grad():
            torch._foreach_sub_(moved, [*weights])
            torch._foreach_copy_([*weights], torch._foreach_sub(before, moved))


def _loss_and_gradients(
    nets: Nets, loss: Callable[[], Tensor], weights: list[nn.Parameter]
) -> tuple[Tensor, list[Tensor]]:
    """The loss of each sample, and the gradient of its mean over the batch of all processes; no buffer has changed."""
    buffers = [buffer for net in nets.all().values() for buffer in net.buffers()]
    before = [buffer.clone() for buffer in buffers]
    with with_values([(parameter, "grad", None) for parameter in nets.parameters()]):
        values = loss()
        batch_share.part_of_mean(values).backward(inputs=weights)
        reduce_gradients(Nets(nets.model))
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
    with torch.no_grad():
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
    return values.detach(), gradients


def _ascend(weights: list[nn.Parameter], gradients: list[Tensor], gamma: float) -> None:
    """Move each weight; none at all if a gradient is not finite: the step's own backward pass will show that."""
    lengths, slopes = (torch.stack(torch._foreach_norm([*tensors])) for tensors in (weights, gradients))
    possible = slopes.isfinite().all()
    shares = torch.where(slopes > 0, gamma * lengths / slopes, 0.0)
    for weight, gradient, share in zip(weights, gradients, shares.unbind(), strict=True):
        weight.add_(torch.where(possible, share.to(weight.dtype) * gradient, 0.0))
