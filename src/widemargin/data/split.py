"""Set some training images aside, each class in proportion, to choose by without touching the test set."""

import torch
from torch import Tensor

from widemargin.checks import check_count
from widemargin.errors import InputError
from widemargin.randomness import derived


def stratified_split(labels: Tensor, *, held_out: int, seed: int) -> tuple[Tensor, Tensor]:
    """(train indices, held-out indices): disjoint, sorted, on the CPU, the same for the same seed.

    Each class gives its share of the ``held_out`` places, rounded so that the sum is exact (largest remainder).
    """
    labels = labels.cpu()
    counts = torch.bincount(labels).tolist() if labels.numel() else []
    _check(len(labels), sum(count > 0 for count in counts), held_out)
    taken = torch.zeros(len(labels), dtype=torch.bool)
    for label, quota in enumerate(_quotas(counts, held_out)):
        members = (labels == label).nonzero()[:, 0]
        order = torch.randperm(len(members), generator=derived(seed, "split", label))
        taken[members[order[:quota]]] = True
    return (~taken).nonzero()[:, 0], taken.nonzero()[:, 0]


def _check(total: int, classes: int, held_out: int) -> None:
    check_count("data.held_out", held_out)
    if held_out >= total:
        raise InputError(f"data.held_out must leave images to train on: got {held_out} of {total}; hold out fewer")
    if held_out < classes:
        raise InputError(
            f"data.held_out must be at least the number of classes, {classes}, got {held_out}; hold out more"
        )
    if total - held_out < classes:
        raise InputError(
            f"data.held_out must leave one image of each of {classes} classes to train on: got {held_out} of {total}; "
            "hold out fewer"
        )


def _quotas(counts: list[int], held_out: int) -> list[int]:
    """How many of each class to hold out: the floor of its share, and one more for the largest remainders."""
    total = sum(counts)
    quotas = [held_out * count // total for count in counts]

    def rank(label: int) -> tuple[bool, int, int]:
        empties = quotas[label] + 1 >= counts[label]  # last choice: it would leave none of this class to train on
        return empties, -(held_out * counts[label] % total), label

    for label in sorted(range(len(counts)), key=rank)[: held_out - sum(quotas)]:
        quotas[label] += 1
    return quotas
