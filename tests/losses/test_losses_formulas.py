"""The losses against their formulas written out in plain Python, one sample and one class at a time."""

import inspect
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from widemargin import InputError, losses

# The formulas; lists of floats, the largest subtracted before exp, nothing else clever


def log_softmax(z: Sequence[float]) -> list[float]:
    top = max(z)
    total = math.log(sum(math.exp(value - top) for value in z))
    return [value - top - total for value in z]


def softmax(z: Sequence[float]) -> list[float]:
    return [math.exp(value) for value in log_softmax(z)]


def ce(z: Sequence[float], y: int) -> float:
    return -log_softmax(z)[y]


def smoothed(z: Sequence[float], y: int) -> float:
    """A tenth of the target is divided among all classes."""
    target = [0.1 / len(z) + (0.9 if k == y else 0.0) for k in range(len(z))]
    return -sum(t * p for t, p in zip(target, log_softmax(z), strict=True))


def kl(z: Sequence[float], z_adv: Sequence[float]) -> float:
    return sum(math.exp(p) * (p - q) for p, q in zip(log_softmax(z), log_softmax(z_adv), strict=True))


def best_wrong(p: Sequence[float], y: int) -> float:
    return max(value for k, value in enumerate(p) if k != y)


def boosted(z_adv: Sequence[float], y: int, label: Sequence[float]) -> float:
    return ce(label, y) - math.log(1.0001 - best_wrong(softmax(z_adv), y) + 1e-12)


def mart_kl(z: Sequence[float], z_adv: Sequence[float], y: int) -> float:
    p, q = softmax(z), softmax(z_adv)
    rows = zip(p, log_softmax(z), q, strict=True)
    divergence = sum(p_k * (log_p - math.log(q_k + 1e-12)) for p_k, log_p, q_k in rows)
    return divergence * (1.0000001 - p[y])


def weight_of(z_adv: Sequence[float], y: int, slope: float, bias: float) -> float:
    p = softmax(z_adv)
    return 3 / (1 + math.exp(-slope * (bias - (p[y] - best_wrong(p, y)))))


# (clean, adversarial, other, label) of one sample -> its loss; "other" is the teacher of LBGAT and the label logits of
# the rest

SLOPE, BIAS, BETA = 7.0, 0.1, 5.5


def trades_slowly(z, z_adv, other, y):
    return ce(other, y) + BETA * kl(z, z_adv)


def mart_slowly(z, z_adv, other, y):
    return boosted(z_adv, y, other) + BETA * mart_kl(z, z_adv, y)


def mail_at_slowly(z, z_adv, other, y):
    return weight_of(z_adv, y, SLOPE, BIAS) * ce(other, y)


def mail_trades_slowly(z, z_adv, other, y):
    return ce(other, y) + BETA * weight_of(z_adv, y, SLOPE, BIAS) * kl(z, z_adv)


def mail_mart_slowly(z, z_adv, other, y):
    return weight_of(z_adv, y, SLOPE, BIAS) * boosted(z_adv, y, other) + BETA * mart_kl(z, z_adv, y)


def lbgat_slowly(z, z_adv, other, y):
    square = sum((a - b) ** 2 for a, b in zip(z_adv, other, strict=True)) / len(z)
    return square + ce(other, y) + BETA * kl(z, z_adv)


def hypersphere_slowly(z, z_adv, other, y):
    return ce([4.0 * (c - (0.3 if k == y else 0.0)) for k, c in enumerate(z)], y)


Slow = Callable[[list[float], list[float], list[float], int], float]
Fast = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
WITH_LABEL_LOGITS: dict[str, tuple[Slow, Callable[..., Tensor], int]] = {
    # the formula, the loss, and which logits the label's term sees by itself: the clean (0) or the adversarial ones (1)
    "trades": (trades_slowly, lambda z, a, y, **label: losses.trades(z, a, y, BETA, **label), 0),
    "mart": (mart_slowly, lambda z, a, y, **label: losses.mart(z, a, y, BETA, **label), 1),
    "mail_at": (mail_at_slowly, lambda z, a, y, **label: losses.mail_at(a, y, SLOPE, BIAS, **label), 1),
    "mail_trades": (
        mail_trades_slowly,
        lambda z, a, y, **label: losses.mail_trades(z, a, y, BETA, SLOPE, BIAS, **label),
        0,
    ),
    "mail_mart": (mail_mart_slowly, lambda z, a, y, **label: losses.mail_mart(z, a, y, BETA, SLOPE, BIAS, **label), 1),
}
FORMULAS: dict[str, tuple[Slow, Fast]] = {
    name: (slow, lambda z, a, o, y, fast=fast: fast(z, a, y, label_logits=o))
    for name, (slow, fast, _) in WITH_LABEL_LOGITS.items()
} | {
    "lbgat": (lbgat_slowly, lambda z, a, o, y: losses.lbgat(z, a, o, y, BETA)),
    "hypersphere": (hypersphere_slowly, lambda z, a, o, y: losses.hypersphere(z, y, 4.0, 0.3)),
    "cross_entropy smoothed": (lambda z, a, o, y: smoothed(z, y), lambda z, a, o, y: losses.cross_entropy(z, y, 0.1)),
    "trades smoothed": (
        lambda z, a, o, y: smoothed(o, y) + BETA * kl(z, a),
        lambda z, a, o, y: losses.trades(z, a, y, BETA, label_logits=o, label_smoothing=0.1),
    ),
    "mail_at smoothed": (
        lambda z, a, o, y: weight_of(a, y, SLOPE, BIAS) * smoothed(o, y),
        lambda z, a, o, y: losses.mail_at(a, y, SLOPE, BIAS, label_logits=o, label_smoothing=0.1),
    ),
    "mail_trades smoothed": (
        lambda z, a, o, y: smoothed(o, y) + BETA * weight_of(a, y, SLOPE, BIAS) * kl(z, a),
        lambda z, a, o, y: losses.mail_trades(z, a, y, BETA, SLOPE, BIAS, label_logits=o, label_smoothing=0.1),
    ),
    "lbgat smoothed": (
        lambda z, a, o, y: lbgat_slowly(z, a, o, y) - ce(o, y) + smoothed(o, y),
        lambda z, a, o, y: losses.lbgat(z, a, o, y, BETA, label_smoothing=0.1),
    ),
    "cross_entropy": (lambda z, a, o, y: ce(z, y), lambda z, a, o, y: losses.cross_entropy(z, y)),
}


def logits_of(batch: int, classes: int, *, spread: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z, a, o = (spread * torch.randn(batch, classes, generator=generator, dtype=torch.float64) for _ in range(3))
    return z, a, o, torch.randint(classes, (batch,), generator=generator)


def slowly(slow: Slow, z: Tensor, a: Tensor, o: Tensor, y: Tensor) -> Tensor:
    rows = zip(z.tolist(), a.tolist(), o.tolist(), y.tolist(), strict=True)
    return torch.tensor([slow(*row) for row in rows], dtype=torch.float64)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize(("batch", "classes"), [(5, 10), (1, 10), (4, 2), (1, 2), (3, 100)])
def test_the_value_of_every_sample(name: str, batch: int, classes: int) -> None:
    slow, fast = FORMULAS[name]
    inputs = logits_of(batch, classes)
    torch.testing.assert_close(fast(*inputs), slowly(slow, *inputs), rtol=1e-10, atol=1e-12)
    assert fast(*inputs).shape == (batch,)


ANY_LABELS = {name: fast for name, (_, fast) in FORMULAS.items()} | {
    "large_margin": lambda z, a, o, y: losses.large_margin_logits(z, a[:4].repeat(3, 1), y, 4, 0.0)
}


@pytest.mark.parametrize("name", ANY_LABELS)
@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_whole_type(name: str, kind: torch.dtype) -> None:
    fast, (*logits, y) = ANY_LABELS[name], logits_of(5, 10)
    assert torch.equal(fast(*logits, y.to(kind)), fast(*logits, y))


@pytest.mark.parametrize("name", WITH_LABEL_LOGITS)
def test_without_label_logits_the_prediction_is_judged(name: str) -> None:
    (z, a, o, y), (slow, fast, judged) = logits_of(5, 10), WITH_LABEL_LOGITS[name]
    expected = slowly(slow, z, a, (z, a)[judged], y)
    torch.testing.assert_close(fast(z, a, y), expected, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(FORMULAS[name][1](z, a, o, y), expected)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("spread", [30.0, 300.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_saturated_logits_stay_finite(name: str, spread: float, dtype: torch.dtype) -> None:
    slow, fast = FORMULAS[name]
    z, a, o, y = logits_of(6, 5, spread=spread)
    z, a, o = (t.to(dtype).requires_grad_(True) for t in (z, a, o))
    loss = fast(z, a, o, y)
    expected = slowly(slow, z.detach().double(), a.detach().double(), o.detach().double(), y)
    rtol, atol = (1e-10, 1e-10) if dtype == torch.float64 else (1e-4, 1e-4)
    torch.testing.assert_close(loss.detach().double(), expected, rtol=rtol, atol=atol)
    for gradient in torch.autograd.grad(loss.sum(), (z, a, o), allow_unused=True):
        assert gradient is None or gradient.isfinite().all()


@pytest.mark.parametrize("name", ["trades", "mart", "lbgat", "hypersphere"])
@pytest.mark.parametrize(("batch", "classes"), [(1, 2), (2, 4)])
def test_nothing_is_detached(name: str, batch: int, classes: int) -> None:
    z, a, o, y = logits_of(batch, classes, spread=1.0)
    leaves = [t.requires_grad_(True) for t in (z, a, o)]
    assert torch.autograd.gradcheck(lambda z, a, o: FORMULAS[name][1](z, a, o, y), leaves)


@pytest.mark.parametrize("name", ["mail_at", "mail_trades", "mail_mart"])
def test_the_weights_of_mail_are_constants_for_the_gradient(name: str) -> None:
    z, a, o, y = logits_of(3, 4, spread=1.0)
    z, a, o = (t.requires_grad_(True) for t in (z, a, o))
    weights = [weight_of(row, label, SLOPE, BIAS) for row, label in zip(a.tolist(), y.tolist(), strict=True)]
    w = torch.tensor(weights, dtype=torch.float64)
    terms = {
        "mail_at": lambda: w * losses.cross_entropy(o, y),
        "mail_trades": lambda: losses.cross_entropy(o, y) + BETA * w * losses.kl_divergence(z, a),
        "mail_mart": lambda: (
            w * losses.mart(z, a, y, 0.0, label_logits=o)
            + losses.mart(z, a, y, BETA, label_logits=o)
            - losses.mart(z, a, y, 0.0, label_logits=o)
        ),
    }
    expected = torch.autograd.grad(terms[name]().sum(), (z, a, o), allow_unused=True)
    actual = torch.autograd.grad(FORMULAS[name][1](z, a, o, y).sum(), (z, a, o), allow_unused=True)
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["mail_at", "mail_trades", "mail_mart"])
def test_weights_of_mean_one(name: str) -> None:
    z, a, _, y = logits_of(6, 5)
    published = losses.mail_weights(a, y, SLOPE, BIAS)
    rescaled = losses.mail_weights(a, y, SLOPE, BIAS, mean_one=True)
    w = [weight_of(row, label, SLOPE, BIAS) for row, label in zip(a.tolist(), y.tolist(), strict=True)]
    torch.testing.assert_close(published, torch.tensor(w, dtype=torch.float64))
    torch.testing.assert_close(rescaled, torch.tensor([6 * value / sum(w) for value in w], dtype=torch.float64))
    one, other = (WITH_LABEL_LOGITS[name][1](z, a, y, mean_one=mean_one) for mean_one in (True, False))
    unweighted = {
        "mail_at": torch.zeros(6),
        "mail_trades": losses.cross_entropy(z, y),
        "mail_mart": losses.mart(z, a, y, BETA) - losses.mart(z, a, y, 0.0),
    }[name]
    torch.testing.assert_close(one - unweighted, (other - unweighted) * rescaled / published)


def test_the_cosine_margin_is_the_labels_alone() -> None:
    cosines, y = torch.tensor([[0.5, -1.0], [1.0, 0.0]], dtype=torch.float64), torch.tensor([1, 0])
    expected = torch.tensor([[5.0, -12.0], [8.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(losses.hypersphere_logits(cosines, y, 10.0, 0.2), expected)


# L-Softmax


def large_margin_slowly(f: Sequence[float], w: Sequence[Sequence[float]], y: int, m: int, lam: float) -> list[float]:
    """By the angle itself: m theta in place of theta, continued so that it keeps falling."""
    logits = [sum(a * b for a, b in zip(row, f, strict=True)) for row in w]
    length = math.hypot(*w[y]) * math.hypot(*f)
    theta = math.acos(max(-1.0, min(1.0, logits[y] / length)))
    k = min(math.floor(m * theta / math.pi), m - 1)
    psi = (-1) ** k * math.cos(m * theta) - 2 * k
    logits[y] = length * (lam * math.cos(theta) + psi) / (1 + lam)
    return logits


@pytest.mark.parametrize("margin", [1, 2, 3, 4])
@pytest.mark.parametrize("annealing", [0.0, 3.0])
@pytest.mark.parametrize(("batch", "classes"), [(6, 5), (1, 2), (3, 100)])
def test_large_margin_logits_by_angles(margin: int, annealing: float, batch: int, classes: int) -> None:
    features, y = logits_of(batch, 4)[0], torch.arange(batch) % classes
    weight = torch.randn(classes, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rows = zip(features.tolist(), y.tolist(), strict=True)
    expected = [large_margin_slowly(f, weight.tolist(), label, margin, annealing) for f, label in rows]
    actual = losses.large_margin_logits(features, weight, y, margin, annealing)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-7)


@pytest.mark.parametrize("margin", [2, 3, 4])
def test_a_larger_angle_always_costs(margin: int) -> None:
    angles = torch.linspace(0, torch.pi, 400, dtype=torch.float64)
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    label = losses.large_margin_logits(
        features, torch.eye(2, dtype=torch.float64), torch.zeros(400, dtype=torch.int64), margin, 0.0
    )[:, 0]
    assert (label.diff() < 1e-9).all()
    torch.testing.assert_close(label[[0, -1]], torch.tensor([1.0, 1.0 - 2 * margin], dtype=torch.float64))


@pytest.mark.parametrize("margin", [1, 2, 3, 4])
@pytest.mark.parametrize("feature", [[0.0, 0.0], [3.0, 0.0], [-3.0, 0.0]], ids=["zero", "parallel", "opposite"])
def test_gradients_stay_finite_at_the_ends_of_the_angle(margin: int, feature: list[float]) -> None:
    features = torch.tensor([feature], requires_grad=True)
    weight = torch.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    losses.large_margin_logits(features, weight, torch.tensor([0]), margin, 0.5).sum().backward()
    assert features.grad is not None
    assert features.grad.isfinite().all()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("margin", [0, 5, 2.5])
def test_other_margins_are_refused(margin: float) -> None:
    with pytest.raises(InputError, match=rf"large_margin_logits: margin must be one of 1, 2, 3, 4, got {margin}"):
        losses.large_margin_logits(torch.ones(1, 2), torch.ones(3, 2), torch.tensor([0]), margin, 0.0)  # type: ignore[arg-type]


# Contracts


@pytest.mark.parametrize("name", [name for name in FORMULAS if name != "hypersphere"])  # cosines are never half
def test_half_precision_logits_are_judged_in_float32(name: str) -> None:
    slow, fast = FORMULAS[name]
    z, a, o, y = logits_of(5, 10)
    z, a, o = (t.bfloat16() for t in (z, a, o))
    loss = fast(z, a, o, y)
    assert loss.dtype == torch.float32
    expected = slowly(slow, z.double(), a.double(), o.double(), y)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (losses.trades, ["logits", "logits_adv", "y", "beta"]),
        (losses.mart, ["logits", "logits_adv", "y", "weight"]),
        (losses.mail_weights, ["logits_adv", "y", "slope", "bias"]),
        (losses.mail_at, ["logits_adv", "y", "slope", "bias"]),
        (losses.mail_trades, ["logits", "logits_adv", "y", "beta", "slope", "bias"]),
        (losses.mail_mart, ["logits", "logits_adv", "y", "weight", "slope", "bias"]),
        (losses.lbgat, ["student", "student_adv", "teacher", "y", "beta"]),
        (losses.hypersphere, ["cosines", "y", "scale", "margin"]),
        (losses.large_margin_logits, ["features", "weight", "y", "margin", "annealing"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_published_signatures(function: Callable[..., Tensor], names: list[str]) -> None:
    parameters = inspect.signature(function).parameters.values()
    required = [p for p in parameters if p.default is p.empty]
    assert [p.name for p in required] == names
    assert {p.kind for p in required} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert {p.kind for p in parameters if p not in required} <= {inspect.Parameter.KEYWORD_ONLY}
