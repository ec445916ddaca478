"""Attacks that search on a CPU's copy of the network: it computes the same, and what it finds is checked."""

import copy

import pytest
import torch
from official import SHORT, officially
from small_networks import Around, pictures, taught_conv
from torch import nn

import widemargin
from widemargin.core import precision
from widemargin.errors import InputError
from widemargin.evaluation import cpu_search, evaluator
from widemargin.evaluation.cpu_search import cpu_search_model, fold_into_convolutions
from widemargin.models import PreActResNet18Config, ResNet18Config

QUICK = {"sanity": False, "margins": False}


def with_statistics(model: nn.Module) -> nn.Module:
    """Batch norms that do something."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.running_mean, module.weight.data, module.bias.data):
                values.add_(0.3 * torch.rand(values.shape, generator=generator))
            module.running_var.mul_(1 + torch.rand(module.running_var.shape, generator=generator))
    return model.eval()


NETWORKS = {
    "ResNet-18": (ResNet18Config(width=4), 20),
    "pre-activation": (PreActResNet18Config(width=4), 8),  # the first norm of a block meets a sum
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_copy_computes_the_same(name):
    config, folded = NETWORKS[name]
    model = with_statistics(config.build(image_shape=(3, 32, 32), num_classes=10, seed=0))
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    network = cpu_search_model(model, x, reduced=False)
    ours, theirs = (leaf.requires_grad_(True) for leaf in (x.clone(), x.clone()))
    logits = network(ours)
    assert logits.allclose(model(theirs), atol=1e-4)
    logits.logsumexp(1).sum().backward()
    model(theirs).logsumexp(1).sum().backward()
    assert ours.grad.allclose(theirs.grad, atol=1e-3 * float(theirs.grad.abs().max()))
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    with torch.no_grad():
        assert fold_into_convolutions(copy.deepcopy(model), x) == folded
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())


def test_a_convolution_that_is_called_twice_is_left_alone():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1)

        def forward(self, x):
            return self.norm(self.conv(self.conv(x))).flatten(1)[:, :5]

    model = with_statistics(Twice())
    x = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        assert fold_into_convolutions(copy.deepcopy(model), x) == 0
    assert cpu_search_model(model, x, reduced=False)(x).allclose(model(x), atol=1e-6)


def test_what_a_convolution_made_and_others_use_too_is_left_alone():
    class Elsewhere(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (
                nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)) for _ in range(2)
            )

        def forward(self, x):
            made = self.first[0](x)
            return (self.first[1](made) + made + self.second(x)).mean(dim=(2, 3))

    model, x = with_statistics(Elsewhere()), torch.rand(2, 1, 8, 8)
    folded = copy.deepcopy(model)
    with torch.no_grad():
        assert fold_into_convolutions(folded, x) == 1
    assert isinstance(folded.first[1], nn.BatchNorm2d)
    assert isinstance(folded.second[1], nn.Identity)
    assert cpu_search_model(model, x, reduced=False)(x).allclose(model(x), atol=1e-5)


def test_a_model_that_cannot_be_copied_is_refused():
    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = taught_conv()

        def forward(self, x):
            return self.network(x)

        def __deepcopy__(self, memo):
            raise TypeError("no")

    with pytest.raises(InputError, match=r"cannot be copied \(no\); leave --search out"):
        widemargin.evaluate(Alone(), pictures(10, 8), ["autoattack"], 0.1, search="folded", **QUICK)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_verdicts_are_the_official_ones(short, tmp_path, norm):
    model, (x, y) = taught_conv(), pictures(10, 20)
    eps = 0.1 if norm == "linf" else 0.6
    options = {"eps": eps, "norm": norm, "search": "folded", "out": tmp_path} | QUICK
    report = widemargin.evaluate(model, (x, y), ["clean", "pgd5", "autoattack"], distance="quick", **options)
    official = officially(model, x, y, eps=eps, norm=norm, lengths=SHORT)
    assert report.verdicts["autoattack"].tolist() == official.survivors["square"].tolist()
    assert report.verdicts["autoattack"].any()
    assert not report.verdicts["autoattack"].equal(report.verdicts["clean"])
    record = report.to_json()
    assert record["search"] == "folded"
    assert record["precision"] == "float32 (no TF32); attacks searched with a folded copy"
    assert any("AutoAttack searched with a folded copy" in note for note in report.notes)
    with pytest.raises(InputError, match=r"another evaluation .*search"):
        widemargin.evaluate(model, (x, y), ["clean"], **(options | {"search": "float32"}))


def test_what_holds_on_the_copy_alone_does_not_count(monkeypatch):
    model, (x, y) = taught_conv(), pictures(10, 20)
    wrong = Around(model, lambda network, images: -network(images))
    monkeypatch.setattr(evaluator, "cpu_search_model", lambda *_, **__: wrong)
    options = {"max_steps": 2, "search": "folded"} | QUICK
    report = widemargin.evaluate(model, (x, y), ["clean", "apgd-ce"], 1e-4, **options)
    right = int(report.verdicts["clean"].sum())
    assert report.refuted == right > 0
    assert report.verdicts["apgd-ce"].equal(report.verdicts["clean"])


@pytest.mark.parametrize("products", ["bfloat16", "bfloat16 factors"])
def test_bfloat16_where_the_processor_gains(monkeypatch, products):
    for module in (cpu_search, evaluator):
        monkeypatch.setattr(module, "quickest_cpu_products", lambda: products)
    model, (x, y) = taught_conv(), pictures(10, 12)
    inside: list[str] = []
    monkeypatch.setattr(
        cpu_search, "bfloat16_factors", lambda: inside.append("factors") or precision.bfloat16_factors()
    )
    options = {"max_steps": 2, "search": "bfloat16"} | QUICK
    report = widemargin.evaluate(model, (x, y), ["clean", "autoattack"], 0.1, **options)
    assert report.to_json()["precision"].endswith("searched with bfloat16")
    assert bool(inside) == (products == "bfloat16 factors")
    network = cpu_search_model(model, x, reduced=True)
    types = {parameter.dtype for parameter in network.parameters() if parameter.dim() > 1}
    assert types == {torch.bfloat16 if products == "bfloat16" else torch.float32}


def test_refusals(monkeypatch):
    model, (x, y) = taught_conv(), pictures(10, 12)
    monkeypatch.setattr(evaluator, "quickest_cpu_products", lambda: "float32")
    with pytest.raises(InputError, match="'bfloat16' is no faster on this processor; use 'folded'"):
        widemargin.evaluate(model, (x, y), ["autoattack"], 0.1, search="bfloat16", **QUICK)
    with pytest.raises(InputError, match="no effect where nothing attacks"):
        widemargin.evaluate(model, (x, y), ["clean"], 0.1, search="folded", **QUICK)
