"""A few examples with their adversarial twins, kept for the page that shows them."""

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from widemargin.attacks import FGSM, PGD
from widemargin.evaluation.settings import EvaluationSettings
from widemargin.evaluation.shards import Shard
from widemargin.files import write_whole

GALLERY, SHOWN, STEPS = "gallery.npz", 8, 20


def can_be_shown(shard: Shard) -> bool:
    """Whether these are images in gray or in color."""
    return shard.shows_images and shard.images.shape[1] in (1, 3)


def write_gallery(
    model: nn.Module, shard: Shard, settings: EvaluationSettings, folder: Path, device: torch.device
) -> None:
    """The first images and what the last gradient attack makes of them at the largest eps; PGD-20 for AutoAttack."""
    name, attack = _strongest(settings)
    x, y = shard.images[:SHOWN].to(device), shard.labels[:SHOWN].to(device)
    x_adv = attack(model, x, y)
    content = io.BytesIO()
    np.savez_compressed(
        content,
        images=_bytes(x),
        adversarial=_bytes(x_adv),
        labels=y.cpu().numpy(),
        predictions=_predictions(model, x),
        adversarial_predictions=_predictions(model, x_adv),
        attack=np.array(name),
    )

    def write(partial: Path) -> None:
        partial.write_bytes(content.getvalue())

    write_whole(folder / GALLERY, write)


def _strongest(settings: EvaluationSettings) -> tuple[str, PGD | FGSM]:
    """The attack, and its name as the results have it: "pgd20", or "pgd20@8/255" where there are several eps."""
    eps = max(settings.eps, key=float)
    attacks = [(name, attack) for name in settings.attacks if (attack := settings.attack(name, eps)) is not None]
    usual = f"pgd{STEPS}", PGD(eps=eps, step_size=eps / 4, steps=STEPS, norm=settings.norm)
    name, attack = attacks[-1] if attacks else usual
    return settings.label(name, eps), attack


def _bytes(images: Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    return (images * 255).round().to(torch.uint8).cpu().numpy()


def _predictions(model: nn.Module, x: Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    with torch.no_grad():
        return model(x).argmax(1).cpu().numpy()  # type: ignore[no-any-return]
