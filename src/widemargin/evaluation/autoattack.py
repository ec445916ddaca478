"""AutoAttack, standard version, part after part on the survivors: equal to the official loop, with attribution.

Each part attacks only the examples still classified correctly, from the original image, in batches; random numbers
depend on (seed, examples in the batch), so verdicts equal the official ones for the same seed, shard and batch size.

The backend is pyautoattack, bit for bit the official code. It reseeds the global generators, leaves the tracer off and
a flag set, accumulates parameter gradients, takes a model in training mode as it is, has nine targets whatever the
number of classes, writes into the logits it is given, goes on with no image where margins are tied, makes tensors of
the default type, and prints warnings. All of that is put right or put back here.

With TF32 the search is faster on a GPU and not the same as in float32. What it finds counts only if it is adversarial
in float32 too, if need be after a few gradient steps (``tf32_search.push_across_boundary``); other images survive.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from widemargin.attacks.names import AUTOATTACK_PARTS
from widemargin.attacks.threat import Threat
from widemargin.core.modes import evaluating, frozen
from widemargin.core.precision import allowing_tf32, default_type, full_float32, no_autocast
from widemargin.errors import InputError
from widemargin.evaluation.tf32_search import push_across_boundary
from widemargin.losses import decided, predicted
from widemargin.types import Norm

MarginAndLoss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
NORMS: dict[str, str] = {"linf": "Linf", "l2": "L2"}
PARTS = AUTOATTACK_PARTS
MAX_TARGETS = 9
FEWEST_FOR_APGD_T = 4
LEAST_HEIGHT_IN_L2 = 5
"""Square begins with five rows of squares in L2."""
_SILENT = logging.Logger("autoattack")
_SILENT.addHandler(logging.NullHandler())


class _FreshLogits(nn.Module):
    """The model as the backend calls it: with logits that may be written into."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Fresh logits."""
        logits: Tensor = self.model(x)
        return logits.clone()


def parts_for(num_classes: int) -> tuple[str, ...]:
    """The parts of the standard attack; the targeted DLR loss needs four classes."""
    return tuple(part for part in PARTS if part != "apgd-t" or num_classes >= FEWEST_FOR_APGD_T)


def make_reference(
    model: nn.Module,
    *,
    eps: float,
    norm: Norm,
    seed: int,
    num_classes: int,
    device: torch.device,
    max_steps: int | None = None,
) -> Any:
    """The official attack object in its standard version, with as many targets as there are classes for.

    ``max_steps`` cuts every part short, where only the code is on trial.
    """
    try:
        from pyautoattack import AutoAttack
    except ImportError:
        raise InputError("AutoAttack needs the package pyautoattack; pip install 'pyautoattack>=0.2,<0.3'") from None
    reference = AutoAttack(
        _FreshLogits(model), norm=NORMS[norm], eps=float(eps), seed=seed, version="standard", device=str(device)
    )
    reference.apgd.logger = reference.apgd_targeted.logger = _SILENT  # the alarms tell of gradients that vanish
    targets = min(MAX_TARGETS, num_classes - 1)
    reference.apgd_targeted.n_target_classes = targets
    reference.fab.n_target_classes = targets
    reference.fab.targeted = True
    reference.apgd.loss = "ce"
    reference.square.margin_and_loss = _without_ties(reference.square.margin_and_loss)
    if max_steps is not None:
        reference.apgd.n_iter = reference.apgd_targeted.n_iter = reference.fab.n_iter = max_steps
        reference.square.n_queries = max_steps
    return reference


def _without_ties(margin_and_loss: MarginAndLoss) -> MarginAndLoss:
    """Square's measure, below zero wherever it takes an image for won: a tie or a NaN would leave it with no image."""

    def settled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        margin, loss = margin_and_loss(x, y)
        return torch.where(margin > 0, margin, -1.0), loss

    return settled


def part_attack(reference: Any, part: str) -> Any:
    """The attack of one part, seeded as the official loop seeds it."""
    attack = {
        "apgd-ce": reference.apgd,
        "apgd-t": reference.apgd_targeted,
        "fab-t": reference.fab,
        "square": reference.square,
    }[part]
    attack.seed = reference.seed
    return attack


def targeted_apgd(reference: Any, *, steps: int) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The official targeted APGD as (x, y, targets, eps of each image, start) -> x_adv, one start, that many steps."""
    whole = reference.apgd_targeted
    apgd = type(whole)(
        whole.model, n_iter=steps, norm=whole.norm, eps=1.0, seed=reference.seed, device=whole.device, logger=_SILENT
    )

    def attack(x: Tensor, y: Tensor, targets: Tensor, eps: Tensor, start: Tensor) -> Tensor:
        apgd.init_hyperparam(x)
        apgd.eps, apgd.y_target = eps, targets
        found: Tensor = apgd.attack_single_run(x.clone(), y, x_init=start)[3]
        return found

    return attack


def attacked(reference: Any, part: str, x: Tensor, y: Tensor) -> Tensor:
    """What a part makes of the images."""
    return finite(part_attack(reference, part).perturb(x.clone(), y.clone()), x)


def finite(x_adv: Tensor, x: Tensor) -> Tensor:
    """The image itself in place of one with a NaN, which a gradient with a NaN leads to and which is no image."""
    return torch.where(x_adv.flatten(1).isfinite().all(1).view(-1, *[1] * (x.dim() - 1)), x_adv, x)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no parameter gradients, float32 (no TF32, no autocast); random states and tracer restored."""
    generators = torch.get_rng_state(), np.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    tracer = sys.gettrace()
    try:
        with evaluating(model), frozen(model), full_float32(), no_autocast(), default_type(torch.float32):
            yield
    finally:
        torch.set_rng_state(generators[0])
        np.random.set_state(generators[1])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        sys.settrace(tracer)
        _clear_dynamic_flag()


def _clear_dynamic_flag() -> None:
    """One model that looks like a dynamic defense must not brand all that follow."""
    checks = sys.modules.get("pyautoattack.checks")
    if checks is not None:
        checks.funcs.update(dict.fromkeys(checks.funcs, 0))


@dataclass(frozen=True)
class Broken:
    """What a part broke: positions, with what images, where the model gives no prediction, how many did not hold."""

    positions: list[int]
    images: Tensor
    undecided: list[int]
    refuted: int


def break_survivors(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    survivors: Tensor,
    *,
    reference: Any,
    part: str,
    batch_size: int,
    tf32: Threat | None = None,
) -> Broken:
    """What a part breaks of the survivors, batch by batch; called in float32.

    ``reference`` has the network that is searched on, the model or a copy; ``model`` judges what is found. With
    ``tf32``, the threat model of the reference, it searches in TF32.
    """
    broken: list[int] = []
    undecided: list[int] = []
    found = [x[:0]]
    refuted = 0
    left = survivors.nonzero()[:, 0]
    with torch.no_grad():
        for positions in left.split(batch_size) if len(left) else ():
            images, labels = x[positions], y[positions]
            if tf32 is None:
                x_adv = attacked(reference, part, images, labels)
                claimed = torch.zeros_like(labels, dtype=torch.bool)
            else:
                x_adv, claimed = _search_in_tf32(model, images, labels, reference, part, tf32)
            logits = model(x_adv)
            fooled = ~predicted(logits, labels)
            broken += positions[fooled].tolist()
            found.append(x_adv[fooled])
            undecided += positions[~decided(logits)].tolist()
            refuted += int((claimed & ~fooled).sum())
    return Broken(broken, torch.cat(found), undecided, refuted)


def _search_in_tf32(
    model: nn.Module, x: Tensor, y: Tensor, reference: Any, part: str, threat: Threat
) -> tuple[Tensor, Tensor]:
    """(images, where the search took them to be adversarial); those short of float32's boundary go on to it.

    Parts leave an image as it was unless they found something, and nothing needs to be found where it is wrong already.
    """
    with allowing_tf32():
        x_adv = attacked(reference, part, x, y)
        claimed = (x_adv != x).flatten(1).any(1) | ~predicted(reference.model(x_adv), y)
    short = claimed & predicted(model(x_adv), y)
    x_adv[short] = push_across_boundary(model, x[short], x_adv[short], y[short], threat)
    return x_adv, claimed
