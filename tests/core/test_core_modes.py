"""Modes, frozen parameters, set-aside buffers: small tools that put things back, also after an error."""

import pytest
import torch
from torch import nn

from oracles import images, troublesome_net
from widemargin.core.modes import copied_buffers, evaluating, frozen, in_mode, with_values


def mixed() -> nn.Module:
    model = troublesome_net().train()
    model[1].eval()
    model[3].eval()
    return model


def fail() -> None:
    raise ZeroDivisionError


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_every_submodule_changes_and_gets_its_own_flag_back(mode: str) -> None:
    model = mixed()
    model.training = mode == "eval"
    before = modes(model)
    assert len(set(before)) == 2
    with in_mode(model, mode):
        assert set(modes(model)) == {mode == "train"}
    assert modes(model) == before


def test_in_training_mode_a_model_that_trains_stays_as_it_is() -> None:
    model = mixed()
    before = modes(model)
    assert model.training
    assert not all(before)
    with in_mode(model, "train"):
        assert modes(model) == before
    assert modes(model) == before


def test_flags_come_back_after_an_error() -> None:
    model = mixed()
    before = modes(model)
    with evaluating(model):
        assert not any(modes(model))
    with pytest.raises(ZeroDivisionError), evaluating(model):
        fail()
    assert modes(model) == before


def test_frozen() -> None:
    model = troublesome_net()
    model[0].weight.requires_grad_(False)
    before = [p.requires_grad for p in model.parameters()]
    with frozen(model):
        assert not any(p.requires_grad for p in model.parameters())
    with pytest.raises(ZeroDivisionError), frozen(model):
        fail()
    assert [p.requires_grad for p in model.parameters()] == before == [False] + [True] * 9


def test_buffers_of_an_earlier_moment() -> None:
    model, x = troublesome_net(), images(4, 2, 4, 5)
    earlier = copied_buffers(model)
    expected = model.eval()(x)
    model.train()(x + 3)
    own = dict(model.named_buffers())
    values = {name: buffer.clone() for name, buffer in own.items()}
    with with_values(earlier):
        assert torch.equal(model.eval()(x), expected)
    assert not torch.equal(model(x), expected)
    for name, buffer in model.named_buffers():
        assert buffer is own[name]
        assert torch.equal(buffer, values[name])
