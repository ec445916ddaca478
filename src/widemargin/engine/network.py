"""A model as the fast engine runs it: the same parameters, each kind of pass on its own fast path.

Objectives, attacks and penalties see an ordinary module. A training-mode pass runs the model itself, compiled and under
autocast. An evaluation-mode pass that needs no weight gradients runs the twin. A penalty takes its sweeps from
``penalty_stages``. Any other pass runs the model as it is. What cannot be made fast runs as it is too, said once.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.engine.or_plain import Function, OrPlain
from widemargin.engine.plan import Plan
from widemargin.engine.twin import Twin
from widemargin.errors import WidemarginWarning
from widemargin.linearize import PlainStages, Stages


class FastNetwork(nn.Module):
    """Wraps a model; its parameters are the model's own."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)
        self._plan = plan
        self._said: set[str] = set()
        twin = Twin(model, plan.reduced)
        self._twins = [twin]  # a list hides it from the submodules: it has no parameters of its own
        features: Any = getattr(model, "features", None)
        passes: dict[str, Any] = {"evaluation": twin, "training": model, "features": features}
        self._passes = {name: self._compiled(function, name) for name, function in passes.items() if function}
        self._stages: dict[frozenset[str], Stages] = {}

    @property
    def twin(self) -> Twin:
        """The evaluation-mode view."""
        return self._twins[0]

    @property
    def head(self) -> Any:
        """The model's head."""
        return getattr(self.model, "head", None)

    def refresh(self) -> None:
        """Before a step: the twin takes the weights as they are now."""
        self.twin.refresh()

    def forward(self, x: Tensor) -> Tensor:
        """The logits, in float32 or wider."""
        if self.training:
            return self._run("training", x)
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.model.parameters()):
            logits: Tensor = self.model(x)
            return logits
        return self._run("evaluation", x)

    def features(self, x: Tensor) -> Tensor:
        """What a head with a margin sees in training, in float32 or wider."""
        return self._run("features", x)

    def penalty_stages(self) -> Stages:
        """The sweeps of a penalty, on the twin, with the statistics as they are now."""
        self.twin.refresh_statistics()
        trained = frozenset(name for name, parameter in self.named_parameters() if parameter.requires_grad)
        if trained not in self._stages:
            self._stages[trained] = self._new_stages(trained)
        return self._stages[trained]

    def _new_stages(self, trained: frozenset[str]) -> Stages:
        if self._plan.compiler is None:
            return PlainStages(self.twin, trained)
        from widemargin.engine.compiled import CompiledStages  # here: it brings torch's tracers, a second to import

        return CompiledStages(self.twin, trained, self._plan.compiler)

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
        reduced = self._plan.reduced
        with torch.autocast(x.device.type, dtype=reduced, enabled=reduced is not None):
            result = self._passes[name](x)
        return result.to(torch.promote_types(result.dtype, torch.float32))

    def _compiled(self, function: Function, name: str) -> Function:
        compiler = self._plan.compiler
        if compiler is None:
            return function
        return OrPlain(torch.compile(function, backend=compiler, dynamic=False), function, name, self._say)
