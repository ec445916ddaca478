"""Networks of timm, transformers and torchvision: with stand-ins for the libraries, and with those installed here."""

import sys
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import widemargin
from widemargin import InputError
from widemargin.cli.main import run
from widemargin.config.run import RunConfig
from widemargin.config.toml import from_dict, to_dict
from widemargin.evaluation.target import load_model, load_target
from widemargin.models.classifier import Normalization, Normalize, build_model
from widemargin.models.libraries import (
    LIBRARIES,
    HuggingFaceConfig,
    LibraryNetwork,
    TimmConfig,
    TorchvisionConfig,
    library_model,
)
from widemargin.training import train

HALF = Normalization(mean=(0.5,), std=(0.25,))


class Pooled(nn.Module):
    """What the stand-ins build: it keeps what it was asked for."""

    def __init__(self, channels: int, num_classes: int, **asked: object) -> None:
        super().__init__()
        self.asked = asked
        self.body = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(4, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


class WithOutput(Pooled):
    def forward(self, pixel_values: Tensor) -> object:
        return SimpleNamespace(logits=super().forward(pixel_values), hidden_states=None)


def offline(*_: object, **__: object) -> None:
    raise OSError("We couldn't connect to\n'https://example.invalid'")


def timm_stand_in(channels: int = 1) -> ModuleType:
    module = ModuleType("timm")
    known = {"tiny": False, "vit_tiny": True}

    def create_model(name, pretrained=False, num_classes=1000, in_chans=3, **asked):
        if pretrained:
            module.weights_asked += 1
            if module.offline:
                offline()
        model = Pooled(in_chans, num_classes, name=name, pretrained=pretrained, **asked)
        if pretrained:
            nn.init.constant_(model.body[0].weight, 0.5)
        return model

    def get_pretrained_cfg(name):
        mean, std = (0.4,) * channels, (0.2,) * channels
        fixed = known[name.partition(".")[0]]
        return SimpleNamespace(mean=mean, std=std, input_size=(channels, 28, 28), fixed_input_size=fixed)

    module.create_model, module.get_pretrained_cfg = create_model, get_pretrained_cfg
    module.is_model = known.__contains__
    module.list_models = lambda pattern: [name for name in known if name.startswith(pattern[:2])]
    module.weights_asked, module.offline = 0, False
    return module


@dataclass
class HFConfig:
    model_type: str
    num_labels: int = 2
    num_channels: int = 3
    image_size: int = 224


def transformers_stand_in() -> ModuleType:
    module = ModuleType("transformers")
    module.CONFIG_MAPPING = {"vit": HFConfig}
    module.AutoConfig = SimpleNamespace(
        for_model=lambda name, **options: HFConfig(name, **options), from_pretrained=offline
    )
    module.AutoModelForImageClassification = SimpleNamespace(
        from_config=lambda config: WithOutput(config.num_channels, config.num_labels, size=config.image_size),
        from_pretrained=offline,
    )
    return module


def torchvision_stand_in() -> ModuleType:
    module = ModuleType("torchvision")

    def get_model(name, weights=None, num_classes=1000, **asked):
        if name not in ("resnet50", "vit_b_16"):
            raise ValueError(f"Unknown model {name}")
        return Pooled(3, num_classes, weights=weights, **asked)

    preset = SimpleNamespace(mean=[0.4, 0.5, 0.6], std=[0.1, 0.2, 0.3])
    weights = SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: preset))
    module.models = SimpleNamespace(get_model=get_model, get_model_weights=lambda name: weights)
    return module


@pytest.fixture
def timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", timm_stand_in())
    return sys.modules["timm"]


@pytest.fixture
def _libraries(monkeypatch, timm):
    monkeypatch.setitem(sys.modules, "transformers", transformers_stand_in())
    monkeypatch.setitem(sys.modules, "torchvision", torchvision_stand_in())


def built(config, shape=(3, 8, 8), num_classes=7, seed=0):
    return build_model(config, image_shape=shape, num_classes=num_classes, seed=seed)


@pytest.mark.usefixtures("_libraries")
@pytest.mark.parametrize("text", ["timm:tiny", "timm:tiny.in1k", "hf:vit", "torchvision:resnet50"])
def test_a_network_for_the_data_at_hand_from_the_seed(text):
    config = library_model(text)
    model, same, other = built(config), built(config), built(config, seed=1)
    x = torch.rand(5, 3, 8, 8)
    assert model(x).shape == (5, 7)
    assert torch.equal(model(x), same(x))
    assert not torch.equal(model(x), other(x))
    assert {name.partition(".")[0] for name in model.state_dict()} == {"model"}
    assert widemargin.check(model, x).findings == ()


@pytest.mark.usefixtures("_libraries")
def test_images_are_normalized_inside_as_the_library_or_the_run_says():
    inside = {text: built(library_model(text)).normalize for text in ("timm:tiny", "hf:vit", "torchvision:resnet50")}
    assert inside["torchvision:resnet50"].values == Normalization(mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.3))
    assert isinstance(inside["hf:vit"], nn.Identity)
    assert isinstance(inside["timm:tiny"], nn.Identity)  # told for another number of channels
    gray = TimmConfig(name="tiny", normalize=Normalization(mean=(0.2, 0.4, 0.6), std=(0.1, 0.2, 0.3)))
    assert built(gray, (1, 8, 8)).normalize.values.mean == pytest.approx((0.4,))
    assert built(TimmConfig(name="tiny"), (1, 8, 8)).normalize.values == Normalization(mean=(0.4,), std=(0.2,))
    model = built(TimmConfig(name="tiny", normalize=HALF), (1, 8, 8))
    assert isinstance(model.normalize, Normalize)
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(model(x), model.model((x - 0.5) / 0.25))


@pytest.mark.usefixtures("_libraries")
def test_the_size_of_images_is_told_where_it_matters():
    assert built(TimmConfig(name="vit_tiny"), (3, 8, 6)).model.asked["img_size"] == (8, 6)
    assert "img_size" not in built(TimmConfig(name="tiny")).model.asked
    assert built(HuggingFaceConfig(name="vit")).model.asked["size"] == 8
    assert built(TorchvisionConfig(name="vit_b_16")).model.asked["image_size"] == 8
    assert "image_size" not in built(TorchvisionConfig(name="resnet50")).model.asked


@pytest.mark.usefixtures("_libraries")
def test_pretrained_weights_come_from_the_library_and_the_last_layer_fits_the_data(timm):
    model = built(TimmConfig(name="tiny", pretrained=True))
    assert timm.weights_asked == 1
    assert (model.model.body[0].weight == 0.5).all()
    vision = built(TorchvisionConfig(name="resnet50", pretrained=True))
    assert vision.model.asked["weights"] == "DEFAULT"
    assert vision(torch.rand(2, 3, 8, 8)).shape == (2, 7)


@pytest.mark.parametrize("prefix", LIBRARIES)
def test_a_library_that_is_not_installed_is_named_with_the_way_to_install_it(prefix, monkeypatch):
    library = LIBRARIES[prefix].library
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"{prefix}:tiny needs {library}, .*: pip install 'widemargin\[{prefix}\]'"):
        built(LIBRARIES[prefix](name="tiny"))


def test_a_library_that_lacks_another_one_says_which(tmp_path, monkeypatch):
    (tmp_path / "timm.py").write_text("import a_library_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(InputError, match="timm:tiny needs timm, which does not import here: No module named 'a_lib"):
        built(TimmConfig(name="tiny"))


@pytest.mark.usefixtures("_libraries")
def test_what_cannot_be_had_is_one_line(timm):
    timm.offline = True
    cases = {
        "timm:tiny cannot be built: We couldn't connect to 'https://example.invalid'; .* a network or its cache": (
            TimmConfig(name="tiny", pretrained=True)
        ),
        "hf:someone/vit cannot be built: We couldn't connect .* a network or its cache": (
            HuggingFaceConfig(name="someone/vit")
        ),
        "timm:tinyx: timm has no model of that name; it has tiny": TimmConfig(name="tinyx"),
        "torchvision:resnet5 cannot be built: Unknown model resnet5$": TorchvisionConfig(name="resnet5"),
    }
    for says, config in cases.items():
        with pytest.raises(InputError, match=says) as refused:
            built(config)
        assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match=r"torchvision:resnet50 takes images of 3 channels"):
        built(TorchvisionConfig(name="resnet50"), (1, 8, 8))
    with pytest.raises(InputError, match=r"hf:someone/vit: the hub's weights need a normalization"):
        HuggingFaceConfig(name="someone/vit", pretrained=True)
    with pytest.raises(InputError, match=r"'timm:' names no model of timm; write timm:NAME"):
        library_model("timm:")


RUN = {
    "name": "tiny",
    "epochs": 1,
    "batch_size": 20,
    "data": {"name": "mnist-embedded", "train_limit": 40, "test_limit": 20},
    "model": {"kind": "timm", "name": "tiny", "pretrained": True},
    "optimizer": {"lr": 0.1},
    "emr": {"kind": "approximate", "weight": 0.01, "temperature": 1.0},
}


def test_as_a_table_and_back() -> None:
    config = from_dict(RUN)
    assert config.model == TimmConfig(name="tiny", pretrained=True)
    assert from_dict(to_dict(config)) == config
    assert isinstance(config, RunConfig)


def test_a_run_is_loaded_without_the_librarys_weights(timm, tmp_path):
    config = from_dict(RUN)
    train(config, out=tmp_path / "run")
    asked = timm.weights_asked
    assert asked >= 1
    timm.offline = True
    model = load_target(tmp_path / "run").model
    assert timm.weights_asked == asked
    assert isinstance(model, LibraryNetwork)
    assert model.normalize.values == Normalization(mean=(0.4,), std=(0.2,))
    untrained = built(replace(config.model, pretrained=False), (1, 28, 28), 10)
    assert not torch.equal(model.model.fc.weight, untrained.model.fc.weight)


def test_from_the_command_line(timm, tmp_path, capsys):
    settings = ["--set", "data.train_limit=40", "--set", "data.test_limit=20", "--set", "epochs=1", "--device", "cpu"]
    assert run(["train", "demo/emr", "--model", "timm:tiny", *settings, "--out", str(tmp_path / "run")]) == 0
    assert load_target(tmp_path / "run").description.config["model"] | {"normalize": 0} == {
        "kind": "timm",
        "name": "tiny",
        "pretrained": False,
        "normalize": 0,
    }
    capsys.readouterr()
    assert timm.weights_asked == 0
    assert run(["check", "timm:tiny"]) == 0
    assert timm.weights_asked == 0
    assert "a penalty takes sweeps" in capsys.readouterr().out
    evaluated = ["--dataset", "mnist-embedded", "--limit", "20", "--attacks", "clean", "--json"]
    assert run(["evaluate", "timm:tiny", *evaluated]) == 0
    assert timm.weights_asked == 1
    assert '"weights": "those of timm"' in capsys.readouterr().out
    timm.offline = True
    assert run(["evaluate", "timm:tiny", *evaluated]) == 2
    assert "a network or its cache is needed" in capsys.readouterr().err


def test_a_target_of_a_library_knows_its_images(timm):
    found = load_model("timm:tiny", image_shape=None, pretrained=False)
    assert found.image_shape == (1, 28, 28)
    assert found.model(torch.rand(2, 1, 28, 28)).shape == (2, 1000)
    with pytest.raises(InputError, match=r"--head-scale is for public weights; timm:tiny has a head of its own"):
        load_model("timm:tiny", image_shape=None, head_scale=2.0)


REAL = {"timm": ("timm:resnet18", "timm:vit_tiny_patch16_224"), "transformers": ("hf:vit", "hf:resnet")}


@pytest.mark.parametrize("library", REAL)
def test_the_library_itself_where_it_is_installed(library):
    pytest.importorskip(library, exc_type=ImportError)
    for text in REAL[library]:
        model = built(library_model(text), (3, 32, 32))
        result = widemargin.check(model, torch.rand(2, 3, 32, 32))
        assert result.num_classes == 7
        assert result.works["penalties"] == result.works["margins"] == "yes"
        with pytest.raises(InputError):
            built(library_model(text + "-of-nobody"), (3, 32, 32))
