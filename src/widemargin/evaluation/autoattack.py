"""AutoAttack, standard version, part after part on the survivors: equal to the official loop, with attribution.

Each part attacks only the examples still classified correctly, from the original image, in batches; random numbers
depend on (seed, examples in the batch), so verdicts equal the official ones for the same seed, shard and batch size.

The parts are our own loops (``attacks/apgd.py``, ``fab.py``, ``square.py``): the official random numbers and
arithmetic, and so the official verdicts, in less work, since a broken image leaves at once. Settings, Square in L2 and
the searches for distances come from the package pyautoattack, bit for bit the official code. It reseeds the global
generators, leaves the tracer off and a flag set, accumulates parameter gradients, takes a model in training mode as it
is, has nine targets whatever the number of classes, writes into the logits it is given, goes on with no image where
margins are tied, makes tensors of the default type, and prints warnings. All of that is put right or put back here.

On a copy of the network (TF32 on a GPU, ``cpu_search.py`` on a CPU) the search is faster, and not the same as in
float32. What it finds counts only if it is adversarial in float32 on the network itself, if need be after a few
gradient steps (``tf32_search.push_across_boundary``); other images survive.
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

from widemargin.attacks.apgd import APGD
from widemargin.attacks.fab import FAB, project_linf
from widemargin.attacks.names import AUTOATTACK_PARTS
from widemargin.attacks.square import SquareLinf
from widemargin.attacks.threat import Threat
from widemargin.core.modes import evaluating, frozen
from widemargin.core.precision import default_type, full_float32, no_autocast
from widemargin.errors import InputError
from widemargin.evaluation.cpu_search import arithmetic
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
AT_ONCE_ON_CPU = 64
"""So many images keep a processor busy; fewer survivors take several targets or queries together."""
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
    """What a part makes of the images: the images themselves where it found nothing, or nothing needs to be found."""
    if part == "square" and reference.square.norm == "L2":
        return finite(part_attack(reference, part).perturb(x.clone(), y.clone()), x)
    at_once = len(x) if x.is_cuda else AT_ONCE_ON_CPU
    logits = torch.cat([reference.model(images) for images in x.split(at_once)])
    right = (logits.argmax(1) == y).nonzero()[:, 0]
    torch.manual_seed(reference.seed)  # for a model that draws; the attacks have a generator of their own
    generator = torch.Generator().manual_seed(reference.seed)
    by_logit = logits[right].sort(dim=1)[1]
    search = {"apgd-ce": _apgd_ce, "apgd-t": _apgd_t, "fab-t": _fab_t, "square": _square}[part]
    x_adv = x.clone()
    x_adv[right] = finite(search(reference, x[right], y[right], by_logit, generator, at_once), x[right])
    return x_adv


def _apgd_ce(reference: Any, x: Tensor, y: Tensor, _: Tensor, generator: torch.Generator, at_once: int) -> Tensor:
    apgd = _apgd(reference.apgd)
    start = apgd.start(x, _drawn(apgd, x, generator))
    return apgd(reference.model, x, y, start, at_once=at_once)[1]


def _apgd_t(reference: Any, x: Tensor, y: Tensor, by_logit: Tensor, generator: torch.Generator, at_once: int) -> Tensor:
    """Target after target, the largest logit first; of few images several together, more where none breaks.

    The official random numbers of a target depend on how many images the targets before have left. So where one of
    several breaks an image, what was found with those after it does not count, and they are drawn for again.
    """
    apgd = _apgd(reference.apgd_targeted)
    x_adv, left = x.clone(), torch.arange(len(x), device=x.device)
    target, ahead, last = 2, 1, reference.apgd_targeted.n_target_classes + 1
    while target <= last and len(left):
        room = max(1, at_once // len(left))
        together = range(target, min(last, target + min(ahead, room) - 1) + 1)
        starts, states = [], []
        for _ in together:
            starts.append(apgd.start(x[left], _drawn(apgd, x[left], generator)))
            states.append(generator.get_state())
        rows = left.repeat(len(together))
        targets = torch.cat([by_logit[left, -number] for number in together])
        order = torch.arange(len(together), device=x.device).repeat_interleave(len(left))
        fooled, found = apgd(
            reference.model, x[rows], y[rows], torch.cat(starts), targets=targets, order=order, at_once=at_once
        )
        any_fooled = bool(fooled.any())
        first = int(order[fooled].min()) if any_fooled else len(together) - 1
        ahead = 1 if any_fooled else 2 * ahead
        counts = fooled & (order == first)
        x_adv[rows[counts]] = found[counts]
        left = left[~counts.view(len(together), -1)[first]]
        generator.set_state(states[first])
        target += first + 1
    return x_adv


def _fab_t(reference: Any, x: Tensor, y: Tensor, by_logit: Tensor, _: torch.Generator, at_once: int) -> Tensor:
    """Target after target, as many together as the images that are left leave room for."""
    from pyautoattack.fab_projections import projection_l2

    its, norm = reference.fab, _norm(reference.fab)
    fab = FAB(
        eps=its.eps,
        norm=norm,
        steps=its.n_iter,
        overshoot=its.eta,
        towards_image=its.alpha_max,
        backward=its.beta,
    )
    x_adv, left = x.clone(), torch.arange(len(x), device=x.device)
    target, last = 2, its.n_target_classes + 1
    while target <= last and len(left):
        together = range(target, min(last, target + max(1, at_once // len(left)) - 1) + 1)
        rows = left.repeat(len(together))
        targets = torch.cat([by_logit[left, -number] for number in together])
        fooled, found = fab(
            *(reference.model, x[rows], y[rows], targets),
            image=rows,
            project=project_linf if norm == "linf" else projection_l2,
            at_once=at_once,
        )
        x_adv[rows[fooled]] = found[fooled]
        left = left[~torch.isin(left, rows[fooled])]
        target += len(together)
    return x_adv


def _square(reference: Any, x: Tensor, y: Tensor, _: Tensor, generator: torch.Generator, at_once: int) -> Tensor:
    its = reference.square
    square = SquareLinf(eps=its.eps, queries=its.n_queries, share=its.p_init)

    def margins(images: Tensor, labels: Tensor) -> Tensor:
        """Below zero wherever an image counts as won, also by a tie or without a prediction."""
        logits = reference.model(images)
        label = labels.unsqueeze(1)
        margin = (logits.gather(1, label) - logits.scatter(1, label, -torch.inf).amax(1, keepdim=True)).squeeze(1)
        return torch.where(margin > 0, margin, -1.0)

    return square(margins, x, y, generator=generator, at_once=at_once)[1] if len(x) else x


def _apgd(its: Any) -> APGD:
    """With the settings of the official attack."""
    return APGD(
        eps=its.eps,
        norm=_norm(its),
        steps=its.n_iter,
        first_check=its.n_iter_2,
        check_sooner=its.size_decr,
        fewest_between=its.n_iter_min,
        share_of_rises=its.thr_decr,
    )


def _drawn(apgd: APGD, x: Tensor, generator: torch.Generator) -> Tensor:
    draw = torch.rand if apgd.norm == "linf" else torch.randn
    return draw(x.shape, generator=generator).to(x.device)


def _norm(its: Any) -> Norm:
    return "linf" if its.norm == "Linf" else "l2"


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
    within: Threat | None = None,
    search: str = "tf32",
) -> Broken:
    """What a part breaks of the survivors, batch by batch; called in float32.

    ``reference`` has the network that is searched on, the model or a copy; ``model`` judges what is found. With
    ``within``, the threat model of the reference, it searches on a copy, in the arithmetic of ``search``.
    """
    broken: list[int] = []
    undecided: list[int] = []
    found = [x[:0]]
    refuted = 0
    left = survivors.nonzero()[:, 0]
    with torch.no_grad():
        for positions in left.split(batch_size) if len(left) else ():
            images, labels = x[positions], y[positions]
            if within is None:
                x_adv = attacked(reference, part, images, labels)
                claimed = torch.zeros_like(labels, dtype=torch.bool)
            else:
                x_adv, claimed = _search_on_copy(model, images, labels, reference, part, within, search)
            logits = model(x_adv)
            fooled = ~predicted(logits, labels)
            broken += positions[fooled].tolist()
            found.append(x_adv[fooled])
            undecided += positions[~decided(logits)].tolist()
            refuted += int((claimed & ~fooled).sum())
    return Broken(broken, torch.cat(found), undecided, refuted)


def _search_on_copy(
    model: nn.Module, x: Tensor, y: Tensor, reference: Any, part: str, threat: Threat, search: str
) -> tuple[Tensor, Tensor]:
    """(images, where the search took them to be adversarial); those short of float32's boundary go on to it.

    Parts leave an image as it was unless they found something, and nothing needs to be found where it is wrong already.
    """
    with arithmetic(search):
        x_adv = attacked(reference, part, x, y)
        claimed = (x_adv != x).flatten(1).any(1) | ~predicted(reference.model(x_adv), y)
    short = claimed & predicted(model(x_adv), y)
    x_adv[short] = push_across_boundary(model, x[short], x_adv[short], y[short], threat)
    return x_adv, claimed
