"""Free adversarial training (Shafahi et al., 2019): one backward pass moves the weights and the perturbation.

Every batch is trained on ``replays`` times in a row. Each time x' = clip(x + delta), the gradient of CE(z(x'), y) moves
the weights, and the same backward pass has the gradient by x', which moves

    delta <- clip(project(delta + eps ascent(gradient)) + x) - x.

delta is kept in ``nets.memory``, row by row of a batch, and is never reset: the next batch begins with it, and so does
a run that goes on. A step costs what a plain one does, so ``epochs`` are published divided by the replays.

As in the code of Wong et al. (2020), but that x' is clipped to [0, 1] before the first replay of a batch too. AWP looks
for its weights at the same x'. Outside of training, ``perturb`` gives the images that a first replay would see, delta
repeated where there are more images than it has rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from widemargin.attacks.threat import make_threat
from widemargin.core import batch_share
from widemargin.core.checks import check_count
from widemargin.heads.training import logits_for_training
from widemargin.losses import cross_entropy
from widemargin.objectives.objective import check_smoothing, memory_of
from widemargin.types import Nets, Norm, Outcome


@dataclass(frozen=True, kw_only=True)
class Free:
    """mean CE(z(clip(x + delta)), y), delta climbing by the same gradients."""

    eps: float
    norm: Norm = "linf"
    replays: int = 8
    label_smoothing: float = 0.0
    takes_mixed_labels = True

    def __post_init__(self) -> None:
        make_threat(self.norm, self.eps)
        check_count("Free.replays", self.replays)
        check_smoothing("Free", self.label_smoothing)

    @property
    def attacks(self) -> bool:
        """It trains on adversarial images."""
        return True

    def phase(self, epoch: int) -> int:
        """It does the same in every epoch."""
        del epoch
        return 0

    def make_memory(self, *, image_shape: tuple[int, int, int], num_classes: int, batch_size: int) -> nn.Module:
        """The perturbation, zero."""
        del num_classes
        return Perturbation(self.eps, self.norm, (batch_size, *image_shape))

    def perturb(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """The images with the perturbation as it is now."""
        del y, epoch, generator
        return memory_of("Free", nets, Perturbation).on(x)

    def __call__(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Outcome:
        """Return the loss of each sample."""
        x_adv = self.perturb(nets, x, y, epoch=epoch, generator=generator)
        return self.outcome(nets, x, x_adv, y, epoch=epoch)

    def outcome(self, nets: Nets, x: Tensor, x_adv: Tensor, y: Tensor, *, epoch: int) -> Outcome:
        """Return the loss of each sample; its backward pass is waited for."""
        del epoch
        point = memory_of("Free", nets, Perturbation).follow(x, x_adv)
        logits, label_logits = logits_for_training(nets.model, point, y)
        loss = cross_entropy(label_logits, y, self.label_smoothing)
        return Outcome(loss=loss, logits=logits.detach(), x_adv=x_adv)


class Perturbation(nn.Module):
    """delta (B, C, H, W), which climbs after each update by the gradient that the backward pass left at x'."""

    delta: Tensor

    def __init__(self, eps: float, norm: Norm, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._eps, self._threat = eps, make_threat(norm, eps)
        self._followed: tuple[Tensor, Tensor] | None = None
        self.register_buffer("delta", torch.zeros(shape))

    def on(self, x: Tensor) -> Tensor:
        """x' of these images."""
        return (x + self._rows(x)).clamp_(0, 1)

    def follow(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """The same x', with a place for its gradient."""
        point = x_adv.detach().requires_grad_(True)
        self._followed = x, point
        return point

    @torch.no_grad()
    def after_step(self) -> None:
        """Climb."""
        if self._followed is None:
            return
        (x, point), self._followed = self._followed, None
        assert point.grad is not None
        moved = self._threat.project(self._rows(x) + self._eps * self._threat.ascent(point.grad))
        moved = batch_share.whole_batch((x + moved).clamp_(0, 1) - x)
        self.delta[: len(moved)] = moved.to(self.delta.dtype)

    def _rows(self, x: Tensor) -> Tensor:
        """delta for these images, which are (this process's rows of) a batch."""
        share = batch_share.current()
        first = 0 if share is None else share.start
        return self.delta[torch.arange(first, first + len(x), device=x.device) % len(self.delta)].to(x.dtype)
