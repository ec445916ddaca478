"""Training objectives: (nets, x, y) -> the loss of each sample."""

from widemargin.objectives.adversarial import Adversarial
from widemargin.objectives.standard import Standard

__all__ = ["Adversarial", "Standard"]
