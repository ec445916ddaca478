"""CROWN (Zhang et al. 2018): lower bounds of linear functions of the logits on a ball, by back-substitution.

A linear function A z of the pre-activations z of a layer becomes one of the layer before: through an affine step
exactly, through an activation by its lower line where A > 0 and its upper line where A < 0. At the images
min A x + c over the ball is in closed form: A x - eps ||A||_2 for L2, the sum of the smaller ends for Linf, where every
pixel also stays in [0, 1]. The lines need an interval for every unit, which is found in the same way, layer by layer.

**Rounding.** A bound must hold in exact arithmetic, and this is float64. Where a step replaces A z by A' x + A b with
A' = fl(A J), each number of A' is off by at most n u (|A| |J|), n products summed up in any order and u = 2^-53, and
A b by N u |A| |b|, N the size of z. On the ball |x| is at most what its interval says, so the two together are at most
|A| m with m = n u |J| |x| + N u |b|, made once per layer. |A| m is subtracted at every step and every line, and u is
taken eight times too large, which covers the few roundings of m and of the sums themselves. The lines are drawn
outside the chord whatever was rounded (``relaxation.py``). So the bound is proven for the network in exact arithmetic
with its weights as they are; a forward in float32 or less may see it otherwise where two logits are equal but for
rounding.

**Cost.** Only units whose interval, by plain interval arithmetic from the layer before, crosses a knot are bounded, in
chunks of ``NUMBERS``. A bound found on a ball holds, with the same A, on every smaller one: so each evaluation also
gives the largest radius that its own lines prove (``Floor.radius``). Choosing the lower slopes of the last bound by
gradient ascent, as alpha-CROWN does, gained less than 2% of the radius on the MLP for 60% more time: it is not done.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from widemargin.certificates.network import AffineStep, Bend, Network, Rows
from widemargin.certificates.relaxation import ROOM, Lines, crosses, lines
from widemargin.gradients.sweeps.layers import Affine
from widemargin.types import Norm

UNIT = 2.0**-50
"""Eight times the rounding of one operation in float64."""
NUMBERS = 2**20
"""Coefficients of a chunk of rows: 8 MiB, of which a few copies exist at a time."""
WIDE = 64
"""Units of a layer from which on it pays to leave out those that are off."""
HALVINGS = 50

Interval = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Ball:
    """All images within ``eps`` (B,) of x (B, ...); in Linf, those in [0, 1]."""

    norm: Norm
    x: Tensor
    eps: Tensor

    @property
    def box(self) -> Interval:
        """The smallest and the largest value of every pixel."""
        eps = (self.eps * (1 + UNIT) + UNIT).view(-1, *[1] * (self.x.dim() - 1))
        lower, upper = self.x - eps, self.x + eps
        return (lower.clamp_min(0.0), upper.clamp_max(1.0)) if self.norm == "linf" else (lower, upper)

    def least(self, rows: Rows) -> Tensor:
        """(M, B): a lower bound of every function on the ball."""
        terms = self.x[0].numel()
        if self.norm == "l2":
            lengths: Tensor = torch.linalg.vector_norm(rows.values.flatten(2), dim=2) * (1 + terms * UNIT)
            rounding = terms * UNIT * torch.linalg.vector_norm(self.x.flatten(1), dim=1)
            lengths = (self.eps * (1 + UNIT) + rounding) * lengths
            return rows.inner(self.x) - lengths
        lower, upper = self.box
        middle, radius = (lower + upper) / 2, (upper - lower) / 2
        room = terms * UNIT * (middle.abs() + radius) + ROOM * (lower.abs() + upper.abs())
        return rows.inner(middle) - rows.inner_absolute(radius + room)


@dataclass(frozen=True)
class Floor:
    """Lower bounds of M functions on a ball and on every smaller one around the same images."""

    ball: Ball
    rows: Rows
    constant: Tensor
    """(M, B)."""

    def at(self, eps: Tensor) -> Tensor:
        """(M, B), for ``eps`` (B,) no larger than the ball's."""
        return self.constant + Ball(self.ball.norm, self.ball.x, eps).least(self.rows)

    def radius(self, counts: Tensor, largest: float) -> Tensor:
        """(B,): the largest eps at which these lines leave the functions that ``counts`` (M, B) above 0.

        Proven as far as it is no larger than the ball's.
        """
        low = torch.zeros_like(self.ball.eps)
        high = torch.full_like(low, largest)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            holds = ((self.at(middle) > 0) | ~counts).all(0)
            low, high = torch.where(holds, middle, low), torch.where(holds, high, middle)
        everywhere = ((self.at(torch.full_like(low, largest)) > 0) | ~counts).all(0)
        return torch.where(everywhere, largest, low)


class Crown:
    """The bounds of one network on one ball, layer by layer."""

    def __init__(self, network: Network, ball: Ball, known: dict[int, Interval] | None = None) -> None:
        """``known`` are intervals of some values, found on balls that hold this one."""
        self.network, self.ball = network, ball
        self.intervals: dict[int, Interval] = {0: ball.box}
        self._sizes: dict[int, Tensor] = {}
        """Per step: what rounding may do where it is gone back through, for a coefficient of 1."""
        self._bent: dict[int, _Bent] = {}
        self._affine_before = _affine_before_bends(network)
        """By what a bend makes: the affine step that makes what it alone reads."""
        self._joined = {step.output for step in self._affine_before.values()}
        self._exact = {0} if ball.norm == "linf" else set()
        """Values whose intervals are the smallest there are."""
        self._independent = set(self._exact)
        """Those of them whose numbers move without each other: the next step's intervals are the smallest, too."""
        for step in network.steps:
            if isinstance(step, Bend):
                self._bend(step, (known or {}).get(step.inputs[0]))
            else:
                self._affine(step)

    def floor(self, rows: Tensor) -> Floor:
        """Of linear functions (M, B, K) of the logits."""
        return Floor(self.ball, *self._back(self.network.output, Rows(rows), from_step=len(self.network.steps)))

    def _affine(self, step: AffineStep) -> None:
        lower, upper = zip(*(self.intervals[number] for number in step.inputs), strict=True)
        largest = [torch.maximum(low.abs(), high.abs()) for low, high in zip(lower, upper, strict=True)]
        middles = [(low + high) / 2 for low, high in zip(lower, upper, strict=True)]
        size = step.push_sizes(largest) * (step.terms * UNIT) + step.offset_size * _sum_of(step)
        middle = step.push(middles) + step.offset
        radius = step.push_sizes([(high - low) / 2 for low, high in zip(lower, upper, strict=True)]) + 2 * size
        self.intervals[step.output] = middle - radius, middle + radius
        self._sizes[step.output] = size
        if step.is_one_to_one:
            self._exact |= {step.output for number in step.inputs if number in self._exact}
            self._independent |= {step.output for number in step.inputs if number in self._independent}
        elif len(step.inputs) == 1 and step.inputs[0] in self._independent:
            self._exact.add(step.output)

    def _bend(self, step: Bend, known: Interval | None) -> None:
        value = step.inputs[0]
        lower, upper = self.intervals[value]
        if known is not None:
            lower, upper = torch.maximum(lower, known[0]), torch.minimum(upper, known[1])
        if value not in self._exact:
            lower, upper = self._tightened(value, step, lower, upper)
        self.intervals[value] = lower, upper
        ends = [step.of(lower), step.of(upper)]
        if step.slope < 0:
            ends.append(step.of(lower.clamp_max(step.low).maximum(upper.clamp_max(step.low))))
        rounding = ROOM * torch.maximum(lower.abs(), upper.abs()) * max(1.0, abs(step.slope))
        stacked = torch.stack(ends)
        self.intervals[step.output] = stacked.amin(0) - rounding, stacked.amax(0) + rounding
        self._bent[step.output] = self._prepared(step, lines(step, lower, upper), rounding)

    def _prepared(self, step: Bend, line: Lines, rounding: Tensor) -> "_Bent":
        """With the offset and the rounding of the step before, if nobody else reads what that makes."""
        size = rounding + _sum_of(step) * (line.lower_offset.abs() + line.upper_offset.abs())
        below, above = line.lower_offset, line.upper_offset
        before = self._affine_before.get(step.output)
        if before is not None:
            below, above = below + line.lower_slope * before.offset, above + line.upper_slope * before.offset
            largest = torch.maximum(line.lower_slope.abs(), line.upper_slope.abs())
            size = size + largest * self._sizes[before.output]
        columns = None
        if size.dim() == 2 and len(size) == 1 and size.shape[1] >= WIDE:
            columns = (line.lower_slope.ne(0) | line.upper_slope.ne(0) | below.ne(0) | above.ne(0))[0].nonzero()[:, 0]
        apart = line.lower_slope - line.upper_slope
        return _Bent(line.upper_slope, apart, above + size, below - above - 2 * size, columns)

    def _tightened(self, value: int, bend: Bend, lower: Tensor, upper: Tensor) -> Interval:
        """The interval of every unit that may cross a knot, by back-substitution.

        First the end on the far side of zero, seen from the image itself: most units turn out not to cross it, and
        what their other end is does not matter then.
        """
        ends = [lower.clone(), upper.clone()]
        side = torch.where(bend.center > bend.low, 1.0, -1.0).to(lower.dtype)
        for sign in (side, -side):
            for place, units in _chunks(crosses(bend, *ends).any(0), self._most_rows(value)):
                index: Any = (slice(None), units, *place)
                signs = sign[index].T
                floor = self._least_of_units(value, place, units, signs) * signs
                ends[0][index] = torch.where(signs > 0, floor, -torch.inf).T.maximum(ends[0][index])
                ends[1][index] = torch.where(signs < 0, floor, torch.inf).T.minimum(ends[1][index])
        return ends[0], ends[1]

    def _shape_of(self, value: int) -> tuple[int, ...]:
        return tuple(self.intervals[value][0].shape[1:])

    def _most_rows(self, value: int) -> int:
        """How many rows a chunk may have: none of their coefficients for a value are too many."""
        widest = max(self.intervals[number][0].numel() for number in self.intervals if number <= value)
        return max(1, NUMBERS // widest)

    def _least_of_units(self, value: int, place: tuple[int, ...], units: Tensor, signs: Tensor) -> Tensor:
        """(M, B): a lower bound on the ball of some units of a value, times their signs."""
        made_by = next((number for number, step in enumerate(self.network.steps) if step.output == value), None)
        maker = None if made_by is None else self.network.steps[made_by]
        if isinstance(maker, AffineStep) and isinstance(maker.layer, Affine) and not place:  # rows of the weight
            rows = Rows(signs.unsqueeze(2) * maker.layer.weight.index_select(0, units).unsqueeze(1))
            at_images, constant = self._back(maker.inputs[0], rows, from_step=made_by or 0)
            return constant + signs * maker.offset[0, units].unsqueeze(1) + self.ball.least(at_images)
        rows = _unit_rows(signs, self._shape_of(value), place, units)
        at_images, constant = self._back(value, rows, from_step=0 if made_by is None else made_by + 1)
        return constant + self.ball.least(at_images)

    def _back(self, value: int, rows: Rows, *, from_step: int) -> tuple[Rows, Tensor]:
        """(functions of the images, constants (M, B)) whose sum is nowhere on the ball above the functions of value."""
        at = {value: rows}
        constant = rows.values.new_zeros(rows.values.shape[:2])
        for step in reversed(self.network.steps[:from_step]):
            a = at.pop(step.output, None)
            if a is None:
                continue
            if isinstance(step, Bend):
                back, more = self._bent[step.output].back(a)
                constant, backs = constant + more, [back]
            else:
                if step.output not in self._joined or step.output == value:  # else the bend after it has done so
                    constant = constant + a.inner(step.offset) - a.inner_absolute(self._sizes[step.output])
                backs = step.back(a)
            for number, found in zip(step.inputs, backs, strict=True):
                at[number] = at[number].plus(found, self._shape_of(number)) if number in at else found
        shape = self._shape_of(0)
        images = at.get(0, Rows(rows.values.new_zeros((*rows.values.shape[:2], *shape)), (0,) * (len(shape) - 1)))
        return images, constant


def _sum_of(step: AffineStep | Bend) -> float:
    """What rounding may do to a sum over a value, and to the few sums that follow, relative to its absolute terms."""
    return (math.prod(step.shape) + 64) * UNIT


@dataclass(frozen=True)
class _Bent:
    """The lines of an activation as they are needed on the way back: of a = p - n, with p the positive part.

    a y >= a (upper z + above) + p ((lower - upper) z + (below - above)), and rounding takes |a| = 2 p - a times its
    size off: that is in the two constants.
    """

    upper: Tensor
    apart: Tensor
    of_all: Tensor
    of_positive: Tensor
    columns: Tensor | None
    """Of the units that are not off; None where that was not looked for."""

    def back(self, a: Rows) -> tuple[Rows, Tensor]:
        """(functions of the activation's input, constants)."""
        if self.columns is not None and a.columns is None:
            a = Rows(a.values.index_select(2, self.columns), columns=self.columns)
        positive = replace(a, values=a.values.clamp_min(0.0))
        constant = a.inner(self.of_all) + positive.inner(self.of_positive)
        values = torch.addcmul(a.values * a.part_of(self.upper), positive.values, a.part_of(self.apart))
        return replace(a, values=values), constant


def _affine_before_bends(network: Network) -> dict[int, AffineStep]:
    readers = Counter(number for step in network.steps for number in step.inputs)
    makers = {step.output: step for step in network.steps}
    found = {}
    for bend in network.bends:
        maker = makers.get(bend.inputs[0])
        if isinstance(maker, AffineStep) and readers[maker.output] == 1 and maker.output != network.output:
            found[bend.output] = maker
    return found


def _chunks(needed: Tensor, most: int) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """(place, units there) of the units (C, ...) that are needed: those of one place see the same neighborhood."""
    if needed.dim() == 1:
        for units in needed.nonzero()[:, 0].split(most):
            yield (), units
        return
    for place in needed.any(0).nonzero().tolist():
        for units in needed[(slice(None), *place)].nonzero()[:, 0].split(most):
            yield tuple(place), units


def _unit_rows(signs: Tensor, shape: tuple[int, ...], place: tuple[int, ...], units: Tensor) -> Rows:
    """The units of one place, times signs (M, B)."""
    values = signs.new_zeros((*signs.shape, shape[0], *[1] * len(place)))
    values[torch.arange(len(units), device=units.device), :, units] = signs.view(*signs.shape, *[1] * len(place))
    return Rows(values, place)
