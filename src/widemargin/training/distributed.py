"""Several processes train one run: torchrun starts them, NCCL connects GPUs and gloo CPUs, the first of them writes.

Every process has the whole networks and its rows of each batch (``shares``). The state is handed out by the first, so a
run may be resumed by any number of processes.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from widemargin.config import RunConfig
from widemargin.engine import Plan
from widemargin.errors import InputError
from widemargin.evaluation.processes import Processes
from widemargin.evaluation.rendezvous import connect, told
from widemargin.training.claim import claimed
from widemargin.training.setup import Splits, choose_device
from widemargin.training.state import TrainState
from widemargin.training.sync_batch_norm import share_batch_norms
from widemargin.types import Nets

PATIENCE = timedelta(hours=2)
"""How long one process waits for another, which may be downloading the data."""


@contextmanager
def training_processes(device: str) -> Iterator[tuple[Processes, torch.device]]:
    """The processes torchrun started, or this one alone, and this one's device."""
    count = told("WORLD_SIZE", 1)
    if count == 1:
        yield Processes(), choose_device(device)
        return
    begun = dist.is_initialized()
    if not begun:
        connect(_backend(device), patience=PATIENCE)
    group = Processes(rank=dist.get_rank(), count=count)
    with group.agreeing():
        chosen = choose_device(_own_device(device))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
        if not begun:
            _check_own_gpu(group, chosen)
    try:
        yield group, chosen
    except InputError:
        if not begun and dist.get_backend() == "gloo":  # whose threads may abort a process that ends with them
            dist.destroy_process_group()
        raise
    if not begun:  # after an error others may wait for us and never answer: this process ends, torchrun ends them
        dist.destroy_process_group()


def is_first_process() -> bool:
    """Whether this process is the one that speaks and writes."""
    return told("RANK", 0) == 0


def is_first_here() -> bool:
    """Whether this process is the first on its machine."""
    return told("LOCAL_RANK", 0) == 0


def _backend(device: str) -> str:
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    return "cpu:gloo,cuda:nccl" if on_gpu else "gloo"


def _own_device(device: str) -> str:
    """The GPU with the process's number on its machine, or the only one it sees."""
    if device.startswith("cuda:"):
        raise InputError(
            f"--device {device!r} names one GPU for several processes; use --device cuda, each takes its own"
        )
    if device == "cpu" or not torch.cuda.is_available():
        return "cpu" if device == "auto" else device
    local, seen = told("LOCAL_RANK", 0), torch.cuda.device_count()
    return f"cuda:{local if seen > 1 else 0}"


def _check_own_gpu(group: Processes, device: torch.device) -> None:
    """NCCL's own words for two processes on one GPU are hard to read."""
    name = f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"
    gpus = group.together({group.rank: name})
    shared = [rank for rank, other in gpus.items() if list(gpus.values()).count(other) > 1]
    if shared:
        raise InputError(
            f"processes {', '.join(map(str, shared))} share a GPU; start at most one process per GPU (--nproc-per-node)"
        )


@contextmanager
def claimed_by_first(out: Path, config: RunConfig, group: Processes) -> Iterator[None]:
    """The first process claims the folder for all; what it is refused, all are."""
    with ExitStack() as stack:
        with group.agreeing():
            if group.first:
                stack.enter_context(claimed(out, config))
        yield


def by_turns(group: Processes, load: Callable[[], Splits]) -> Splits:
    """The data, read by the first process of each machine before the others: it downloads what they then find."""
    found: list[Splits] = []
    for turn in (True, False) if group.count > 1 else (True,):
        with group.agreeing():
            if not found and (not turn or is_first_here()):
                found.append(load())
    return found[0]


def share_networks(nets: Nets, group: Processes, *, sync_bn: bool | None) -> None:
    """Synchronize batch norm between the processes, unless told not to."""
    if group.count == 1:
        if sync_bn is not None:
            option = "--sync-bn" if sync_bn else "--no-sync-bn"
            raise InputError(f"{option} has no effect in a process alone; remove it, or start several with torchrun")
    elif sync_bn is not False:
        for net in nets.all().values():
            share_batch_norms(net)


def plan_for(group: Processes, plan: Plan) -> Plan:
    """Without CUDA graphs where several processes work together: their messages cannot be part of one."""
    return replace(plan, graphs=False) if group.count > 1 else plan


def hand_out(state: TrainState, group: Processes) -> None:
    """Every process takes the state of the first: weights, statistics, momenta, sums, and where in the run it is."""
    if group.count == 1:
        return
    place = [(state.epoch, state.step)]
    dist.broadcast_object_list(place, src=0)
    device = next(state.nets.model.parameters()).device
    weights = _from_first(dict(state.judged.state_dict()), device, group)
    training = _from_first(state.tensors(), device, group)
    if not group.first:
        state.judged.load_state_dict(weights)
        epoch, step = place[0]
        state.restore(training, epoch=epoch, step=step)


def _from_first(tensors: dict[str, Tensor], device: torch.device, group: Processes) -> dict[str, Tensor]:
    layout = [[(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]]
    dist.broadcast_object_list(layout, src=0)
    received = {}
    for name, shape, dtype in layout[0]:
        mine = tensors[name].detach() if group.first else torch.empty(shape, dtype=dtype)
        received[name] = mine.to(device).contiguous()
        dist.broadcast(received[name], src=0)
    return received


def check_alike(state: TrainState, group: Processes) -> None:
    """The weights of all processes must be equal, bit for bit: they made the same updates."""
    if group.count == 1:
        return
    named = [(name, value) for net in state.nets.all().values() for name, value in net.state_dict().items()]
    sums = torch.stack([_checksum(value) for _, value in named]).cpu()
    low, high = sums.clone(), sums.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    differing = [name for (name, _), a, b in zip(named, low.tolist(), high.tolist(), strict=True) if a != b]
    if differing:
        raise InputError(
            f"the processes' weights differ (first in {differing[0]}): an objective, head or model of your own does "
            "not do the same in every process; see docs/clusters.md"
        )


def _checksum(value: Tensor) -> Tensor:
    """The sum of the bits as whole numbers, which no order of adding changes."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.itemsize]
    return value.detach().contiguous().view(whole).sum(dtype=torch.int64)
