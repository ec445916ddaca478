"""Penalties on input gradients: each one (model, x) -> (B,), for any training loop."""

from widemargin.regularizers.emr import ApproximateEMR, ExactEMR, StochasticEMR
from widemargin.regularizers.grad_align import GradAlign
from widemargin.regularizers.input_gradient import InputGradient
from widemargin.regularizers.penalty import Penalty

__all__ = ["ApproximateEMR", "ExactEMR", "GradAlign", "InputGradient", "Penalty", "StochasticEMR"]
