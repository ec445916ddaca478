"""Heads: the last layer of a classifier, from features to logits."""

from widemargin.heads.contract import Head, MakeHead
from widemargin.heads.linear import LinearHead

__all__ = ["Head", "LinearHead", "MakeHead"]
