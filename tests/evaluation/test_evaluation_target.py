"""What an evaluation may be pointed at is loaded as what it is, and nothing in a file is ever run."""

import argparse
import json
import pickle
import re
import shutil
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from widemargin import InputError
from widemargin.data import ImageSet
from widemargin.errors import WidemarginWarning
from widemargin.evaluation import load_target
from widemargin.evaluation.report import notes_on
from widemargin.evaluation.target import load_model
from widemargin.heads import Hypersphere, LinearHead
from widemargin.models import (
    CNNConfig,
    MLPConfig,
    PreActResNet18Config,
    ResNet18Config,
    SwishWideResNetConfig,
    WideResNetConfig,
)
from widemargin.models.classifier import Normalization


def holds(target, path):
    stored = load_file(path)
    return all(value.equal(stored[key]) for key, value in target.model.state_dict().items())


def test_a_run_folder_means_its_best_weights(run_folder):
    target = load_target(run_folder)
    assert target.path == run_folder / "best.safetensors"
    assert target.description.which == "best"
    assert holds(target, run_folder / "best.safetensors")
    assert not target.model.training


def test_a_run_folder_without_best_weights_means_the_last(plain_folder):
    target = load_target(plain_folder)
    assert target.path == plain_folder / "last.safetensors"
    assert target.description.which == "last"


def test_a_run_folder_that_lost_its_best_weights_means_the_last_and_says_so(run_folder, tmp_path):
    run = shutil.copytree(run_folder, tmp_path / "run")
    (run / "best.safetensors").unlink()
    with pytest.warns(WidemarginWarning, match=r"best.safetensors is missing; these are the run's last weights"):
        target = load_target(run)
    assert target.path == run / "last.safetensors"
    assert target.description.selection.endswith("; best.safetensors, chosen on held-out images, is missing")


@pytest.mark.parametrize("name", ["best.safetensors", "config.toml"])
def test_weights_of_another_run_than_the_folders_are_refused(run_folder, seed_1, tmp_path, name):
    run = shutil.copytree(run_folder, tmp_path / "run")
    shutil.copyfile(seed_1 / name, run / name)
    told = "best.safetensors is of another run than the config.toml of its folder (seed: "
    with pytest.raises(InputError, match=re.escape(told)):
        load_target(run)


def test_a_file_means_that_file(run_folder):
    target = load_target(run_folder / "last.safetensors")
    assert target.description.which == "last"
    assert holds(target, run_folder / "last.safetensors")


def test_a_path_that_does_not_exist(tmp_path):
    with pytest.raises(InputError, match=r"nowhere does not exist; give a run folder .* or a checkpoint file"):
        load_target(tmp_path / "nowhere")


def test_a_folder_without_checkpoints(tmp_path):
    with pytest.raises(InputError, match=r"holds no best.safetensors or last.safetensors; is it a run folder"):
        load_target(tmp_path)


def test_a_file_that_is_no_checkpoint(tmp_path):
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    with pytest.raises(InputError, match=r"notes.txt is not a readable checkpoint"):
        load_target(tmp_path / "notes.txt")


def test_weights_from_elsewhere(tmp_path):
    save_file({"a": torch.zeros(3)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="no widemargin description; it was not written by widemargin"):
        load_target(tmp_path / "a.safetensors")


def test_data_that_fit_the_model(run_folder, digits):
    load_target(run_folder).check_fits(digits)


@pytest.mark.parametrize(
    ("shape", "label", "classes"), [((1, 28, 28), 10, 11), ((3, 28, 28), 0, 10), ((1, 14, 14), 0, 2)]
)
def test_data_that_do_not(run_folder, shape, label, classes):
    data = ImageSet(torch.zeros(2, *shape), torch.tensor([0, label]), num_classes=classes, name="other")
    with pytest.raises(InputError, match=rf"other holds images .* of {classes} classes, but .*best.safetensors was"):
        load_target(run_folder).check_fits(data)


COLOR, GRAY = (3, 32, 32), (1, 28, 28)

NETWORKS = {
    "a small WideResNet as TRADES has it": (WideResNetConfig(depth=10, widen=1, variant="trades"), COLOR, 10),
    "a small WideResNet as Madry has it": (WideResNetConfig(depth=16, widen=2, variant="madry"), COLOR, 7),
    "a small WideResNet as DeepMind has it": (SwishWideResNetConfig(depth=10, widen=1), COLOR, 10),
    "a narrow ResNet-18": (ResNet18Config(width=8), COLOR, 10),
    "a narrow PreAct ResNet-18": (PreActResNet18Config(width=8), COLOR, 10),
    "a narrow PreAct ResNet-18 without its last batch norm": (PreActResNet18Config(width=8, last_norm=False), COLOR, 7),
    "the small CNN": (CNNConfig(), COLOR, 10),
    "an MLP": (MLPConfig(hidden=(12, 9)), GRAY, 5),
}


def build(config, shape, classes, make_head=LinearHead):
    """A network whose batch norms have seen something."""
    model = config.build(image_shape=shape, num_classes=classes, seed=4, make_head=make_head)
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.copy_(0.1 * torch.randn(module.running_mean.shape, generator=generator))
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    return model.eval()


def some_images(shape):
    return torch.rand(3, *shape, generator=torch.Generator().manual_seed(5))


def prefixed(weights, prefix):
    return {prefix + key: value for key, value in weights.items()}


def with_unused_group(weights):
    """TRADES keeps a second copy of the first group, which its forward never calls."""
    return weights | {
        key.replace("block1.", "sub_block1."): v for key, v in weights.items() if key.startswith("block1.")
    }


WRAPPINGS = {
    "plain": lambda weights: weights,
    "from several GPUs": lambda weights: prefixed(weights, "module."),
    "nested": lambda weights: {"state_dict": weights, "epoch": 76, "best": 0.5},
    "nested and from several GPUs": lambda weights: {"state_dict": prefixed(weights, "module."), "epoch": 76},
    "under another name": lambda weights: {"model_state_dict": weights, "optimizer": {"lr": 0.1}},
    "compiled": lambda weights: prefixed(weights, "_orig_mod."),
    "with an unused group": with_unused_group,
    "beside an optimizer's state": lambda weights: {
        "model": weights,
        "optimizer": {"state": {0: {"momentum_buffer": torch.zeros(3)}}, "param_groups": [{"lr": 0.1}]},
    },
    "under a name nobody knows": lambda weights: {"student": weights, "epoch": 3, "scheduler": {"last": 2}},
    "in a Sequential": lambda weights: prefixed(weights, "1."),
    "in a Sequential, from several GPUs": lambda weights: {"model": prefixed(weights, "module.1.")},
    "several GPUs in a Sequential": lambda weights: prefixed(weights, "1.module."),
    "in two wrappers": lambda weights: prefixed(weights, "module.wrapped.model."),
    "twice, for an attacker too": lambda weights: (
        prefixed(weights, "module.model.") | prefixed(weights, "module.attacker.model.")
    ),
    "older than the counters": lambda weights: {k: v for k, v in weights.items() if "num_batches" not in k},
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_public_weights_of_every_architecture(tmp_path, network, suffix):
    config, shape, classes = NETWORKS[network]
    model, path = build(config, shape, classes), tmp_path / f"weights{suffix}"
    save_file(model.state_dict(), path) if suffix == ".safetensors" else torch.save(model.state_dict(), path)
    found = load_model(str(path), image_shape=shape)
    assert type(found.model) is type(model)
    assert not found.model.training
    assert found.model(some_images(shape)).equal(model(some_images(shape)))
    assert found.subject.target == str(path)
    assert found.subject.weights == "public file"
    assert "unknown" in found.subject.selection
    assert found.plan is None
    assert found.data is None


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_public_weights_in_every_wrapping(tmp_path, wrapping, suffix):
    model = build(WideResNetConfig(depth=10, widen=1, variant="trades"), COLOR, 10)
    torch.save(WRAPPINGS[wrapping](model.state_dict()), tmp_path / f"weights{suffix}")
    found = load_model(str(tmp_path / f"weights{suffix}"), image_shape=COLOR)
    assert found.model(some_images(COLOR)).equal(model(some_images(COLOR)))


@pytest.mark.parametrize(
    ("stored", "prefix"),
    [
        (("mu", "sigma"), ""),
        (("0.mean", "0.std"), "1."),
        (("normalize.mean", "normalize.std"), "model."),
        (("0.means", "0.sds"), "1.module."),
        (("normalizer.new_mean", "normalizer.new_std"), "model."),
    ],
)
@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (3, 1, 1), (3,)])
def test_normalization_kept_in_the_file(tmp_path, stored, prefix, shape):
    values = Normalization(mean=(0.49, 0.48, 0.45), std=(0.2, 0.21, 0.22))
    model = build(ResNet18Config(width=8, normalize=values), COLOR, 10)
    plain = build(ResNet18Config(width=8), COLOR, 10)
    numbers = (torch.tensor(part).view(shape) for part in (values.mean, values.std))
    weights = prefixed(plain.state_dict(), prefix) | dict(zip(stored, numbers, strict=True))
    torch.save({"state_dict": prefixed(weights, "module.")}, tmp_path / "weights.pt")
    judged = load_model(str(tmp_path / "weights.pt"), image_shape=COLOR)
    assert judged.subject.normalize is None
    with pytest.raises(InputError, match=r"--normalize has no effect: .*weights.pt holds a normalization of its own"):
        load_model(str(tmp_path / "weights.pt"), image_shape=COLOR, normalize="none")
    found = judged.model
    torch.testing.assert_close(found(some_images(COLOR)), model(some_images(COLOR)), rtol=1e-4, atol=1e-5)
    assert not found(some_images(COLOR)).allclose(plain(some_images(COLOR)), atol=1e-3)


@pytest.mark.parametrize(
    ("text", "mean", "std"),
    [
        ("cifar10", (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
        ("0.5,0.25", (0.5,) * 3, (0.25,) * 3),
        ("0.1, 0.2, 0.3, 0.4, 0.5, 0.6", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
    ],
)
def test_normalization_given_beside_the_file(tmp_path, text, mean, std):
    plain = build(PreActResNet18Config(width=4), COLOR, 10)
    torch.save(plain.state_dict(), tmp_path / "weights.pt")
    found = load_model(str(tmp_path / "weights.pt"), image_shape=COLOR, normalize=text)
    images = some_images(COLOR)
    by_hand = (images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(found.model(images), plain(by_hand))
    assert (found.subject.normalize, notes_on(found.subject)) == (text, ())


def test_a_file_that_says_nothing_of_normalization_is_told_and_none_is_an_answer(tmp_path):
    plain = build(MLPConfig(hidden=(12,)), GRAY, 5)
    torch.save(plain.state_dict(), tmp_path / "weights.pt")
    asked = load_model(str(tmp_path / "weights.pt"), image_shape=GRAY)
    (note,) = notes_on(asked.subject)
    assert "Nothing in the file of the weights says how images are normalized" in note
    answered = load_model(str(tmp_path / "weights.pt"), image_shape=GRAY, normalize="none")
    assert notes_on(answered.subject) == ()
    for found in (asked, answered):
        assert found.model(some_images(GRAY)).equal(plain(some_images(GRAY)))


@pytest.mark.parametrize("text", ["cifar", "", "0.5", "0.5,0.5,0.5", "mnist", "0.5;0.2", "1,2,3,4,5,6,7"])
def test_a_normalization_that_is_none(tmp_path, text):
    torch.save(build(ResNet18Config(width=4), COLOR, 10).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(InputError, match=r"must be none, cifar10, .*, mnist, or MEAN,STD \(2 numbers, or 6"):
        load_model(str(tmp_path / "weights.pt"), image_shape=COLOR, normalize=text)


@pytest.mark.parametrize("text", ["0.5,0", "nan,1", "0.5,-1"])
def test_a_normalization_by_which_nothing_can_be_divided(tmp_path, text):
    torch.save(build(ResNet18Config(width=4), COLOR, 10).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(InputError, match=r"Normalization.(std|mean) must be"):
        load_model(str(tmp_path / "weights.pt"), image_shape=COLOR, normalize=text)


def test_of_two_sets_of_weights_none_is_chosen(tmp_path):
    one, other = (build(MLPConfig(hidden=(n,)), GRAY, 5).state_dict() for n in (12, 13))
    torch.save({"student": one, "teacher": other}, tmp_path / "weights.pt")
    with pytest.raises(InputError, match=r"the file holds several sets of weights \(student, teacher\); save the one"):
        load_model(str(tmp_path / "weights.pt"), image_shape=GRAY)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_head_without_bias_needs_its_scale(tmp_path, network):
    config, shape, classes = NETWORKS[network]
    model = build(config, shape, classes, make_head=Hypersphere(scale=15.0, margin=0.2))
    torch.save(model.state_dict(), tmp_path / "he.pt")
    with pytest.raises(InputError, match=r"without a bias, as hypersphere embedding \(HE\) has; .* --head-scale"):
        load_model(str(tmp_path / "he.pt"), image_shape=shape)
    found = load_model(str(tmp_path / "he.pt"), image_shape=shape, head_scale=15.0).model
    torch.testing.assert_close(found(some_images(shape)), model(some_images(shape)))
    half = load_model(str(tmp_path / "he.pt"), image_shape=shape, head_scale=7.5).model
    torch.testing.assert_close(2 * half(some_images(shape)), model(some_images(shape)))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_head_with_a_bias_has_no_scale(tmp_path, network):
    config, shape, classes = NETWORKS[network]
    torch.save(build(config, shape, classes).state_dict(), tmp_path / "linear.pt")
    with pytest.raises(InputError, match=r"--head-scale has no effect: .* with a bias, so their head is linear; leave"):
        load_model(str(tmp_path / "linear.pt"), image_shape=shape, head_scale=10.0)


def test_rows_that_left_the_sphere_go_back(tmp_path):
    model = build(MLPConfig(hidden=(12,)), GRAY, 5, make_head=Hypersphere(scale=10.0))
    expected = model(some_images(GRAY))
    weights = model.state_dict()
    weights["fcs.1.weight"] = 3.0 * weights["fcs.1.weight"]
    torch.save(weights, tmp_path / "he.pt")
    found = load_model(str(tmp_path / "he.pt"), image_shape=GRAY, head_scale=10.0).model
    torch.testing.assert_close(found(some_images(GRAY)), expected)


def test_images_of_another_size_than_the_weights_are_for(tmp_path):
    torch.save(build(MLPConfig(hidden=(12,)), GRAY, 5).state_dict(), tmp_path / "mlp.pt")
    with pytest.raises(InputError, match=r"fcs.0.weight \(expected \(12, 100\), got \(12, 784\)\)"):
        load_model(str(tmp_path / "mlp.pt"), image_shape=(1, 10, 10))


def test_public_weights_without_images(tmp_path):
    torch.save(build(MLPConfig(hidden=(12,)), GRAY, 5).state_dict(), tmp_path / "mlp.pt")
    with pytest.raises(InputError, match="does not say which images it wants; give --dataset"):
        load_model(str(tmp_path / "mlp.pt"), image_shape=None)


# Runs of ours


@pytest.mark.parametrize(("name", "which"), [("", "best"), ("best.safetensors", "best"), ("last.safetensors", "last")])
def test_a_run_of_ours_says_what_it_is(run_folder, name, which):
    found = load_model(str(run_folder / name), image_shape=None)
    assert found.subject.name == "tiny"
    assert found.subject.weights == which
    assert found.subject.selection
    assert found.subject.epoch in (1, 2)
    assert found.subject.target == str(run_folder / f"{which}.safetensors")
    assert found.data == "mnist-embedded"
    assert found.plan.attacks == ("clean", "pgd3")
    assert not found.model.training
    assert found.subject.config["name"] == "tiny"
    with safe_open(run_folder / f"{which}.safetensors", framework="pt") as stream:
        assert found.subject.checkpoint == json.loads(stream.metadata()["widemargin"])["checksum"]


def test_a_run_of_ours_knows_its_head(run_folder):
    for target in (run_folder, run_folder / "last.safetensors"):
        with pytest.raises(InputError, match=r"--head-scale is for public weights; .*\.safetensors says which head it"):
            load_model(str(target), image_shape=None, head_scale=10.0)
        with pytest.raises(InputError, match=r"--normalize is for public weights; .*\.safetensors says which normaliz"):
            load_model(str(target), image_shape=None, normalize="cifar10")


# A function of one's own


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_nets.py").write_text(
        "from torch import nn\n"
        "made = nn.Flatten()\n"
        "number = 3\n"
        "def factory():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).train()\n"
        "def wrong():\n    return 'a model'\n"
        "def needs(path):\n    return nn.Flatten()\n"
        "def fails():\n    raise RuntimeError('mine')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("own_nets", None)


def test_a_function_of_the_users(own_module):
    found = load_model("own_nets:factory", image_shape=None)
    assert isinstance(found.model[1], nn.Linear)
    assert not found.model.training
    assert found.subject.target == "own_nets:factory"


def test_a_network_by_its_name(own_module):
    assert isinstance(load_model("own_nets:made", image_shape=None).model, nn.Flatten)


def test_a_function_makes_its_own_head(own_module):
    with pytest.raises(InputError, match="--head-scale is for public weights; own_nets:factory makes its own head;"):
        load_model("own_nets:factory", image_shape=None, head_scale=10.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("own_nets:absent", "is neither a file nor a function: .* has no attribute 'absent'; write package.module:fun"),
        ("absent_nets:factory", "is neither a file nor a function: No module named 'absent_nets'"),
        ("./runs/at:best", "is neither a file nor a function"),
        (":factory", "is neither a file nor a function"),
        ("own_nets:", "is neither a file nor a function"),
        ("own_nets:wrong", "must return a torch.nn.Module, got str"),
        ("own_nets:number", "must return a torch.nn.Module, got int"),
        ("own_nets:needs", "called without arguments: missing a required argument: 'path'; give a function that takes"),
    ],
)
def test_what_is_no_function(own_module, text, says):
    with pytest.raises(InputError, match=says):
        load_model(text, image_shape=None)


def test_a_mistake_in_the_users_function_keeps_its_traceback(own_module):
    with pytest.raises(RuntimeError, match="mine"):
        load_model("own_nets:fails", image_shape=None)


# Files that are something else


class Malicious:
    """Runs code when it is unpickled."""

    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return (open, (str(self.witness), "w"))


def zipped(content, path):
    torch.save(content, path)


def legacy(content, path):
    torch.save(content, path, _use_new_zipfile_serialization=False)


def bare(content, path):
    path.write_bytes(pickle.dumps(content))


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt"])
@pytest.mark.parametrize("write", [zipped, legacy, bare])
@pytest.mark.parametrize("nested", [False, True])
def test_a_malicious_pickle_runs_nothing(tmp_path, recwarn, suffix, write, nested):
    witness, path = tmp_path / "was-here", tmp_path / f"weights{suffix}"
    evil = Malicious(witness)
    write({"state_dict": {"fcs.0.weight": evil}} if nested else evil, path)
    with pytest.raises(InputError, match="cannot be read as tensors alone, and nothing else is ever run") as refusal:
        load_model(str(path), image_shape=GRAY)
    assert not witness.exists()
    assert "\n" not in str(refusal.value)
    assert not recwarn.list
    if write is bare:  # the trap itself works
        with path.open("rb") as stream:
            pickle.load(stream)
        assert witness.exists()


@pytest.mark.parametrize("suffix", ["", ".bin", ".txt", ".safetensors", ".pkl"])
def test_a_malicious_pickle_under_another_name_runs_nothing(tmp_path, suffix):
    witness, path = tmp_path / "was-here", tmp_path / f"weights{suffix}"
    bare(Malicious(witness), path)
    with pytest.raises(InputError):
        load_model(str(path), image_shape=GRAY)
    assert not witness.exists()


def not_weights():
    return {
        "a tensor": torch.zeros(3),
        "a list": [torch.zeros(3)],
        "numbered tensors": {0: torch.zeros(3)},
        "a whole model": nn.Linear(2, 2),
        "settings in a namespace": {"state_dict": {}, "args": argparse.Namespace(lr=0.1)},
    }


@pytest.mark.parametrize("what", not_weights())
def test_something_else_than_a_state_dict(tmp_path, what):
    torch.save(not_weights()[what], tmp_path / "weights.pt")
    with pytest.raises(InputError, match=r"not a state dict|cannot be read as tensors alone") as refusal:
        load_model(str(tmp_path / "weights.pt"), image_shape=GRAY)
    assert "save model.state_dict()" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_broken_files(tmp_path):
    """Bytes changed or cut off anywhere are either still tensors or refused."""
    path, generator = tmp_path / "weights.pt", torch.Generator().manual_seed(0)
    for write in (zipped, legacy):
        write({"a": torch.zeros(3)}, path)
        whole = path.read_bytes()
        for _ in range(150):
            broken = bytearray(whole)
            for place in torch.randint(len(whole), (4,), generator=generator).tolist():
                broken[place] = int(torch.randint(256, (1,), generator=generator))
            path.write_bytes(broken)
            with pytest.raises(InputError):  # if only because no architecture has a tensor "a"
                load_model(str(path), image_shape=GRAY)
        for length in (0, 1, 10, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises(InputError, match="cannot be read as tensors alone"):
                load_model(str(path), image_shape=GRAY)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"encoder.weight": (3, 3)}, "these weights are of no architecture known here; give your own model as package"),
        (
            {"conv1.weight": (64, 3, 3, 3), "layer4.0.conv1.weight": (512, 256, 3, 3), "linear.weight": (10, 512)},
            "these weights are of no architecture known here; give your own model as package.module:factory",
        ),
        (
            {"bn1.weight": (64,), "layer4.0.conv1.weight": (512, 256, 3, 3), "fc.weight": (10, 512)},
            "these weights are of torchvision's ResNet-18",
        ),
    ],
)
def test_an_unknown_architecture(tmp_path, keys, says):
    torch.save({key: torch.zeros(shape) for key, shape in keys.items()}, tmp_path / "weights.pt")
    with pytest.raises(InputError, match=says):
        load_model(str(tmp_path / "weights.pt"), image_shape=COLOR)


def test_weights_with_a_layer_too_many(tmp_path):
    weights = build(MLPConfig(hidden=(12,)), GRAY, 5).state_dict() | {"extra.weight": torch.zeros(2)}
    torch.save(weights, tmp_path / "weights.pt")
    with pytest.raises(InputError, match=r"unexpected: extra\.weight"):
        load_model(str(tmp_path / "weights.pt"), image_shape=GRAY)
