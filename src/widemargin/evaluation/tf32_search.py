"""Attacks that search in TF32: the network they search on, and what becomes of finds that float32 does not confirm.

The search runs on a copy of the network as the GPU's tensor cores like it. They want channels last; other layouts are
turned around before and after every convolution. Where many passes are to come, the copy of a large network is
compiled too, which fuses what lies between the convolutions. What it finds is judged by the network itself, in float32.
Networks that are not ours are searched as they are.

TF32 and float32 see the boundary in slightly different places. Attacks that stop as soon as they are across, FAB above
all, end between the two: a few gradient steps in float32 take these across, since otherwise their finds would be lost
and the network would seem more robust than it is.
"""

import copy
import textwrap
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.attacks.pgd import PGD
from widemargin.attacks.threat import Threat
from widemargin.core.precision import allowing_tf32
from widemargin.engine.plan import HEAVY, forward_flops
from widemargin.errors import WidemarginWarning
from widemargin.losses import lead_of_another, predicted
from widemargin.models.classifier import Classifier

COMPILER = "inductor"
FEW = 32
"""Fewer images than that are not worth a compiled call; torch would compile again for one alone, and for few."""
MANY_KINDS = 64
"""Torch compiles a function for eight kinds of arguments and no more; each kind of network takes two here."""
STEPS, SHARE = 10, 0.05
"""Of a push across the boundary: so many steps at most, each of this share of eps."""


def has_tf32(device: torch.device) -> bool:
    """Whether allowing TF32 makes a difference there: GPUs have it since Ampere, CPUs do not."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8


def search_model(model: nn.Module, *, tf32: bool, many_like: Tensor | None = None) -> nn.Module:
    """The model, or such a copy of it; its weights are the model's of now.

    ``many_like``: a batch of images like the many to come, for which compiling would pay.
    """
    parameter = next(model.parameters(), None)
    if not (tf32 and isinstance(model, Classifier) and parameter is not None and parameter.is_cuda):
        return model
    network = channels_last_copy(model)
    if many_like is None or parameter.dtype != torch.float32:
        return network
    heavy = forward_flops(model, tuple(many_like.shape[1:]), parameter.device) >= HEAVY
    return compiled(network, many_like.to(parameter.device), COMPILER) if heavy else network


def channels_last_copy(model: nn.Module) -> nn.Module:
    """In evaluation mode, without gradients of its own."""
    network = copy.deepcopy(model).eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return network


def compiled(network: nn.Module, batch: Tensor, compiler: Any) -> nn.Module:
    """The network compiled for batches of any size like this one, with and without gradients; it is ready after.

    It is compiled for calls with TF32 allowed. ``compiler`` is a backend of torch.compile; where it fails, a warning
    says so, and the network is given back as it is.
    """
    if len(batch) < FEW:
        return network
    module = _CompiledForBatches(network, compiler)
    try:
        with allowing_tf32(), torch._dynamo.config.patch(recompile_limit=MANY_KINDS):
            module.compile_for(batch)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever compilers raise; the network itself has been called before
        reason = textwrap.shorten(str(error), 160, placeholder=" ...")
        warnings.warn(f"the search does not compile ({reason}); it runs uncompiled", WidemarginWarning, stacklevel=2)
        return network
    return module


class _CompiledForBatches(nn.Module):
    """Calls the compiled network where there are enough images, the uncompiled one otherwise."""

    def __init__(self, network: nn.Module, compiler: Any) -> None:
        super().__init__()
        self.network = network
        self.training = False

        def logits(images: Tensor) -> Tensor:  # one code for all: networks of the same shape share what is compiled
            found: Tensor = network(images)
            return found

        self._compiled = torch.compile(logits, backend=compiler)

    def compile_for(self, batch: Tensor) -> None:
        """Compile, once without gradients and once with."""
        batch = _in_one_layout(batch.detach())
        torch._dynamo.mark_dynamic(batch, 0)
        with torch.no_grad():
            self._compiled(batch)
        with torch.enable_grad():  # the backward pass is compiled when it first runs
            leaf = batch.clone().requires_grad_(True)
            torch._dynamo.mark_dynamic(leaf, 0)
            torch.autograd.grad(self._compiled(leaf).sum(), leaf)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        if len(x) < FEW:
            logits: Tensor = self.network(x)
            return logits
        x = _in_one_layout(x)
        if x.requires_grad and torch.is_grad_enabled():
            return self._compiled(x)
        with torch.no_grad():  # one and the same for the compiler
            return self._compiled(x.detach())


def _in_one_layout(x: Tensor) -> Tensor:
    """In one layout whatever it came in: another one would be compiled for again."""
    if x.dim() != 4:
        return x
    if x.shape[1] == 1:  # both layouts are one, with strides that may say either
        return x.flatten(1).view(x.shape)
    return x.contiguous(memory_format=torch.channels_last)


def push_across_boundary(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor, threat: Threat) -> Tensor:
    """The images of ``x_adv`` moved on, inside the threat around ``x``, until the model gives another label than y."""
    step = PGD(eps=threat.eps, step_size=SHARE * threat.eps, steps=1, norm=threat.norm)
    point, left = x_adv.clone(), torch.arange(len(x), device=x.device)
    for _ in range(STEPS):
        if not len(left):
            break
        point[left] = step(model, x[left], y[left], goal=lead_of_another, start=point[left])
        with torch.no_grad():
            left = left[predicted(model(point[left]), y[left])]
    return point
