"""The loop by hand computes what the engine computes: otherwise their times could not be compared."""

from dataclasses import replace

import pytest
import torch
from benchmarks.case import NUM_CLASSES, Case
from benchmarks.naive import naive_penalty, naive_step

from widemargin.data import Batch
from widemargin.engine import Plan
from widemargin.models import MLPConfig, ResNet18Config
from widemargin.regularizers import ApproximateEMR, ExactEMR, InputGradient, StochasticEMR
from widemargin.training.graphed_step import make_steps
from widemargin.training.setup import make_state
from widemargin.training.step import StepContext

CASES = [
    {"objective": "st"},
    {"objective": "at"},
    {"objective": "trades"},
    {"objective": "mart"},
    {"objective": "mail"},
    {"objective": "lbgat"},
    {"objective": "at", "emr": "approximate"},
    {"objective": "st", "emr": "exact"},
    {"objective": "trades", "emr": "approximate", "igr": True},
    {"objective": "at", "head": "he"},
    {"objective": "at", "head": "he", "igr": True},
]


def configuration(settings):
    """A case with a small network that has batch norm, and penalties heavy enough to show."""
    config = Case(model="resnet18", batch_size=4, **settings).config()
    small = ResNet18Config(width=2)
    heavy = None if config.emr is None else replace(config.emr, weight=1e4)
    igr = None if config.igr is None else replace(config.igr, weight=1e4)
    return replace(config, model=small, teacher=None if config.teacher is None else small, emr=heavy, igr=igr)


@pytest.mark.parametrize("settings", CASES, ids=lambda settings: "+".join(map(str, settings.values())))
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
