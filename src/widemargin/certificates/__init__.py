"""Lower bounds of the distance to the decision boundary that are proven: CROWN, and products of Lipschitz constants."""

from widemargin.certificates.margin import certified_margin

__all__ = ["certified_margin"]
