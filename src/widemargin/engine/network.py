"""A model as the fast engine runs it: the same parameters, each kind of pass on its own fast path.

Objectives, attacks and penalties see an ordinary module. A training-mode pass runs the model itself, compiled and under
autocast. An evaluation-mode pass that needs no weight gradients runs the twin. A penalty takes its sweeps from
``stages``. Any other pass runs the model as it is.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.engine.compiled import CompiledStages
from widemargin.engine.plan import Plan
from widemargin.engine.twin import Twin
from widemargin.linearize import PlainStages, Stages


class FastNetwork(nn.Module):
    """Wraps a model; its parameters are the model's own."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)
        self._plan = plan
        twin = Twin(model, plan.dtype)
        self._hidden = {"twin": twin}  # a dictionary hides it from the list of submodules
        self._evaluate = self._compiled(twin)
        self._train = self._compiled(model)
        self._features = self._compiled(model.features) if hasattr(model, "features") else None
        self._stages: dict[frozenset[str], Stages] = {}

    @property
    def twin(self) -> Twin:
        """The evaluation-mode view."""
        return self._hidden["twin"]

    @property
    def head(self) -> Any:
        """The model's head."""
        return getattr(self.model, "head", None)

    def refresh(self) -> None:
        """Before a step: the twin takes the weights as they are now."""
        self.twin.refresh()

    def forward(self, x: Tensor) -> Tensor:
        """The logits, in float32."""
        if self.training:
            return self._run(self._train, x)
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.model.parameters()):
            logits: Tensor = self.model(x)
            return logits
        return self._run(self._evaluate, x)

    def features(self, x: Tensor) -> Tensor:
        """What a head with a margin sees in training, in float32."""
        assert self._features is not None
        return self._run(self._features, x)

    def stages(self) -> Stages:
        """The sweeps of a penalty, on the twin, with the statistics as they are now."""
        self.twin.refresh_statistics()
        trained = frozenset(name for name, parameter in self.named_parameters() if parameter.requires_grad)
        if trained not in self._stages:
            plain = PlainStages(self.twin, trained)
            compiler = self._plan.compiler
            self._stages[trained] = plain if compiler is None else CompiledStages(self.twin, trained, compiler)
        return self._stages[trained]

    def _run(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if self._plan.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        reduced = self._plan.precision == "bfloat16"
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=reduced):
            return function(x).float()

    def _compiled(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        if self._plan.compiler is None:
            return function
        return torch.compile(function, backend=self._plan.compiler, dynamic=False)
