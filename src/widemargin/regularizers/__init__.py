"""Penalties on input gradients: each one (model, x) -> (B,), for any training loop."""

from widemargin.regularizers.emr_approximate import ApproximateEMR
from widemargin.regularizers.emr_exact import ExactEMR
from widemargin.regularizers.emr_stochastic import StochasticEMR
from widemargin.regularizers.input_gradient import InputGradient
from widemargin.regularizers.penalty import Penalty

__all__ = ["ApproximateEMR", "ExactEMR", "InputGradient", "Penalty", "StochasticEMR"]
