"""Data sets by name: trained on, and judged on, from small files in the published formats."""

from functools import partial

import numpy as np
import pytest

from data_files import cifar100_binary, mat, tiny_imagenet, written, zip_of
from widemargin.data import datasets
from widemargin.data.cifar import read_cifar
from widemargin.data.tiny_imagenet import read_tiny_imagenet


def photos(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, *shape), dtype=np.uint8)


def cifar100(folder, monkeypatch):
    monkeypatch.setattr(datasets, "read_cifar", partial(read_cifar, records_per_batch=4))
    for split, count in (("train", 20), ("test", 4)):
        content = cifar100_binary(photos(count, 3, 32, 32), [(37 * i) % 100 for i in range(count)])
        written(folder / "cifar100" / "cifar-100-binary", f"{split}.bin", content)


def svhn(folder, monkeypatch):
    for split, count in (("train", 20), ("test", 4)):
        labels = np.array([[1 + i % 10] for i in range(count)], np.uint8)
        content = mat({"X": photos(count, 32, 32, 3).transpose(1, 2, 3, 0), "y": labels})
        written(folder / "svhn", f"{split}_32x32.mat", content)


def tiny(folder, monkeypatch):
    monkeypatch.setattr(datasets, "read_tiny_imagenet", partial(read_tiny_imagenet, classes=4, per_class=5))
    files = tiny_imagenet(["n1", "n2", "n3", "n4"], photos(20, 64, 64, 3).reshape(4, 5, 64, 64, 3), val=5)
    written(folder / "tiny-imagenet", "tiny-imagenet-200.zip", zip_of(files))


KINDS = {"cifar100": (cifar100, 4, 100), "svhn": (svhn, 4, 10), "tiny-imagenet": (tiny, 20, 4)}


@pytest.mark.parametrize("name", KINDS)
def test_trained_and_judged_by_name(name, command, recipe, tmp_path, monkeypatch):
    make, count, classes = KINDS[name]
    make(tmp_path / "data", monkeypatch)
    data = ("--data-dir", tmp_path / "data")
    settings = (f"data.name={name}", "epochs=1", 'data.augmentation=["crop-flip", "autoaugment"]')
    flags = [word for setting in settings for word in ("--set", setting)]
    answer = command("train", recipe, "--out", tmp_path / "run", *flags, *data)
    assert answer.code == 0, answer.err
    for given in ((), ("--dataset", name)):
        answer = command("evaluate", tmp_path / "run", "--attacks", "clean,pgd2", "--eps", "0.05", *given, *data)
        assert answer.code == 0, answer.err
        assert f"{name}" in answer.text
        assert f"{count} " in answer.text
    assert f'name = "{name}"' in (tmp_path / "run" / "config.toml").read_text()
    loaded = datasets.load(name, "test", data_dir=tmp_path / "data")
    assert (len(loaded), loaded.num_classes) == (count, classes)
