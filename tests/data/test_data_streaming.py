"""Streamed images: the pixels of memory, crops that depend on seed, epoch and position alone, and damaged files."""

import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from image_files import encoded, image_folder, photograph
from widemargin.data import Batches, ImageSet, ImageStream, RandomResizedCrop, image_stream, load, open_images
from widemargin.data.batches import in_order
from widemargin.data.decoding import CropDraws, ImageForm, decode
from widemargin.errors import InputError

CROP = RandomResizedCrop(smallest=0.3)


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    return image_folder(tmp_path_factory.mktemp("alike"), mixed=False)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    return image_folder(tmp_path_factory.mktemp("mixed"))


@pytest.fixture
def small_pieces(monkeypatch):
    """So that some images are several pieces of work."""
    monkeypatch.setattr(image_stream, "MOST_IN_PIECE", 4)


def streamed(folder, split="train", **options) -> ImageStream:
    found = open_images(folder, split, streaming=True, **options)
    assert isinstance(found, ImageStream)
    return found


def epoch_of(batches, epoch=1, start=0):
    return [(b.indices, b.images, b.labels) for b in batches.epoch(epoch, start)]


def same(one, other) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("augmentation", ["none", "crop-flip", "cutmix"])
def test_images_alike_give_the_batches_of_memory(workers, augmentation, alike, small_pieces):
    from widemargin.data import AUGMENTATIONS

    options = {"batch_size": 10, "seed": 3, "augmentation": AUGMENTATIONS[augmentation]()}
    memory = Batches(data=load(alike, "train"), **options)
    stream = Batches(data=streamed(alike, workers=workers), **options)
    assert memory.steps_per_epoch == stream.steps_per_epoch == 4
    assert same(epoch_of(stream), epoch_of(memory))
    assert same(epoch_of(stream, start=2), epoch_of(memory, start=2))


def test_crops_depend_neither_on_workers_nor_on_where_an_epoch_is_resumed(mixed, small_pieces):
    expected = None
    for workers in (0, 1, 2):
        data = streamed(mixed, image_size=16, workers=workers)
        batches = Batches(data=data, batch_size=10, seed=3, augmentation=CROP)
        found = epoch_of(batches)
        expected = expected or found
        assert same(found, expected)
        assert same(epoch_of(batches, start=3), expected[3:])
    assert not same(epoch_of(batches, epoch=2), expected)
    rows = torch.cat([indices for indices, *_ in expected]).argsort()
    again = torch.cat([indices for indices, *_ in epoch_of(batches, epoch=2)]).argsort()
    images = torch.cat([x for _, x, _ in expected])[rows]
    others = torch.cat([x for _, x, _ in epoch_of(batches, epoch=2)])[again]
    assert (images != others).flatten(1).any(1).all()  # every image is another part in another epoch


def test_two_processes_decode_their_rows_of_the_same_batches(mixed):
    data = streamed(mixed, image_size=16, workers=0)
    options = {"data": data, "batch_size": 10, "seed": 3, "augmentation": CROP}
    whole = epoch_of(Batches(**options))
    halves = [epoch_of(Batches(**options, rank=rank, processes=2)) for rank in (0, 1)]
    joined = [tuple(map(torch.cat, zip(*pair, strict=True))) for pair in zip(*halves, strict=True)]
    assert same(joined, whole)


def test_replayed_batches_are_decoded_once(mixed, monkeypatch):
    decoded = []
    monkeypatch.setattr(image_stream, "decode", lambda *args, **k: decoded.append(1) or decode(*args, **k))
    data = streamed(mixed, image_size=16, workers=0)
    batches = Batches(data=data, batch_size=20, seed=0, replays=3)
    steps = list(batches.epoch(0, 1))
    assert [batch.step for batch in steps] == [1, 2, 3, 4, 5]
    assert torch.equal(steps[0].images, steps[1].images)
    assert not torch.equal(steps[1].indices, steps[2].indices)
    assert len(decoded) == 36


def test_the_middle_of_an_image_is_that_of_the_usual_transform(tmp_path):
    """Shorter side to 8/7 of the size, then the center: one resize of ours against Pillow's resize and crop."""
    folder = image_folder(tmp_path, train=3, test=3)
    photograph(7, (400, 256)).save(folder / "test" / "class0" / "big.png")
    data = streamed(folder, "test", image_size=56)
    position = [data.files.name(n).endswith("big.png") for n in range(len(data))].index(True)
    ours = next(data.read([torch.tensor([position])]))[0].permute(1, 2, 0).numpy().astype(int)
    scaled = photograph(7, (400, 256)).resize((100, 64), Image.Resampling.BILINEAR)
    left, upper = (scaled.width - 56) // 2, 4
    expected = np.asarray(scaled.crop((left, upper, left + 56, upper + 56))).astype(int)
    assert np.abs(ours - expected).max() <= 2
    assert np.abs(ours - expected).mean() < 1


def test_an_image_of_the_size_is_taken_whole(alike):
    assert torch.equal(load(alike, "test", image_size=16).images, load(alike, "test").images)


def test_a_large_jpeg_decoded_at_a_smaller_scale_is_the_same_picture(tmp_path):
    folder = image_folder(tmp_path, train=3, test=3)
    for ending in ("jpg", "png"):
        photograph(5, (900, 800)).save(folder / "test" / "class1" / f"big.{ending}", quality=95)
    data = streamed(folder, "test", image_size=32, workers=0)
    big = [n for n in range(len(data)) if "big" in data.files.name(n)]
    jpeg, png = next(data.read([torch.tensor(big)])).int()
    assert (jpeg - png).abs().max() <= 12
    assert (jpeg - png).abs().float().mean() < 2
    draws = CropDraws(CROP, 0, "crop", 0)
    jpeg, png = (decode(data.files, n, data.form, position=5, draws=draws).astype(int) for n in big)
    assert np.abs(jpeg - png).max() <= 16
    assert np.abs(jpeg - png).mean() < 2


def test_what_is_drawn_is_inside_and_of_the_shares_asked_for():
    crop, areas, aspects, flips = RandomResizedCrop(), [], [], 0
    for seed in range(2000):
        (left, upper, right, lower), flip = crop.draw(500, 375, torch.Generator().manual_seed(seed))
        assert 0 <= left < right <= 500
        assert 0 <= upper < lower <= 375
        areas.append((right - left) * (lower - upper) / (500 * 375))
        aspects.append(np.log((right - left) / (lower - upper)))
        flips += flip
    assert 0.075 < min(areas) < 0.1
    assert 0.95 < max(areas) <= 1
    assert 0.4 < np.mean(areas) < 0.55
    assert -0.31 < min(aspects) < -0.25
    assert 0.25 < max(aspects) < 0.31
    assert 900 < flips < 1100
    thin, _ = RandomResizedCrop(smallest=0.99).draw(400, 20, torch.Generator().manual_seed(0))
    assert thin == pytest.approx(((400 - 20 / 0.75) / 2, 0, (400 + 20 / 0.75) / 2, 20))  # no draw fits


def test_in_memory_and_in_order(mixed):
    data = streamed(mixed, "test", image_size=16)
    memory = load(mixed, "test", image_size=16)
    assert isinstance(memory, ImageSet)
    assert (memory.image_shape, memory.num_classes) == ((3, 16, 16), 3)
    for part in (data, data.subset([5, 2, 7]), data.first(5)):
        twin = memory.subset([5, 2, 7]) if len(part) == 3 else memory.first(len(part))
        assert same(list(in_order(part, 4)), list(in_order(twin, 4)))
    assert same(list(in_order(data, 4, start=1, every=2)), list(in_order(memory, 4))[1::2])


def test_the_choice_is_by_size(mixed, alike, monkeypatch):
    from widemargin.data import datasets

    assert isinstance(open_images(mixed, "train", image_size=16), ImageSet)
    assert isinstance(open_images(mixed, "train", image_size=16, crops=True), ImageStream)
    monkeypatch.setattr(datasets, "STREAMED_FROM", 36 * 3 * 16 * 16 - 1)
    assert isinstance(open_images(mixed, "train", image_size=16), ImageStream)
    assert isinstance(open_images(mixed, "train", image_size=16, streaming=False), ImageSet)
    assert isinstance(open_images(alike, "test"), ImageSet)


@pytest.mark.parametrize("content", [b"", b"nothing", "cut", "grey-alpha"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_file_is_one_line_with_its_name(content, workers, tmp_path, small_pieces):
    folder = image_folder(tmp_path, train=12, test=3)
    path = folder / "train" / "class1" / "004.jpg"
    if content == "cut":
        content = encoded(photograph(1, (200, 200)))[:-900]
    if content == "grey-alpha":
        content = encoded(photograph(1, color="LA"), "PNG")
    path.write_bytes(content)
    data = streamed(folder, image_size=16, workers=workers)
    with pytest.raises(InputError, match=r"class1/004\.jpg") as caught:
        list(data.read(torch.arange(12).split(6)))
    assert "\n" not in str(caught.value)


def test_a_file_that_changed_its_size_is_told(tmp_path):
    folder = image_folder(tmp_path, mixed=False)
    data = streamed(folder, workers=0)
    photograph(1, (17, 16)).save(folder / "train" / "class1" / "001.jpg")
    with pytest.raises(InputError, match=r"001\.jpg is 17x16 RGB and was to be 16x16 RGB; it has changed"):
        list(data.read([torch.arange(36)]))


def test_images_of_mixed_sizes_need_a_size(mixed):
    with pytest.raises(InputError, match=r"images must agree .*; set data.image_size"):
        streamed(mixed)


def test_a_killed_process_is_told(mixed, monkeypatch, small_pieces):
    def killed(*args, **options):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(image_stream, "decode", killed)
    with pytest.raises(InputError, match=r"decoding images in 2 processes failed: DataLoader worker .*; try fewer"):
        list(streamed(mixed, image_size=16, workers=2).read([torch.arange(36)]))


def test_signals_to_all_processes_leave_the_decoding_ones_at_work(mixed, monkeypatch, small_pieces):
    def signaled(*args, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        return decode(*args, **options)

    expected = next(streamed(mixed, image_size=16, workers=0).read([torch.arange(36)]))
    monkeypatch.setattr(image_stream, "decode", signaled)
    assert torch.equal(next(streamed(mixed, image_size=16, workers=2).read([torch.arange(36)])), expected)


def test_the_global_random_state_is_left_alone(mixed, small_pieces):
    before = torch.get_rng_state()
    list(streamed(mixed, image_size=16, workers=2).read([torch.arange(36)]))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_room_in_shared_memory_images_go_through_a_pipe(mixed, monkeypatch, small_pieces):
    data = streamed(mixed, image_size=16, workers=2)
    expected = next(data.read([torch.arange(36)]))
    monkeypatch.setattr(image_stream, "_fits_shared", lambda size: False)
    assert torch.equal(next(data.read([torch.arange(36)])), expected)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"name": "mnist-embedded", "streaming": True}, "data.streaming is for folders of images and tar shards"),
        ({"name": "mnist-embedded", "image_size": 8}, "data.image_size is for folders of images and tar shards"),
        ({"workers": -1}, "workers must be a number of processes"),
        ({"streaming": False, "augmentation": CROP}, "random-resized-crop' is taken while images are decoded"),
    ],
)
def test_what_has_no_effect_is_refused(options, told, mixed):
    options = {"name": mixed, **({} if "name" in options else {"image_size": 8}), **options}
    augmentation = options.pop("augmentation", None)
    name = options.pop("name")

    def read():
        Batches(data=open_images(name, "train", **options), batch_size=4, seed=0, augmentation=augmentation)

    with pytest.raises(InputError, match=told):
        read()


@pytest.mark.parametrize("settings", [{"smallest": 0.0}, {"largest": 1.5}, {"aspect": 2.0}, {"flip": -1.0}])
def test_settings_of_the_crop(settings):
    with pytest.raises(InputError, match="RandomResizedCrop"):
        RandomResizedCrop(**settings)


def test_forms_are_told_in_words():
    assert str(ImageForm(5, 6, "L")) == "5x6 grey"
