"""Heads: the last layer of a classifier, from features to logits."""

from widemargin.heads.annealing import GeometricAnnealing, PowerAnnealing
from widemargin.heads.contract import Head, MakeHead
from widemargin.heads.hypersphere import Hypersphere, HypersphereHead
from widemargin.heads.large_margin import LargeMargin, LargeMarginHead
from widemargin.heads.linear import Linear, LinearHead
from widemargin.heads.training import after_update, logits_for_training

HEADS: dict[str, type] = {"linear": Linear, "hypersphere": Hypersphere, "large-margin": LargeMargin}

__all__ = [
    "HEADS",
    "GeometricAnnealing",
    "Head",
    "Hypersphere",
    "HypersphereHead",
    "LargeMargin",
    "LargeMarginHead",
    "Linear",
    "LinearHead",
    "MakeHead",
    "PowerAnnealing",
    "after_update",
    "logits_for_training",
]
