"""Models whose forward returns more than logits, as Hugging Face's do: nothing may come out differently.

The outputs look like those of transformers, which is not needed: a dataclass, an ``OrderedDict`` with attributes, a
dictionary.
"""

from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from oracles import Network, images, labels, relu_net
from widemargin import (
    FGSM,
    PGD,
    ApproximateEMR,
    ExactEMR,
    StochasticEMR,
    certified_margin,
    effective_margin,
    evaluate,
)
from widemargin.attacks.strongest import StrongestPGD
from widemargin.engine.fast_model import FastNetwork
from widemargin.engine.plan import Plan
from widemargin.evaluation import measure_margins
from widemargin.objectives import OBJECTIVES
from widemargin.regularizers import InputGradient
from widemargin.types import HasMemory, Nets


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class ModelOutput(OrderedDict):
    """A dictionary whose entries are attributes too."""

    def __getattr__(self, name):
        return self[name]


OUTPUTS = {
    "a dataclass": lambda z: Output(z, hidden_states=(z,)),
    "a ModelOutput": lambda z: ModelOutput(loss=None, logits=z),
    "a dictionary": lambda z: {"loss": None, "logits": z},
}


def plain(network, x):
    return network.net(x)


def unknown_to_the_sweeps(network, x):
    return network.net(x) + torch.special.expit(x.flatten(1)[:, :4])


def random_start(seed=0):
    return torch.Generator().manual_seed(seed)


ATTACK = PGD(eps=0.1, step_size=0.05, steps=2, random_start="uniform")
PENALTIES = [
    ApproximateEMR(temperature=1.0),
    ExactEMR(),
    ExactEMR(classes_at_once=2),
    StochasticEMR(projections=2),
    InputGradient(),
]
MEASURED = {
    "margins": lambda model, x, y: effective_margin(model, x, y),
    "measured margins": lambda model, x, y: measure_margins(model, [{"image": x, "label": y}]).correct.double(),
    "certified": lambda model, x, y: certified_margin(model, x, y),
    "pgd": lambda model, x, y: ATTACK(model, x, y, generator=random_start()),
    "restarts": lambda model, x, y: PGD(eps=0.1, step_size=0.05, steps=2, restarts=2)(
        model, x, y, generator=random_start()
    ),
    "fgsm": lambda model, x, y: FGSM(eps=0.1)(model, x, y),
    "strongest": lambda model, x, y: StrongestPGD(eps=0.1, step_size=0.05, steps=2)(model, x, y),
}


def gradients(model, loss):
    model.zero_grad()
    loss.sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.fixture(params=OUTPUTS)
def output(request):
    return OUTPUTS[request.param]


def pair(output, forward=plain):
    """The network itself, and one of the same weights that returns an output."""
    net = relu_net(num_classes=4)
    return Network(forward, net=net), Network(lambda network, x: output(forward(network, x)), net=net)


@pytest.mark.parametrize("emr", PENALTIES, ids=repr)
@pytest.mark.parametrize("forward", [plain, unknown_to_the_sweeps])
def test_penalties_by_sweeps_and_by_double_backward(output, emr, forward):
    x, y, found = images(3, 1, 3, 5), labels(3, 4), []
    for model in pair(output, forward):
        penalty = emr(model, x, y, generator=random_start())
        found.append((penalty.grad_fn.name(), penalty, emr.value(model, x, y, generator=random_start())))
        found[-1] += tuple(gradients(model, penalty))
    (way, *expected), (own_way, *given) = found
    assert way == own_way
    assert ("Swept" in way) == (forward is plain)
    assert len(expected) == len(given) > 2
    assert all(map(torch.equal, expected, given))


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_measured_and_attacked(output, name):
    bare, own = pair(output)
    x, y = images(4, 1, 3, 5), labels(4, 4)
    assert torch.equal(MEASURED[name](own, x, y), MEASURED[name](bare, x, y))


def test_an_evaluation(output):
    bare, own = pair(output)
    data = {"pixel_values": images(4, 1, 3, 5), "labels": labels(4, 4)}
    expected, found = (evaluate(model.float(), data, ["clean", "pgd3"], 0.1, certify=True) for model in (bare, own))
    assert found.accuracy == expected.accuracy
    assert torch.equal(found.margin, expected.margin)
    assert torch.equal(found.certified, expected.certified)


SETTINGS = {"trades": {"repeat_clean": True}, "lbgat": {"beta": 1.0}, "mail": {"slope": 10.0, "bias": 0.0}}
ATTACKLESS = {"standard": {}, "free": {"eps": 0.1}}


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("over", ["at", "trades", "mart"])
def test_objectives(output, kind, over):
    settings = dict(ATTACKLESS.get(kind, {"attack": PGD(**{**vars(ATTACK), "random_start": "gaussian"})}))
    settings |= SETTINGS.get(kind, {}) | ({"over": over} if kind == "mail" else {})
    x, y, found = images(3, 1, 3, 5), labels(3, 4), []
    objective = OBJECTIVES[kind](**settings)
    for model in pair(output):
        memory = None
        if isinstance(objective, HasMemory):
            memory = objective.make_memory(image_shape=(1, 3, 5), num_classes=4, batch_size=3).double()
        outcome = objective(Nets(model, model, memory), x, y, epoch=0, generator=random_start())
        found.append([outcome.loss, outcome.logits, *gradients(model, outcome.loss)])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("training", [True, False])
def test_the_fast_engine(output, training):
    bare, own = pair(output)
    expected, found = (FastNetwork(m.train(training), Plan(engine="fast"))(images(3, 1, 3, 5)) for m in (bare, own))
    assert torch.equal(found, expected)
