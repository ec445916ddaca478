"""Input-gradient penalties by forward and reverse sweeps over the layers a model ran, without double backward."""

from widemargin.linearize.penalty import Cotangents, Rows, squared_lengths, squared_products
from widemargin.linearize.rules import NotLinear
from widemargin.linearize.stages import PlainStages, Stages

__all__ = ["Cotangents", "NotLinear", "PlainStages", "Rows", "Stages", "squared_lengths", "squared_products"]
