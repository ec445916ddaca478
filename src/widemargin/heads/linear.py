"""The ordinary classifier: logits are an affine function of the features, in training as in evaluation."""

from dataclasses import dataclass

from torch import Tensor, nn


class LinearHead(nn.Linear):
    """``nn.Linear`` with the head contract. A subclass, so that its keys stay ``weight`` and ``bias``."""

    def training_logits(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        """The logits as they are: the linear head has no margin to add."""
        del features, y  # only heads with a margin look at them
        return logits


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Makes a ``LinearHead``."""

    def __call__(self, feature_size: int, num_classes: int) -> LinearHead:
        """The head for these sizes."""
        return LinearHead(feature_size, num_classes)
