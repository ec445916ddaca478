"""Tar shards: the images of the folder they were made of, read in place, and shards that nobody should trust."""

import io
import tarfile

import pytest
import torch

from data_files import tar_of
from image_files import encoded, image_folder, photograph, tar_shards
from widemargin.data import ImageSet, ImageStream, load, open_images
from widemargin.data.tar_shards import open_tar_shards
from widemargin.errors import InputError, WidemarginWarning

JPEG = encoded(photograph(1, (16, 16)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return image_folder(tmp_path_factory.mktemp("folder"))


@pytest.mark.parametrize("labels", ["cls", "json"])
def test_shards_hold_the_images_of_the_folder(labels, folder, tmp_path):
    root = tar_shards(folder, tmp_path, shards=3, labels=labels)
    for split in ("train", "test"):
        data = open_images(root, split, image_size=16, streaming=True, workers=1)
        expected = load(folder, split, image_size=16)
        assert isinstance(data, ImageStream)
        assert torch.equal(data.in_memory().images, expected.images)
        assert (data.labels.tolist(), data.num_classes) == (expected.labels.tolist(), 3)
        backwards = torch.arange(len(data)).flip(0)
        assert torch.equal(next(data.read([backwards])), expected.images.flip(0))
    assert isinstance(load(root, "test", image_size=16), ImageSet)
    assert sorted(path.name for path in (tmp_path / "train").iterdir()) == [f"{n:06d}.tar" for n in range(3)]


def test_a_single_shard_is_one_set(tmp_path):
    path = tmp_path / "all.tar"
    path.write_bytes(tar_of({"a.jpg": JPEG, "a.cls": b"4\n", "b.jpeg": JPEG, "b.json": b"1"}))
    for where in (path, tmp_path):
        with pytest.warns(WidemarginWarning, match="holds one set, with no test part"):
            data = open_images(where, "test")
        assert (data.labels.tolist(), data.num_classes, data.image_shape) == ([4, 1], 5, (3, 16, 16))
    with pytest.raises(InputError, match=r"all.tar: a.jpg has the label 4, and there are 3 classes"):
        open_tar_shards(path, "train", num_classes=3)


def test_what_is_no_sample_is_passed_over(tmp_path):
    shard = tmp_path / "0.tar"
    with tarfile.open(shard, "w", format=tarfile.PAX_FORMAT) as archive:

        def add(name, content=b"", **fields):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for field, value in fields.items():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(content))

        add("../../outside.jpg", JPEG)
        add("../../outside.cls", b"0")
        add("/etc/passwd.txt", b"text")
        add("link.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        add("hard.cls", type=tarfile.LNKTYPE, linkname="../../outside.cls")
        add("pipe.jpg", type=tarfile.FIFOTYPE)
        add("device.cls", type=tarfile.CHRTYPE)
        add("folder.jpg", type=tarfile.DIRTYPE)
        add("._apple.jpg", b"what a Mac leaves")
        add("notes.json", b'{"license": "MIT"}')
        add("good.one.jpg", b"another ending")
        add("dir.d/b.PNG", encoded(photograph(2, (16, 16)), "PNG"))
        add("dir.d/b.json", b'{"labels": 2, "cls": 1}')
        add("dir.d/b.cls", b"1")
    data = open_tar_shards(shard, "train")
    assert data.labels.tolist() == [0, 1]
    assert [data.files.name(n).partition(": ")[2] for n in range(2)] == ["../../outside.jpg", "dir.d/b.PNG"]
    assert not (tmp_path.parent.parent / "outside.jpg").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["0.tar"]


SHARDS = {
    "no label": ({"a.jpg": JPEG}, r"a.jpg has no label \(KEY.cls, or KEY.json with label\) beside it"),
    "a table without a label": ({"a.jpg": JPEG, "a.json": b"{}"}, "a.jpg has no label"),
    "no image": ({"a.cls": b"1"}, "a.cls has no image"),
    "two images": ({"a.jpg": JPEG, "a.png": JPEG, "a.cls": b"1"}, "a.png: its key has two of these"),
    "a name": ({"a.jpg": JPEG, "a.cls": b"cat"}, "a.cls must hold a class number"),
    "no table": ({"a.jpg": JPEG, "a.json": b"{"}, "a.json must hold a JSON table"),
    "below zero": ({"a.jpg": JPEG, "a.cls": b"-1"}, "a.cls: the label must be a class number from 0 on, got -1"),
    "a truth": ({"a.jpg": JPEG, "a.json": b'{"label": true}'}, "a class number from 0 on, got True"),
    "text": ({"a.jpg": JPEG, "a.json": b'{"label": "cat"}'}, "a class number from 0 on, got 'cat'"),
    "too large": ({"a.jpg": JPEG, "a.cls": b"9" * 30}, "a class number from 0 on, got 9999"),
    "nothing": ({"a.txt": b"1"}, "its shards hold no image"),
    "not an image": ({"a.jpg": b"nothing", "a.cls": b"1"}, r"0.tar: a.jpg: cannot be read as an image"),
    "escapes": ({"a\x1b[2J\n.jpg": b"x", "a\x1b[2J\n.cls": b"1"}, r"0.tar: a\?\[2J\?.jpg: cannot be read as an image"),
}


@pytest.mark.parametrize("name", SHARDS)
def test_shards_that_are_refused(name, tmp_path):
    members, told = SHARDS[name]
    (tmp_path / "0.tar").write_bytes(tar_of(members))
    with pytest.raises(InputError, match=told) as caught:
        open_images(tmp_path, "train")
    assert "\n" not in str(caught.value)


def test_damaged_shards_are_told_and_lose_no_sample_silently(tmp_path):
    whole = tar_of({f"{n}.{ending}": JPEG if ending == "jpg" else b"1" for n in range(3) for ending in ("jpg", "cls")})
    path = tmp_path / "0.tar"
    second = whole.index(b"1.jpg")
    for content, told in (
        (b"", "cannot be read as a tar file"),
        (b"nothing of the kind" * 100, "cannot be read as a tar file"),
        (whole[: second + 600], "1.jpg is cut short"),
        (whole[:second] + b"\xff" * 300 + whole[second + 300 :], f"is damaged from byte {second} on"),
        (whole[: second + 100], f"is damaged from byte {second} on"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=told):
            open_tar_shards(path, "train")


def test_packed_shards_are_refused(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "0.tar.gz").write_bytes(b"")
    for where in (tmp_path, tmp_path / "train"):
        with pytest.raises(InputError, match=r"holds no .tar; .* \(packed ones, .tar.gz, must be unpacked\)"):
            open_images(where, "train")
