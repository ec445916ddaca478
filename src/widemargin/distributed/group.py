"""The processes that share one training run or one evaluation: who they are, how they find each other and agree.

torchrun starts them; NCCL connects GPUs and gloo CPUs. In training every process has the whole networks and its rows of
each batch (``core.batch_share``). Of the shards of an evaluation, and of the batches on which a run is watched, process
r takes every n with n mod P = r. The first process writes what is written once (``Processes.on_first``), and what one
process refuses, all refuse (``Processes.sync_errors``), so nobody waits for one that has ended.

**Finding each other**, also after a restart: torchrun keeps one store for all attempts (torch 2.13), and a process
started again may read there the address of one that is dead, and wait for it or fail. So the processes first agree on a
part of the store that nobody has written to. Each leaves a token of its own; the first process answers every token,
stale ones too, with this attempt's name, until all the others have confirmed it. Whoever waits longer than a few
seconds says for whom, and gives up in time.
"""

import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from widemargin.core.device import choose_device
from widemargin.core.screen import console_for, say
from widemargin.errors import InputError

Store = Any
"""torch.distributed.Store, which torch's types do not show."""
Piece = TypeVar("Piece")
LIMIT = "WIDEMARGIN_RENDEZVOUS"
"""The environment variable that says for how many seconds processes wait for one that has not come."""
USUAL_LIMIT, FIRST_MESSAGE, POLL_SECONDS = 600.0, 10.0, 0.01
EVALUATION_PATIENCE = timedelta(days=30)
"""How long one process waits for another, which may have a whole shard more to judge; the default is half an hour."""
TRAINING_PATIENCE = timedelta(hours=2)
"""How long one process waits for another, which may be downloading the data."""


def env_number(name: str, default: int) -> int:
    """The number in an environment variable of torchrun."""
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) < default:
        raise InputError(
            f"{name} must be a whole number of at least {default}, as torchrun sets it, got {text!r}; unset it, or "
            "start with torchrun"
        )
    return int(text)


def is_first_process() -> bool:
    """Whether this process is the one that prints and writes what is printed and written once."""
    return env_number("RANK", 0) == 0


def check_single_process(command: str, instead: str) -> None:
    """Refuse where torchrun started several processes; ``instead`` says what to do."""
    count = env_number("WORLD_SIZE", 1)
    if count != 1:
        raise InputError(
            f"{command} is for one process, and torchrun started {count} (WORLD_SIZE): start it without torchrun; "
            f"{instead}; under torchrun, train and evaluate share their work"
        )


@dataclass(frozen=True)
class Processes:
    """This process (``rank``) among all that work together (``count``)."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this one writes what is written once."""
        return self.rank == 0

    def mine(self, piece: int) -> bool:
        """Whether this one takes that piece: a shard, or a batch."""
        return piece % self.count == self.rank

    def wait(self) -> None:
        """Until every process is here."""
        if self.count > 1:
            dist.barrier()

    def any(self, flag: bool) -> bool:
        """Whether one process at least says so; all of them ask together."""
        if self.count == 1:
            return flag
        flags = torch.tensor([int(flag)])
        dist.all_reduce(flags)
        return bool(flags)

    def all_gather(self, pieces: dict[int, Piece]) -> dict[int, Piece]:
        """The numbered pieces of all processes, in order."""
        found: list[dict[int, Piece]] = [pieces]
        if self.count > 1:
            found = [{}] * self.count
            dist.all_gather_object(found, pieces)
        every = {number: piece for part in found for number, piece in part.items()}
        return {number: every[number] for number in sorted(every)}

    @contextmanager
    def sync_errors(self) -> Iterator[None]:
        """Wait for every process at the end; what one of them refuses inside, all refuse, with the same words."""
        if self.count == 1:
            yield
            return
        refusal = None
        try:
            yield
        except InputError as error:
            refusal = str(error)
        refusals: list[str | None] = [None] * self.count
        dist.all_gather_object(refusals, refusal)
        rank, first = next(((rank, words) for rank, words in enumerate(refusals) if words is not None), (0, None))
        if first is not None:
            alike = all(words == first for words in refusals)
            raise InputError(first if alike else f"{first} (said by process {rank} of {self.count})")

    def on_first(self, work: Callable[[], Piece]) -> Piece:
        """What the first process makes, in every process; what it is refused, all are."""
        with self.sync_errors():
            made = {0: work()} if self.first else {}
        return self.all_gather(made)[0]

    def first_on_machine_first(self, work: Callable[[], Piece]) -> Piece:
        """Done in every process, by the first of each machine before the others: it downloads what they then find."""
        made: list[Piece] = []
        for rest in (False, True) if self.count > 1 else (True,):
            with self.sync_errors():
                if not made and (env_number("LOCAL_RANK", 0) == 0 or rest):  # refused first where it is no number
                    made.append(work())
        return made[0]


SINGLE_PROCESS = Processes()


@dataclass(frozen=True)
class Share(Processes):
    """One of several jobs that share the pieces, and nothing else: none waits for another."""

    @property
    def first(self) -> bool:
        """Each writes what is written once, and finds it there if another was quicker."""
        return True

    def wait(self) -> None:
        """For nobody."""

    def any(self, flag: bool) -> bool:
        """Its own."""
        return flag

    def all_gather(self, pieces: dict[int, Piece]) -> dict[int, Piece]:
        """Its own."""
        return pieces

    @contextmanager
    def sync_errors(self) -> Iterator[None]:
        """Nobody else knows."""
        yield


@contextmanager
def evaluation_processes(folder: Path | None, share: tuple[int, int] | None = None) -> Iterator[Processes]:
    """The processes torchrun started, or this one alone, or one share of several; they all write to ``folder``."""
    count = env_number("WORLD_SIZE", 1)
    if share is not None:
        if count > 1 or folder is None or not 0 <= share[0] < share[1]:
            raise InputError(
                f"evaluate: share must be (k, n) with k from 0 to n - 1, got {share}; it needs out=... (--out), and "
                "torchrun shares by itself"
            )
        yield Share(*share)
        return
    if count == 1:
        yield Processes()
        return
    if folder is None:
        raise InputError("evaluate with several processes needs a folder they share: give out=... (--out)")
    begun = dist.is_initialized()
    if not begun:
        connect("gloo", patience=EVALUATION_PATIENCE)
    try:
        yield Processes(rank=dist.get_rank(), count=count)
    finally:
        if not begun:
            dist.destroy_process_group()


@contextmanager
def training_processes(device: str) -> Iterator[tuple[Processes, torch.device]]:
    """The processes torchrun started, or this one alone, and this one's device."""
    count = env_number("WORLD_SIZE", 1)
    if count == 1:
        yield Processes(), choose_device(device)
        return
    begun = dist.is_initialized()
    if not begun:
        on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        connect("cpu:gloo,cuda:nccl" if on_gpu else "gloo", patience=TRAINING_PATIENCE)
    group = Processes(rank=dist.get_rank(), count=count)
    with group.sync_errors():
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


def _own_device(device: str) -> str:
    """The GPU with the process's number on its machine, or the only one it sees."""
    if device.startswith("cuda:"):
        raise InputError(
            f"--device {device!r} names one GPU for several processes; use --device cuda, each takes its own"
        )
    if device == "cpu" or not torch.cuda.is_available():
        return "cpu" if device == "auto" else device
    local, seen = env_number("LOCAL_RANK", 0), torch.cuda.device_count()
    return f"cuda:{local if seen > 1 else 0}"


def _check_own_gpu(group: Processes, device: torch.device) -> None:
    """NCCL's own words for two processes on one GPU are hard to read."""
    name = f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"
    gpus = group.all_gather({group.rank: name})
    shared = [rank for rank, other in gpus.items() if list(gpus.values()).count(other) > 1]
    if shared:
        raise InputError(
            f"processes {', '.join(map(str, shared))} share a GPU; start at most one process per GPU (--nproc-per-node)"
        )


def _to_stderr(text: str) -> None:
    say(console_for(stderr=True), f"widemargin: {text}")


@dataclass
class Waiting:
    """One process waits for others: it prints so after some seconds, then ever more rarely, and not for ever."""

    limit: float
    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    tell: Callable[[str], None] = _to_stderr

    def until(self, reached: Callable[[], bool], what: Callable[[], str]) -> None:
        """Until it is reached; ``what`` says what is waited for."""
        begun, word = self.now(), FIRST_MESSAGE
        while not reached():
            waited = self.now() - begun
            if waited >= self.limit:
                raise InputError(
                    f"{what()}; waited {waited:.0f} s. See that all are started and reach each other, or set {LIMIT} "
                    "to more seconds"
                )
            if waited >= word:
                self.tell(f"{what()}; waiting for {waited:.0f} s, at most {self.limit:g} s ({LIMIT})")
                word *= 2
            self.pause(POLL_SECONDS)


@contextmanager
def _announce_if_long(what: str) -> Iterator[None]:
    """Print this if what is inside, which reports nothing, takes long."""
    timer = Timer(FIRST_MESSAGE, _to_stderr, (what,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def connect(backend: str, *, patience: timedelta) -> None:
    """Begin the process group; ``patience`` is how long one process waits for another that has come."""
    waiting = Waiting(_limit())
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise InputError(f"WORLD_SIZE is set, but not {', '.join(missing)}: start with torchrun, or unset WORLD_SIZE")
    rank, count = env_number("RANK", 0), env_number("WORLD_SIZE", 1)
    if rank >= count:
        raise InputError(f"RANK must be below WORLD_SIZE, which is {count}, got {rank}; start with torchrun")
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        with _announce_if_long(f"waiting for the store of the processes at {where}"):
            store, rank, count = _store(timedelta(seconds=waiting.limit))
        part = fresh_part(store, rank, count, waiting)
    except (RuntimeError, ValueError) as error:  # of torch's store, in many lines
        reason = str(error).split("\n", 1)[0]
        raise InputError(
            f"the processes cannot find each other at {where}: {reason}; start them with torchrun"
        ) from None
    store.set_timeout(patience)
    # torch 2.13: imported after a group has begun, it keeps gloo's threads, which may abort a process as Python ends
    import_module("torch._dynamo")

    with _announce_if_long("all processes have come and are connecting; do they reach each other's ports?"):
        dist.init_process_group(backend, store=part, rank=rank, world_size=count, timeout=patience)


def _limit() -> float:
    text = os.environ.get(LIMIT, "").strip()
    try:
        limit = float(text) if text else USUAL_LIMIT
    except ValueError:
        limit = math.nan
    if not (0 < limit <= timedelta(days=365).total_seconds()):
        raise InputError(f"{LIMIT} must be a number of seconds above 0, got {text!r}; {USUAL_LIMIT:g} is usual")
    return limit


def _store(limit: timedelta) -> tuple[Store, int, int]:
    """(store, rank, count); torch's own handler would wait for all processes in it, without a word."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun's, where nobody waits
        store, rank, count = next(iter(dist.rendezvous("env://", timeout=limit)))  # type: ignore[attr-defined]
        return store, rank, count
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(  # type: ignore[attr-defined]
        *place, count, is_master=rank == 0, timeout=limit, wait_for_workers=False, multi_tenant=True
    )
    return store, rank, count


def fresh_part(store: Store, rank: int, count: int, waiting: Waiting) -> Store:
    """The part of the store that belongs to these processes alone."""
    name = _name_attempt(store, count, waiting) if rank == 0 else _receive_name(store, rank, count, waiting)
    return dist.PrefixStore(f"widemargin/{name}", store)  # type: ignore[attr-defined]


def _name_attempt(store: Store, count: int, waiting: Waiting) -> str:
    name, missing = secrets.token_hex(8), set(range(1, count))

    def all_confirmed() -> bool:
        for rank in missing:
            if store.check([f"widemargin/token/{rank}"]):
                token = store.get(f"widemargin/token/{rank}").decode()
                store.set(f"widemargin/answer/{token}", name)
        missing.difference_update([rank for rank in missing if store.check([f"widemargin/heard/{name}/{rank}"])])
        return not missing

    def describe() -> str:
        who = ", ".join(map(str, sorted(missing)[:8])) + (", ..." if len(missing) > 8 else "")
        return f"{count - len(missing)} of {count} processes have come, missing: {who}"

    waiting.until(all_confirmed, describe)
    store.set(f"widemargin/begun/{name}", "yes")
    return name


def _receive_name(store: Store, rank: int, count: int, waiting: Waiting) -> str:
    token = secrets.token_hex(8)
    store.set(f"widemargin/token/{rank}", token)
    answer = f"widemargin/answer/{token}"
    waiting.until(lambda: store.check([answer]), lambda: f"process {rank} of {count} has come and hears nothing from 0")
    name: str = store.get(answer).decode()
    store.set(f"widemargin/heard/{name}/{rank}", "yes")
    patient = Waiting(2 * waiting.limit, waiting.now, waiting.pause, lambda _: None)  # process 0 reports
    patient.until(
        lambda: store.check([f"widemargin/begun/{name}"]),
        lambda: f"process {rank} of {count} has come, and others have not",
    )
    return name
