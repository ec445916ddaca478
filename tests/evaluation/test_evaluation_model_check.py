"""Each thing that may be in the way, in a small network that has it, and no finding in networks that have none."""

import json
import sys
from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import widemargin
from oracles import Network
from widemargin import InputError
from widemargin.cli.main import run
from widemargin.evaluation.model_check import ModelCheck, check
from widemargin.gradients.path import path_of

X = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def linear(num_classes: int = 5) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(108, num_classes))


def net(*before: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*before, nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return 2 * gradient


def damaging(network: Network, x: Tensor) -> Tensor:
    h = torch.sigmoid(network.conv(x))
    h.add_(1.0)
    return network.net(h)


def counting(network: Network, x: Tensor) -> Tensor:
    network.seen += len(x)
    return network.net(x)


def counted() -> Network:
    network = Network(counting, net=net())
    network.register_buffer("seen", torch.zeros(()))
    return network


def told_to_normalize() -> nn.Module:
    network = net()
    network.pretrained_cfg = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    return network


OFFENDERS = {
    "batch-norm-without-statistics": lambda: net(nn.BatchNorm2d(3, track_running_stats=False)),
    "random-at-evaluation": lambda: Network(lambda n, x: n.net(F.dropout(x, training=True)), net=net()),
    "writes-into-images": lambda: Network(lambda n, x: n.net(x.mul_(2)), net=net()),
    "in-place-operation": lambda: Network(damaging, net=linear(), conv=nn.Conv2d(3, 3, 1)),
    "changes-at-evaluation": counted,
    "no-gradient-to-images": lambda: Network(lambda n, x: n.net(x.detach()), net=net()),
    "zero-gradient": lambda: Network(lambda n, x: n.net((x * 255).round() / 255), net=net()),
    "not-finite": lambda: Network(lambda n, x: n.net((x - x).sqrt() + x), net=net()),
    "images-see-each-other": lambda: Network(lambda n, x: n.net(x - x.mean(0)), net=net()),
    "probability-outputs": lambda: nn.Sequential(net(), nn.Softmax(dim=1)),
    "no-logits": lambda: Network(lambda n, x: (n.net(x), x), net=net()),
    "forward-fails": lambda: nn.Sequential(nn.Flatten(), nn.Linear(7, 5)),
    "empty-batch-refused": lambda: Network(lambda n, x: n.net[1](x.view(len(x), -1)), net=linear()),
    "no-second-derivative": lambda: Network(lambda n, x: n.net(Once.apply(x)), net=net()),
    "nothing-to-train": lambda: net().requires_grad_(False),
    "expects-normalized-images": told_to_normalize,
    "inside-data-parallel": lambda: nn.DataParallel(net()),
}


@pytest.mark.parametrize("name", OFFENDERS)
def test_each_is_found_alone_and_explained(name: str) -> None:
    result = check(OFFENDERS[name](), X)
    assert [finding.name for finding in result.findings] == [name]
    finding = result.findings[0]
    for line in (finding.what, finding.why, finding.fix):
        assert line
        assert "\n" not in line
        assert line in str(result)


IN_PLACE = nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3)
CLEAN = {
    "convolutions": net,
    "batch norm": lambda: net(nn.BatchNorm2d(3)),
    "dropout": lambda: net(nn.Dropout(0.5)),
    "in place, in order": lambda: nn.Sequential(*IN_PLACE),
    "an output with logits": lambda: Network(lambda n, x: OrderedDict(logits=n.net(x)), net=net()),
    "smooth": lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 9), nn.GELU(), nn.LayerNorm(9), nn.Linear(9, 4)),
    "normalized inside": lambda: widemargin.pixels(told_to_normalize(), mean=(0.5,) * 3, std=(0.2,) * 3),
    "float64": lambda: net().double(),
}


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("training", [False, True])
def test_a_clean_network_has_no_findings_and_is_left_as_it_was(name: str, training: bool) -> None:
    model = CLEAN[name]().train(training)
    x = X.double() if name == "float64" else X
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    result = check(model, x)
    assert result.findings == ()
    assert "nothing is in the way" in str(result)
    assert all(result.works[what] == "yes" for what in ("attacks", "margins", "penalties"))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(module.training == training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_buffer_that_a_forward_changes_is_put_back() -> None:
    model = counted()
    check(model, X)
    assert model.seen == 0


def test_images_outside_the_unit_interval_are_found() -> None:
    with pytest.warns(widemargin.WidemarginWarning, match="outside"):
        result = check(net(), (X - 0.5) / 0.2)
    assert [finding.name for finding in result.findings] == ["normalized-outside"]
    assert "widemargin.pixels" in result.findings[0].fix


@pytest.fixture
def _one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_one_process")
def test_wrappers_for_several_processes_are_found() -> None:
    inside = check(nn.parallel.DistributedDataParallel(net()), X)
    assert [finding.name for finding in inside.findings] == ["inside-ddp"]
    assert inside.works["penalties"] == "yes"
    from torch.distributed.fsdp import fully_shard

    sharded = net()
    fully_shard(sharded)
    found = check(sharded, X)
    assert "sharded-weights" in [finding.name for finding in found.findings]
    assert found.works["penalties"] != "yes"
    assert found.way is None


def test_the_way_is_that_of_a_penalty_and_has_its_reason() -> None:
    swept = check(net(), X)
    assert (swept.way, swept.reason) == (path_of(net(), X).way, path_of(net(), X).reason)
    assert swept.way == "sweeps"
    doubled = check(Network(lambda n, x: n.net(torch.special.expit(x)), net=net()), X)
    assert doubled.way == "double backward"
    assert doubled.reason in str(doubled)


def test_costs_are_counted_in_forward_passes() -> None:
    """Of three equal layers by hand: 3 products forward, 3 for the weights, 2 for the activations."""
    torch.manual_seed(0)
    layers = [nn.Linear(50, 50) for _ in range(3)]
    result = check(nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]), torch.rand(4, 50))
    assert result.costs["a training step"] == round((3 + 3 + 2) / 3, 2)
    assert result.costs["a step of PGD"] == 2.0
    assert result.costs["an effective margin"] == 52.0  # forward, the label's row and one for each of the 50 classes
    penalty = next(cost for what, cost in result.costs.items() if "penalty" in what)
    assert penalty == 4.0  # forward, to the images, back to the logits, weights
    assert "cost of a step of PGD: 2.0 forward passes" in str(result)


def test_costs_of_a_convolution_with_groups() -> None:
    """By hand: 36 places of 9 numbers in 8 groups of one channel, then 288 x 5; no gradient of the images."""
    layers = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)
    costs = check(nn.Sequential(*layers), torch.rand(4, 8, 6, 6)).costs
    depthwise, linear_layer = 36 * 9 * 8, 288 * 5
    whole = depthwise + linear_layer
    assert costs["a training step"] == round((2 * depthwise + 3 * linear_layer) / whole, 2)
    assert costs["a step of PGD"] == 2.0


def test_what_is_no_model_and_what_is_no_batch_is_refused() -> None:
    with pytest.raises(InputError, match=r"check: images must be a batch .* of at least one sample"):
        check(net(), X[:0])
    with pytest.raises(InputError, match=r"check: the model comes first and must be a torch.nn.Module, got function"):
        check(lambda x: x, X)


OWN = """
from torch import nn

def good():
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 5))

def bad():
    return nn.Sequential(good(), nn.Softmax(dim=1))
"""


def test_from_the_command_line(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "own_models_to_check.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert run(["check", "own_models_to_check:good", "--shape", "3,6,6"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("own_models_to_check:good, on random images:")
    assert "nothing is in the way" in said
    assert run(["check", "own_models_to_check:bad", "--shape", "3,6,6", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in record["findings"]] == ["probability-outputs"]
    assert record["target"] == "own_models_to_check:bad"
    for options, told in (
        ([], "give --shape, such as 3,32,32, or --dataset"),
        (["--shape", "3,x"], "--shape must be C,H,W, such as 3,32,32, got '3,x'"),
        (["--shape", "3,6,6", "--dataset", "mnist-embedded"], "give one of them"),
    ):
        assert run(["check", "own_models_to_check:good", *options]) == 2
        assert told in capsys.readouterr().err


def test_a_run_knows_its_images(run_folder, capsys) -> None:
    assert run(["check", str(run_folder)]) == 0
    assert "a penalty takes sweeps" in capsys.readouterr().out
    assert run(["check", str(run_folder), "--dataset", "mnist-embedded"]) == 0
    assert "on the first images of mnist-embedded" in capsys.readouterr().out


def test_it_is_public() -> None:
    assert widemargin.check is check
    assert widemargin.ModelCheck is ModelCheck
