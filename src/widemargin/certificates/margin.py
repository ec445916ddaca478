"""``certified_margin``: a radius around every image within which no other class wins, proven.

``effective_margin`` says where a linearization changes its mind and an attack shows an image on the other side: the
true distance lies at or below what an attack finds, and at or above what is certified here. The minimum is taken over
all other classes; a certificate against the runner-up alone would be none.

``crown`` bounds the network's own activations around the image (``crown.py``) and searches the largest radius that it
proves; ``lipschitz`` divides the gap of two logits by a Lipschitz constant (``lipschitz.py``): mostly looser, and free.
``auto`` is the larger of the two where CROWN is within reach (``EFFORT``), else Lipschitz alone: through the
17 layers of a ResNet-18 neither CROWN nor anything else of this kind proves a radius worth its hours.
"""

import copy
import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from widemargin.certificates.crown import Ball, Crown, Interval
from widemargin.certificates.lipschitz import pair_slopes
from widemargin.certificates.network import Network, read_network
from widemargin.core.checks import (
    check_images,
    check_labels,
    check_logits,
    check_model,
    choice,
    logits_of,
    refuse_transforms,
    refuse_unfit,
)
from widemargin.core.modes import evaluating, outside_inference_mode, without_ddp
from widemargin.core.precision import full_float32, no_autocast
from widemargin.errors import InputError
from widemargin.gradients.double_backward import uncompiled
from widemargin.losses import predicted
from widemargin.margins import effective_margin
from widemargin.types import Norm

Method = Literal["auto", "crown", "lipschitz"]
METHODS: tuple[Method, ...] = ("auto", "crown", "lipschitz")
OWNER = "certified_margin"
EFFORT = 150_000
"""Up to this (``Network.effort``) ``auto`` takes CROWN: the MLP has 6,144, the CNN 87,040, a ResNet-18 millions."""
TOGETHER = 2**20
"""Coefficients of one layer's rows, all images of a group together: small networks are bounded many images at once."""
MOST_TOGETHER = 128
PRECISION = 0.005
"""The search stops where the largest radius that can be proven is known up to this share of it."""
EVALUATIONS = 12
FIRST_TRY, GROWTH = 0.12, 4.0
"""Of the effective margin, somewhat less than what CROWN proves on a fully connected network; and the power with which
there the share of the gap grows that a ball takes."""
TINY = 1e-12


@uncompiled
def certified_margin(model: nn.Module, x: Tensor, y: Tensor, norm: Norm = "l2", *, method: Method = "auto") -> Tensor:
    """(B,): no image within this radius of x has another class than y; 0 where misclassified.

    For Linf, no image in [0, 1]. In pixel units of ``norm``, rounded down to the type of x; infinite where no image at
    all has another class. What cannot be bounded is refused by name.
    """
    choice(OWNER, "norm", norm, ("l2", "linf"))
    choice(OWNER, "method", method, METHODS)
    check_model(OWNER, model)
    check_images(OWNER, x)
    refuse_transforms(OWNER)
    with outside_inference_mode(), torch.no_grad(), no_autocast(), full_float32():
        model = without_ddp(getattr(model, "_orig_mod", model))
        exact = _in_float64(model)
        with evaluating(model), evaluating(exact):
            try:
                output = model(x)
            except RuntimeError as error:
                refuse_unfit(OWNER, model, x, error)
                raise
            logits = check_logits(OWNER, output, batch=len(x))
            check_labels(OWNER, y, batch=len(x), num_classes=logits.shape[1])
            parts = [
                _certified(exact, x[group].double(), y[group].long(), norm, method)
                for group in _groups(exact, x, method)
            ]
            return _rounded_down(torch.where(predicted(logits, y), torch.cat(parts), 0.0), x.dtype)


def _in_float64(model: nn.Module) -> nn.Module:
    """A copy whose weights are the same numbers."""
    try:
        return copy.deepcopy(model).double().requires_grad_(False)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{OWNER}: the model cannot be copied into float64: {reason}") from error


def _groups(model: nn.Module, x: Tensor, method: Method) -> Iterator[slice]:
    """So many images at once that a layer's rows of all of them fit."""
    network = read_network(model, x[:1].double(), owner=OWNER)
    widest = max([x[0].numel(), *(math.prod(step.shape) for step in network.steps)])
    rows = max([1, *(math.prod(bend.shape) for bend in network.bends)])
    classes = network.logits.shape[1]
    most = max(rows * widest, classes * max(classes, x[0].numel()))
    size = len(x) if method == "lipschitz" else max(1, min(MOST_TOGETHER, TOGETHER // most))
    for start in range(0, len(x), size):
        yield slice(start, start + size)


def _certified(model: nn.Module, x: Tensor, y: Tensor, norm: Norm, method: Method) -> Tensor:
    network = read_network(model, x, owner=OWNER)
    _check_repeats(model, network)
    right = predicted(network.logits, y)
    found = torch.zeros_like(network.logits[:, 0])
    if method != "crown":
        found = _by_lipschitz(network, y, norm)
    if method == "crown" or (method == "auto" and network.effort <= EFFORT):
        found = torch.maximum(found, _by_crown(model, network, y, norm))
    return torch.where(right, found, 0.0)


def _check_repeats(model: nn.Module, network: Network) -> None:
    """What a forward draws or remembers, or takes from the images beside one, is not the network that was read."""
    x = network.x
    again = logits_of(model(torch.cat([1 - x, x])))[len(x) :]
    if not torch.allclose(again, network.logits, rtol=1e-9, atol=1e-9, equal_nan=True):
        raise InputError(
            f"{OWNER}: the model gives other logits each time it is called, or beside other images; a certificate is "
            "for one function of one image, so take the random, changing or shared part out"
        )


def _by_lipschitz(network: Network, y: Tensor, norm: Norm) -> Tensor:
    z = network.logits
    rounding = 1e-9 * z.abs().amax(1, keepdim=True)
    gaps = (z.gather(1, y.unsqueeze(1)) - z - rounding).clamp_min(0.0)
    radii = torch.where(gaps > 0, gaps / pair_slopes(network, y, norm).T, 0.0)
    radii.scatter_(1, y.unsqueeze(1), torch.inf)
    return radii.amin(1) * (1 - 1e-9)


def _by_crown(exact: nn.Module, network: Network, y: Tensor, norm: Norm) -> Tensor:
    """(B,): the largest radius that CROWN proves, up to ``PRECISION``.

    It is searched in float32, of which nothing is kept but where to look in float64.
    """
    if not network.bends:  # nothing bends: one evaluation tells it all
        return _search(network, y, norm, network.x.new_full((len(y),), _diameter(network, norm)))
    first = (FIRST_TRY * effective_margin(exact, network.x, y, norm)).nan_to_num(1.0)
    quick = read_network(copy.deepcopy(exact).float(), network.x.float(), owner=OWNER)
    found = _search(quick, y, norm, first.float(), prove=False).double()
    return _search(network, y, norm, torch.where(found > 0, found, first))


def _diameter(network: Network, norm: Norm) -> float:
    return 1.0 if norm == "linf" else math.sqrt(network.x[0].numel())


def _search(network: Network, y: Tensor, norm: Norm, first: Tensor, *, prove: bool = True) -> Tensor:
    """(B,): a radius that is proven, and close to the largest one that CROWN proves.

    What a ball of radius eps takes off the gaps of the logits, as a share d of them, grows about as a power of eps, and
    d = 1 is what is looked for, on a line through the last two (log eps, log d).
    """
    largest = _diameter(network, norm)
    rows = network.differences(y)
    others = torch.ones_like(rows[..., 0], dtype=torch.bool).scatter_(0, y.unsqueeze(0), False)
    gaps = (rows * network.logits).sum(2)
    wrong = ((gaps <= 0) & others).any(0)
    best, ceiling = torch.zeros_like(first), torch.full_like(first, 2 * largest)
    eps = first.clamp(TINY, largest)
    tried: list[tuple[Tensor, Tensor]] = []
    known: dict[int, Interval] = {}
    for _ in range(EVALUATIONS):
        crown = Crown(network, Ball(norm, network.x, eps), known)
        floor = crown.floor(rows)
        taken = (((gaps - floor.at(eps)) / gaps).masked_fill(~others, 0.0)).amax(0)
        held = taken < 1
        reach = floor.radius(others, 2 * largest) if prove else torch.where(held, eps, 0.0)
        best = best.maximum(reach.minimum(eps))
        ceiling = torch.where(held, ceiling, eps.minimum(ceiling))
        known = _still_known(known, crown, held)
        tried.append((eps.log(), taken.clamp_min(TINY).log()))
        root = _root(tried)
        done = (root.minimum(ceiling) <= best * (1 + PRECISION)) | (best >= largest) | wrong
        if bool(done.all()):
            break
        aim = root * (1 - PRECISION / 2)
        inside = (aim > best) & (aim < ceiling)
        aim = torch.where(inside, aim, torch.where(best > 0, (best * ceiling).sqrt(), ceiling / 3))
        eps = torch.where(done, eps, aim.minimum(3 * eps).clamp(TINY, largest))
    return torch.where(best >= largest, torch.inf, best)


def _root(tried: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Where d would be 1."""
    eps, taken = tried[-1]
    slope = torch.full_like(eps, GROWTH)
    if len(tried) > 1:
        before, less = tried[-2]
        slope = ((taken - less) / (eps - before)).nan_to_num(GROWTH, GROWTH, GROWTH).clamp(0.5, 20.0)
    return (eps - taken / slope).exp()


def _still_known(known: dict[int, Interval], crown: Crown, held: Tensor) -> dict[int, Interval]:
    """Intervals on the smallest ball that failed, which holds those that will be tried."""
    found = {}
    for bend in crown.network.bends:
        value = bend.inputs[0]
        lower, upper = crown.intervals[value]
        old = known.get(value, (torch.full_like(lower, -torch.inf), torch.full_like(upper, torch.inf)))
        keep = held.view(-1, *[1] * (lower.dim() - 1))
        found[value] = torch.where(keep, old[0], lower), torch.where(keep, old[1], upper)
    return found


def _rounded_down(radii: Tensor, dtype: torch.dtype) -> Tensor:
    rounded = radii.to(dtype)
    lower = torch.nextafter(rounded, torch.zeros_like(rounded))
    return torch.where(rounded.double() > radii, lower, rounded)
