"""``python -m benchmarks penalties``: the ways it times are the penalties they are called, on every kind of model."""

import json

import pytest
import torch
from benchmarks.__main__ import BENCHMARKS
from benchmarks.naive import naive_penalty
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import penalties
from oracles import images, jacobian_slowly, labels, relu_net, seeded, smooth_net
from widemargin import ApproximateEMR
from widemargin.gradients.path import path_of
from widemargin.gradients.sweeps import tape
from widemargin.models import MLPConfig


def test_jacobian_regularizer_of_every_direction() -> None:
    """Over many draws its mean is half the squared Frobenius norm of the Jacobian."""
    model, x = seeded(0, lambda: smooth_net(3)).double(), images(2, 1, 3, 5)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([penalties.jacobian_regularizer(model, x, generator=generator).detach() for _ in range(600)])
    expected = 0.5 * jacobian_slowly(model, x).square().sum() / len(x)
    assert abs(float(draws.mean() / expected) - 1) < 4 * float(draws.std() / expected) / 600**0.5


def test_the_record(command, monkeypatch) -> None:
    monkeypatch.setattr(penalties, "MODELS", {"ours: small": (penalties.own_model(MLPConfig(hidden=(8,))), 32)})
    answer = command(BENCHMARKS, "penalties", "--batch-size", "2", "--rounds", "1", "--json")
    assert answer.code == 0, answer.err
    (row,) = json.loads(answer.out)["models"]
    assert (row["model"], row["way"], row["known"]) == ("ours: small", "sweeps", True)
    assert row["ours_to_naive"] == pytest.approx(row["plain_steps"]["approximate"] / row["plain_steps"]["naive"])


def test_a_library_that_is_not_installed_is_said(command, monkeypatch) -> None:
    monkeypatch.setattr(penalties, "LIBRARIES", {"timm": "a_library_of_nobody"})
    answer = command(BENCHMARKS, "penalties", "--models", "timm: ViT")
    assert answer.code == 0, answer.err
    assert "left out: timm: ViT" in " ".join(answer.out.split())


def test_an_unknown_name_lists_those_there_are(command) -> None:
    answer = command(BENCHMARKS, "penalties", "--models", "nothing")
    assert answer.code == 2
    assert "ours: MLP" in answer.err


def test_by_hand_is_the_same_penalty() -> None:
    for model in (relu_net(3), smooth_net(3)):
        x, regularizer = images(2, 1, 3, 5), ApproximateEMR(temperature=0.7)
        found = naive_penalty(regularizer, penalties.LogitsOf(model.eval()), x, labels(2, 3))
        torch.testing.assert_close(found, regularizer(model, x))


@pytest.mark.parametrize("name", [name for name in penalties.MODELS if not name.startswith("ours")])
def test_other_peoples_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients in float64 against double backward by hand; every listed model is known to the sweeps."""
    pytest.importorskip(penalties.LIBRARIES[name.partition(":")[0]], exc_type=ImportError)
    make, side = penalties.MODELS[name]
    model = seeded(0, make).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    monkeypatch.setattr(tape, "WORTHWHILE", 0.0)
    x, regularizer = torch.rand(2, 3, side, side, dtype=torch.float64), ApproximateEMR(temperature=0.7)
    assert path_of(model, x).way == "sweeps"
    found = regularizer(model, x)
    with sdpa_kernel(SDPBackend.MATH):
        expected = naive_penalty(regularizer, penalties.LogitsOf(model), x, torch.zeros(2, dtype=torch.long))
    model.eval()
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)
    parameters = list(model.parameters())
    pairs = [
        torch.autograd.grad(p.sum(), parameters, allow_unused=True, materialize_grads=True) for p in (found, expected)
    ]
    flat = [torch.cat([gradient.flatten() for gradient in gradients]) for gradients in pairs]
    assert float((flat[0] - flat[1]).norm() / flat[1].norm()) < 1e-8
