"""From a configuration and its images to a run that is ready to train: fresh, or as its folder has it."""

from dataclasses import replace
from pathlib import Path

import torch

from widemargin.config import RunConfig
from widemargin.engine import make_plan
from widemargin.evaluation.processes import Processes
from widemargin.training.distributed import hand_out, plan_for, share_networks
from widemargin.training.nonfinite import make_guard
from widemargin.training.options import Options
from widemargin.training.run_checkpoint import resume
from widemargin.training.setup import Splits, make_batches, make_state
from widemargin.training.signals import Stop
from widemargin.training.state import TrainState
from widemargin.training.steps import make_steps
from widemargin.training.underway import Run


def begin(
    config: RunConfig,
    folder: Path,
    splits: Splits,
    device: torch.device,
    options: Options,
    *,
    group: Processes,
    deadline: float,
    stop: Stop,
) -> tuple[TrainState, Run]:
    """The state, the same in every process, and what does not change while it trains."""
    splits = splits.to(device)
    with group.agreeing():
        batches = replace(make_batches(config, splits.train), rank=group.rank, processes=group.count)
        state = make_state(config, splits.train)
        share_networks(state.nets, group, sync_bn=options.sync_bn)
        plan = plan_for(group, make_plan(options.engine, state.nets.model, splits.train.image_shape, device))
        if group.first:
            resume(state, folder, config)
    hand_out(state, group)
    steps = make_steps(plan, state, config)
    fuse = plan.engine == "fast" and device.type == "cuda"
    state.guard = make_guard(state.nets, state.optimizer, options.on_nonfinite, fuse=fuse)
    run = Run(
        config=config,
        folder=folder,
        splits=splits,
        batches=batches,
        steps=steps,
        plan=plan,
        options=options,
        deadline=deadline,
        stop=stop,
        group=group,
    )
    return state, run
