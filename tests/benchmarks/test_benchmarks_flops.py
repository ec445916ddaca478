"""FLOPs counted by hand against torch's own counter watching real steps."""

from dataclasses import replace

import pytest
import torch
from benchmarks.case import NUM_CLASSES, Case
from benchmarks.flops import Passes, Work, network_work, objective_passes, penalty_passes, step_passes
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from widemargin.attacks import FGSM, PGD
from widemargin.data import Batch
from widemargin.engine import Plan
from widemargin.errors import InputError
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
]
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
@pytest.mark.parametrize("settings", STEPS, ids=lambda settings: "+".join(map(str, settings.values())))
def test_a_step_has_the_flops_we_count(model, settings):
    case = Case(model=model, batch_size=3, **settings)
    small = NETWORKS[model]
    config = replace(case.config(), model=small)
    if config.teacher is not None:
        config = replace(config, teacher=small)
    data = case.data(torch.device("cpu"))
    state = make_state(config, data)
    steps = make_steps(Plan(), state, config)
    batch = Batch(0, torch.arange(3), data.floats(), data.labels)
    found = counted(lambda: steps(batch, StepContext(seed=0, epoch=0, step=0, steps_per_epoch=10)))
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
