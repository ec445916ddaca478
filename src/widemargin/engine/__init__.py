"""The fast engine: the same computation, with the means the device has."""

from widemargin.engine.cuda_graphs import GraphedFunction
from widemargin.engine.fast_model import EvalCopy, FastNetwork
from widemargin.engine.plan import ENGINES, Engine, Plan, forward_flops, make_plan

__all__ = ["ENGINES", "Engine", "EvalCopy", "FastNetwork", "GraphedFunction", "Plan", "forward_flops", "make_plan"]
