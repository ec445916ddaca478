"""The loop by hand computes what the engine computes, and the FLOPs counted by hand are those of real steps.

Otherwise their times could not be compared, nor their rates believed.
"""

from dataclasses import replace

import pytest
import torch
from benchmarks.case import NUM_CLASSES, Case
from benchmarks.naive import naive_penalty, naive_step
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from widemargin.attacks import FGSM, PGD
from widemargin.data import Batch
from widemargin.engine import Plan
from widemargin.errors import InputError
from widemargin.gradients.sweeps import tape
from widemargin.jobs.cost import Passes, Work, network_work, objective_passes, penalty_passes, step_passes
from widemargin.models import MLPConfig, ResNet18Config, WideResNetConfig
from widemargin.objectives import Adversarial, Mail, Trades
from widemargin.regularizers import ApproximateEMR, ExactEMR, InputGradient, StochasticEMR
from widemargin.training.graphed_step import make_steps
from widemargin.training.setup import make_state
from widemargin.training.step import StepContext

STEPS = [
    {"objective": "st"},
    {"objective": "at"},
    {"objective": "trades"},
    {"objective": "mart"},
    {"objective": "mail"},
    {"objective": "lbgat"},
    {"objective": "at", "emr": "approximate"},
    {"objective": "at", "emr": "stochastic"},
    {"objective": "st", "emr": "exact"},
    {"objective": "trades", "emr": "approximate", "igr": True},
    {"objective": "at", "head": "he"},
    {"objective": "at", "head": "he", "igr": True},
]


def each(cases):
    return pytest.mark.parametrize("settings", cases, ids=lambda settings: "+".join(map(str, settings.values())))


NETWORKS = {
    "mlp": MLPConfig(hidden=(16, 8)),
    "resnet18": ResNet18Config(width=2),
    "wrn-34-10": WideResNetConfig(depth=10, widen=1),
}


class NoModules:
    """In place of the counter's module tracker, whose hooks cannot stand torch.autograd.grad."""

    parents = ("Global",)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def counted(step):
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = NoModules()
    with counter:
        step()
    return counter.get_total_flops()


def by_hand(config, nets, shape, batch_size):
    passes = step_passes(config, NUM_CLASSES)
    assert set(passes) == set(nets)
    return batch_size * sum(network_work(net, shape).of(passes[name]) for name, net in nets.items())


@pytest.mark.parametrize("model", NETWORKS)
@each(STEPS)
def test_a_step_has_the_flops_we_count(model, settings, monkeypatch):
    monkeypatch.setattr(tape, "WORTHWHILE", 0.0)  # with so few images double backward would do, and count a little more
    case = Case(model=model, batch_size=3, **settings)
    small = NETWORKS[model]
    config = replace(case.config(), model=small)
    if config.teacher is not None:
        config = replace(config, teacher=small)
    data = case.data(torch.device("cpu"))
    state = make_state(config, data)
    steps = make_steps(Plan(), state, config)
    batch = Batch(0, torch.arange(3), data.floats(), data.labels)
    steps(batch, StepContext(seed=0, epoch=0, step=0, steps_per_epoch=10))  # looks for the way to a penalty, once
    found = counted(lambda: steps(batch, StepContext(seed=0, epoch=0, step=1, steps_per_epoch=10)))
    assert found == by_hand(config, state.nets.all(), data.image_shape, 3)


def test_a_linear_classifier_by_arithmetic():
    """784 x 10 multiply-adds; its first layer is all of it, so training has no backward pass to the images."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    work = network_work(model, (1, 28, 28))
    assert work == Work(forward=2 * 7840, first=2 * 7840)
    assert work.of(Passes(forward=1, backward=1, weights=1, stopped=1)) == 4 * 7840
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("form", "forwards"),
    [
        (ApproximateEMR(), 4),
        (ExactEMR(), 1 + 3 * 10),
        (ExactEMR(classes_at_once=4), 1 + 4 * 10),
        (StochasticEMR(projections=2), 1 + 3 * 2),
        (InputGradient(), 6),
    ],
)
def test_the_multiples_of_a_forward_pass(form, forwards):
    assert Work(forward=1.0, first=0.0).of(penalty_passes(form, 10)) == forwards
    model = NETWORKS["mlp"].build(image_shape=(1, 4, 4), num_classes=10, seed=0)
    x, y = torch.rand(2, 1, 4, 4), torch.tensor([1, 2])
    found = counted(lambda: form(model, x, y, generator=torch.Generator()).sum().backward())
    assert found == 2 * network_work(model, (1, 4, 4)).forward * forwards


def test_attacks_and_their_goals():
    attack = PGD(eps=0.1, step_size=0.1, steps=7, random_start="gaussian")
    assert objective_passes(Adversarial(attack=FGSM(eps=0.1)))["model"] == Passes(2, 2, 1, 1)
    assert objective_passes(Trades(attack=attack, inner="kl"))["model"] == Passes(7 + 1 + 2, 9, 2, 2)
    assert objective_passes(Trades(attack=attack, inner="ce", repeat_clean=True))["model"] == Passes(10, 10, 3, 3)
    assert objective_passes(Mail(over="trades", attack=attack, slope=1, bias=0))["model"] == Passes(10, 9, 2, 2)
    assert objective_passes(Mail(over="mart", attack=attack, slope=1, bias=0))["model"] == Passes(9, 9, 2, 2)


def test_what_is_not_known_is_not_guessed():
    with pytest.raises(InputError, match="the passes of NoModules are not known"):
        objective_passes(NoModules())
    with pytest.raises(InputError, match="the passes of NoModules are not known"):
        penalty_passes(NoModules(), 10)


# By hand


def configuration(settings):
    """A case with a small network that has batch norm, and penalties heavy enough to show."""
    config = Case(model="resnet18", batch_size=4, **settings).config()
    small = ResNet18Config(width=2)
    heavy = None if config.emr is None else replace(config.emr, weight=1e4)
    igr = None if config.igr is None else replace(config.igr, weight=1e4)
    return replace(config, model=small, teacher=None if config.teacher is None else small, emr=heavy, igr=igr)


@each([settings for settings in STEPS if settings.get("emr") != "stochastic"])  # draws of its own
def test_a_step_by_hand_moves_the_parameters_as_the_engine_does(settings):
    config = configuration(settings)
    data = Case(model="resnet18", batch_size=4, **settings).data(torch.device("cpu"))
    ours, theirs = make_state(config, data), make_state(config, data)
    for state in (ours, theirs):
        for net in state.nets.all().values():
            net.double()
    x, y = data.floats().double(), data.labels
    before = {name: value.clone() for name, value in ours.nets.model.state_dict().items()}
    context = StepContext(seed=0, epoch=0, step=0, steps_per_epoch=10)
    make_steps(Plan(), ours, config)(Batch(0, torch.arange(4), x, y), context)
    naive_step(config, theirs.nets, theirs.optimizer, x, y, generator=context.generator("attack"))
    for name, net in ours.nets.all().items():
        other = theirs.nets.all()[name].state_dict()
        for key, value in net.state_dict().items():
            assert torch.allclose(value, other[key], rtol=1e-9, atol=1e-11), f"{name}/{key}"
    assert any(not torch.equal(value, before[key]) for key, value in ours.nets.model.state_dict().items())


@pytest.mark.parametrize("penalty", [{"emr": "exact"}, {"emr": "approximate"}, {"igr": True}], ids=str)
def test_the_penalty_matters_in_that_comparison(penalty):
    """With it the parameters end elsewhere, by far more than the tolerance above."""
    ends = []
    for settings in ({}, penalty):
        config = configuration({"objective": "st", **settings})
        data = Case(model="resnet18", batch_size=4).data(torch.device("cpu"))
        state = make_state(config, data)
        generator = torch.Generator().manual_seed(0)
        naive_step(config, state.nets, state.optimizer, data.floats(), data.labels, generator=generator)
        ends.append(torch.cat([parameter.detach().flatten() for parameter in state.nets.model.parameters()]))
    assert float((ends[0] - ends[1]).abs().max()) > 1e-5


@pytest.mark.parametrize(
    "form", [ApproximateEMR(temperature=0.5), ExactEMR(), InputGradient(), StochasticEMR(projections=2)]
)
def test_penalties_by_hand_have_the_values_of_the_package(form):
    model = MLPConfig(hidden=(8,)).build(image_shape=(1, 4, 4), num_classes=NUM_CLASSES, seed=0).double()
    x, y = torch.rand(5, 1, 4, 4, dtype=torch.float64), torch.arange(5)
    ours = form(model, x, y, generator=torch.Generator().manual_seed(3))
    by_hand = naive_penalty(form, model, x, y, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(ours, by_hand, rtol=1e-10)
    assert by_hand.requires_grad
    assert model.training
