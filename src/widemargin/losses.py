"""The losses of the compared methods as pure functions of logits: each returns (B,), the value of every sample.

Notation: z clean logits, z' adversarial, p = softmax z, p' = softmax z', CE cross-entropy, KL_i = KL(p_i || p'_i) (the
clean prediction is the target). Nothing is detached unless said. A mean over the batch gives the published loss.

``label_logits`` are what the label's cross-entropy sees where a head trains with other logits than it predicts with (a
margin for the label); every other term keeps to the predicting logits, for those carry no label.

``predicted`` says of each sample whether it is classified correctly: what accuracy, clean or under attack, counts.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from widemargin.core import batch_share
from widemargin.errors import InputError

# MART's three small constants, as published.
_MART_LOG_FLOOR = 1e-12
_MART_RUNNER_UP = 1.0001
_MART_CLEAN = 1.0000001
FEWEST_FOR_DLR = 3
MAIL_SCALE = 3.0
"""The released MAIL weights are three times a sigmoid and not normalized over the batch."""


def wide(logits: Tensor) -> Tensor:
    """Half-precision logits as float32; wider ones as they are."""
    return logits.float() if logits.itemsize < 4 else logits


def cross_entropy(logits: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """CE: -log softmax(z)_y; with label smoothing s, (1 - s) of it and s times the mean over all classes.

    Of mixed labels the sum over the classes, each with its share.
    """
    logits = wide(logits)
    target = y.to(logits.dtype) if is_mixed(y) else y.long()
    return F.cross_entropy(logits, target, reduction="none", label_smoothing=label_smoothing)


def is_mixed(y: Tensor) -> bool:
    """Whether labels are shares (B, K): how much of an image is of each class, as CutMix makes them."""
    return y.is_floating_point()


def label_shares(y: Tensor, values: Tensor) -> Tensor:
    """(B, K) in the type of these values: the shares of mixed labels; of others a one and zeros."""
    return (y if is_mixed(y) else F.one_hot(y.long(), values.shape[1])).to(values.dtype)


def lead_of_another(logits: Tensor, y: Tensor) -> Tensor:
    """max_{k != y} z_k - z_y: positive where another class wins."""
    logits = wide(logits)
    return _largest_wrong(logits, y) - _of_label(logits, y)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """AutoAttack's difference of logits ratio, (max_{k != y} z_k - z_y) / (z_(1) - z_(3) + 1e-12), sorted downwards.

    The lead of another class, the same whatever the scale and the shift of the logits.
    """
    if logits.shape[1] < FEWEST_FOR_DLR:
        raise InputError(
            f"dlr: it divides by z_(1) - z_(3), so it needs {FEWEST_FOR_DLR} classes, got {logits.shape[1]}"
        )
    first, _, third = wide(logits).topk(3, dim=1).values.unbind(1)
    return lead_of_another(logits, y) / (first - third + 1e-12)


def carlini_wagner(logits: Tensor, y: Tensor) -> Tensor:
    """min(max_{k != y} z_k - z_y, 0): Carlini and Wagner's clamp at no confidence; beyond the boundary it is flat."""
    return lead_of_another(logits, y).clamp(max=0)


def kl_divergence(logits: Tensor, logits_adv: Tensor) -> Tensor:
    """KL(p || p'): gradients flow through both."""
    log_p = F.log_softmax(wide(logits), dim=1)
    log_p_adv = F.log_softmax(wide(logits_adv), dim=1)
    return (log_p.exp() * (log_p - log_p_adv)).sum(1)


def squared_distance(logits: Tensor, logits_adv: Tensor) -> Tensor:
    """||p' - p||^2: gradients flow through both."""
    return (torch.softmax(wide(logits_adv), dim=1) - torch.softmax(wide(logits), dim=1)).square().sum(1)


def score(
    logits: Tensor,
    logits_adv: Tensor,
    y: Tensor,
    beta: float,
    *,
    clip: float = 0.0,
    label_smoothing: float = 0.0,
    label_logits: Tensor | None = None,
) -> Tensor:
    """SCORE: ||p - t||^2 + beta max(||p' - p||^2 - clip, 0).

    The target t is 1 - s of the label and s / (K - 1) of every other class, s the label smoothing.
    """
    p = torch.softmax(wide(logits if label_logits is None else label_logits), dim=1)
    others = label_smoothing / (p.shape[1] - 1)
    target = label_shares(y, p) * (1 - label_smoothing - others) + others
    return (p - target).square().sum(1) + beta * (squared_distance(logits, logits_adv) - clip).clamp_min(0)


def trades(
    logits: Tensor,
    logits_adv: Tensor,
    y: Tensor,
    beta: float,
    *,
    label_logits: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """TRADES: CE(z, y) + beta KL."""
    label = cross_entropy(logits if label_logits is None else label_logits, y, label_smoothing)
    return label + beta * kl_divergence(logits, logits_adv)


def mart(logits: Tensor, logits_adv: Tensor, y: Tensor, weight: float, *, label_logits: Tensor | None = None) -> Tensor:
    """MART: a boosted cross-entropy on x' plus a KL weighted by how unsure the clean prediction is."""
    return _boosted_cross_entropy(logits_adv, y, label_logits) + weight * _mart_kl(logits, logits_adv, y)


def _boosted_cross_entropy(logits_adv: Tensor, y: Tensor, label_logits: Tensor | None) -> Tensor:
    """CE(z', y) - log(1.0001 - largest wrong p' + 1e-12)."""
    runner_up = _largest_wrong(torch.softmax(wide(logits_adv), dim=1), y)
    label = cross_entropy(logits_adv if label_logits is None else label_logits, y)
    return label - torch.log(_MART_RUNNER_UP - runner_up + _MART_LOG_FLOOR)


def _mart_kl(logits: Tensor, logits_adv: Tensor, y: Tensor) -> Tensor:
    """sum_k p_k (log p_k - log(p'_k + 1e-12)) times (1.0000001 - p_y); the factor receives a gradient too."""
    log_p = F.log_softmax(wide(logits), dim=1)
    log_p_adv = torch.log(torch.softmax(wide(logits_adv), dim=1) + _MART_LOG_FLOOR)
    divergence = (log_p.exp() * (log_p - log_p_adv)).sum(1)
    return divergence * (_MART_CLEAN - _of_label(log_p, y).exp())


def mail_weights(logits_adv: Tensor, y: Tensor, slope: float, bias: float, *, mean_one: bool = False) -> Tensor:
    """MAIL: 3 sigmoid(slope (bias - PM)), PM = p'_y - largest wrong p'; a constant for the gradient.

    With ``mean_one`` they are rescaled to mean 1 over the batch, as the MAIL paper writes them.
    """
    p_adv = torch.softmax(wide(logits_adv.detach()), dim=1)
    margin = _of_label(p_adv, y) - _largest_wrong(p_adv, y)
    weights = MAIL_SCALE * torch.sigmoid(slope * (bias - margin))
    return weights / batch_share.batch_mean(weights) if mean_one else weights


def mail_at(
    logits_adv: Tensor,
    y: Tensor,
    slope: float,
    bias: float,
    *,
    mean_one: bool = False,
    label_logits: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """MAIL over AT: w CE(z', y)."""
    label = cross_entropy(logits_adv if label_logits is None else label_logits, y, label_smoothing)
    return mail_weights(logits_adv, y, slope, bias, mean_one=mean_one) * label


def mail_trades(
    logits: Tensor,
    logits_adv: Tensor,
    y: Tensor,
    beta: float,
    slope: float,
    bias: float,
    *,
    mean_one: bool = False,
    label_logits: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """MAIL over TRADES: CE(z, y) + beta w KL; only the KL is weighted."""
    weights = mail_weights(logits_adv, y, slope, bias, mean_one=mean_one)
    label = cross_entropy(logits if label_logits is None else label_logits, y, label_smoothing)
    return label + beta * weights * kl_divergence(logits, logits_adv)


def mail_mart(
    logits: Tensor,
    logits_adv: Tensor,
    y: Tensor,
    weight: float,
    slope: float,
    bias: float,
    *,
    mean_one: bool = False,
    label_logits: Tensor | None = None,
) -> Tensor:
    """MAIL over MART: w times the boosted cross-entropy; MART's KL term as it is."""
    weights = mail_weights(logits_adv, y, slope, bias, mean_one=mean_one)
    return weights * _boosted_cross_entropy(logits_adv, y, label_logits) + weight * _mart_kl(logits, logits_adv, y)


def lbgat(
    student: Tensor, student_adv: Tensor, teacher: Tensor, y: Tensor, beta: float, *, label_smoothing: float = 0.0
) -> Tensor:
    """LBGAT: mean_k (z'_k - t_k)^2 + CE(t, y) + beta KL of the student; the teacher learns from the square too."""
    guidance = (wide(student_adv) - wide(teacher)).square().mean(1)
    return guidance + cross_entropy(teacher, y, label_smoothing) + beta * kl_divergence(student, student_adv)


def ikl(
    logits: Tensor,
    logits_adv: Tensor,
    y: Tensor,
    prior: Tensor,
    *,
    alpha: float,
    beta: float,
    gamma: float = 1.0,
    label_logits: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """IKL and GKL: CE(z, y) + alpha (-sum_k p_k log p'_k) + beta / 4 sum_jk w_j w_k (d_j - d_k)^2, d = z' - z.

    The target p of the second term is held; the third differentiates both logits. w = prior^gamma, (B, K), constants;
    the third term is divided by the batch mean of (sum_k w_k)^2, which is 1 where gamma is. It is computed as the
    variance that it is.
    """
    label = cross_entropy(logits if label_logits is None else label_logits, y, label_smoothing)
    imitation = -(F.softmax(wide(logits.detach()), dim=1) * F.log_softmax(wide(logits_adv), dim=1)).sum(1)
    change = wide(logits_adv) - wide(logits)
    weights = prior.detach().to(change.dtype) ** gamma
    total = weights.sum(1)
    mean = (weights * change).sum(1) / total
    spread = total * (weights * (change - mean[:, None]).square()).sum(1)
    return label + alpha * imitation + beta / 2 * spread / batch_share.batch_mean(total.square())


def hypersphere(cosines: Tensor, y: Tensor, scale: float, margin: float) -> Tensor:
    """HE: CE(s (cos - m onehot(y)), y) for cosines in [-1, 1]."""
    return cross_entropy(hypersphere_logits(cosines, y, scale, margin), y)


def hypersphere_logits(cosines: Tensor, y: Tensor, scale: float, margin: float) -> Tensor:
    """(B, K): s (cos - m onehot(y)), what HE's training cross-entropy sees; mixed labels share the margin."""
    return scale * (cosines - margin * label_shares(y, cosines))


def large_margin_logits(features: Tensor, weight: Tensor, y: Tensor, margin: int, annealing: float | Tensor) -> Tensor:
    """L-Softmax, (B, K): plain logits w_j . f except the label's, |w_y||f| (lambda cos + psi) / (1 + lambda).

    psi = (-1)^k cos(m theta) - 2k with k = floor(m theta / pi) held constant: a version of cos(theta) that falls m
    times as fast, so that the label must win by an angle. m = 1 is plain softmax without a bias.
    """
    if margin not in _MULTIPLE_ANGLE:
        raise InputError(
            f"large_margin_logits: margin must be one of {', '.join(map(str, _MULTIPLE_ANGLE))}, got {margin!r}"
        )
    logits = wide(features @ weight.T)
    own = _of_label(logits, y)
    lengths: Tensor = torch.linalg.vector_norm(weight[y.long()], dim=1) * torch.linalg.vector_norm(features, dim=1)
    cosine = own / (lengths + 1e-10)
    angle = torch.acos(cosine.detach().clamp(-1 + 1e-7, 1 - 1e-7))
    k = torch.floor(margin * angle / torch.pi)
    psi = (1 - 2 * (k % 2)) * _MULTIPLE_ANGLE[margin](cosine) - 2 * k
    target = lengths * (annealing * cosine + psi) / (1 + annealing)
    return logits + label_shares(y, logits) * (target - own).unsqueeze(1)


_MULTIPLE_ANGLE: dict[int, Callable[[Tensor], Tensor]] = {
    1: lambda c: c,
    2: lambda c: 2 * c**2 - 1,
    3: lambda c: 4 * c**3 - 3 * c,
    4: lambda c: 8 * c**4 - 8 * c**2 + 1,
}
"""cos(m theta) as a polynomial in cos(theta): finite gradients where theta is 0 or pi, unlike acos."""


def _of_label(values: Tensor, y: Tensor) -> Tensor:
    return values.gather(1, _single(y).unsqueeze(1)).squeeze(1)


def _largest_wrong(values: Tensor, y: Tensor) -> Tensor:
    return values.masked_fill(F.one_hot(_single(y), values.shape[1]).bool(), -torch.inf).amax(1)


def _single(y: Tensor) -> Tensor:
    """One label for each image, of any whole type."""
    if is_mixed(y):
        raise InputError(
            "a loss that compares the label with the other classes needs one label for each image, got mixed ones; "
            "use a cross-entropy, or train without cutmix"
        )
    return y.long()


def share_predicted(logits: Tensor, y: Tensor) -> Tensor:
    """(B,): whether the label has the largest logit; of mixed labels the share of the class that has."""
    largest = logits.argmax(1)
    return y.gather(1, largest.unsqueeze(1)).squeeze(1) if is_mixed(y) else largest == y


def predicted(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) bool: the label, of mixed ones the largest, has the largest logit; never where there is no prediction."""
    return (logits.argmax(1) == (y.argmax(1) if is_mixed(y) else y)) & decided(logits)


def decided(logits: Tensor) -> Tensor:
    """(B,) bool: the logits make a prediction. A NaN or +inf among them makes none; -inf rules out a class, not all."""
    return logits.amax(1).isfinite()
