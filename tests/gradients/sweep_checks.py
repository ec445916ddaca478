"""Every penalty of a model against Jacobians made one sample and one class at a time by stock operators."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from oracles import assert_all_close, images, jacobian_rows, labels, parameter_gradients, seeded
from widemargin import ApproximateEMR, ExactEMR, StochasticEMR
from widemargin.core.modes import evaluating
from widemargin.gradients.sweeps.calls import NotSweepable
from widemargin.gradients.sweeps.tape import record
from widemargin.regularizers import InputGradient
from widemargin.regularizers.emr import orthonormal_directions

PENALTIES = {
    "approximate": ApproximateEMR(temperature=0.7),
    "exact": ExactEMR(),
    "exact in chunks": ExactEMR(classes_at_once=2),
    "stochastic": StochasticEMR(projections=2),
    "input gradient": InputGradient(),
    "exact in chunks, linf": ExactEMR(classes_at_once=2, norm="linf"),
    "input gradient, L1": InputGradient(norm="linf", squared=False),
}


class Apply(nn.Module):
    """A function as a layer; ``sizes`` are the shapes of learnable tensors it takes after its input."""

    def __init__(self, function: Callable[..., Tensor], *sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.learned = nn.ParameterList(nn.Parameter(torch.randn(size)) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.learned)


def net(*layers: nn.Module, shape: tuple[int, ...], num_classes: int = 3) -> nn.Module:
    """The layers, then a linear classifier of all they give; uncommon statistics in every batch norm."""
    body = nn.Sequential(*layers)
    for module in body.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    with torch.no_grad(), evaluating(body):
        size = body(torch.rand(2, *shape)).flatten(1).shape[1]
    return nn.Sequential(body, nn.Flatten(), nn.Linear(size, num_classes))


def drawn() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def penalty_of(name: str, model: nn.Module, x: Tensor, num_classes: int = 3) -> Tensor:
    penalty: Tensor = PENALTIES[name](model, x, labels(len(x), num_classes), generator=drawn())
    return penalty


def penalties_slowly(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The same penalties (B,), from Jacobians that carry their graphs."""
    with sdpa_kernel(SDPBackend.MATH):  # the only attention with a second derivative
        pairs = [jacobian_rows(model, sample, create_graph=True) for sample in x.split(1)]
    logits, rows = (torch.stack(each) for each in zip(*pairs, strict=True))
    num_classes = logits.shape[1]
    directions = orthonormal_directions(logits.detach(), 2, drawn()) * math.sqrt(num_classes / 2)
    error = torch.softmax(logits, 1) - nn.functional.one_hot(labels(len(x), num_classes), num_classes)
    exact = rows.square().sum((1, 2))
    return {
        "approximate": _of(torch.softmax(logits.detach() / 0.7, 1)[None], rows),
        "exact": exact,
        "exact in chunks": exact,
        "stochastic": _of(directions, rows),
        "input gradient": _of(error[None], rows),
        "exact in chunks, linf": rows.abs().sum(2).square().sum(1),
        "input gradient, L1": torch.einsum("bk,bkd->bd", error, rows).abs().sum(1),
    }


def _of(cotangents: Tensor, rows: Tensor) -> Tensor:
    return torch.einsum("mbk,bkd->mbd", cotangents, rows).square().sum((0, 2))


def is_recorded(model: nn.Module, x: Tensor) -> bool:
    """Whether the sweeps take this model; otherwise it is left to double backward."""
    trained = frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    try:
        with evaluating(model):
            record(model, x, trained)
    except NotSweepable:
        return False
    return True


def gradients_of(model: nn.Module, penalty: Tensor) -> dict[str, Tensor]:
    """Of a combination of the samples with weights of both signs; keeps the graph."""
    weights = torch.linspace(-1.0, 2.0, len(penalty), dtype=penalty.dtype)
    return parameter_gradients(model, (weights * penalty).sum(), retain_graph=True)


def check(model: nn.Module, x: Tensor, *, recorded: bool = True, like: nn.Module | None = None) -> None:
    """Values and gradients of every penalty; ``recorded``: that the sweeps did it, or that they left it.

    ``like``: a model that computes the same in a simpler way, and is asked in place of the model itself.
    """
    assert is_recorded(model, x) == recorded
    simple = model if like is None else like
    for name, expected in penalties_slowly(simple, x).items():
        actual = penalty_of(name, model, x, num_classes=_classes(model, x))
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
        assert_all_close(gradients_of(model, actual), gradients_of(simple, expected), rtol=1e-7, atol=1e-10)


def _classes(model: nn.Module, x: Tensor) -> int:
    with torch.no_grad(), evaluating(model):
        return int(model(x[:1]).shape[1])


def check_layers(*layers: Callable[[], nn.Module], shape: tuple[int, ...], recorded: bool = True) -> None:
    model = seeded(0, lambda: net(*(make() for make in layers), shape=shape))
    check(model, images(3, *shape), recorded=recorded)
