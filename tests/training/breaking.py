"""An objective that is not finite where it is told to be."""

import json
from dataclasses import dataclass

import torch

from widemargin.objectives import Standard
from widemargin.types import Outcome


@dataclass(frozen=True, kw_only=True)
class Breaking(Standard):
    """Cross-entropy, but in one epoch what ``how`` says becomes ``value`` wherever the label is ``label``."""

    epoch: int = 1
    label: int = 3
    how: str = "loss"
    value: str = "nan"

    def phase(self, epoch):
        return int(epoch == self.epoch)

    def __call__(self, nets, x, y, *, epoch, generator=None):
        outcome = super().__call__(nets, x, y, epoch=epoch, generator=generator)
        if epoch != self.epoch:
            return outcome
        hit, bad = y == self.label, float(self.value)
        if self.how == "gradient":  # a finite loss whose gradient is none
            zeros = torch.zeros_like(outcome.loss)
            zeros[hit] = (outcome.loss[hit] * 0).abs().sqrt()
            return Outcome(loss=outcome.loss + zeros, logits=outcome.logits)
        if self.how == "term":
            return Outcome(outcome.loss, outcome.logits, terms={"odd": torch.where(hit, bad, 0.0)})
        return Outcome(outcome.loss * torch.where(hit, bad, 1.0), outcome.logits)


def breaking(**settings) -> str:
    """The setting that chooses it."""
    table = {"kind": "breaking", **settings}
    return f"objective={{{', '.join(f'{key}={json.dumps(value)}' for key, value in table.items())}}}"
