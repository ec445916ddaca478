"""The ordinary classifier: logits are an affine function of the features, in training as in evaluation."""

from torch import Tensor, nn


class LinearHead(nn.Linear):
    """``nn.Linear`` with the head contract. A subclass, so that its keys stay ``weight`` and ``bias``."""

    def training_logits(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        """The logits as they are: the linear head has no margin to add."""
        del features, y  # only heads with a margin look at them
        return logits
