"""Models behind a normalization: in pixels again, by ``pixels``; and images that are no pixels are told."""

import copy
import warnings

import pytest
import torch
from torch import nn

from oracles import effective_margin_slowly, exact_emr_slowly, images, labels, troublesome_net
from widemargin import (
    PGD,
    ApproximateEMR,
    ExactEMR,
    InputError,
    Normalize,
    WidemarginWarning,
    effective_margin,
    evaluate,
    pixels,
)

MEAN, STD = [0.4, 0.6], (0.2, 0.3)


def by_hand(x):
    mean, std = (torch.tensor(values, dtype=x.dtype).view(1, 2, 1, 1) for values in (MEAN, STD))
    return (x - mean) / std


def wrapped():
    model = troublesome_net()
    return model, pixels(model, mean=MEAN, std=STD)


def test_the_model_sees_normalized_images():
    model, own = wrapped()
    x = images(4, 2, 4, 5)
    torch.testing.assert_close(own.eval()(x), model.eval()(by_hand(x)), rtol=1e-6, atol=1e-6)
    assert [name for name, _ in own.named_parameters()] == [f"model.{name}" for name, _ in model.named_parameters()]
    assert isinstance(own.normalize, Normalize)


def test_margins_and_penalties_are_in_pixels():
    model, own = wrapped()
    x, y = images(4, 2, 4, 5), labels(4, 5)

    class ByHand(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(by_hand(x))

    other = ByHand()
    torch.testing.assert_close(effective_margin(own, x, y), effective_margin_slowly(other, x, y, "l2"))
    torch.testing.assert_close(ExactEMR()(own, x), exact_emr_slowly(other, x))


def test_modes_of_the_models_parts_stay():
    model = troublesome_net().train()
    model[1].eval()
    own = pixels(model, mean=MEAN, std=STD)
    assert own.training
    assert model[0].training
    assert not model[1].training


def test_the_normalization_is_of_the_models_type():
    model = copy.deepcopy(troublesome_net()).to(torch.bfloat16)
    own = pixels(model, mean=MEAN, std=STD).eval()
    assert own(images(2, 2, 4, 5, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("mean", "std", "says"),
    [
        ((0.5,), (0.5, 0.5), "std must be as long as mean"),
        ((0.5,), (0.0,), "std must be positive"),
        (("a",), (1.0,), "mean must be a tuple of finite numbers"),
    ],
)
def test_wrong_numbers(mean, std, says):
    with pytest.raises(InputError, match=says):
        pixels(troublesome_net(), mean=mean, std=std)
    with pytest.raises(InputError, match=r"must be a torch\.nn\.Module"):
        pixels(lambda x: x, mean=MEAN, std=STD)


USES = {
    "effective_margin": effective_margin,
    "ApproximateEMR": lambda model, x, y: ApproximateEMR()(model, x),
    "ApproximateEMR's value": lambda model, x, y: ApproximateEMR().value(model, x),
}


@pytest.mark.parametrize("name", USES)
def test_images_that_are_no_pixels_are_told_once(name):
    model, x, y = troublesome_net(), images(3, 2, 4, 5), labels(3, 5)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        USES[name](model, x, y)
        assert not told
        for shift in (0, 1, 2):
            USES[name](model, by_hand(x) + shift, y)
    (warning,) = told
    assert warning.category is WidemarginWarning
    text = str(warning.message)
    assert text.startswith(name.removesuffix("'s value"))
    assert "widemargin.pixels(model, mean=..., std=...)" in text


@pytest.mark.parametrize(
    "use",
    [
        lambda model, x, y: PGD(eps=0.1, step_size=0.1, steps=1)(model, x, y),
        lambda model, x, y: evaluate(model, (x, y), ["clean"]),
    ],
)
def test_attacks_and_evaluations_refuse_them_and_say_what_to_do(use):
    with pytest.raises(InputError, match=r"images must be in \[0, 1\].*widemargin\.pixels\(model, mean="):
        use(troublesome_net(), by_hand(images(3, 2, 4, 5)), labels(3, 5))
