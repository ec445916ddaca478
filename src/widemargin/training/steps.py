"""How a run takes its steps: one by one as they are written, or captured once and replayed as a CUDA graph.

Both take (batch, moment), update the state's networks and add the step's values to its sums.
"""

from typing import Protocol

from widemargin.config import RunConfig
from widemargin.data import Batch
from widemargin.engine import FastNetwork, Plan
from widemargin.engine.kernel_choice import choosing_kernels
from widemargin.shares import sharing, sums_over_processes
from widemargin.training.graphed import GraphedSteps
from widemargin.training.state import TrainState
from widemargin.training.step import Moment, train_step
from widemargin.types import Nets

EAGER = Plan()


class Steps(Protocol):
    """Takes a step."""

    def __call__(self, batch: Batch, moment: Moment) -> None:
        """Update the networks and the sums."""
        ...


class PlainSteps:
    """Every step runs its Python; the networks may still be fast ones."""

    def __init__(self, state: TrainState, nets: Nets, config: RunConfig, plan: Plan = EAGER) -> None:
        self._state, self._nets, self._plan = state, nets, plan
        self._objective, self._penalties = config.objective, config.penalties()

    def __call__(self, batch: Batch, moment: Moment) -> None:
        """Update the networks and the sums."""
        with choosing_kernels(self._plan, batch.labels.device), sharing(batch.share):
            for net in self._nets.all().values():
                if isinstance(net, FastNetwork):
                    net.refresh()
            values = train_step(self._state, self._objective, self._penalties, batch, moment, nets=self._nets)
            self._state.add(sums_over_processes(values))


def make_steps(plan: Plan, state: TrainState, config: RunConfig) -> Steps:
    """The steps of a run under a plan; the state's networks stay the ones that are saved and judged."""
    nets = state.nets
    if plan.engine == "fast":
        state.lay_out(channels_last=plan.channels_last)
        teacher = None if nets.teacher is None else FastNetwork(nets.teacher, plan)
        nets = Nets(model=FastNetwork(nets.model, plan), teacher=teacher)
        if plan.graphs:
            return GraphedSteps(state, nets, config, plan)
    return PlainSteps(state, nets, config, plan)
