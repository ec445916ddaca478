"""What is measured after an epoch, against slow computations by hand."""

from dataclasses import replace

import pytest
import torch

from oracles import effective_margin_slowly, pgd_slowly
from widemargin.config.checkpoint import load_checkpoint, restore_model
from widemargin.data import ImageSet, load
from widemargin.training import train
from widemargin.training import watch as watch_module
from widemargin.types import Nets

AT = 'objective={kind="adversarial", attack={kind="pgd", eps=0.05, step_size=0.02, steps=3}}'


def moments_by_hand(model, images, labels):
    """Mean and standard deviation of the margins of correctly classified images."""
    right = model(images).argmax(1) == labels
    margins = effective_margin_slowly(model, images[right], labels[right], "l2").double()
    return margins.mean().item(), margins.std(correction=0).item()


def model_of(folder):
    path = folder / "last.safetensors"
    return restore_model(load_checkpoint(path), source=path)


def moments(line, split):
    return line[f"{split}_margin_mean"], line[f"{split}_margin_std"]


def test_margins_of_standard_training_are_those_of_correctly_classified_images(tiny, tmp_path):
    line = train(tiny("epochs=2", "optimizer.lr=0.03"), out=tmp_path).metrics[-1]
    model = model_of(tmp_path)
    assert 20 < line["test_clean"] < 90  # some right, some wrong, else this test says nothing
    for split, count in (("train", 150), ("test", 60)):
        data = load("mnist-embedded", split, limit=count)
        expected = moments_by_hand(model, data.floats(), data.labels)
        assert moments(line, split) == pytest.approx(expected, rel=1e-4)


def test_training_margins_of_adversarial_training_are_those_at_the_adversarial_images(tiny, tmp_path):
    settings = ("epochs=5", "data.train_limit=80", "batch_size=10", "model.hidden=[32]", "optimizer.lr=0.02")
    line = train(tiny(*settings, AT), out=tmp_path).metrics[-1]
    model = model_of(tmp_path)
    data = load("mnist-embedded", "train", limit=80)
    attacked = pgd_slowly(model, data.floats(), data.labels, eps=0.05, step_size=0.02, steps=3)
    assert moments(line, "train") == pytest.approx(moments_by_hand(model, attacked, data.labels), rel=1e-4)
    assert line["train_margin_mean"] != pytest.approx(moments_by_hand(model, data.floats(), data.labels)[0], rel=0.02)
    test = load("mnist-embedded", "test", limit=60)
    assert moments(line, "test") == pytest.approx(moments_by_hand(model, test.floats(), test.labels), rel=1e-4)


def test_accuracies_clean_and_attacked_against_a_loop(tiny, tmp_path):
    attack = 'watch.attack={kind="pgd", eps=0.05, step_size=0.02, steps=3}'
    line = train(tiny("epochs=2", attack, "data.held_out=30"), out=tmp_path).metrics[-1]
    model = model_of(tmp_path)
    test = load("mnist-embedded", "test", limit=60)
    attacked = pgd_slowly(model, test.floats(), test.labels, eps=0.05, step_size=0.02, steps=3)
    for key, images in (("test_clean", test.floats()), ("test_robust", attacked)):
        right = [int(model(x[None]).argmax()) == int(y) for x, y in zip(images, test.labels, strict=True)]
        assert line[key] == pytest.approx(100 * sum(right) / 60)
    assert line["test_robust"] < line["test_clean"]
    assert line["validation_robust"] <= line["validation_clean"]


def test_only_the_first_margin_samples_are_measured(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(watch_module, "batch_size", lambda *_: 16)  # 20 samples: a whole batch and a part of one
    line = train(tiny("epochs=1", "watch.margin_samples=20"), out=tmp_path).metrics[-1]
    model = model_of(tmp_path)
    for split in ("train", "test"):
        data = load("mnist-embedded", split, limit=20)
        assert moments(line, split) == pytest.approx(moments_by_hand(model, data.floats(), data.labels), rel=1e-4)


EVERYTHING = ("epochs=1", 'watch.attack={kind="fgsm", eps=0.1}', "data.held_out=20")


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    (line,) = train(tiny(*EVERYTHING), out=tmp_path_factory.mktemp("whole")).metrics
    return line


@pytest.mark.parametrize(
    ("setting", "absent"),
    [
        ("watch.test=false", {"test_clean", "test_robust"}),
        ('watch.margins=["test"]', {"train_margin_mean", "train_margin_std"}),
        ('watch.margins=["train"]', {"test_margin_mean", "test_margin_std"}),
        ("watch.margins=[]", {"train_margin_mean", "train_margin_std", "test_margin_mean", "test_margin_std"}),
        ("watch.attack=none", {"test_robust", "validation_robust"}),
        ("data.held_out=0", {"validation_clean", "validation_robust"}),
    ],
)
def test_each_part_can_be_switched_off(tiny, tmp_path, whole, setting, absent):
    (part,) = train(tiny(*EVERYTHING, setting), out=tmp_path).metrics
    assert whole.keys() - part.keys() == absent
    for key in part.keys() - {"seconds", "watch_seconds"}:
        assert part[key] == whole[key] or setting == "data.held_out=0"  # which changes the training images


def test_every_second_epoch_and_the_last_are_watched(tiny, tmp_path):
    lines = train(tiny("epochs=5", "watch.every=2"), out=tmp_path).metrics
    assert ["test_clean" in line for line in lines] == [False, True, False, True, True]
    assert all("loss" in line for line in lines)


def test_watching_does_not_change_what_is_trained(tiny, tmp_path, left_in):
    config = tiny('objective={kind="adversarial", attack={kind="fgsm", eps=0.1}}', 'emr={kind="exact", weight=0.1}')
    train(config, out=tmp_path / "watched")
    blind = replace(config, watch=replace(config.watch, test=False, margins=()))
    train(blind, out=tmp_path / "blind")
    watched, blind = (left_in(tmp_path / name).tensors["last.safetensors"] for name in ("watched", "blind"))
    assert all(value.equal(blind[key]) for key, value in watched.items() if key != "train/metrics")


def test_a_model_that_classifies_nothing_correctly_has_no_margin(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("widemargin.evaluation.accuracy.classified", lambda model, x, y: torch.zeros_like(y).bool())
    (line,) = train(tiny("epochs=1"), out=tmp_path).metrics
    assert not any("margin" in key for key in line)


def test_many_images_are_measured_at_once_where_they_and_the_network_are_small(tiny):
    digits, pixels, large = (
        ImageSet(torch.zeros(1, *shape), torch.zeros(1, dtype=torch.int64), num_classes=10, name="one")
        for shape in ((1, 28, 28), (3, 32, 32), (3, 64, 64))
    )
    mlp, cnn, resnet = tiny(), tiny('model={kind="cnn"}'), tiny('model={kind="resnet18"}')
    assert [watch_module.batch_size(mlp, data) for data in (digits, pixels)] == [2500, 500]
    assert [watch_module.batch_size(cnn, data) for data in (pixels, large)] == [1000, 500]
    assert watch_module.batch_size(resnet, digits) == 500


def test_the_attack_has_the_runs_seed_and_margins_the_epoch_that_was_trained(tiny, tmp_path, monkeypatch):
    seeds, epochs, real = set(), [], watch_module.verdicts
    random = 'attack={kind="pgd", eps=0.03, step_size=0.02, steps=1, random_start="uniform"}'
    config = tiny("epochs=2", "seed=5", "optimizer.schedule.milestones=[1]", f'watch={{{random}, margins=["train"]}}')
    perturb = type(config.objective).perturb

    def judged(model, data, attack=None, **options):
        if attack is not None:
            seeds.add(options.get("seed"))
        return real(model, data, attack, **options)

    def perturbed(self, *args, epoch, **options):
        epochs.append(epoch)
        return perturb(self, *args, epoch=epoch, **options)

    monkeypatch.setattr(watch_module, "verdicts", judged)
    monkeypatch.setattr(type(config.objective), "perturb", perturbed)
    train(config, out=tmp_path)
    assert seeds == {5}
    assert sorted(set(epochs)) == [0, 1]


def test_an_attack_in_training_mode_leaves_the_statistics_alone_while_margins_are_measured(tiny):
    attack = '{kind="pgd", eps=0.05, step_size=0.02, steps=2, mode="train"}'
    config = tiny('model={kind="resnet18", width=4}', f'objective={{kind="adversarial", attack={attack}}}')
    data = load("mnist-embedded", "train", limit=8)
    model = config.model.build(image_shape=data.image_shape, num_classes=10, seed=0).train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    ((x, y),) = watch_module.training_points(Nets(model), data, config, epoch=1)
    assert not x.equal(data.floats())
    assert y.equal(data.labels)
    assert all(buffer.equal(before[name]) for name, buffer in model.named_buffers())
    generator = torch.Generator().manual_seed(0)
    config.objective.perturb(Nets(model), data.floats(), data.labels, epoch=0, generator=generator)
    assert not model.get_buffer("bn1.running_mean").equal(before["bn1.running_mean"])  # the attack by itself moves them
