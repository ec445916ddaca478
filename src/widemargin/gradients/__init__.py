"""Input-gradient penalties by forward and reverse sweeps over the layers a model ran, without double backward."""

from widemargin.gradients.squared_norms import Cotangents, Rows, squared_lengths, squared_products
from widemargin.gradients.sweeps.rules import NotLinear
from widemargin.gradients.sweeps.tape import EagerStages, Stages

__all__ = ["Cotangents", "EagerStages", "NotLinear", "Rows", "Stages", "squared_lengths", "squared_products"]
