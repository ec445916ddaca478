"""What a head is: the last layer, from features to logits.

A head answers two questions. ``head(features)`` gives the logits everybody sees: attacks, penalties,
evaluation. It is never told the labels, because label-dependent logits inside an attack or a KL term go
non-finite. ``training_logits`` gives the logits that the cross-entropy of training uses; a large-margin head
makes the true class harder there, a linear head changes nothing.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn


class Head(Protocol):
    """A module from (B, d) features to (B, K) logits that also says what training should see."""

    def __call__(self, features: Tensor, /) -> Tensor:
        """The logits (B, K) of these features; no labels."""
        ...

    def training_logits(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        """The logits (B, K) for the cross-entropy of training; ``logits`` is ``head(features)``."""
        ...


MakeHead = Callable[[int, int], nn.Module]
"""(feature_size, num_classes) -> a module that fulfills :class:`Head`."""
