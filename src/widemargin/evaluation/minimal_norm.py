"""Which attacks look for the nearest adversarial image. No one is best on every network, so the shortest find counts.

- L2: DDN on z, 3 z and 10 z, then ALMA, then FAB-T at two classes for each image: those of the shortest finds so far,
  else those of the largest logits. FAB-T finds most where gradients are flat, as after adversarial training, and costs
  the most: at all nine classes, as in AutoAttack, it takes twice as long as everything here.
- Linf: FAB-T at all classes, then a search over eps with APGD-T at two classes, from the nearest image found.
- "quick": in L2 all but FAB-T; in Linf FAB-T alone, at the two classes of the nearest linearized boundaries.
- "fab-t": FAB-T at all classes alone, as in evaluations of earlier versions, whose distances are exactly these.

FAB and APGD are those of the official backend. Finds may lie a little beyond the boundary, so those of all methods but
"fab-t" are drawn back towards their images, by bisection, as far as they stay adversarial.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from widemargin.attacks.alma import ALMA
from widemargin.attacks.ddn import DDN
from widemargin.attacks.threat import THREATS
from widemargin.errors import InputError
from widemargin.evaluation.autoattack import FEWEST_FOR_APGD_T, finite, targeted_apgd
from widemargin.losses import predicted
from widemargin.margins import margins_by_candidates
from widemargin.types import Norm

FULL, QUICK, ONLY_FAB = "full", "quick", "fab-t"
METHODS = (FULL, QUICK, ONLY_FAB)
SCALES = (1, 3, 10)
TARGETS = 2
FAB_STEPS, APGD_STEPS = 50, 50
ROUNDS, CLOSER = 8, 0.9
"""Of the search over eps: each is that share of the distance FAB-T found, until nothing is found; then it halves."""
HALVINGS, SHORTEST = 8, 0.75
"""Of what is drawn back: between that share of its length and the whole."""


def method_named(distance: bool | str) -> str | None:
    """What ``distance=True``, ``distance="quick"`` or False asks for."""
    if isinstance(distance, bool):
        return FULL if distance else None
    if distance not in METHODS:
        names = ", ".join(map(repr, METHODS))
        raise InputError(f"evaluate.distance must be True, False or one of {names}, got {distance!r}")
    return distance


@dataclass(frozen=True, kw_only=True)
class NearestSearch:
    """A search on the model of an official attack object, whose norm, seed and number of targets it has."""

    reference: Any
    norm: Norm
    method: str = FULL
    max_steps: int | None = None

    def finds(self, x: Tensor, y: Tensor, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
        """(attack, what it makes of the correctly classified images): the image itself where it finds nothing."""
        if self.method == ONLY_FAB:
            yield from (("fab-t", x_adv) for x_adv in self._fab_at_all_targets(x, y))
            return
        found = list(self._attacks(x, y, generator))
        for name, x_adv in found:
            yield name, self._drawn_back(x, y, x_adv)

    def _attacks(self, x: Tensor, y: Tensor, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
        found: list[Tensor] = []
        if self.norm == "l2":
            for name, attack in self._gradient_attacks():
                found.append(finite(attack(self.reference.model, x, y, generator=generator), x))
                yield name, found[-1]
            if self.method == QUICK:
                return
        if self.norm == "l2" or self.method == QUICK:
            targets = self._nearest_classes(x, y, found)
            yield from (("fab-t", x_adv) for x_adv in self._fab_at(x, y, targets))
            return
        for x_adv in self._fab_at_all_targets(x, y):
            found.append(x_adv)
            yield "fab-t", x_adv
        targets = self._nearest_classes(x, y, found)
        if self._classes(x) >= FEWEST_FOR_APGD_T:
            yield "apgd-t", self._search_over_eps(x, y, found, targets)

    def _gradient_attacks(self) -> Iterator[tuple[str, DDN | ALMA]]:
        most = self.max_steps
        for scale in SCALES:
            steps = DDN.steps if most is None else min(most, DDN.steps)
            yield "ddn" if scale == 1 else f"ddn-{scale}z", DDN(steps=steps, logit_scale=scale)
        yield "alma", ALMA(steps=ALMA.steps if most is None else min(most, ALMA.steps))

    def _fab_at_all_targets(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        """What FAB finds for the second most likely class, the third and so on."""
        for rank in range(2, self.reference.fab.n_target_classes + 2):
            yield self._fab_at_rank(self.reference.fab, x, y, rank)

    def _fab_at_rank(self, fab: Any, x: Tensor, y: Tensor, rank: int) -> Tensor:
        fab.target_class = rank
        torch.manual_seed(self.reference.seed)
        return finite(fab.attack_single_run(x.clone(), y.clone(), use_rand_start=False, is_targeted=True), x)

    def _fab_at(self, x: Tensor, y: Tensor, targets: Tensor) -> Iterator[Tensor]:
        """The same for T classes of each image (B, T), in fewer steps. FAB knows classes by the rank of their logit."""
        fab = copy.copy(self.reference.fab)
        fab.n_iter = min(fab.n_iter, FAB_STEPS)
        by_logit = self._logits(x).sort(dim=-1)[1].flip(1)
        for target in targets.T:
            ranks = (by_logit == target.unsqueeze(1)).int().argmax(1) + 1
            x_adv = x.clone()
            for rank in ranks.unique().tolist():
                rows = ranks == rank
                x_adv[rows] = self._fab_at_rank(fab, x[rows], y[rows], rank)
            yield x_adv

    def _nearest_classes(self, x: Tensor, y: Tensor, found: list[Tensor]) -> Tensor:
        """(B, T): the other classes of the shortest finds, then of the largest logits; by their margins without any."""
        margins = -self._logits(x) if found else margins_by_candidates(self.reference.model, x, y, self.norm).by_class
        order = margins.argsort(dim=1).argsort(dim=1).to(x.dtype)
        farther = 1 + max((float(self._size(x_adv - x).max()) for x_adv in found), default=0.0)
        cost = farther + order
        for x_adv in found:
            logits = self._logits(x_adv)
            sizes = torch.where(predicted(logits, y), torch.inf, self._size(x_adv - x))
            cost = cost.scatter_reduce(1, logits.argmax(1, keepdim=True), sizes.unsqueeze(1), "amin")
        cost = cost.scatter(1, y.unsqueeze(1), torch.inf)
        return cost.topk(min(TARGETS, cost.shape[1] - 1), dim=1, largest=False).indices

    def _search_over_eps(self, x: Tensor, y: Tensor, found: list[Tensor], targets: Tensor) -> Tensor:
        """The nearest image that APGD-T finds, beginning with the nearest of those found."""
        attack = targeted_apgd(self.reference, steps=APGD_STEPS if self.max_steps is None else self.max_steps)
        sizes = torch.stack([self._fooling_size(x, y, x_adv) for x_adv in found])
        near, first = sizes.min(0)
        x_adv = torch.where(_wide(near.isfinite(), x), torch.stack(found)[first, torch.arange(len(x))], x)
        low, high, known = torch.zeros_like(near), near.clamp_max(1.0), near.isfinite()
        for _ in range(ROUNDS):
            eps = torch.where((low == 0) & known, CLOSER * high, (low + high) / 2)
            left = torch.arange(len(x), device=x.device)
            for slot in range(targets.shape[1]):
                if not len(left):
                    break
                torch.manual_seed(self.reference.seed)
                radius = _wide(eps[left], x)
                start = x[left] + (x_adv[left] - x[left]).clamp(-radius, radius)
                tried = finite(attack(x[left], y[left], targets[left, slot], radius, start), x[left])
                size = self._fooling_size(x[left], y[left], tried)
                better = size < near[left]
                x_adv[left[better]], near[left[better]] = tried[better], size[better]
                left = left[~size.isfinite()]
            missed = torch.zeros_like(near, dtype=torch.bool)
            missed[left] = True
            low, high = torch.where(missed, eps, low), torch.where(missed, high, torch.minimum(near, eps))
        return x_adv

    def _drawn_back(self, x: Tensor, y: Tensor, x_adv: Tensor) -> Tensor:
        """The images of x_adv as near to those of x, on the line to them, as they fool the model."""
        low, high = x.new_full((len(x),), SHORTEST), x.new_ones(len(x))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            fooled = self._fooling_size(x, y, _between(x, x_adv, middle)).isfinite()
            low, high = torch.where(fooled, low, middle), torch.where(fooled, middle, high)
        return torch.where(_wide(high < 1, x), _between(x, x_adv, high), x_adv)

    def _fooling_size(self, x: Tensor, y: Tensor, x_adv: Tensor) -> Tensor:
        """(B,): how far it is from x; infinite where it does not fool the model."""
        return torch.where(predicted(self._logits(x_adv), y), torch.inf, self._size(x_adv - x))

    def _size(self, delta: Tensor) -> Tensor:
        return THREATS[self.norm](1.0).size(delta)

    def _classes(self, x: Tensor) -> int:
        return self._logits(x[:1]).shape[1]

    def _logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.reference.model(x)
        return logits


def _wide(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))


def _between(x: Tensor, x_adv: Tensor, share: Tensor) -> Tensor:
    return (x + _wide(share, x) * (x_adv - x)).clamp(0, 1)
