"""What minimal-norm L2 attacks share: the shortest perturbation kept for each image, and a gradient with its logits.

Points are float32 where images are of half precision. What is kept is the rounded image, and its length that of the
rounded perturbation, since rounding may bring an image back over the boundary.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from widemargin.attacks.pgd import goal_gradient
from widemargin.attacks.threat import L2
from widemargin.core import randomness
from widemargin.core.checks import check_images, check_labels, check_model, usable
from widemargin.core.modes import evaluating, frozen, outside_inference_mode, without_ddp
from widemargin.losses import wide
from widemargin.types import Goal

_SIZE = L2(1.0).size


@contextmanager
def attacking(owner: str, model: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[nn.Module, Tensor, Tensor]]:
    """The model in evaluation mode without parameter gradients, images and labels to be differentiated by."""
    check_model(owner, model)
    check_images(owner, x)
    check_labels(owner, y, batch=len(x))
    model = without_ddp(model)
    with outside_inference_mode(), evaluating(model), frozen(model):
        yield model, usable(x).detach(), usable(y).long()


def gradient_and_logits(model: nn.Module, point: Tensor, x: Tensor, y: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """The goal's gradient at the point, zero where it is no number, and the logits; x has the type the model takes."""
    seen: list[Tensor] = []

    def with_logits(logits: Tensor, labels: Tensor) -> Tensor:
        seen.append(logits.detach())
        return goal(logits, labels)

    gradient = wide(goal_gradient(model, point.to(x.dtype), y, with_logits))
    return gradient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0), wide(seen[-1])


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """(B,) as (B, 1, ..., 1)."""
    return values.view(-1, *[1] * (like.dim() - 1))


def random_direction(direction: Tensor, generator: torch.Generator | None) -> Tensor:
    """The directions, with a random one of unit length in place of those that are zero."""
    lost = (direction == 0).flatten(1).all(1)
    if not lost.any():
        return direction
    generator = randomness.fresh() if generator is None else generator
    noise = randomness.normal(direction.shape, generator=generator, dtype=direction.dtype).to(direction.device)
    return torch.where(per_sample(lost, direction), noise / per_sample(_SIZE(noise), noise), direction)


class Shortest:
    """The shortest perturbation found so far of each image of x."""

    def __init__(self, x: Tensor) -> None:
        self._center, self._found = wide(x), x.clone()
        self._length = self._center.new_full((len(x),), torch.inf)

    def offer(self, delta: Tensor, fooled: Tensor) -> None:
        """Keep the perturbations that fool the model and are shorter than those before."""
        images = (self._center + delta).to(self._found.dtype)
        lengths = _SIZE(wide(images) - self._center) if images.dtype != delta.dtype else _SIZE(delta)
        better = fooled & (lengths < self._length)
        self._length = torch.where(better, lengths, self._length)
        self._found = torch.where(per_sample(better, images), images, self._found)

    def images(self) -> Tensor:
        """The nearest adversarial images found; the images themselves where there are none."""
        return self._found
