"""The door to pyautoattack, which is bit for bit the official AutoAttack: everything it disturbs is put back.

It reseeds the global generators, leaves the tracer off and a flag set, accumulates parameter gradients, takes a model
in training mode as it is, and has nine targets whatever the number of classes. All of that is handled here.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from widemargin.errors import InputError
from widemargin.modes import evaluating, frozen
from widemargin.precision import full_float32
from widemargin.types import Norm

NORMS: dict[str, str] = {"linf": "Linf", "l2": "L2"}
PARTS = ("apgd-ce", "apgd-t", "fab-t", "square")
MAX_TARGETS = 9
FEWEST_FOR_APGD_T = 4


def parts_for(num_classes: int) -> tuple[str, ...]:
    """The parts of the standard attack; the targeted DLR loss needs four classes."""
    return tuple(part for part in PARTS if part != "apgd-t" or num_classes >= FEWEST_FOR_APGD_T)


def make_reference(
    model: nn.Module,
    *,
    eps: float,
    norm: Norm,
    seed: int,
    num_classes: int,
    device: torch.device,
    max_steps: int | None = None,
) -> Any:
    """The official attack object in its standard version, with as many targets as there are classes for.

    ``max_steps`` cuts every part short, where only the code is on trial.
    """
    try:
        from pyautoattack import AutoAttack
    except ImportError:
        raise InputError("AutoAttack needs the package pyautoattack; pip install 'pyautoattack>=0.2,<0.3'") from None
    reference = AutoAttack(model, norm=NORMS[norm], eps=float(eps), seed=seed, version="standard", device=str(device))
    targets = min(MAX_TARGETS, num_classes - 1)
    reference.apgd_targeted.n_target_classes = targets
    reference.fab.n_target_classes = targets
    reference.fab.targeted = True
    reference.apgd.loss = "ce"
    if max_steps is not None:
        reference.apgd.n_iter = reference.apgd_targeted.n_iter = reference.fab.n_iter = max_steps
        reference.square.n_queries = max_steps
    return reference


def part_attack(reference: Any, part: str) -> Any:
    """The attack of one part, seeded as the official loop seeds it."""
    attack = {
        "apgd-ce": reference.apgd,
        "apgd-t": reference.apgd_targeted,
        "fab-t": reference.fab,
        "square": reference.square,
    }[part]
    attack.seed = reference.seed
    return attack


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no parameter gradients, plain float32; random states and tracer restored after."""
    generators = torch.get_rng_state(), np.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    tracer = sys.gettrace()
    try:
        with evaluating(model), frozen(model), full_float32():
            yield
    finally:
        torch.set_rng_state(generators[0])
        np.random.set_state(generators[1])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        sys.settrace(tracer)
        _clear_dynamic_flag()


def _clear_dynamic_flag() -> None:
    """One model that looks like a dynamic defense must not brand all that follow."""
    checks = sys.modules.get("pyautoattack.checks")
    if checks is not None:
        checks.funcs.update(dict.fromkeys(checks.funcs, 0))
