"""Image sets: what they accept and refuse, and the stratified split: its counts and its repeatability."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from widemargin.data import ImageSet, stratified_split
from widemargin.errors import InputError


def make(n: int = 6, **changes: object) -> ImageSet:
    images = torch.arange(n * 12, dtype=torch.uint8).reshape(n, 3, 2, 2)
    fields = {"images": images, "labels": torch.arange(n) % 3, "num_classes": 3, "name": "toy"}
    return ImageSet(**{**fields, **changes})  # type: ignore[arg-type]


def test_floats_are_bytes_over_255() -> None:
    data = make()
    expected = torch.tensor([[byte / 255 for byte in image.flatten().tolist()] for image in data.images])
    torch.testing.assert_close(data.floats().flatten(1), expected, rtol=0, atol=1e-7)
    assert torch.equal(data.floats(torch.tensor([4, 1])), data.floats()[[4, 1]])
    assert torch.equal(data.floats(slice(2, 4)), data.floats()[2:4])


def test_float_images_are_kept() -> None:
    images = torch.rand(2, 1, 3, 5, generator=torch.Generator().manual_seed(0))
    data = ImageSet(images, torch.tensor([0, 1]), num_classes=2, name="toy")
    assert data.floats().data_ptr() == images.data_ptr()
    assert data.image_shape == (1, 3, 5)


def test_subset_first_to() -> None:
    data = make()
    part = data.subset([5, 0])
    assert len(part) == 2
    assert torch.equal(part.images, data.images[[5, 0]])
    assert part.labels.tolist() == [2, 0]
    assert part.num_classes == 3
    assert len(data.first(2)) == 2
    assert len(data.first(99)) == 6
    assert len(make(1)) == 1
    assert len(data.to("meta")) == 6  # copies without reading a value: a device cannot be made to wait


def test_rows_of_checked_data_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make()
    monkeypatch.setattr("widemargin.data.image_set._check_labels", None)
    data.first(2), data.subset([1]), data.to("cpu")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": torch.zeros(6, 2, 2, dtype=torch.uint8)}, r"images must be \(N, C, H, W\).*\(6, 2, 2\)"),
        ({"images": torch.zeros(0, 3, 2, 2, dtype=torch.uint8)}, "every size at least 1"),
        ({"images": torch.zeros(6, 3, 0, 2, dtype=torch.uint8)}, "every size at least 1"),
        ({"images": [[1]]}, "images must be a torch tensor, got list"),
        ({"images": torch.zeros(6, 3, 2, 2, dtype=torch.float64)}, "uint8 or float32.*float64"),
        ({"images": torch.full((6, 3, 2, 2), 200.0)}, "look like 0..255: divide by 255"),
        ({"images": torch.full((6, 3, 2, 2), -0.5)}, "look normalized"),
        ({"images": torch.full((6, 3, 2, 2), 1e6)}, r"scale them to \[0, 1\]"),
        ({"images": torch.full((6, 3, 2, 2), float("nan"))}, "finite"),
        ({"images": torch.full((6, 3, 2, 2), float("inf"))}, "finite"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, r"labels must be \(6,\).*\(5,\)"),
        ({"labels": torch.zeros(6, 1, dtype=torch.int64)}, "one per image"),
        ({"labels": torch.zeros(6)}, "int64, got torch.float32"),
        ({"labels": torch.tensor([0, 1, 2, 3, 0, 0])}, r"labels must be in \[0, 3\).*0 to 3"),
        ({"labels": torch.tensor([1, 2, 3, 1, 1, 1])}, "subtract 1"),
        ({"labels": torch.tensor([0, -1, 0, 0, 0, 0])}, "found -1"),
        ({"num_classes": 1}, "num_classes must be"),
        ({"num_classes": True}, "num_classes must be"),
        ({"name": ""}, "name must be"),
        ({"labels": torch.zeros(6, dtype=torch.int64, device="meta")}, "on cpu and labels on meta"),
    ],
)
def test_refusals(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make(**changes)


@pytest.mark.parametrize("n", [0, -1, 2.0, True])
def test_limit_must_be_positive(n: int) -> None:
    with pytest.raises(InputError, match="limit"):
        make().first(n)


@pytest.mark.parametrize("rows", [[], [6], [-1], [0.5], torch.ones(6, dtype=torch.bool), [[0]]])
def test_bad_rows(rows: object) -> None:
    with pytest.raises(InputError, match="subset"):
        make().subset(rows)  # type: ignore[arg-type]


# The stratified split


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
def test_impossible_splits(held_out: int, message: str) -> None:
    with pytest.raises(InputError, match=f"^data.held_out {message}"):
        stratified_split(torch.arange(10) % 4, held_out=held_out, seed=0)
    with pytest.raises(InputError, match="held_out"):
        stratified_split(torch.zeros(0, dtype=torch.int64), held_out=1, seed=0)


@pytest.mark.parametrize(
    ("counts", "held_out", "quotas"),
    [
        ([5000] * 10, 2000, [200] * 10),
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
