"""A second source in every batch: read where it lies, drawn the same by a resumed run and by every process."""

import mmap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from widemargin.core.randomness import derived
from widemargin.data import Batch, Batches, Chain, CropFlip, CutMix, ExtraImages, ImageSet, epoch_order, open_extra
from widemargin.errors import InputError

OWN, EXTRA, SIZE = 11, 40, 6


def own_images(*, floats: bool = False) -> ImageSet:
    images = torch.arange(OWN, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, SIZE, SIZE).contiguous()
    return ImageSet(images.float() / 255 if floats else images, torch.arange(OWN) % 4, num_classes=4, name="own")


def generated(start: int = 0, stop: int = EXTRA) -> tuple[np.ndarray, np.ndarray]:
    """Image n is of the value 100 + n, but for its first pixel, which has its channel's number."""
    images = np.empty((stop - start, SIZE, SIZE, 3), dtype=np.uint8)
    images[:] = np.arange(100 + start, 100 + stop).reshape(-1, 1, 1, 1)
    images[:, 0, 0] = [0, 1, 2]
    return images, (np.arange(start, stop) // 3 % 4).astype(np.int32)


def written(path: Path, *, layout: str = "NHWC", start: int = 0, stop: int = EXTRA, **others: Any) -> Path:
    images, labels = generated(start, stop)
    images = images.transpose(0, 3, 1, 2).copy() if layout == "NCHW" else images
    np.savez(path, **({"image": images, "label": labels} | others))
    return path


@pytest.fixture
def extra(tmp_path: Path) -> ExtraImages:
    return open_extra(str(written(tmp_path / "extra.npz")))


def expected_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    images, labels = generated()
    return torch.from_numpy(images[rows.numpy()]).permute(0, 3, 1, 2), torch.from_numpy(labels[rows.numpy()]).long()


def two_files(folder: Path) -> list[str]:
    return [str(written(folder / "a.npz", stop=17)), str(written(folder / "b.npz", start=17))]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "two files"])
def test_rows_are_those_of_the_file(layout: str, tmp_path: Path) -> None:
    names = two_files(tmp_path) if layout == "two files" else [str(written(tmp_path / "x.npz", layout=layout))]
    found = open_extra(names)
    assert len(found) == EXTRA
    for rows in (torch.tensor([3, 39, 0, 3, 17, 16]), torch.tensor([5]), torch.empty(0, dtype=torch.int64)):
        images, labels = found.read(rows, pinned=False)
        expected, their_labels = expected_rows(rows)
        assert torch.equal(images, expected)
        assert torch.equal(labels, their_labels)
        found.fetch(rows)  # asks the system for them, and changes nothing


def test_grey_images(tmp_path: Path) -> None:
    images = generated()[0][..., 0]
    np.savez(tmp_path / "grey.npz", image=images, label=generated()[1])
    found, _ = open_extra(str(tmp_path / "grey.npz")).read(torch.tensor([7]), pinned=False)
    assert torch.equal(found, torch.from_numpy(images[7:8]).unsqueeze(1))


def test_nothing_is_held_in_memory(extra: ExtraImages) -> None:
    (file,) = extra.files
    start = np.frombuffer(file.content, np.uint8).ctypes.data
    for array in (file.images, file.labels):
        assert not array.flags.owndata
        assert start <= array.__array_interface__["data"][0] < start + len(file.content)


def batches(extra: ExtraImages | None, share: float = 0.7, **others: Any) -> Batches:
    settings: dict[str, Any] = {"data": own_images(), "batch_size": 4, "seed": 7, "extra_share": share} | others
    return Batches(extra=extra, **settings)


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.7, 0.99, 1.0])
def test_a_fixed_share_of_every_batch(share: float, floats: bool, extra: ExtraImages) -> None:
    made = batches(extra, share, data=own_images(floats=floats))
    found = list(made.epoch(2))
    assert len(found) == made.steps_per_epoch == 3  # as many as without: ceil(11 / 4)
    assert all(batch.size == len(batch.indices) == 4 for batch in found)
    count, order = int(share * 4), epoch_order(OWN, seed=7, epoch=2).tolist()
    for batch in found:
        mine = batch.indices[batch.indices < OWN].tolist()
        assert sorted(mine) == sorted(order[batch.step * (4 - count) : (batch.step + 1) * (4 - count)])
        images, labels = expected_rows((batch.indices - OWN).clamp(0))
        is_own = batch.indices < OWN
        of_set = own_images().images[batch.indices.clamp(0, OWN - 1)]
        assert torch.equal(batch.images, torch.where(is_own.view(-1, 1, 1, 1), of_set, images).float() / 255)
        assert torch.equal(batch.labels, torch.where(is_own, batch.indices % 4, labels))


def test_the_second_source_fills_the_batch_where_the_set_has_no_more_images(extra: ExtraImages) -> None:
    found = list(batches(extra, 0.25).epoch(0))  # 3 of 4 are its own: 3, 3, 3
    assert [int((batch.indices < OWN).sum()) for batch in found] == [3, 3, 3]
    found = list(batches(extra, 0.1, batch_size=10).epoch(0))  # 9 of 10: 9, and the last 2
    assert [int((batch.indices < OWN).sum()) for batch in found] == [9, 2]
    assert [batch.size for batch in found] == [10, 10]


def test_draws_are_with_replacement_and_their_places_are_shuffled(extra: ExtraImages) -> None:
    drawn = [extra.draw(30, 40, derived(0, "extra", 0, step)) for step in range(300)]
    counts = torch.cat([rows.rows for rows in drawn]).bincount(minlength=EXTRA)
    assert counts.min() > 160  # of 225 on average, 15 is its standard deviation
    assert counts.max() < 290
    assert any(len(rows.rows.unique()) < 30 for rows in drawn)
    places = torch.stack([rows.places for rows in drawn])
    assert torch.equal(places.sort(1).values, torch.arange(40).expand(300, -1))
    assert len({tuple(row.tolist()) for row in places}) == 300


def same(a: Batch, b: Batch) -> bool:
    tensors = all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("indices", "images", "labels"))
    return a.step == b.step and a.size == b.size and tensors


MIXED = Chain((CropFlip(padding=1), CutMix()))


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_resuming_gives_the_rest_of_the_epoch(start: int, extra: ExtraImages) -> None:
    made = batches(extra, augmentation=MIXED)
    whole, rest = list(made.epoch(5)), list(made.epoch(5, start_step=start))
    assert len(rest) == len(whole) - start
    assert all(same(a, b) for a, b in zip(whole[start:], rest, strict=True))
    assert not same(whole[0], next(iter(made.epoch(6))))


@pytest.mark.parametrize("processes", [2, 3, 9])
def test_processes_take_rows_of_the_same_batch(processes: int, extra: ExtraImages) -> None:
    whole = list(batches(extra, augmentation=MIXED).epoch(1))
    for rank in range(processes):
        for batch, part in zip(
            whole, batches(extra, augmentation=MIXED, rank=rank, processes=processes).epoch(1), strict=True
        ):
            assert part.share is not None
            assert part.size == batch.size
            for name in ("indices", "images", "labels"):
                assert torch.equal(getattr(part, name), getattr(batch, name)[part.share.rows])


def compressed(path: Path) -> None:
    np.savez_compressed(path, image=generated()[0], label=generated()[1])


def cut_short(path: Path) -> None:
    path.write_bytes(written(path).read_bytes()[:-900])


def lying(path: Path) -> None:
    """The archive says there is more than the file holds."""
    written(path)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("label.npy")
    content[info.header_offset + 28 : info.header_offset + 30] = (60_000).to_bytes(2, "little")
    path.write_bytes(content)


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "compressed": (compressed, r"image is compressed, so it cannot be read image by image .* again with numpy.savez"),
    "Fortran": (lambda p: written(p, image=np.asfortranarray(generated()[0])), "image is in Fortran order"),
    "no label": (lambda p: np.savez(p, image=generated()[0]), r"has no array label; write it with numpy.savez"),
    "float": (lambda p: written(p, image=generated()[0] / 255), r"image must be uint8, got float64"),
    "few labels": (lambda p: written(p, label=np.zeros(3, int)), r"label must be \(40,\) whole numbers, one per image"),
    "one-hot": (lambda p: written(p, label=np.eye(EXTRA)), r"label must be \(40,\) whole numbers"),
    "below 0": (lambda p: written(p, label=np.full(EXTRA, -1)), r"found one below 0"),
    "objects": (lambda p: written(p, label=np.array([None] * EXTRA)), "Python objects"),
    "no file": (lambda p: None, r"there is no file \S*x.npz; put it there, written with .*--set data.extra=none"),
    "text": (lambda p: p.write_text("hello"), "cannot be read as an .npz file"),
    "cut short": (cut_short, "cannot be read as an .npz file"),
    "lying": (lying, "cannot be read|is damaged"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_with_a_remedy(name: str, tmp_path: Path) -> None:
    write, message = BAD[name]
    write(tmp_path / "x.npz")
    with pytest.raises(InputError, match=message):
        open_extra(str(tmp_path / "x.npz"))


def test_it_is_looked_for_in_the_data_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sets").mkdir()
    written(tmp_path / "sets" / "x.npz")
    monkeypatch.chdir(tmp_path)
    assert len(open_extra("x.npz", data_dir=tmp_path / "sets")) == EXTRA
    assert len(open_extra(("sets/x.npz", "x.npz"), data_dir="sets")) == 2 * EXTRA


def test_what_does_not_fit_the_set_is_refused(tmp_path: Path) -> None:
    cases = {
        r"are \(3, 7, 6\), those of own \(3, 6, 6\)": {"image": np.zeros((EXTRA, 7, 6, 3), np.uint8)},
        r"has the label 4, and own has 4 classes": {"label": np.full(EXTRA, 4)},
    }
    for message, arrays in cases.items():
        with pytest.raises(InputError, match=message):
            batches(open_extra(str(written(tmp_path / "x.npz", **arrays))))
    other = written(tmp_path / "y.npz", image=np.zeros((EXTRA, 7, 6, 3), np.uint8))
    with pytest.raises(InputError, match=r"y.npz are \(7, 6, 3\), those of .*x.npz \(6, 6, 3\)"):
        open_extra([str(written(tmp_path / "x.npz")), str(other)])


def test_without_the_calls_of_posix_it_reads_all_the_same(extra: ExtraImages, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(batches(extra).epoch(0))
    for name in ("MADV_WILLNEED", "MADV_RANDOM"):
        monkeypatch.delattr(mmap, name, raising=False)
    assert all(same(a, b) for a, b in zip(expected, batches(extra).epoch(0), strict=True))
