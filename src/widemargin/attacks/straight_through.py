"""Gradients through pieces that have none: in the backward pass a module is replaced by the identity.

A dead zone, a rounding or a threshold has a gradient of zero nearly everywhere, so a gradient attack does not move and
the network seems robust (MeanSparse fell below its own base network when attacked this way). The straight-through
estimator (Bengio et al., 2013; Athalye et al., 2018, who call it BPDA) keeps the forward pass as it is and passes the
gradient of the output on to the input. It works where both have the same shape.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from widemargin.errors import InputError


@contextmanager
def straight_through_gradients(model: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Inside, the modules meant have the identity's gradient: of this name, whole or from a dot on, or of this class.

    Logits stay as they are; every gradient taken inside is changed, also that of a margin.
    """
    handles = [module.register_forward_hook(_identity_backwards) for module in modules_named(model, names)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def modules_named(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """The modules meant, each once; a name that means none is refused."""
    if isinstance(names, str):
        raise InputError(f"straight_through takes a list of names of modules, got {names!r}; write [{names!r}]")
    found: dict[nn.Module, None] = {}
    for name in names:
        meant = [module for path, module in model.named_modules() if _is_named(name, path, module)]
        if not meant:
            known = ", ".join(sorted({type(module).__name__ for module in model.modules()}))
            raise InputError(
                f"straight_through: no module is named {name!r}, and none is of a class {name!r}; classes: {known}"
            )
        found |= dict.fromkeys(meant)
    return list(found)


def _is_named(name: str, path: str, module: nn.Module) -> bool:
    return name in (path, type(module).__name__) or path.endswith(f".{name}")


def _identity_backwards(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor:
    fits = len(inputs) == 1 and all(isinstance(value, Tensor) for value in (*inputs, output))
    if not fits or inputs[0].shape != output.shape or not output.is_floating_point():
        shapes = [
            tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__ for value in (*inputs, output)
        ]
        raise InputError(
            f"straight_through: {type(module).__name__} does not give a tensor of the shape of its input ({shapes}), "
            "so the identity cannot stand for its gradient; name the part of it that does"
        )
    x = inputs[0]
    straight: Tensor = output.detach() + (x - x.detach()).to(output.dtype)  # an exact zero, of gradient one
    return straight
