"""What a run costs: passes counted by torch in real steps, added up over epochs, and timed."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from widemargin.attacks import FGSM, PGD
from widemargin.attacks.pgd import n_fgsm
from widemargin.config.run import (
    AWPConfig,
    DataConfig,
    EMRConfig,
    GradAlignConfig,
    IGRConfig,
    OptimizerConfig,
    RunConfig,
)
from widemargin.data import Batch, ImageSet
from widemargin.engine import Plan
from widemargin.errors import InputError
from widemargin.gradients.sweeps import tape
from widemargin.jobs.cost import network_work, run_passes, step_passes
from widemargin.jobs.speed import Stopwatch, measured_speed
from widemargin.models import MLPConfig, SwishWideResNetConfig, WideResNetConfig
from widemargin.objectives import Adversarial, Free, Ikl, Score, Standard, Trades
from widemargin.recipes import all_recipes
from widemargin.training.graphed_step import make_steps
from widemargin.training.setup import make_state
from widemargin.training.step import StepContext

ATTACK = PGD(eps=0.1, step_size=0.05, steps=3, random_start="uniform")
AWP = AWPConfig(gamma=0.01)
SMALL = WideResNetConfig(depth=10, widen=1)
CURVED = SwishWideResNetConfig(depth=10, widen=1)
STEPS = {
    "at-awp": {"objective": Adversarial(attack=replace(ATTACK, mode="train")), "awp": AWP},
    "trades-awp": {"objective": Trades(attack=replace(ATTACK, mode="batch")), "awp": AWP, "model": CURVED},
    "score": {"objective": Score(attack=ATTACK)},
    "ikl-awp": {"objective": Ikl(attack=ATTACK), "awp": AWP},
    "n-fgsm": {"objective": Adversarial(attack=n_fgsm(0.1))},
    "free": {"objective": Free(eps=0.1)},
    "grad-align": {"objective": Adversarial(attack=FGSM(eps=0.1)), "grad_align": GradAlignConfig(weight=0.2, eps=0.1)},
    "igr-l1": {"objective": Standard(), "igr": IGRConfig(weight=1, norm="linf", squared=False)},
}


class NoModules:
    """In place of the counter's module tracker, whose hooks cannot stand torch.autograd.grad."""

    parents = ("Global",)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def configuration(**settings):
    common = {"name": "cost", "epochs": 10, "batch_size": 3, "data": DataConfig(name="cifar10"), "model": SMALL}
    return RunConfig(**common | {"optimizer": OptimizerConfig(lr=0.01)} | settings)


def count(config):
    """(FLOPs of a real step, those we say it has)."""
    shape, images = (3, 32, 32), torch.rand(3, 3, 32, 32)
    labels = torch.tensor([0, 1, 2])
    state = make_state(config, ImageSet(images, labels, 10, "noise"))
    steps = make_steps(Plan(), state, config)
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = NoModules()
    with counter:
        steps(Batch(0, torch.arange(3), images, labels), StepContext(seed=0, epoch=0, step=0, steps_per_epoch=10))
    return counter.get_total_flops(), 3 * network_work(state.nets.model, shape).of(step_passes(config, 10)["model"])


@pytest.mark.parametrize("name", STEPS)
def test_a_step_has_the_flops_we_count(name):
    found, said = count(configuration(**STEPS[name]))
    class_means = 2 * (2 * 10 * 10 * 3) if name == "ikl-awp" else 0  # a small product, in both of AWP's passes
    assert found == said + class_means


def test_a_curved_network_takes_one_more_backward_pass_for_emr(monkeypatch):
    monkeypatch.setattr(tape, "WORTHWHILE", 0.0)  # so small a network is left to double backward
    emr = EMRConfig(kind="approximate", weight=0.1)
    found, said = count(configuration(objective=Standard(), model=CURVED, emr=emr))
    assert found == pytest.approx(said, rel=1e-3)  # the last layer has no curve before it
    flat, curved = (step_passes(configuration(model=model, emr=emr), 10)["model"] for model in (SMALL, CURVED))
    assert sum(curved.kinds().values()) - sum(flat.kinds().values()) == 2


def test_a_run_by_hand():
    run = configuration(objective=Adversarial(attack=ATTACK), awp=AWPConfig(gamma=0.01, start=4))
    assert run_passes(run) == {"model": 4 * (3 + 6) + 6 * (3 + 6 + 3)}
    assert run_passes(configuration(objective=Free(eps=0.1, replays=8))) == {"model": 10 * 8 * 3}
    often = EMRConfig(kind="approximate", weight=0.1, every=4)
    assert run_passes(configuration(objective=Standard(), emr=often)) == {"model": 10 * (3 + 4 / 4)}
    mail = all_recipes()["cifar-wrn/trades-mail"].config  # 74 epochs of AT, then two sets of images and a prediction
    assert run_passes(mail) == {"model": 74 * 23 + 26 * (20 + 6 + (mail.objective.inner_problem(99)[1] != "ce"))}
    assert run_passes(all_recipes()["cifar-wrn/lbgat"].config)["teacher"] == 100 * 3


def test_what_is_not_known_is_not_guessed():
    class Own(Standard):
        pass

    with pytest.raises(InputError, match="the passes of Own are not known"):
        run_passes(configuration(objective=Own()))


def test_a_network_is_timed_and_leaves_random_numbers_alone():
    config = replace(all_recipes()["mnist-mlp/at-emr"].config, model=MLPConfig(hidden=(8,)))
    before = torch.get_rng_state()
    speed = measured_speed(config, config.model, torch.device("cpu"))
    assert torch.equal(before, torch.get_rng_state())
    assert 0 < speed.a_pass < 1
    assert 0 < speed.an_update < 10
    said = []
    stopwatch = Stopwatch(torch.device("cpu"), said.append)
    assert stopwatch.hours(config) > 0
    assert stopwatch.hours(replace(config, epochs=2 * config.epochs)) > stopwatch.hours(config)
    assert len(said) == 1
    assert stopwatch.hours(replace(config, data=DataConfig(name="mine.npz"))) is None
