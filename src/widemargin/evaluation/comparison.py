"""Two models judged on the same images: which one is better, by how much, and could it be chance?

*One evaluation each.* Images are paired. Of n images, b are right for the first model alone and c for the second alone;
the difference is (b - c) / n, its interval a bootstrap over the images (which depends on n, b and c alone), and
McNemar's exact test asks whether b and c could be equal. Numbers for each image (margins, distances, certified radii)
are paired the same way, over images that both models classify correctly; the test is then the sign test.

*Several seeds each.* Seeds, not images, are what varies: the difference is the mean over seeds with Student's interval,
paired by seed where both sides have the same ones, Welch's otherwise.

An interval around a single accuracy is Wilson's, which is right near 0 and 100% too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist, fmean, stdev

import numpy as np
import torch
from torch import Tensor

from widemargin.errors import InputError

LEVEL = 0.95
RESAMPLES = 10_000
NUMBERS = ("margin", "distance", "certified")
"""What is compared in place of verdicts, by its own name."""
_STRONGEST = ("autoattack", "pgd-strongest")
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5% quantiles of Student's t with 1, 2, ... degrees of freedom."""


def wilson(right: int, count: int, level: float = LEVEL) -> tuple[float, float]:
    """The interval of an accuracy in percent: ``right`` of ``count`` images."""
    if not 0 <= right <= count or not count:
        raise InputError(f"wilson takes right of count images, 0 <= right <= count and count > 0, got {right}, {count}")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share, spread = right / count, z * z / count
    center = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return 100 * max(0.0, center - half), 100 * min(1.0, center + half)


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value that images change sides by chance."""
    total, fewer = only_first + only_second, min(only_first, only_second)
    if total == 0:
        return 1.0
    logs = (math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) for k in range(fewer + 1))
    return min(1.0, 2 * math.fsum(math.exp(log - total * math.log(2)) for log in logs))


@dataclass(frozen=True, kw_only=True)
class JudgedImages:
    """What one evaluation says of each image: labels, verdicts by attack, and numbers by name."""

    name: str
    labels: Tensor
    verdicts: Mapping[str, Tensor]
    """(N,) bool: still classified correctly."""
    numbers: Mapping[str, Tensor]
    seed: int | None = None
    """Of the training run."""
    images: Mapping[int, str] | None = None
    """Digests of the images, by the first of each shard, where they are known."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The first model against the second; accuracies in percent, numbers as they are."""

    first: str
    second: str
    by: str
    value_first: float
    value_second: float
    difference: float
    low: float
    high: float
    p_value: float | None
    """McNemar's test, or the sign test; None over seeds, where the interval says it."""
    images: int
    seeds: int
    only_first: int | None = None
    """Images that the first model alone gets right, or for which its number is larger."""
    only_second: int | None = None
    paired: bool = True
    """Whether the same images, or the same seeds, stand on both sides."""

    @property
    def decided(self) -> bool:
        """Whether the interval leaves out zero and the test agrees: of few images the bootstrap alone says too much."""
        return (self.low > 0 or self.high < 0) and (self.p_value is None or self.p_value < 1 - LEVEL)

    def sentence(self) -> str:
        """The answer in one sentence."""
        unit, spell = ("", "{:.4g}") if self.by in NUMBERS else (" points", "{:.2f}")
        shown = [spell.format(value) for value in (self.value_first, self.value_second, abs(self.difference))]
        ends = sorted([abs(self.low), abs(self.high)]) if self.decided else [self.low, self.high]
        interval = " to ".join(spell.format(end) for end in ends)
        over = f"{self.seeds} seeds" if self.seeds > 1 else f"{self.images:,} images"
        test = "" if self.p_value is None else f", p {_p(self.p_value)}"
        evidence = f"(95% interval {interval}{unit}{test}; {over})"
        percent = "" if self.by in NUMBERS else "%"
        if not self.decided:
            return (
                f"By {self.by} no difference is seen: {self.first} {shown[0]}{percent}, {self.second} "
                f"{shown[1]}{percent} {evidence}."
            )
        better, worse = (self.first, self.second) if self.difference > 0 else (self.second, self.first)
        high, low = (shown[0], shown[1]) if self.difference > 0 else (shown[1], shown[0])
        gap = f"{high}{percent} against {low}{percent}, {shown[2]}{unit} more"
        return f"By {self.by} {better} is ahead of {worse}: {gap} {evidence}."


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def compare_judged(first: Sequence[JudgedImages], second: Sequence[JudgedImages], by: str | None = None) -> Comparison:
    """Compare one evaluation with one, or the seeds of one model with those of another."""
    if not first or not second:
        raise InputError("compare takes at least one evaluation for each model")
    by = by or strongest_common([*first, *second])
    for judged in (*first, *second):
        if by not in judged.verdicts and by not in judged.numbers:
            known = ", ".join([*judged.verdicts, *judged.numbers])
            raise InputError(f"compare: {judged.name} was not judged by {by!r}; it has {known}")
    _check_same_images([*first, *second])
    if len(first) == len(second) == 1:
        return _compare_images(first[0], second[0], by)
    return _compare_seeds(first, second, by)


def strongest_common(judged: Sequence[JudgedImages]) -> str:
    """AutoAttack, else the strongest PGD, else the attack (no part of one) under which the fewest images stay right."""
    common = [name for name in judged[0].verdicts if all(name in one.verdicts for one in judged)]
    attacked = [name for name in common if name != "clean" and not name.startswith("autoattack/")]
    if not attacked:
        raise InputError(
            "compare: the evaluations have no attack in common; name with --by what they share: clean, ..."
        )
    return strongest_of(attacked, judged)


def strongest_of(attacks: Sequence[str], judged: Sequence[JudgedImages]) -> str:
    """The same of these attacks, by which all were judged; each may have its eps behind it."""
    for strongest in _STRONGEST:
        for name in attacks:
            if name.partition("@")[0] == strongest:
                return name
    return min(attacks, key=lambda name: sum(float(one.verdicts[name].sum()) for one in judged))


def _check_same_images(judged: Sequence[JudgedImages]) -> None:
    one = judged[0]
    for other in judged[1:]:
        if not torch.equal(one.labels, other.labels):
            raise InputError(
                f"compare: {one.name} and {other.name} were not judged on the same images ({len(one.labels)} and "
                f"{len(other.labels)} labels, which differ); evaluate both with the same data and --limit"
            )
    for one, other in combinations(judged, 2):
        shared = (one.images or {}).keys() & (other.images or {}).keys()
        if one.images and other.images and any(one.images[key] != other.images[key] for key in shared):
            raise InputError(f"compare: {one.name} and {other.name} have equal labels and other images")


def _compare_images(first: JudgedImages, second: JudgedImages, by: str) -> Comparison:
    names = {"first": first.name, "second": second.name, "by": by, "seeds": 1}
    generator = np.random.default_rng(0)
    if by in first.verdicts:
        a, b = first.verdicts[by], second.verdicts[by]
        counts = [int((a & ~b).sum()), int((b & ~a).sum())]
        shares = np.array([*counts, len(a) - sum(counts)]) / len(a)
        drawn = generator.multinomial(len(a), shares, size=RESAMPLES)
        differences = 100 * (drawn[:, 0] - drawn[:, 1]) / len(a)
        values = [100 * float(right.double().mean()) for right in (a, b)]
        count = len(a)
    else:
        chosen = first.verdicts["clean"] & second.verdicts["clean"]
        a, b = first.numbers[by][chosen].double(), second.numbers[by][chosen].double()
        finite = a.isfinite() & b.isfinite()
        a, b, count = a[finite], b[finite], int(finite.sum())
        if not count:
            raise InputError(f"compare: no image has a finite {by} for both {first.name} and {second.name}")
        gaps = (a - b).numpy()
        counts = [int((gaps > 0).sum()), int((gaps < 0).sum())]
        values = [float(a.mean()), float(b.mean())]
        differences = np.array([gaps[generator.integers(count, size=count)].mean() for _ in range(RESAMPLES // 10)])
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Comparison(
        **names,  # type: ignore[arg-type]
        value_first=values[0],
        value_second=values[1],
        difference=values[0] - values[1],
        low=float(low),
        high=float(high),
        p_value=mcnemar(counts[0], counts[1]),
        images=count,
        only_first=counts[0],
        only_second=counts[1],
    )


def _compare_seeds(first: Sequence[JudgedImages], second: Sequence[JudgedImages], by: str) -> Comparison:
    sides = [[_value(judged, by) for judged in side] for side in (first, second)]
    means = [fmean(side) for side in sides]
    ours, theirs = (
        {judged.seed: value for judged, value in zip(side, values, strict=True)}
        for side, values in zip((first, second), sides, strict=True)
    )
    paired = None not in ours and ours.keys() == theirs.keys() and len(ours) == len(first) == len(second)
    if paired:
        gaps = [ours[seed] - theirs[seed] for seed in ours]
        half = student_t(len(gaps) - 1) * stdev(gaps) / math.sqrt(len(gaps))
    elif min(len(side) for side in sides) < 2:
        raise InputError(
            f"compare: {len(first)} seeds against {len(second)}, which are not the same ones; give one evaluation on "
            "each side, or at least two seeds on each"
        )
    else:  # Welch
        squares = [stdev(side) ** 2 / len(side) for side in sides]
        total = sum(squares)
        freedom = total**2 / sum(s**2 / (len(side) - 1) for s, side in zip(squares, sides, strict=True)) if total else 1
        half = student_t(int(freedom)) * math.sqrt(total)
    difference = means[0] - means[1]
    return Comparison(
        first=_common_name(first),
        second=_common_name(second),
        by=by,
        value_first=means[0],
        value_second=means[1],
        difference=difference,
        low=difference - half,
        high=difference + half,
        p_value=None,
        images=len(first[0].labels),
        seeds=min(len(first), len(second)),
        paired=paired,
    )


def _value(judged: JudgedImages, by: str) -> float:
    """Accuracy in percent, or the mean number over correctly classified images that have one."""
    if by in judged.verdicts:
        return 100 * float(judged.verdicts[by].double().mean())
    values = judged.numbers[by][judged.verdicts["clean"]].double()
    return float(values[values.isfinite()].mean())


def student_t(freedom: int) -> float:
    """Student's 97.5% quantile; beyond the table by the expansion around the normal one, right to 3 digits."""
    if freedom <= len(_T):
        return _T[max(1, freedom) - 1]
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _common_name(judged: Sequence[JudgedImages]) -> str:
    """The name without what tells its seeds apart."""
    return judged[0].name.rsplit("/", 1)[0] if len(judged) > 1 and "/" in judged[0].name else judged[0].name
