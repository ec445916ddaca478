"""Each objective by hand: which images, which forwards in which order, which loss, which gradients."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles import GoldenBN, assert_all_close, golden_net, parameter_gradients, seeded
from widemargin import FGSM, PGD, InputError, losses
from widemargin.objectives import Adversarial, Lbgat, Mail, Mart, Score, Standard, Trades
from widemargin.types import Nets, Objective, Outcome

GAUSSIAN = PGD(eps=0.1, step_size=0.03, steps=3, random_start="gaussian")
UNIFORM = PGD(eps=0.05, step_size=0.02, steps=2, random_start="uniform")
SLOPE, BIAS, WEIGHT = 4.0, 0.1, 3.0


def nets_and_batch(*, teacher: bool = False) -> tuple[Nets, Tensor, Tensor]:
    model, x, y = golden_net("bn")
    return Nets(model=model, teacher=seeded(3, GoldenBN).train() if teacher else None), x, y


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def call(objective: Objective, nets: Nets, x: Tensor, y: Tensor, epoch: int = 0) -> Outcome:
    return objective(nets, x, y, epoch=epoch, generator=generator())


def perturbed(objective: Objective, nets: Nets, x: Tensor, y: Tensor, epoch: int = 0) -> Tensor:
    x_adv = objective.perturb(copy.deepcopy(nets), x, y, epoch=epoch, generator=generator())
    assert x_adv is not None
    return x_adv


@contextmanager
def forwards_recorded(nets: Nets) -> Iterator[list[tuple[str, Tensor]]]:
    """(network, images) of every train-mode forward, in order, and of any of a teacher: it is never attacked."""
    seen: list[tuple[str, Tensor]] = []

    def recorder(name: str) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def note(net: nn.Module, inputs: tuple[Tensor]) -> None:
            if net.training or name == "teacher":
                seen.append((name, inputs[0].detach().clone()))

        return note

    hooks = [net.register_forward_pre_hook(recorder(name)) for name, net in nets.all().items()]
    yield seen
    for hook in hooks:
        hook.remove()


def order(seen: list[tuple[str, Tensor]], x: Tensor, x_adv: Tensor | None) -> list[str]:
    known = {"x": x, "x'": x if x_adv is None else x_adv}
    return [f"{name}({next((k for k, v in known.items() if torch.equal(v, at)), '?')})" for name, at in seen]


# The formulas, of losses that are tested by themselves


Margin = Callable[[Tensor, Tensor], Tensor]


ALONE, BOTH = ["model(x')"], ["model(x)", "model(x')"]
MAIL: dict[str, Any] = {"attack": GAUSSIAN, "slope": SLOPE, "bias": BIAS}
FORMULAS: dict[str, tuple[Any, Any, list[str], Callable[[Tensor, Tensor, Tensor, Margin], Tensor]]] = {
    # objective, who finds the same images, the train-mode forwards in order, and the loss of (clean logits z,
    # adversarial logits a, labels y, what a head's margin makes of logits m)
    "adversarial": (
        Adversarial(attack=UNIFORM),
        None,
        ALONE,
        lambda z, a, y, m: losses.cross_entropy(m(a, y), y),
    ),
    "adversarial smoothed": (
        Adversarial(attack=UNIFORM, label_smoothing=0.2),
        None,
        ALONE,
        lambda z, a, y, m: losses.cross_entropy(m(a, y), y, 0.2),
    ),
    "trades smoothed": (
        Trades(attack=GAUSSIAN, beta=WEIGHT, label_smoothing=0.2),
        None,
        BOTH,
        lambda z, a, y, m: losses.trades(z, a, y, WEIGHT, label_logits=m(z, y), label_smoothing=0.2),
    ),
    "mail at smoothed": (
        Mail(over="at", label_smoothing=0.2, **MAIL),
        Adversarial(attack=GAUSSIAN),
        ALONE,
        lambda z, a, y, m: losses.mail_at(a, y, SLOPE, BIAS, label_logits=m(a, y), label_smoothing=0.2),
    ),
    "mail trades smoothed": (
        Mail(over="trades", weight=WEIGHT, label_smoothing=0.2, **MAIL),
        Trades(attack=GAUSSIAN),
        BOTH,
        lambda z, a, y, m: losses.mail_trades(z, a, y, WEIGHT, SLOPE, BIAS, label_logits=m(z, y), label_smoothing=0.2),
    ),
    "trades kl": (
        Trades(attack=GAUSSIAN, beta=WEIGHT),
        None,
        BOTH,
        lambda z, a, y, m: losses.trades(z, a, y, WEIGHT, label_logits=m(z, y)),
    ),
    "trades ce": (
        Trades(attack=UNIFORM, beta=WEIGHT, inner="ce"),
        Adversarial(attack=UNIFORM),
        BOTH,
        lambda z, a, y, m: losses.trades(z, a, y, WEIGHT, label_logits=m(z, y)),
    ),
    "mart": (
        Mart(attack=GAUSSIAN, weight=WEIGHT),
        Adversarial(attack=GAUSSIAN),
        BOTH,
        lambda z, a, y, m: losses.mart(z, a, y, WEIGHT, label_logits=m(a, y)),
    ),
    "score": (
        Score(attack=GAUSSIAN, beta=WEIGHT, clip=0.01, label_smoothing=0.1),
        None,
        BOTH,
        lambda z, a, y, m: (
            (m(z, y).softmax(1) - F.one_hot(y, 10).double() * (0.9 - 0.1 / 9) - 0.1 / 9).square().sum(1)
            + WEIGHT * ((z.softmax(1) - a.softmax(1)).square().sum(1) - 0.01).relu()
        ),
    ),
    "mail at": (
        Mail(over="at", **MAIL),
        Adversarial(attack=GAUSSIAN),
        ALONE,
        lambda z, a, y, m: losses.mail_at(a, y, SLOPE, BIAS, label_logits=m(a, y)),
    ),
    "mail trades": (
        Mail(over="trades", weight=WEIGHT, **MAIL),
        Trades(attack=GAUSSIAN),
        BOTH,
        lambda z, a, y, m: losses.mail_trades(z, a, y, WEIGHT, SLOPE, BIAS, label_logits=m(z, y)),
    ),
    "mail trades ce": (
        Mail(over="trades", inner="ce", **MAIL),
        Adversarial(attack=GAUSSIAN),
        BOTH,
        lambda z, a, y, m: losses.mail_trades(z, a, y, 5.0, SLOPE, BIAS, label_logits=m(z, y)),  # the default
    ),
    "mail mart": (
        Mail(over="mart", weight=WEIGHT, **MAIL),
        Adversarial(attack=GAUSSIAN),
        BOTH,
        lambda z, a, y, m: losses.mail_mart(z, a, y, WEIGHT, SLOPE, BIAS, label_logits=m(a, y)),
    ),
    "mail at, mean one": (
        Mail(over="at", weights="mean1", **MAIL),
        Adversarial(attack=GAUSSIAN),
        ALONE,
        lambda z, a, y, m: losses.mail_at(a, y, SLOPE, BIAS, mean_one=True, label_logits=m(a, y)),
    ),
}


# A head with a margin: the label's loss alone sees it


def two_less(logits: Tensor, y: Tensor) -> Tensor:
    return logits - 2 * F.one_hot(y, logits.shape[1])


class MarginHead(nn.Linear):
    def training_logits(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        return two_less(logits, y)


class Margined(GoldenBN):
    """The golden network with a margin in its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = MarginHead(16, 10)

    @property
    def head(self) -> nn.Module:
        return self.fc

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x))).mean((2, 3))


def margined() -> tuple[nn.Module, Tensor, Tensor]:
    golden_model, x, y = golden_net("bn")
    model = Margined().double()
    model.load_state_dict(golden_model.state_dict())
    return model, x, y


MARGINS: dict[str, tuple[Callable[[], tuple[nn.Module, Tensor, Tensor]], Margin]] = {
    "no margin": (lambda: golden_net("bn"), lambda logits, y: logits),
    "two less": (margined, two_less),
}


def assert_same_gradients_and_statistics(one: tuple[nn.Module, Tensor], other: tuple[nn.Module, Tensor]) -> None:
    actual, expected = (parameter_gradients(model, loss.mean()) for model, loss in (one, other))
    assert_all_close(actual, expected, rtol=1e-9, atol=1e-12)
    assert_all_close(dict(one[0].named_buffers()), dict(other[0].named_buffers()), rtol=0, atol=0)


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("name", FORMULAS)
def test_loss_and_gradients_are_the_formula(name: str, margin: str) -> None:
    objective, finder, passes, loss = FORMULAS[name]
    make, lowered = MARGINS[margin]
    (model, x, y), (plain, _, _) = make(), golden_net("bn")
    x_adv = perturbed(finder or objective, Nets(model=plain), x, y)  # the attack sees no margin
    assert not torch.allclose(x_adv, x, atol=1e-3)
    nets = Nets(model=model)
    with forwards_recorded(nets) as seen:
        outcome = call(objective, nets, x, y)
    assert objective.attacks
    assert torch.equal(outcome.x_adv, x_adv)
    if margin == "no margin":  # else a pass is features and head
        assert order(seen, x, x_adv) == passes
    clean = plain(x) if passes == BOTH else torch.empty(0)
    adversarial = plain(x_adv)
    expected = loss(clean, adversarial, y, lowered)
    torch.testing.assert_close(outcome.loss, expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(outcome.logits, adversarial)  # training accuracy is under attack
    assert_same_gradients_and_statistics((model, outcome.loss), (plain, expected))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("margin", MARGINS)
def test_standard_training(margin: str, label_smoothing: float) -> None:
    make, lowered = MARGINS[margin]
    (model, x, y), (plain, _, _) = make(), golden_net("bn")
    logits, nets = plain(x), Nets(model=model)
    with forwards_recorded(nets) as seen:
        outcome = call(Standard(label_smoothing=label_smoothing), nets, x, y)
    assert order(seen, x, None) == (["model(x)"] if margin == "no margin" else [])
    expected = losses.cross_entropy(lowered(logits, y), y, label_smoothing)
    torch.testing.assert_close(outcome.loss, expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(outcome.logits, logits)
    assert outcome.x_adv is None
    assert not Standard().attacks
    assert Standard().perturb(nets, x, y, epoch=0) is None
    assert_same_gradients_and_statistics((model, outcome.loss), (plain, expected))


def test_a_repeated_clean_pass_keeps_the_margin_of_the_first() -> None:
    outcomes = [
        call(Trades(attack=GAUSSIAN, repeat_clean=repeat), Nets(model=margined()[0]), *margined()[1:])
        for repeat in (False, True)
    ]
    torch.testing.assert_close(outcomes[0].loss, outcomes[1].loss, rtol=1e-10, atol=1e-12)


def test_the_two_inner_problems_differ() -> None:
    nets, x, y = nets_and_batch()
    found = [perturbed(Trades(attack=GAUSSIAN, inner=inner), nets, x, y) for inner in ("kl", "ce")]
    assert not torch.equal(*found)

    def divergence(x_adv: Tensor) -> float:
        model = copy.deepcopy(nets.model).eval()
        return float(losses.kl_divergence(model(x), model(x_adv)).detach().sum())

    assert divergence(found[0]) > divergence(x + 0.001) > 0


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_clean_prediction_of_the_kl_attack_is_made_in_the_attacks_mode(mode: Any) -> None:
    nets, x, y = nets_and_batch()
    attack = PGD(eps=0.1, step_size=0.03, steps=3, random_start="gaussian", mode=mode)
    began = int(nets.model.bn1.num_batches_tracked)
    Trades(attack=attack).perturb(nets, x, y, epoch=0, generator=generator())
    assert int(nets.model.bn1.num_batches_tracked) - began == (0 if mode == "eval" else 1 + 3)
    assert all(module.training for module in nets.model.modules())


# MAIL's burn-in


BURN_IN: dict[str, tuple[dict[str, Any], Objective]] = {
    "at, for both": ({"over": "at"}, Adversarial(attack=UNIFORM)),
    "trades, with AT": ({"over": "trades", "weight": WEIGHT}, Adversarial(attack=UNIFORM)),
    "mart, with AT": ({"over": "mart", "weight": WEIGHT}, Adversarial(attack=UNIFORM)),
    "at, the same": ({"over": "at", "burn_in_with": "same"}, Adversarial(attack=UNIFORM)),
    "trades, the same": (
        {"over": "trades", "weight": WEIGHT, "burn_in_with": "same"},
        Trades(attack=UNIFORM, beta=WEIGHT),
    ),
    "trades smoothed, with AT": (
        {"over": "trades", "weight": WEIGHT, "label_smoothing": 0.2},
        Adversarial(attack=UNIFORM, label_smoothing=0.2),
    ),
    "trades smoothed, the same": (
        {"over": "trades", "weight": WEIGHT, "burn_in_with": "same", "label_smoothing": 0.2},
        Trades(attack=UNIFORM, beta=WEIGHT, label_smoothing=0.2),
    ),
    "trades ce, the same": (
        {"over": "trades", "weight": WEIGHT, "inner": "ce", "burn_in_with": "same"},
        Trades(attack=UNIFORM, beta=WEIGHT, inner="ce"),
    ),
    "mart, the same": ({"over": "mart", "weight": WEIGHT, "burn_in_with": "same"}, Mart(attack=UNIFORM, weight=WEIGHT)),
}


def assert_same_call(one: Objective, other: Objective, epoch: int) -> None:
    results = []
    for objective in (one, other):
        nets, x, y = nets_and_batch()
        assert torch.equal(perturbed(objective, nets, x, y, epoch), perturbed(one, nets, x, y, epoch))
        outcome = call(objective, nets, x, y, epoch)
        gradients = parameter_gradients(nets.model, outcome.loss.mean())
        state = {"loss": outcome.loss, "logits": outcome.logits, "x_adv": outcome.x_adv}
        results.append(state | gradients | dict(nets.model.named_buffers()))
    assert_all_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("name", BURN_IN)
@pytest.mark.parametrize("epoch", [0, 2])
def test_burn_in_epochs_are_the_plain_method(name: str, epoch: int) -> None:
    settings, plain = BURN_IN[name]
    mail = Mail(**settings, **MAIL, burn_in_attack=UNIFORM, burn_in=3)
    assert_same_call(mail, plain, epoch)


@pytest.mark.parametrize("name", BURN_IN)
def test_after_the_burn_in_the_weights_count(name: str) -> None:
    settings, _ = BURN_IN[name]
    mail = Mail(**settings, **MAIL, burn_in_attack=UNIFORM, burn_in=3)
    without = {key: value for key, value in settings.items() if key != "burn_in_with"}
    assert_same_call(mail, Mail(**without, **MAIL), 3)


def test_the_burn_in_attacks_as_the_rest_does_unless_told_otherwise() -> None:
    mail = Mail(over="at", burn_in=3, **MAIL)
    assert_same_call(mail, Adversarial(attack=GAUSSIAN), 2)


# LBGAT


@pytest.mark.parametrize(("beta", "label_smoothing"), [(0.0, 0.0), (2.0, 0.2)])
@pytest.mark.parametrize("inner", ["kl", "ce"])
def test_lbgat_is_the_formula_for_both_networks(beta: float, inner: Any, label_smoothing: float) -> None:
    objective = Lbgat(attack=GAUSSIAN, beta=beta, inner=inner, label_smoothing=label_smoothing)
    nets, x, y = nets_and_batch(teacher=True)
    assert nets.teacher is not None
    student, teacher = copy.deepcopy(nets.model), copy.deepcopy(nets.teacher)
    finder = Trades(attack=GAUSSIAN) if inner == "kl" else Adversarial(attack=GAUSSIAN)
    x_adv = perturbed(finder, Nets(model=nets.model), x, y)
    with forwards_recorded(nets) as seen:
        outcome = call(objective, nets, x, y)
    assert torch.equal(outcome.x_adv, x_adv)
    assert order(seen, x, x_adv) == ["model(x')", "model(x)", "teacher(x)"]  # the clean one even where beta is 0

    adversarial, clean, taught = student(x_adv), student(x), teacher(x)
    expected = (adversarial - taught).square().mean(1) + losses.cross_entropy(taught, y, label_smoothing)
    expected = expected + beta * losses.kl_divergence(clean, adversarial)
    torch.testing.assert_close(outcome.loss, expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(outcome.logits, adversarial)
    for net, by_hand in ((nets.model, student), (nets.teacher, teacher)):
        actual = torch.autograd.grad(outcome.loss.mean(), list(net.parameters()), retain_graph=True)
        wanted = torch.autograd.grad(expected.mean(), list(by_hand.parameters()), retain_graph=True)
        for one, other in zip(actual, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
            assert float(one.abs().max()) > 0
        assert_all_close(dict(net.named_buffers()), dict(by_hand.named_buffers()), rtol=0, atol=0)


def test_lbgat_without_a_teacher_says_so() -> None:
    nets, x, y = nets_and_batch()
    with pytest.raises(InputError, match=r"Lbgat needs a teacher: add a \[teacher\] table to the run"):
        call(Lbgat(attack=GAUSSIAN), nets, x, y)


# Settings


def test_the_kl_has_no_gradient_at_the_image() -> None:
    """Why an attack on it that starts there is refused."""
    nets, x, _ = nets_and_batch()
    model = nets.model.eval()
    clean = model(x).detach()
    leaf = x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(losses.kl_divergence(clean, model(leaf)).sum(), leaf)
    assert float(gradient.abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (Trades, {"beta": -1.0}, r"Trades.beta must be a number >= 0, got -1.0"),
        (Trades, {"inner": "x"}, r"Trades.inner must be one of 'kl', 'ce', got 'x'"),
        (Mart, {"weight": float("nan")}, r"Mart.weight must be a number >= 0, got nan"),
        (Lbgat, {"beta": -1.0}, r"Lbgat.beta must be a number >= 0, got -1.0"),
        (Score, {"clip": 2.0}, r"Score.clip must be a number in \[0, 2\), got 2.0"),
        (Score, {"label_smoothing": -0.1}, r"Score.label_smoothing must be a number in \[0, 1\), got -0.1"),
        (Score, {"attack": FGSM(eps=0.1)}, r"Score.attack must be PGD with a random start \(its inner problem is"),
        (Trades, {"label_smoothing": 1.0}, r"Trades.label_smoothing must be a number in \[0, 1\), got 1.0"),
        (Adversarial, {"label_smoothing": -0.1}, r"Adversarial.label_smoothing must be a number in \[0, 1\), got"),
        (Lbgat, {"label_smoothing": 2}, r"Lbgat.label_smoothing must be a number in \[0, 1\), got 2; 0.1 is usual"),
        (Mail, {"over": "mart", "label_smoothing": 0.1}, r"Mail.label_smoothing has no meaning over MART"),
        (Mail, {"over": "st"}, r"Mail.over must be one of 'at', 'trades'"),
        (Mail, {"slope": 0.0}, r"Mail.slope must be positive"),
        (Mail, {"bias": float("inf")}, r"Mail.bias finite"),
        (Mail, {"weights": "sum"}, r"Mail.weights must be one of 'times3', 'mean1', got 'sum'"),
        (Mail, {"over": "mart", "weight": -2.0}, r"Mail.weight must be a number >= 0, got -2.0"),
        (Mail, {"burn_in": -1}, r"Mail.burn_in must be a number of epochs >= 0, got -1"),
        (
            Mail,
            {"burn_in": 1, "burn_in_with": "trades"},
            r"Mail.burn_in_with must be one of 'at', 'same', got 'trades'",
        ),
    ],
)
def test_bad_settings(kind: type, change: dict[str, object], message: str) -> None:
    settings = {"over": "at", "slope": 1.0, "bias": 0.0} if kind is Mail else {}
    with pytest.raises(InputError, match=message):
        kind(**{"attack": GAUSSIAN, **settings, **change})


def test_mail_is_in_its_second_phase_from_the_epoch_after_burn_in():
    mail = Mail(over="at", burn_in=2, **MAIL)
    assert [mail.phase(epoch) for epoch in range(4)] == [0, 0, 1, 1]
