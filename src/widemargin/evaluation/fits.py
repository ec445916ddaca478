"""Whether a model, its device, the images, the settings and the records go together; seen before any work is done."""

import hashlib
import itertools
import math

import torch
from torch import Tensor

from widemargin.checks import check_labels
from widemargin.errors import InputError
from widemargin.evaluation.backend import LEAST_HEIGHT_IN_L2, undisturbed
from widemargin.evaluation.searched import has_tf32
from widemargin.evaluation.settings import AUTOATTACK, EvaluationSettings
from widemargin.evaluation.shards import Shard
from widemargin.evaluation.store import Store
from widemargin.evaluation.wrapped import Wrapped

ANSWERS, LATE, ASKED = "answers", "late", 8
"""The record of what the model says to so many images; it may be later than the first verdicts."""
ROUNDING, HALF = 1e-3, 5e-2
"""What devices may differ by, as a share of the largest logit: in float32, and in less."""


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


def check_fits(model: Wrapped, shard: Shard, settings: EvaluationSettings, device: torch.device) -> Tensor:
    """One pass tells whether the model takes these images, can be attacked, and knows every label.

    Returns the logits of the first images.
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
    leaf = shard.images[: min(ASKED, settings.batch_size)].to(device, copy=True).requires_grad_(True)
    with torch.enable_grad(), undisturbed(model):
        logits = _taken(model, leaf)
        attackable = not settings.needs_gradients or _reaches(logits, leaf)
    if not attackable:
        raise InputError(
            "evaluate: the model's logits carry no gradient to the images; its forward detaches them, or runs under "
            "torch.no_grad() or torch.inference_mode()"
        )
    check_labels("evaluate", shard.labels, batch=len(shard.labels), num_classes=logits.shape[1])
    return logits.detach()


def check_answers(model: Wrapped, shard: Shard, logits: Tensor, store: Store, device: torch.device) -> None:
    """The first logits are the same, up to rounding, whenever an evaluation goes on: weights are not all of a model.

    Where a model gives other logits from call to call, as far as those may differ, four times over.
    """
    images = shard.images[: len(logits)]
    shown = hashlib.sha256(images.cpu().contiguous().numpy().tobytes()).hexdigest()
    found = store.note(ANSWERS)
    if found is None:
        rows = [[value if math.isfinite(value) else str(value) for value in row] for row in logits.tolist()]
        store.write_note(ANSWERS, {"images": shown, "logits": rows, LATE: store.begun})
        return
    if found["images"] != shown:  # which will be refused
        return
    logits = logits.cpu()
    before = torch.tensor([[float(value) for value in row] for row in found["logits"]], dtype=logits.dtype)
    if before.shape != logits.shape:
        raise _other_model(store, f"{before.shape[1]} classes there, {logits.shape[1]} here")
    largest = float(torch.cat([before, logits]).nan_to_num(0.0, 0.0, 0.0).abs().max())
    allowed = largest * (ROUNDING if model.dtype in (torch.float32, torch.float64) else HALF)
    if _apart(before, logits) > allowed:
        with torch.no_grad(), undisturbed(model):
            more = [logits, *(model(images.to(device)).cpu() for _ in range(3))]
        allowed += 4 * max(_apart(one, other) for one, other in itertools.combinations(more, 2))
        if not _apart(before, logits) <= allowed:
            raise _other_model(store, f"its logits differ by up to {_apart(before, logits):.3g}")


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference; infinite where one is a number and the other is not."""
    same = (one == other) | (one.isnan() & other.isnan())
    return float(torch.where(same, 0.0, (one - other).abs()).nan_to_num(math.inf).max())


def _other_model(store: Store, how: str) -> InputError:
    return InputError(
        f"{store.folder} holds an evaluation of another model, of the same weights, which gives other answers to the "
        f"first images ({how}); give the model it was begun with, or choose another --out"
    )


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
