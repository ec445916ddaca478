"""ImageSet: what it accepts, what it refuses and with which words."""

import pytest
import torch

from widemargin.data import ImageSet
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
