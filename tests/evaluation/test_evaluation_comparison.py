"""Two models on the same images: intervals and tests against counting, enumeration and simulation."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from widemargin.errors import InputError
from widemargin.evaluation.comparison import JudgedImages, compare_judged, mcnemar, student_t, wilson


def judged(name: str, right: torch.Tensor, seed: int | None = None, **more: torch.Tensor) -> JudgedImages:
    clean = torch.ones_like(right)
    labels = torch.arange(len(right)) % 10
    return JudgedImages(
        name=name, labels=labels, verdicts={"clean": clean, "autoattack": right}, numbers=more, seed=seed
    )


@pytest.mark.parametrize(("only_first", "only_second"), list(product(range(6), range(6))))
def test_mcnemar_is_the_share_of_coin_flips_at_least_as_uneven(only_first: int, only_second: int) -> None:
    flips = list(product((0, 1), repeat=only_first + only_second))
    uneven = abs(only_first - only_second)
    share = sum(abs(2 * sum(one) - len(one)) >= uneven for one in flips) / len(flips)
    assert mcnemar(only_first, only_second) == pytest.approx(share)


def test_mcnemar_of_many_images_is_finite() -> None:
    assert 0 <= mcnemar(9_000, 1_000) < 1e-300 or mcnemar(9_000, 1_000) == 0
    assert mcnemar(5_000, 5_000) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("right", [0, 1, 7, 50, 99, 100])
def test_wilson_ends_where_the_score_test_does(right: int) -> None:
    """At each end, p solves |share - p| = z sqrt(p (1 - p) / n)."""
    z = 1.959964
    for end in wilson(right, 100):
        p = end / 100
        if 0 < p < 1:
            assert abs(right / 100 - p) == pytest.approx(z * math.sqrt(p * (1 - p) / 100), rel=1e-5)
    low, high = wilson(right, 100)
    assert 0 <= low <= right <= high <= 100 + 1e-9


def test_the_bootstrap_over_images_equals_one_that_draws_them() -> None:
    generator = np.random.default_rng(1)
    a, b = generator.random(300) < 0.6, generator.random(300) < 0.5
    draws = generator.integers(300, size=(20_000, 300))
    differences = 100 * (a[draws].mean(1) - b[draws].mean(1))
    found = compare_judged([judged("a", torch.tensor(a))], [judged("b", torch.tensor(b))])
    assert found.difference == pytest.approx(100 * (a.mean() - b.mean()))
    assert [found.low, found.high] == pytest.approx(np.quantile(differences, [0.025, 0.975]).tolist(), abs=0.7)
    assert (found.only_first, found.only_second) == ((a & ~b).sum(), (b & ~a).sum())


def test_a_model_against_itself_shows_no_difference() -> None:
    right = torch.arange(50) % 3 > 0
    found = compare_judged([judged("a", right)], [judged("b", right)])
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)
    assert "no difference is seen" in found.sentence()


def test_a_handful_of_images_decides_nothing_though_the_bootstrap_leaves_out_zero() -> None:
    every = torch.ones(10_000, dtype=torch.bool)
    for lost, decided in ((5, False), (6, True)):  # p is 2 / 2^lost
        found = compare_judged([judged("a", every)], [judged("b", torch.arange(10_000) >= lost)])
        assert found.low > 0
        assert found.decided == decided
        assert ("no difference is seen" in found.sentence()) != decided


def test_the_sentence_names_the_better_model_whichever_comes_first() -> None:
    good, bad = torch.arange(1000) % 10 > 0, torch.arange(1000) % 2 > 0
    for first, second in ((good, bad), (bad, good)):
        names = ("good", "bad") if first is good else ("bad", "good")
        sentence = compare_judged([judged(names[0], first)], [judged(names[1], second)]).sentence()
        assert sentence.startswith("By autoattack good is ahead of bad: 90.00% against 50.00%, 40.00 points more")
        assert "p < 0.001" in sentence


def test_seeds_are_paired_and_their_interval_is_students() -> None:
    def side(name: str, counts: list[int]) -> list[JudgedImages]:
        return [judged(f"{name}/seed-{n}", torch.arange(1000) < count, seed=n) for n, count in enumerate(counts)]

    found = compare_judged(side("a", [800, 820, 810]), side("b", [790, 800, 795]))
    gaps = [1.0, 2.0, 1.5]
    half = 4.303 * np.std(gaps, ddof=1) / math.sqrt(3)
    assert found.difference == pytest.approx(1.5)
    assert [found.low, found.high] == pytest.approx([1.5 - half, 1.5 + half])
    assert (found.seeds, found.paired, found.p_value, found.first) == (3, True, None, "a")
    unpaired = compare_judged(side("a", [800, 820, 810]), side("b", [790, 800]))
    assert not unpaired.paired
    assert unpaired.difference == pytest.approx(81.0 - 79.5)
    assert unpaired.high - unpaired.low > found.high - found.low


@pytest.mark.parametrize("freedom", [1, 2, 5, 15, 16, 30, 200])
def test_the_quantile_of_students_t_leaves_out_a_fortieth(freedom: int) -> None:
    t = np.linspace(0, student_t(freedom), 200_001)
    density = (1 + t**2 / freedom) ** (-(freedom + 1) / 2)
    logs = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    assert math.exp(logs) * np.trapezoid(density, t) == pytest.approx(0.475, abs=1e-4)


def test_seeds_that_are_not_the_same_have_welchs_interval() -> None:
    """Squared standard errors add up; the degrees of freedom are Satterthwaite's, rounded down."""

    def side(name: str, counts: list[int], first: int) -> list[JudgedImages]:
        return [judged(f"{name}/{n}", torch.arange(1000) < count, seed=first + n) for n, count in enumerate(counts)]

    a, b = [700, 740, 720, 760], [650, 655, 645]
    found = compare_judged(side("a", a, 0), side("b", b, 10))
    variances = [np.var(np.array(counts) / 10, ddof=1) / len(counts) for counts in (a, b)]
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / 3 + variances[1] ** 2 / 2)
    assert int(freedom) == 3
    assert not found.paired
    assert found.difference == pytest.approx(73.0 - 65.0)
    assert found.high - found.difference == pytest.approx(3.182 * math.sqrt(sum(variances)))


def test_numbers_are_paired_over_images_that_both_classify_correctly() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, math.inf, 4.0, 5.0, 6.0, 7.0])
    a = judged("a", torch.ones(8, dtype=torch.bool), margin=values + 0.5)
    b = judged("b", torch.ones(8, dtype=torch.bool), margin=values)
    found = compare_judged([a], [b], by="margin")
    assert (found.images, found.only_first, found.only_second) == (7, 7, 0)
    assert found.difference == pytest.approx(0.5)
    assert "By margin a is ahead of b: 4.5 against 4, 0.5 more" in found.sentence()


def test_without_a_name_the_strongest_common_attack_is_compared() -> None:
    right = torch.ones(10, dtype=torch.bool)

    def with_verdicts(**names: torch.Tensor) -> JudgedImages:
        return JudgedImages(name="m", labels=torch.zeros(10), verdicts={"clean": right, **names}, numbers={})

    weak, strong = torch.arange(10) < 8, torch.arange(10) < 3
    one, other = with_verdicts(fgsm=weak, pgd20=strong, autoattack=strong), with_verdicts(fgsm=weak, pgd20=strong)
    assert compare_judged([one], [one]).by == "autoattack"
    assert compare_judged([one], [other]).by == "pgd20"


REFUSALS = {
    "another attack": (
        judged("a", torch.ones(4).bool()),
        judged("b", torch.ones(4).bool()),
        "fgsm",
        "not judged by 'fgsm'",
    ),
    "other images": (
        judged("a", torch.ones(4).bool()),
        judged("b", torch.ones(5).bool()),
        None,
        "not judged on the same",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_compared_is_refused(case: str) -> None:
    one, other, by, message = REFUSALS[case]
    with pytest.raises(InputError, match=message):
        compare_judged([one], [other], by)


def test_equal_labels_of_other_images_are_refused_where_digests_tell() -> None:
    one, other = (
        JudgedImages(name=n, labels=torch.zeros(3), verdicts={"clean": torch.ones(3).bool()}, numbers={}, images={0: n})
        for n in "ab"
    )
    with pytest.raises(InputError, match="equal labels and other images"):
        compare_judged([one], [other], "clean")
