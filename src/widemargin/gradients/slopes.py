"""How fast the gap between the label's logit and another changes with the image: ||w_y - w_j||, w_j = dz_j/dx.

The norm is the dual one: L2 for L2, L1 for Linf. For every class at once:

- **By all classes**: one backward pass per class, K of them, beside the label's own.
- **Through the last layer**: if the logits are a linear layer's, z = V f + b of d features f, then w_j = V_j J_f, and
  the d backward passes of the features give every class. Taken where d < K; both ways agree to rounding.

And bounds of all of them, from n random directions u in image space. J u for one direction costs one pass through the
graph of the gradient and gives (w_y - w_j) . u for every j; of such numbers the spread is the norm:

- L2, u Gaussian: (w_y - w_j) . u / s is Gaussian for s = ||w_y - w_j||_2, so n squares of it have mean r s^2, where
  P(r <= t), for t < 1, and P(r >= t), for t > 1, are at most (t e^(1 - t))^(n/2).
- L1, u Cauchy: it is Cauchy for s = ||w_y - w_j||_1, so n of their logarithms have mean log s + a, where P(a >= t) and
  P(a <= -t) are at most (e^(-q t) / cos(pi q / 2))^n for every q < 1.

Both are Chernoff's bound, with no limit of large n in it; t is chosen so that all bounds of an image hold together but
for a share ``FAILURE`` of the draws.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from widemargin.core import randomness
from widemargin.gradients.jacobian import EveryClass, in_chunks, vector_jacobian_products
from widemargin.types import Norm

DUAL_ORDER: dict[Norm, int] = {"l2": 2, "linf": 1}
DIRECTIONS = 128
FAILURE = 1e-6


def slopes_of_all(logits: Tensor, leaf: Tensor, y: Tensor, norm: Norm, *, at_once: int) -> Tensor:
    """(B, K): every class's slope, exact; 0 for the label's own. The graph stays."""
    layer = last_layer(logits)
    if layer is not None and layer.size < logits.shape[1]:
        return _through_last_layer(layer, leaf, y, norm, at_once=at_once)
    own = torch.nn.functional.one_hot(y.long(), logits.shape[1]).to(logits.dtype)
    own_row = vector_jacobian_products(logits, leaf, own.unsqueeze(0), keep_graph=True)
    classes = EveryClass(logits)
    slopes = [
        lengths(own_row - vector_jacobian_products(logits, leaf, classes[chunk], keep_graph=True), norm)
        for chunk in in_chunks(logits.shape[1], at_once)
    ]
    return torch.cat(slopes).T


def slopes_to(logits: Tensor, leaf: Tensor, y: Tensor, classes: Tensor, norm: Norm, *, at_once: int) -> Tensor:
    """(B, M): those of M classes of each sample's own, ``classes`` (B, M), exact; a backward pass for each of the M."""
    found = []
    for chunk in in_chunks(classes.shape[1], at_once):
        others = classes[:, chunk].T.unsqueeze(2)
        rows = logits.new_zeros(len(others), *logits.shape).scatter_(2, others, -1.0)
        rows.scatter_add_(2, y.long().view(1, -1, 1).expand_as(others), rows.new_ones(others.shape))
        found.append(lengths(vector_jacobian_products(logits, leaf, rows, keep_graph=True), norm))
    return torch.cat(found).T


def slope_bounds(logits: Tensor, leaf: Tensor, y: Tensor, norm: Norm, *, at_once: int) -> tuple[Tensor, Tensor]:
    """(B, K) twice: no slope is below the first or above the second, but for a share ``FAILURE`` of the draws.

    The same numbers are drawn at every call. The graph must be one that can be differentiated twice.
    """
    label = y.long().unsqueeze(1)
    generator = randomness.derived(0, "slope-bounds")
    total = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    vectors = torch.zeros_like(logits, requires_grad=True)
    with torch.enable_grad(), torch.autocast(leaf.device.type, enabled=False):
        (gradient,) = torch.autograd.grad(logits, leaf, vectors, create_graph=True)
    for chunk in in_chunks(DIRECTIONS, at_once):
        count = len(range(DIRECTIONS)[chunk])
        u = _directions((count, *leaf[0].shape), norm, generator).to(leaf)
        moved = vector_jacobian_products(gradient, vectors, u.unsqueeze(1).expand(-1, *leaf.shape), keep_graph=True)
        moved = (moved.gather(2, label.expand(count, -1, 1)) - moved).double()
        total += (moved.square() if norm == "l2" else moved.abs().log()).sum(0)
    mean = total / DIRECTIONS
    size = mean.sqrt() if norm == "l2" else mean.exp()
    low, high = bound_factors(norm, DIRECTIONS, FAILURE / (2 * logits.shape[1]))
    return (size * low).to(logits.dtype), (size * high).to(logits.dtype)


def _directions(shape: tuple[int, ...], norm: Norm, generator: torch.Generator) -> Tensor:
    gaussian = randomness.normal(shape, generator=generator, dtype=torch.float64)
    if norm == "l2":
        return gaussian
    return gaussian / randomness.normal(shape, generator=generator, dtype=torch.float64)  # which is Cauchy


def bound_factors(norm: Norm, count: int, failure: float) -> tuple[float, float]:
    """(low, high): the estimate of ``count`` directions times these is below, and above, but for that probability."""
    rate = math.log(1 / failure) / count
    if norm == "linf":
        width = math.exp(_where_reached(_cauchy_rate, 1.0, rate))
        return 1 / width, width
    above = _where_reached(lambda t: t - 1 - math.log(t), 2.0, 2 * rate, start=1.0)
    below = 1 / _where_reached(lambda t: 1 / t - 1 + math.log(t), 2.0, 2 * rate, start=1.0)
    return above**-0.5, below**-0.5


def _cauchy_rate(t: float) -> float:
    """max over q of q t + log cos(pi q / 2)."""
    q = 2 / math.pi * math.atan(2 * t / math.pi)
    return q * t + math.log(math.cos(math.pi * q / 2))


def _where_reached(rising: Callable[[float], float], first: float, value: float, *, start: float = 0.0) -> float:
    """The t above ``start`` where a rising function has that value; no smaller than it is."""
    high = first
    while rising(high) < value:
        high *= 2
    low = start
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= value else (middle, high)
    return high


@dataclass(frozen=True)
class LastLayer:
    """z = V f + b at the end of a recorded forward pass."""

    features: GradientEdge
    weight: Tensor
    """V (K, d)."""

    @property
    def size(self) -> int:
        """How many features there are."""
        return self.weight.shape[1]


def last_layer(logits: Tensor) -> LastLayer | None:
    """The linear layer whose output the logits are, as autograd recorded it; None where they are something else."""
    node: Any = logits.grad_fn
    places = {"AddmmBackward0": 1, "MmBackward0": 0}
    if node is None or node.name() not in places:
        return None
    place = places[node.name()]
    edge = node.next_functions[place]
    if edge[0] is None or (place == 1 and (node._saved_alpha != 1)):
        return None
    return LastLayer(GradientEdge(*edge), node._saved_mat2.detach().T)


def _through_last_layer(layer: LastLayer, leaf: Tensor, y: Tensor, norm: Norm, *, at_once: int) -> Tensor:
    """(B, K). The features' gradients of all these images are in memory at once."""
    units = EveryClass(leaf.new_zeros(len(y), layer.size, dtype=layer.weight.dtype))
    chunks = in_chunks(layer.size, at_once)
    rows = [vector_jacobian_products(layer.features, leaf, units[c], keep_graph=True).flatten(2) for c in chunks]
    of_features = torch.cat(rows).transpose(0, 1)
    own = layer.weight[y.long()].unsqueeze(1)
    slopes = [
        lengths((own - layer.weight[classes]) @ of_features, norm)
        for classes in in_chunks(len(layer.weight), layer.size)
    ]
    return torch.cat(slopes, dim=1)


def lengths(rows: Tensor, norm: Norm) -> Tensor:
    """(M, B, ...) -> (M, B), of rows made about 1 by a power of two, which rounds nothing.

    Squares must neither vanish nor overflow.
    """
    rows = rows.flatten(2)
    most = math.frexp(torch.finfo(rows.dtype).max)[1] - 2
    exponents = torch.frexp(rows.abs().amax(2)).exponent.clamp(-most, most)
    power = torch.exp2(exponents.to(rows.dtype))  # ldexp makes it in float32
    found: Tensor = torch.linalg.vector_norm(rows / power.unsqueeze(2), ord=DUAL_ORDER[norm], dim=2) * power
    return found
