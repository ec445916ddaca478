"""Whether a model, its device, the images and the settings go together; seen before any work is done."""

import torch
from torch import Tensor

from widemargin.checks import check_labels
from widemargin.errors import InputError
from widemargin.evaluation.backend import LEAST_HEIGHT_IN_L2, undisturbed
from widemargin.evaluation.searched import has_tf32
from widemargin.evaluation.settings import AUTOATTACK, EvaluationSettings
from widemargin.evaluation.shards import Shard
from widemargin.evaluation.wrapped import Wrapped


def check_search(settings: EvaluationSettings, device: torch.device) -> None:
    """Refuse TF32 where it would make no difference."""
    if settings.search == "float32":
        return
    if not settings.searches:
        raise InputError(f"evaluate.search={settings.search!r} has no effect where nothing attacks; leave --search out")
    if not has_tf32(device):
        raise InputError(
            f"evaluate.search must be 'float32' on a device without TF32, got 'tf32' on {device}; leave --search out, "
            "or use a GPU that has TF32"
        )


def check_fits(model: Wrapped, shard: Shard, settings: EvaluationSettings, device: torch.device) -> int:
    """One pass tells whether the model takes these images, can be attacked, and knows every label.

    Returns the number of classes.
    """
    if AUTOATTACK in settings.attacks and not shard.shows_images:
        raise InputError(
            "evaluate: autoattack takes images (N, C, H, W) or flat squares, since its black-box part draws squares on "
            f"them, got shape {tuple(shard.images.shape)}; leave autoattack out, or let the model reshape images"
        )
    if AUTOATTACK in settings.attacks and settings.norm == "l2" and shard.images.shape[2] < LEAST_HEIGHT_IN_L2:
        raise InputError(
            f"evaluate: autoattack in L2 takes images of at least {LEAST_HEIGHT_IN_L2} rows, where its black-box part "
            f"begins, got shape {tuple(shard.images.shape)}; leave autoattack out"
        )
    leaf = shard.images[:1].to(device, copy=True).requires_grad_(True)
    with torch.enable_grad(), undisturbed(model):
        logits = _taken(model, leaf)
        attackable = not settings.needs_gradients or _reaches(logits, leaf)
    if not attackable:
        raise InputError(
            "evaluate: the model's logits carry no gradient to the images; its forward detaches them, or runs under "
            "torch.no_grad() or torch.inference_mode()"
        )
    check_labels("evaluate", shard.labels, batch=len(shard.labels), num_classes=logits.shape[1])
    return int(logits.shape[1])


def _taken(model: Wrapped, leaf: Tensor) -> Tensor:
    try:
        logits: Tensor = model(leaf)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"evaluate: the model does not take images of shape {tuple(leaf.shape[1:])}: {reason}"
        ) from error
    return logits


def _reaches(logits: Tensor, leaf: Tensor) -> bool:
    """Whether the logits depend on the images in a way that can be differentiated."""
    return logits.requires_grad and torch.autograd.grad(logits.sum(), leaf, allow_unused=True)[0] is not None
