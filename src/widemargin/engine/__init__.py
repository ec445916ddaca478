"""The fast engine: the same computation, with the means the device has."""

from widemargin.engine.network import FastNetwork
from widemargin.engine.plan import ENGINES, Engine, Plan, forward_flops, make_plan
from widemargin.engine.twin import Twin

__all__ = ["ENGINES", "Engine", "FastNetwork", "Plan", "Twin", "forward_flops", "make_plan"]
