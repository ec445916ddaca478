"""The step as one writes it by hand, which the engine is measured against: eager float32, autograd, double backward.

The same mathematics and the same order as ``training/step.py`` (a test holds one against the other), with nothing of
the engine: a PGD loop with ``autograd.grad``, ``create_graph=True`` for the penalties, ``torch.optim.SGD``.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from widemargin import losses
from widemargin.attacks.pgd import GAUSSIAN_START, PGD
from widemargin.config.run import RunConfig
from widemargin.heads.training import after_update, logits_for_training
from widemargin.objectives.adversarial import Adversarial
from widemargin.objectives.lbgat import Lbgat
from widemargin.objectives.mail import Mail
from widemargin.objectives.mart import Mart
from widemargin.objectives.standard import Standard
from widemargin.objectives.trades import Trades
from widemargin.regularizers.emr import ApproximateEMR, ExactEMR, StochasticEMR, orthonormal_directions
from widemargin.regularizers.input_gradient import InputGradient
from widemargin.types import Nets, Objective, Regularizer


def naive_step(
    config: RunConfig,
    nets: Nets,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    *,
    generator: torch.Generator,
) -> None:
    """Update the networks once, with every penalty at its first weight."""
    x_adv = x if isinstance(config.objective, Standard) else _perturb(config.objective, nets.model, x, y, generator)
    loss = _loss(config.objective, nets, x, x_adv, y)
    for penalty in config.penalties():
        point = x_adv if penalty.at == "adversarial" else x
        amount = naive_penalty(penalty.regularizer, nets.model, point, y, generator=generator)
        loss = loss + penalty.factor(0.0, len(x)) * amount.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for net in nets.all().values():
        after_update(net)


def _perturb(objective: Any, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    attack: PGD = objective.attack
    assert attack.norm == "linf"
    assert attack.mode == "eval"
    model.eval()
    clean = None
    if isinstance(objective, Trades | Lbgat) and objective.inner == "kl":
        with torch.no_grad():
            clean = F.softmax(model(x), dim=1)
    x_adv = _start(attack, x, generator)
    for _ in range(attack.steps):
        x_adv = x_adv.detach().requires_grad_(True)
        logits = model(x_adv)
        if clean is None:
            goal = F.cross_entropy(logits, y)
        else:
            goal = F.kl_div(F.log_softmax(logits, dim=1), clean, reduction="sum")
        (gradient,) = torch.autograd.grad(goal, x_adv)
        x_adv = x_adv.detach() + attack.step_size * gradient.sign()
        x_adv = torch.min(torch.max(x_adv, x - attack.eps), x + attack.eps).clamp(0, 1)
    model.train()
    return x_adv.detach()


def _start(attack: PGD, x: Tensor, generator: torch.Generator) -> Tensor:
    device = generator.device
    if attack.random_start == "uniform":
        noise = 2 * torch.rand(x.shape, generator=generator, dtype=x.dtype, device=device) - 1
        return (x + attack.eps * noise.to(x.device)).clamp(0, 1)
    if attack.random_start == "gaussian":
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=device)
        return x + GAUSSIAN_START * noise.to(x.device)
    return x


def _loss(objective: Objective, nets: Nets, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
    """The mean loss; the formulas of the longer ones are the package's own, for they take no time."""
    model = nets.model
    if isinstance(objective, Standard | Adversarial):
        return F.cross_entropy(logits_for_training(model, x_adv, y)[1], y)
    if isinstance(objective, Trades):
        logits, label_logits = logits_for_training(model, x, y)
        log_p_adv, p = F.log_softmax(model(x_adv), dim=1), F.softmax(logits, dim=1)
        return F.cross_entropy(label_logits, y) + objective.beta * F.kl_div(log_p_adv, p, reduction="batchmean")
    if isinstance(objective, Mart):
        logits = model(x)
        logits_adv, label_logits = logits_for_training(model, x_adv, y)
        return losses.mart(logits, logits_adv, y, objective.weight, label_logits=label_logits).mean()
    if isinstance(objective, Mail):
        assert objective.over == "at"
        logits_adv, label_logits = logits_for_training(model, x_adv, y)
        return losses.mail_at(logits_adv, y, objective.slope, objective.bias, label_logits=label_logits).mean()
    assert isinstance(objective, Lbgat)
    assert nets.teacher is not None
    student_adv, student = model(x_adv), model(x)
    return losses.lbgat(student, student_adv, nets.teacher(x), y, objective.beta).mean()


def naive_penalty(
    regularizer: Regularizer, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
) -> Tensor:
    """(B,) by ``create_graph=True``: one input gradient after the other."""
    model.eval()
    leaf = x.detach().clone().requires_grad_(True)
    logits = model(leaf)
    model.train()
    if isinstance(regularizer, InputGradient):
        return _squared_gradient(F.cross_entropy(logits, y, reduction="sum"), leaf)
    if isinstance(regularizer, ApproximateEMR):
        weights = F.softmax(logits.detach() / regularizer.temperature, dim=1)
        return _squared_gradient((weights * logits).sum(), leaf)
    if isinstance(regularizer, ExactEMR):
        goals = [logits[:, j].sum() for j in range(logits.shape[1])]
    else:
        assert isinstance(regularizer, StochasticEMR)
        assert generator is not None
        directions = orthonormal_directions(logits.detach(), regularizer.projections, generator)
        scale = (logits.shape[1] / regularizer.projections) ** 0.5
        goals = [(scale * direction * logits).sum() for direction in directions]
    total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    for goal in goals:
        total = total + _squared_gradient(goal, leaf)
    return total


def _squared_gradient(goal: Tensor, leaf: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(goal, leaf, create_graph=True)
    return gradient.flatten(1).square().sum(1)
