"""A model as the fast engine runs it: the same parameters, each kind of pass on its own fast path.

Objectives, attacks and penalties see an ordinary module. A training-mode pass runs the model itself, compiled and under
autocast. An evaluation-mode pass that needs no weight gradients runs the model's evaluation copy. A penalty takes its
sweeps from ``penalty_stages``. Any other pass runs the model as it is. What cannot be made fast runs as it is too, said
once.

The evaluation copy is a second view of the model for passes that train nothing: evaluation mode, no gradients, a
smaller type if wanted. It shares everything with the model except the weights of convolutions and linear layers, which
are copies in the smaller type (on a CPU in channels last, in which it multiplies that fastest), and batch norms, which
are a scale and a shift per channel, made from the model's own tensors for all layers at once; both are refreshed once
a step. So an attack casts no weights, computes no weight gradients and never switches the model between modes.
"""

import copy
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from widemargin.core.checks import logits_of
from widemargin.engine.plan import Plan
from widemargin.errors import WidemarginWarning
from widemargin.gradients.sweeps.layers import folded_batch_norm
from widemargin.gradients.sweeps.tape import EagerSweeps
from widemargin.types import Sweeps

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class FoldedBatchNorm(nn.Module):
    """Stands where a batch norm with running statistics stood, under its parameters' names."""

    running_mean: Tensor
    running_var: Tensor
    scale: Tensor
    shift: Tensor
    inverse_deviation: Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        variance = cast(Tensor, norm.running_var)
        neutral = torch.ones_like(variance), torch.zeros_like(variance)
        self.factor_and_term = neutral if norm.weight is None else (norm.weight, norm.bias)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self._buffers[name] = norm._buffers[name]
        for name in ("scale", "shift", "inverse_deviation"):
            self.register_buffer(name, torch.empty_like(variance))

    def forward(self, x: Tensor) -> Tensor:
        """The normalized activations."""
        return folded_batch_norm(
            x, self.scale, self.shift, self.running_mean, self.inverse_deviation, self.weight, self.bias
        )


def fold_batch_norms(model: nn.Module) -> list[FoldedBatchNorm]:
    """Replace every batch norm with running statistics that is affine in evaluation mode; the new ones."""
    found: list[FoldedBatchNorm] = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            # torch's own, or a class that says so in its own body (types.FoldableNorm)
            foldable = type(child) in BATCH_NORMS or vars(type(child)).get("foldable_in_evaluation") is True
            if foldable and cast(Any, child).running_var is not None:
                found.append(FoldedBatchNorm(cast(_BatchNorm, child)))
                setattr(parent, name, found[-1])
    return found


@torch.no_grad()
def refresh_folds(norms: list[FoldedBatchNorm]) -> None:
    """scale = weight / deviation, shift = bias - mean scale, now."""
    for eps in {norm.eps for norm in norms}:
        group = [norm for norm in norms if norm.eps == eps]
        scales = torch._foreach_add([norm.running_var for norm in group], eps)
        torch._foreach_rsqrt_(scales)
        torch._foreach_copy_([norm.inverse_deviation for norm in group], scales)
        torch._foreach_mul_(scales, [norm.factor_and_term[0] for norm in group])
        torch._foreach_copy_([norm.scale for norm in group], scales)
        shifts = torch._foreach_mul([norm.running_mean for norm in group], scales)
        torch._foreach_neg_(shifts)
        torch._foreach_add_(shifts, [norm.factor_and_term[1] for norm in group])
        torch._foreach_copy_([norm.shift for norm in group], shifts)


CAST_LAYERS = (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward, nn.Linear.forward)


class EvalCopy(nn.Module):
    """The evaluation copy of a model, under the same parameter names with ``model.`` before them."""

    def __init__(self, model: nn.Module, reduced: torch.dtype | None = None) -> None:
        super().__init__()
        self.reduced = reduced
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._theirs: list[Tensor] = []
        self._ours: list[Tensor] = []
        for mine, theirs in zip(self.model.modules(), model.modules(), strict=True):
            self._share(mine, theirs)
        self._norms = fold_batch_norms(self.model)

    def _share(self, mine: nn.Module, theirs: nn.Module) -> None:
        casts = self.reduced is not None and type(theirs).forward in CAST_LAYERS
        for name, parameter in theirs.named_parameters(recurse=False):
            shared = parameter.detach().to(self.reduced if casts else parameter.dtype)
            if casts:
                if shared.dim() == 4 and shared.device.type == "cpu":
                    shared = shared.contiguous(memory_format=torch.channels_last)
                self._theirs.append(parameter.detach())
                self._ours.append(shared)
            setattr(mine, name, nn.Parameter(shared, requires_grad=False))
        for name, buffer in theirs.named_buffers(recurse=False):
            mine._buffers[name] = buffer

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the weights and the statistics as they are now."""
        if self._ours:
            torch._foreach_copy_(self._ours, self._theirs)
        self.refresh_statistics()

    def refresh_statistics(self) -> None:
        """Take the batch-norm statistics as they are now: a training-mode pass has changed them."""
        refresh_folds(self._norms)

    def forward(self, x: Tensor) -> Tensor:
        """The logits, computed in the smaller type."""
        with torch.autocast(x.device.type, dtype=self.reduced, enabled=self.reduced is not None):
            logits: Tensor = logits_of(self.model(x))
        return logits


Function = Callable[[Tensor], Tensor]
Say = Callable[[str, str], None]
"""(what it is about, a sentence)."""


class CompiledOrEager:
    """Calls ``compiled`` until that fails to compile, and says so through ``say``."""

    def __init__(self, compiled: Function, eager: Function, name: str, say: Say) -> None:
        self._now, self._eager, self._name, self._say = compiled, eager, name, say

    def __call__(self, x: Tensor) -> Tensor:
        """The function's result."""
        try:
            return self._now(x)
        except RuntimeError as error:
            from torch._dynamo.exc import TorchDynamoException  # here: it brings torch's tracers, a second to import

            if not isinstance(error, TorchDynamoException):  # no C++ compiler, a GPU too old and such are ones too
                raise
            self._now = self._eager
            reason = str(error).strip().splitlines()[0]
            self._say(self._name, f"the {self._name} pass does not compile ({reason}); it runs uncompiled")
            return self._eager(x)


class FastNetwork(nn.Module):
    """Wraps a model; its parameters are the model's own."""

    eval_copy: EvalCopy
    """The model for passes that train nothing."""
    _swept: EvalCopy
    """The same in the precision of the plan, for penalties; only attacks may search in less."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        super().__init__()
        self.model = model
        self.training = model.training  # and no other flag: the model may have frozen parts
        self._plan = plan
        self._said: set[str] = set()
        eval_copy = EvalCopy(model, plan.reduced_search)
        swept = eval_copy if plan.reduced_search == plan.reduced else EvalCopy(model, plan.reduced)
        for name, view in (("eval_copy", eval_copy), ("_swept", swept)):
            object.__setattr__(self, name, view)  # no submodule: it has no parameters of its own
        features: Any = getattr(model, "features", None)
        passes: dict[str, Any] = {"evaluation": eval_copy, "training": model, "features": features}
        self._passes = {name: self._compiled(function, name) for name, function in passes.items() if function}
        self._stages: dict[frozenset[str], Sweeps] = {}

    @property
    def head(self) -> Any:
        """The model's head."""
        return getattr(self.model, "head", None)

    def refresh(self) -> None:
        """Before a step: the evaluation copy takes the weights as they are now."""
        self.eval_copy.refresh()

    def forward(self, x: Tensor) -> Tensor:
        """The logits, in float32 or wider."""
        if self.training:
            return self._run("training", x)
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.model.parameters()):
            logits: Tensor = logits_of(self.model(x))
            return logits
        return self._run("evaluation", x)

    def features(self, x: Tensor) -> Tensor:
        """What a head with a margin sees in training, in float32 or wider."""
        return self._run("features", x)

    def penalty_stages(self) -> Sweeps:
        """The sweeps of a penalty, on the evaluation copy, with the statistics as they are now."""
        self._swept.refresh_statistics()
        trained = frozenset(name for name, parameter in self.named_parameters() if parameter.requires_grad)
        if trained not in self._stages:
            self._stages[trained] = self._new_stages(trained)
        return self._stages[trained]

    def _new_stages(self, trained: frozenset[str]) -> Sweeps:
        if self._plan.compiler is None:
            return EagerSweeps(self._swept, trained)
        from widemargin.engine.compiled_sweeps import CompiledSweeps  # brings torch's tracers: a second to import

        return CompiledSweeps(self._swept, trained, self._plan.compiler)

    def note_double_backward(self, owner: str, reason: str) -> None:
        """Say once that a penalty takes the slower way."""
        self._say(owner, f"{owner}: the model cannot be swept ({reason}); double backward in float32 is used instead")

    def _say(self, topic: str, text: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            warnings.warn(text, WidemarginWarning, stacklevel=3)

    def _run(self, name: str, x: Tensor) -> Tensor:
        if self._plan.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        reduced = self._plan.reduced_search if name == "evaluation" else self._plan.reduced
        with torch.autocast(x.device.type, dtype=reduced, enabled=reduced is not None):
            result: Tensor = logits_of(self._passes[name](x))
        return result.to(torch.promote_types(result.dtype, torch.float32))

    def _compiled(self, function: Function, name: str) -> Function:
        compiler = self._plan.compiler
        if compiler is None:
            return function
        return CompiledOrEager(torch.compile(function, backend=compiler, dynamic=False), function, name, self._say)
