"""Data, attacks and radii in whatever form people have them."""

from collections import UserDict
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from official import assert_same
from small_networks import Rough, pictures, taught_conv
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import widemargin
from image_files import image_folder
from widemargin import InputError
from widemargin.core.schema import LiteralFloat
from widemargin.data import ImageSet, load, open_images
from widemargin.evaluation.settings import number, radii
from widemargin.evaluation.shards import shards
from widemargin.models import MLPConfig

ATTACKS = ["clean", "fgsm", "pgd20", "autoattack"]

OPTIONS = {"eps": 0.2, "shard_size": 7, "batch_size": 4, "max_steps": 2, "sanity": False}


@pytest.fixture(scope="module")
def model():
    return Rough(taught_conv(4))


@pytest.fixture(scope="module")
def of_a_pair(model):
    return widemargin.evaluate(model, pictures(4, 18), ATTACKS, **OPTIONS)


def odd_batches(x, y, *sizes):
    yield from zip(x.split(list(sizes)), y.split(list(sizes)), strict=True)


class Entries(UserDict):
    """What ``transformers.BatchFeature`` is: a mapping, and no ``dict``."""

    def __init__(self, x, y):
        super().__init__(image=x, labels=y, path=["a.png"])


FORMS = {
    "a list of two tensors": lambda x, y: [x, y],
    "a set of images": lambda x, y: ImageSet(x, y, num_classes=4, name="own"),
    "batches of odd sizes": lambda x, y: odd_batches(x, y, 1, 3, 11, 2, 1),
    "one batch over several shards": lambda x, y: odd_batches(x, y, 18),
    "batches of a shard's size": lambda x, y: odd_batches(x, y, 7, 7, 4),
    "a list of batches": lambda x, y: list(odd_batches(x, y, 9, 9)),
    "a loader of PyTorch's": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=5),
    "batches with empty ones among them": lambda x, y: odd_batches(x, y, 0, 5, 0, 0, 13, 0),
    "a batch as Hugging Face's image processors make it": lambda x, y: {"pixel_values": x, "labels": y},
    "batches as Hugging Face's data sets give them": lambda x, y: [
        {"img": x[:9], "label": y[:9]},
        Entries(x[9:], y[9:]),
    ],
    "images, labels and indices": lambda x, y: (x, y, torch.arange(len(y))),
    "batches with indices": lambda x, y: DataLoader(TensorDataset(x, y, torch.arange(len(y))), batch_size=5),
    "batches of WebDataset": lambda x, y: [
        [x[:9], y[:9].numpy()],
        {"__key__": ["0"], "jpg": x[9:], "cls": y[9:].numpy()},
    ],
    "labels of bytes": lambda x, y: (x, y.to(torch.uint8)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_results(of_a_pair, model, form):
    x, y = pictures(4, 18)
    found = widemargin.evaluate(model, FORMS[form](x, y), ATTACKS, **OPTIONS)
    assert found.count == 18
    assert_same(found, of_a_pair)


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_a_limit_keeps_the_first_examples(model, limit):
    x, y = pictures(4, 18)
    expected = widemargin.evaluate(model, (x[:limit], y[:limit]), ATTACKS, **OPTIONS)
    for data in ((x, y), odd_batches(x, y, 1, 3, 11, 2, 1), ImageSet(x, y, num_classes=4, name="own")):
        assert_same(widemargin.evaluate(model, data, ATTACKS, limit=limit, **OPTIONS), expected)


def test_nothing_is_asked_for_beyond_the_limit(model):
    x, y = pictures(4, 6)

    def batches():
        yield x[:3], y[:3]
        yield x[3:], y[3:]
        raise AssertionError("a batch too many")

    assert widemargin.evaluate(model, batches(), ["clean"], limit=6).count == 6


def test_a_data_set_by_name():
    data = load("mnist-embedded", "test", limit=12)
    model = MLPConfig(hidden=(8,)).build(image_shape=(1, 28, 28), num_classes=10, seed=0)
    named = widemargin.evaluate(model, "mnist-embedded", ["clean", "fgsm"], 0.1, limit=12)
    assert_same(named, widemargin.evaluate(model, data, ["clean", "fgsm"], 0.1))
    assert_same(named, widemargin.evaluate(model, (data.floats(), data.labels), ["clean", "fgsm"], 0.1))
    assert named.to_json()["data"] == {"name": "mnist-embedded", "split": "test", "count": 12, "whole": 3000}


def test_the_data_is_recorded_by_its_name_where_it_has_one(model):
    x, y = pictures(4, 6)
    named = widemargin.evaluate(model, ImageSet(x, y, num_classes=4, name="own"), ["clean"], **OPTIONS)
    assert named.to_json()["data"] == {"name": "own", "split": "test", "count": 6}
    for data in ((x, y), odd_batches(x, y, 2, 4)):
        report = widemargin.evaluate(model, data, ["clean"], **OPTIONS)
        assert report.to_json()["data"]["name"] == "tensors in memory"


def split_slowly(x, y, size):
    """(number, first, images, labels) of each shard, from whole tensors."""
    return [
        (number, first, x[first : first + size], y[first : first + size])
        for number, first in enumerate(range(0, len(y), size))
    ]


@pytest.mark.parametrize("size", [1, 4, 7, 18, 19])
@pytest.mark.parametrize("batches", [(18,), (1, 3, 11, 2, 1), (7, 7, 4), (1,) * 18, (17, 1), (6, 6, 6)])
def test_shards_are_a_plain_split_and_copy_each_image_once(monkeypatch, size, batches):
    x, y = pictures(4, 18)
    copied, cat = [], torch.cat
    monkeypatch.setattr(torch, "cat", lambda parts: copied.append(sum(map(len, parts))) or cat(parts))
    for data in (odd_batches(x, y, *batches), (x, y)):
        copied.clear()
        found = list(shards(data, size))
        expected = split_slowly(x, y, size)
        assert [(shard.number, shard.first) for shard in found] == [(number, first) for number, first, _, _ in expected]
        for shard, (_, _, images, labels) in zip(found, expected, strict=True):
            assert shard.images.equal(images)
            assert shard.labels.equal(labels)
        assert sum(copied) == 2 * 18  # images, and labels


@pytest.mark.parametrize("shard_size", [1, 5, 18, 500])
def test_shards_do_not_change_what_is_not_random(very_short, model, shard_size):
    x, y = pictures(4, 18)
    attacks = ["clean", "fgsm", "pgd3"]
    expected = widemargin.evaluate(model, (x, y), attacks, 0.2, sanity=False, distance=True)
    found = widemargin.evaluate(model, (x, y), attacks, 0.2, sanity=False, distance=True, shard_size=shard_size)
    assert found.accuracy == expected.accuracy
    assert found.margin.allclose(expected.margin, rtol=1e-4)
    assert found.distance.allclose(expected.distance, rtol=1e-3)


def test_the_indices_of_shards_go_on(tmp_path, model):
    x, y = pictures(4, 18)
    widemargin.evaluate(model, (x, y), ["clean"], out=tmp_path, shard_size=5)
    rows = (tmp_path / "examples.jsonl").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == [f'{{"index": {index}' for index in range(18)]
    assert sorted(path.name for path in (tmp_path / "shards").glob("*.jsonl")) == [
        f"{number:05d}.jsonl" for number in range(4)
    ]


QUICK = {"sanity": False, "margins": False}

NUMBERS = [0.25, "0.25", "1/4", np.float32(0.25), np.float64(0.25), np.array(0.25), torch.tensor(0.25), Fraction(1, 4)]


@pytest.mark.parametrize("eps", [*NUMBERS, Decimal("0.25"), torch.tensor(0.25, dtype=torch.float64)])
def test_a_number_of_any_kind_is_an_eps(eps):
    assert radii(eps) == radii([eps]) == (0.25,)


@pytest.mark.parametrize(
    "several", [(0.25, 0.5), ["1/4", 0.5], np.array([0.25, 0.5]), torch.tensor([0.25, 0.5]), {0.25: 1, 0.5: 2}.keys()]
)
def test_several(several):
    assert radii(several) == (0.25, 0.5)


def test_what_is_written_stays_written():
    assert [eps.text for eps in radii(["8/255", LiteralFloat("0.10")])] == ["8/255", "0.10"]
    assert type(radii(1)[0]) is int


def test_an_evaluation_takes_them(tmp_path):
    model, data = taught_conv(4), pictures(4, 6)
    expected = widemargin.evaluate(model, data, "fgsm", 0.25, step_size=0.125, **QUICK)
    for eps, step in ((np.float32(0.25), np.float32(0.125)), (torch.tensor(0.25), torch.tensor(0.125))):
        found = widemargin.evaluate(model, data, ["fgsm"], eps, step_size=step, out=tmp_path, **QUICK)
        assert found.settings == expected.settings
        assert found.accuracy == expected.accuracy


@pytest.mark.parametrize("wrong", [None, [None], torch.ones(2, 2), object(), 1j])
def test_what_is_no_number(wrong):
    with pytest.raises(InputError, match=r"evaluate\.eps must be a number such as 8/255, got "):
        radii(wrong)
    with pytest.raises(InputError, match=r"evaluate\.step_size must be a number such as 8/255, got None"):
        number("step_size", None)


@pytest.mark.parametrize("workers", [0, 1])
def test_streamed_images_are_judged_as_those_in_memory(workers, tmp_path):
    folder = image_folder(tmp_path / "jpegs", test=14)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 3)).eval()
    options = {"attacks": ("clean", "pgd2"), "eps": 0.05, "shard_size": 5, "batch_size": 4, "sanity": False}
    stream = open_images(folder, "test", image_size=12, streaming=True, workers=workers)
    for limit in (None, 7):
        report, expected = (
            widemargin.evaluate(model, data, limit=limit, **options)
            for data in (stream, load(folder, "test", image_size=12))
        )
        assert report.count == (limit or 14)
        assert report.accuracy == expected.accuracy
        assert all(report.verdicts[name].equal(found) for name, found in expected.verdicts.items())
