"""The fast engine: the same computation, with the means the device has."""

from widemargin.engine.network import FastNetwork
from widemargin.engine.plan import ENGINES, Engine, Plan, forward_flops, make_plan
from widemargin.engine.replayed import Replayed
from widemargin.engine.twin import Twin

__all__ = ["ENGINES", "Engine", "FastNetwork", "Plan", "Replayed", "Twin", "forward_flops", "make_plan"]
