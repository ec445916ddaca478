"""Certified radii in an evaluation: of its first images or all, their summary, and whether any attack contradicts one.

A radius is proven for the network in exact arithmetic, an attack is seen in float32: where an attack comes closer than
what is proven, by more than rounding explains, one of the two is wrong, and the record says so in an alarm.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from widemargin.certificates.margin import certified_margin
from widemargin.core.checks import check_count
from widemargin.errors import InputError
from widemargin.evaluation.folder import Certified
from widemargin.types import Alarm, Norm

ALL = "all"
VIOLATED = "certificate-violated"
ROUNDING = 1e-4
"""Share of a radius by which a search in float32 may seem to come closer than what is proven."""


def wanted(certify: Any) -> str | int | None:
    """How many of the first images are to be certified: "all", a count, or None."""
    if certify is None or certify is False:
        return None
    if certify is True or certify == ALL:
        return ALL
    if isinstance(certify, str) and certify.isdecimal():
        certify = int(certify)
    if isinstance(certify, str):
        raise InputError(f"evaluate.certify must be 'all' or a number of first images, got {certify!r}")
    check_count("evaluate.certify", certify)
    return int(certify)


def check_certifiable(model: Any, x: Tensor, y: Tensor, norm: Norm) -> None:
    """Refuse before any work what cannot be certified, by name; ``model`` is a ``Float32Classifier``."""
    if model.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"evaluate.certify: the model computes in {model.dtype}, which rounds by more than is certified; judge it "
            "in float32 (model.float())"
        )
    certified_margin(model.model, _as_given(model, x[:1]), y[:1], norm, method="lipschitz")


def certified_radii(model: Any, x: Tensor, y: Tensor, norm: Norm, *, first: int, certify: str | int) -> list[Any]:
    """A radius for each image; None for those that are not among the first. A radius without end is that of the box."""
    count = len(x) if certify == ALL else max(0, min(len(x), int(certify) - first))
    if not count:
        return [None] * len(x)
    found = certified_margin(model.model, _as_given(model, x[:count]), y[:count], norm)
    whole = 1.0 if norm == "linf" else math.sqrt(x[0].numel())
    return [*found.clamp_max(whole).tolist(), *[None] * (len(x) - count)]


def _as_given(model: Any, x: Tensor) -> Tensor:
    return (x.flatten(1) if model.flat else x).to(model.dtype)


def summarize_certified(radii: Tensor, clean: Tensor, eps: Mapping[str, float]) -> Certified:
    """Of radii (N,), NaN where there is none; ``eps`` by how it is written."""
    there = ~radii.isnan()
    right = radii[there & clean]
    return Certified(
        count=int(there.sum()),
        median=float(right.median()) if len(right) else None,
        accuracy={
            written: 100 * float((radii[there] >= size).double().mean()) if there.any() else 0.0
            for written, size in eps.items()
        },
    )


def contradicted(radii: Tensor, distance: Tensor | None, verdicts: Mapping[str, tuple[float, Tensor]]) -> Tensor:
    """(N,) bool: images with an adversarial image nearer than what is certified, by distance or by an attack's verdict.

    ``verdicts`` are (eps, whether still right) by attack.
    """
    safe = radii.double() * (1 - ROUNDING)
    nearer = torch.zeros_like(safe, dtype=torch.bool)
    if distance is not None:
        nearer |= distance.double() < safe
    for eps, right in verdicts.values():
        nearer |= ~right & (eps < safe)
    return nearer


def alarms_of_certificates(
    radii: Tensor | None, distance: Tensor | None, verdicts: Mapping[str, tuple[float, Tensor]]
) -> list[Alarm]:
    """The check that no attack contradicts a certificate, on every image that has one."""
    if radii is None:
        return []
    images = contradicted(radii, distance, verdicts).nonzero()[:, 0].tolist()
    if not images:
        return []
    return [
        Alarm(
            VIOLATED,
            f"an attack came closer than what is certified for {len(images)} images, the first is image {images[0]}",
            "one of the two is wrong: trust neither number of this model, and report it with the model's definition",
        )
    ]
