"""Mixed labels, as CutMix makes them, in every objective, head, penalty and attack: right, or refused with a reason."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_composition_grid import (
    ATTACK,
    AWP,
    CONTEXT,
    OBJECTIVE_CASES,
    batch,
    refusal,
    run_of,
    tiny_set,
)
from torch import Tensor

from widemargin import PGD, InputError, losses
from widemargin.data import AUGMENTATIONS, Batch, Batches, CutMix
from widemargin.objectives import Standard
from widemargin.regularizers import InputGradient
from widemargin.training import StepContext, train_step
from widemargin.training.setup import make_state
from widemargin.types import Outcome

TAKEN = [name for name, (made, *_) in OBJECTIVE_CASES.items() if getattr(made, "takes_mixed_labels", False)]
HEADS = ("linear", "hypersphere", "hypersphere-no-margin")


def shares() -> Tensor:
    """Labels 0 1 2 1, of which the second half belongs to 1 2 0 0."""
    one, other = F.one_hot(torch.tensor([0, 1, 2, 1]), 3).float(), F.one_hot(torch.tensor([1, 2, 0, 0]), 3).float()
    part = torch.tensor([[0.25], [0.5], [0.0], [1.0]])
    return (1 - part) * one + part * other


def mixing(objective: str, penalty: str, head: str, **others: Any) -> Any:
    config = run_of(objective, penalty, head)
    return replace(config, data=replace(config.data, augmentation="cutmix"), **others)


def test_every_objective_is_here_or_refused() -> None:
    refused = set(OBJECTIVE_CASES) - set(TAKEN)
    assert {"standard", "adversarial", "trades-kl", "lbgat", "score"} <= set(TAKEN)
    assert {"mart", "mail-at", "mail-trades", "mail-mart"} <= refused
    for name in refused:
        message = r"'cutmix' mixes labels, and \w+ needs one for each image; .*: standard, adversarial, trades, lbgat"
        with pytest.raises(InputError, match=message):
            mixing(name, "none", "linear")
    with pytest.raises(InputError, match=r"mixes labels, and a large-margin head gives one of them a margin; remove"):
        mixing("standard", "none", "large-margin")

    class Mine(Standard):
        takes_mixed_labels = False

    with pytest.raises(InputError, match="mixes labels, and Mine needs one for each image"):
        replace(mixing("standard", "none", "linear"), objective=Mine())


def outcome(name: str, head: str, y: Tensor) -> Outcome:
    """The objective at fixed adversarial images, on fresh networks."""
    objective, x = OBJECTIVE_CASES[name][0], batch().images
    x_adv = None if name == "standard" else (x + 0.05 * torch.sin(100 * x)).clamp(0, 1)
    made: Any = objective
    return made.outcome(make_state(run_of(name, "none", head), tiny_set()).nets, x, x_adv, y, epoch=0)


@pytest.mark.parametrize("head", ["linear", "hypersphere-no-margin"])
@pytest.mark.parametrize("name", [name for name in TAKEN if name != "score"])
def test_the_loss_is_the_mean_over_the_labels(name: str, head: str) -> None:
    by_label = torch.stack([outcome(name, head, torch.full((4,), k)).loss for k in range(3)], dim=1)
    torch.testing.assert_close(outcome(name, head, shares()).loss, (shares() * by_label).sum(1))
    whole = F.one_hot(batch().labels, 3).float()
    torch.testing.assert_close(outcome(name, head, whole).loss, outcome(name, head, batch().labels).loss)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_squares_are_taken_to_the_shares(smoothing: float) -> None:
    z, z_adv = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    target = (1 - smoothing * 3 / 2) * shares() + smoothing / 2
    expected = (z.softmax(1) - target).square().sum(1) + 3 * (z_adv.softmax(1) - z.softmax(1)).square().sum(1)
    torch.testing.assert_close(losses.score(z, z_adv, shares(), 3.0, label_smoothing=smoothing), expected)


def test_a_cosine_margin_is_divided_as_the_labels_are() -> None:
    cosines = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    expected = 10 * (cosines - 0.2 * shares())
    torch.testing.assert_close(losses.hypersphere_logits(cosines, shares(), 10.0, 0.2), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_by_hand(smoothing: float) -> None:
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = (1 - smoothing) * shares().double() + smoothing / 3
    expected = -(target * z.log_softmax(1)).sum(1)
    torch.testing.assert_close(losses.cross_entropy(z, shares(), smoothing), expected)


def test_accuracy_counts_the_share_of_the_predicted_class() -> None:
    z = torch.eye(3)[[0, 2, 1, 0]]
    assert losses.share_predicted(z, shares()).tolist() == [0.75, 0.5, 0.0, 1.0]
    assert losses.share_predicted(z, torch.tensor([0, 1, 1, 2])).tolist() == [True, False, True, False]
    assert losses.predicted(z, shares()).tolist() == [True, False, False, True]  # of equal shares the first


COMPARING = {
    "margin": losses.lead_of_another,
    "dlr": losses.dlr,
    "mart": lambda z, y: losses.mart(z, z, y, 5.0),
    "mail": lambda z, y: losses.mail_at(z, y, 5.0, 0.1),
    "l-softmax": lambda z, y: losses.large_margin_logits(z, torch.eye(3), y, 2, 0.0),
}


@pytest.mark.parametrize("name", COMPARING)
def test_losses_that_compare_the_label_with_others_refuse(name: str) -> None:
    with pytest.raises(InputError, match=r"needs one label for each image, got mixed ones; .* train without cutmix"):
        COMPARING[name](torch.randn(4, 3), shares())


def test_the_input_gradient_is_that_of_the_mixed_cross_entropy() -> None:
    model = make_state(run_of("standard", "none", "linear"), tiny_set()).nets.model.eval()
    x = batch().images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(losses.cross_entropy(model(x), shares()).sum(), x)
    found = InputGradient()(model, x.detach(), shares())
    torch.testing.assert_close(found, gradient.flatten(1).square().sum(1), rtol=1e-4, atol=1e-8)
    with pytest.raises(InputError, match=r"InputGradient: mixed labels must be shares \(4, 3\), got \(4, 2\)"):
        InputGradient()(model, x.detach(), shares()[:, :2])


@pytest.mark.parametrize("attack", [ATTACK, PGD(eps=0.1, step_size=0.02, steps=3), replace(ATTACK, restarts=3)])
def test_an_attack_climbs_the_mixed_cross_entropy(attack: PGD) -> None:
    model = make_state(run_of("standard", "none", "linear"), tiny_set()).nets.model.eval()
    x, y = batch().images, shares()
    x_adv = attack(model, x, y, generator=CONTEXT.generator("attack"))

    def goal(logits: Tensor, labels: Tensor) -> Tensor:
        return -(y * logits.log_softmax(1)).sum(1)

    by_hand = attack(model, x, torch.zeros(4, dtype=torch.int64), goal=goal, generator=CONTEXT.generator("attack"))
    if attack.restarts == 1:
        torch.testing.assert_close(x_adv, by_hand)
    assert (goal(model(x_adv), y) > goal(model(x), y)).all()
    with pytest.raises(InputError, match=r"PGD: mixed labels must be shares \(4, K\), got \(3, 3\)"):
        attack(model, x, y[:3])


PENALTIES = ("none", "exact-adversarial", "igr-clean", "igr-adversarial")


@pytest.mark.parametrize("awp", [None, AWP], ids=["", "awp"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("objective", TAKEN)
def test_one_step(objective: str, penalty: str, head: str, awp: Any) -> None:
    if refusal(objective, penalty, head) is not None:
        pytest.skip("refused whatever the labels")
    config = mixing(objective, penalty, head, awp=awp)
    state = make_state(config, tiny_set())
    found = Batch(step=0, indices=torch.arange(4), images=batch().images, labels=shares())
    values = train_step(state, config.objective, config.penalties(), found, CONTEXT, awp=awp)
    assert all(value.shape == (4,) and value.isfinite().all() for value in values.values())
    for name, parameter in state.nets.model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name not in ("none", "random-resized-crop")])
def test_a_batch_of_a_run_goes_through_a_step(name: str) -> None:
    config = run_of("adversarial", "igr-clean", "linear")
    batches = Batches(data=tiny_set(), batch_size=3, seed=0, augmentation=AUGMENTATIONS[name]())
    for found in batches.epoch(0):
        state = make_state(config, tiny_set())
        values = train_step(state, config.objective, config.penalties(), found, CONTEXT)
        assert values["total"].isfinite().all()
        assert (found.labels.dim() == 2) == (name == "cutmix")
        assert found.images.shape == (found.size, 3, 8, 8)
        if name == "cutmix":
            torch.testing.assert_close(found.labels.sum(1), torch.ones(found.size))
            assert 0 <= values["correct"].min() <= values["correct"].max() <= 1


def test_a_label_of_one_class_alone_trains_as_the_label_does() -> None:
    def weights(labels: Tensor) -> Tensor:
        config = run_of("trades-kl", "igr-clean", "linear")
        state = make_state(config, tiny_set())
        for step in range(3):
            context = StepContext(seed=0, epoch=0, step=step, steps_per_epoch=3)
            found = Batch(step=0, indices=torch.arange(4), images=batch().images, labels=labels)
            train_step(state, config.objective, config.penalties(), found, context)
        return torch.cat([p.detach().flatten() for p in state.nets.model.parameters()])

    torch.testing.assert_close(weights(F.one_hot(batch().labels, 3).float()), weights(batch().labels))
    assert CutMix() == AUGMENTATIONS["cutmix"]()
