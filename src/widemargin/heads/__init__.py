"""Heads: the last layer of a classifier, from features to logits."""

from widemargin.heads.hypersphere import Hypersphere, HypersphereHead
from widemargin.heads.large_margin import GeometricAnnealing, LargeMargin, LargeMarginHead, PowerAnnealing
from widemargin.heads.linear import Linear, LinearHead
from widemargin.heads.training import after_update, logits_for_training
from widemargin.types import Head, MakeHead

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
