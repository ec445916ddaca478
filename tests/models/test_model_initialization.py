"""The first weights: torch's, or He's."""

import math

import pytest
import torch
from torch import nn

from widemargin.config.toml import from_dict, to_dict, with_overrides
from widemargin.errors import InputError
from widemargin.heads import Hypersphere, LargeMargin, Linear
from widemargin.models import CNNConfig, MLPConfig, ResNet18Config
from widemargin.recipes import find_recipe

SIZES = {"num_classes": 10, "seed": 3}
SHAPES = {MLPConfig: (1, 28, 28), CNNConfig: (3, 32, 32)}


def built(config, **others):
    return config.build(image_shape=SHAPES[type(config)], **SIZES, **others)


def layers(model):
    return [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]


@pytest.mark.parametrize("config", [MLPConfig(init="he"), CNNConfig(init="he")])
@pytest.mark.parametrize("head", [Linear(), LargeMargin(margin=4)])
def test_he_keeps_the_size_of_activations(config, head):
    for layer in layers(built(config, make_head=head)):
        fan_in = layer.weight[0].numel()
        spread = math.sqrt(2 / fan_in)
        assert float(layer.weight.detach().std()) == pytest.approx(spread, rel=4 / math.sqrt(layer.weight.numel()))
        assert layer.bias is None or not layer.bias.any()


def test_the_default_is_torchs_own():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        expected = nn.Linear(784, 1024)
    assert torch.equal(layers(built(MLPConfig()))[0].weight, expected.weight)


def test_a_seed_says_all_and_rows_of_unit_length_stay_so():
    first, second = (built(MLPConfig(init="he"), make_head=Hypersphere()) for _ in range(2))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    torch.testing.assert_close(first.head.weight.norm(dim=1), torch.ones(10))


def test_an_annealed_head_begins_at_its_beginning():
    assert built(MLPConfig(init="he"), make_head=LargeMargin(margin=4)).head.steps == 0


def test_a_configuration_without_the_choice_does_not_mention_it():
    recipe = find_recipe("cifar-cnn/st-wd0.001").config
    plain = with_overrides(recipe, ["model.init=none"])
    assert "init" not in to_dict(plain)["model"]
    assert with_overrides(plain, ["model.kind=resnet18"]).model == ResNet18Config()
    assert with_overrides(recipe, ["model.kind=resnet18"]).model == ResNet18Config()
    chosen = with_overrides(plain, ["model.init=he"])
    assert from_dict(to_dict(chosen)) == chosen
    assert chosen.model == CNNConfig(init="he")


@pytest.mark.parametrize("kind", [MLPConfig, CNNConfig])
def test_other_names_are_refused(kind):
    with pytest.raises(InputError, match=rf"{kind.__name__}.init must be 'he', or None for torch's own, got 'xavier'"):
        kind(init="xavier")
