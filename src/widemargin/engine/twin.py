"""A second view of a model for passes that train nothing: evaluation mode, no gradients, a smaller type if wanted.

Everything is shared with the model except the weights of convolutions and linear layers, which are copies in the
smaller type, and batch norms, which are a scale and a shift; both are refreshed once a step. So an attack casts no
weights, computes no weight gradients and never switches the model between modes.
"""

import copy

import torch
from torch import Tensor, nn

from widemargin.engine.folding import fold_batch_norms, refresh_folds

_CAST = (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward, nn.Linear.forward)


class Twin(nn.Module):
    """The twin of a model, under the same parameter names with ``model.`` before them."""

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
        casts = self.reduced is not None and type(theirs).forward in _CAST
        for name, parameter in theirs.named_parameters(recurse=False):
            shared = nn.Parameter(parameter.detach(), requires_grad=False)
            if casts:
                shared = nn.Parameter(parameter.detach().to(self.reduced), requires_grad=False)
                self._theirs.append(parameter.detach())
                self._ours.append(shared.detach())
            setattr(mine, name, shared)
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
            logits: Tensor = self.model(x)
        return logits
