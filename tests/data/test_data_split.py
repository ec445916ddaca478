"""The stratified split: its counts, its repeatability and its refusals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from widemargin.data import stratified_split
from widemargin.errors import InputError


def test_cifar10_like() -> None:
    labels = torch.arange(50_000) % 10
    train, held = stratified_split(labels, held_out=2_000, seed=1)
    assert (len(train), len(held)) == (48_000, 2_000)
    assert labels[held].bincount().tolist() == [200] * 10


@settings(max_examples=60, derandomize=True, deadline=None)
@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=6), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_properties(counts: list[int], share: float, seed: int) -> None:
    labels = torch.tensor([label for label, count in enumerate(counts) for _ in range(count)], dtype=torch.int64)
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    classes, total = sum(count > 0 for count in counts), sum(counts)
    held_out = int(share * total)
    if held_out < max(1, classes) or total - held_out < classes:
        with pytest.raises(InputError, match="held_out"):
            stratified_split(labels, held_out=held_out, seed=seed)
        return
    train, held = stratified_split(labels, held_out=held_out, seed=seed)
    assert len(held) == held_out
    assert sorted(train.tolist() + held.tolist()) == list(range(total))
    assert train.tolist() == sorted(train.tolist())
    assert held.tolist() == sorted(held.tolist())
    for label, count in enumerate(counts):
        assert abs((labels[held] == label).sum().item() - held_out * count / total) < 1


def test_seed_decides() -> None:
    labels = torch.arange(100) % 5
    first, again, other = (stratified_split(labels, held_out=20, seed=seed)[1].tolist() for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_class_is_not_emptied_needlessly() -> None:
    labels = torch.tensor([0] + [1] * 20 + [2] * 20)
    train, _ = stratified_split(labels, held_out=23, seed=0)
    assert set(labels[train].tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        *((count, "must be a whole number of at least 1, got") for count in (0, -1, 2.0, True)),
        (10, "must leave images to train on: got 10 of 10; hold out fewer"),
        (11, "must leave images to train on: got 11 of 10; hold out fewer"),
        (3, "must be at least the number of classes, 4, got 3; hold out more"),
        (7, "must leave one image of each of 4 classes to train on: got 7 of 10; hold out fewer"),
    ],
)
def test_refusals(held_out: int, message: str) -> None:
    with pytest.raises(InputError, match=f"^data.held_out {message}"):
        stratified_split(torch.arange(10) % 4, held_out=held_out, seed=0)


def test_empty() -> None:
    with pytest.raises(InputError, match="held_out"):
        stratified_split(torch.zeros(0, dtype=torch.int64), held_out=1, seed=0)


@pytest.mark.parametrize(
    ("counts", "held_out", "quotas"),
    [
        ([34, 33, 33], 10, [4, 3, 3]),
        ([33, 33, 34], 10, [3, 3, 4]),
        ([33, 34, 33], 11, [4, 4, 3]),  # of equal remainders the first
        ([10, 20, 70], 9, [1, 2, 6]),
    ],
)
def test_the_largest_remainders_get_the_places_left(counts: list[int], held_out: int, quotas: list[int]) -> None:
    labels = torch.tensor([label for label, count in enumerate(counts) for _ in range(count)])
    held = stratified_split(labels, held_out=held_out, seed=0)[1]
    assert labels[held].bincount().tolist() == quotas


def test_classes_are_drawn_independently() -> None:
    labels = torch.arange(400) % 4
    held = stratified_split(labels, held_out=40, seed=0)[1]
    places = [tuple((held[labels[held] == label] // 4).tolist()) for label in range(4)]
    assert len(set(places)) == 4


def test_the_split_of_existing_runs_stays() -> None:
    labels = torch.arange(60) % 3
    assert stratified_split(labels, held_out=9, seed=0)[1].tolist() == [3, 12, 21, 23, 29, 37, 38, 40, 46]
    assert stratified_split(labels, held_out=9, seed=7)[1].tolist() == [1, 3, 7, 12, 13, 17, 30, 44, 47]
