"""How the processes torchrun started find each other, also after a restart.

torchrun keeps one store for all attempts (torch 2.13): a process started again may read there the address of one that
is dead, and wait for it or fail. So the processes first agree on a part of the store that nobody has written to. Each
leaves a token of its own; the first process answers every token, stale ones too, with this attempt's name, until all
the others have said that they heard it. Whoever waits longer than a few seconds says for whom, and gives up in time.
"""

import math
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from threading import Timer
from typing import Any

import torch.distributed as dist

from widemargin.errors import InputError
from widemargin.screen import console_for, say

Store = Any
"""torch.distributed.Store, which torch's types do not show."""
LIMIT = "WIDEMARGIN_RENDEZVOUS"
"""The environment variable that says for how many seconds processes wait for one that has not come."""
USUAL_LIMIT, FIRST_WORD, POLL_SECONDS = 600.0, 10.0, 0.01


def _to_stderr(text: str) -> None:
    say(console_for(stderr=True), f"widemargin: {text}")


@dataclass
class Waiting:
    """One process waits for others: it says so after some seconds, then ever more rarely, and not for ever."""

    limit: float
    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    tell: Callable[[str], None] = _to_stderr

    def until(self, reached: Callable[[], bool], what: Callable[[], str]) -> None:
        """Until it is reached; ``what`` says what is waited for."""
        begun, word = self.now(), FIRST_WORD
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


def connect(backend: str, *, patience: timedelta) -> None:
    """Begin the process group; ``patience`` is how long one process waits for another that has come."""
    waiting = Waiting(_limit())
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise InputError(f"WORLD_SIZE is set, but not {', '.join(missing)}: start with torchrun, or unset WORLD_SIZE")
    rank, count = told("RANK", 0), told("WORLD_SIZE", 1)
    if rank >= count:
        raise InputError(f"RANK must be below WORLD_SIZE, which is {count}, got {rank}; start with torchrun")
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        with _told_if_long(f"waiting for the store of the processes at {where}"):
            store, rank, count = _store(timedelta(seconds=waiting.limit))
        part = fresh_part(store, rank, count, waiting)
    except (RuntimeError, ValueError) as error:  # of torch's store, in many lines
        reason = str(error).split("\n", 1)[0]
        raise InputError(
            f"the processes cannot find each other at {where}: {reason}; start them with torchrun"
        ) from None
    store.set_timeout(patience)
    with _told_if_long("all processes have come and are connecting; do they reach each other's ports?"):
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


@contextmanager
def _told_if_long(what: str) -> Iterator[None]:
    """Say so if what is inside, which cannot be asked, takes long."""
    timer = Timer(FIRST_WORD, _to_stderr, (what,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def told(name: str, default: int) -> int:
    """A number that torchrun tells by that environment variable."""
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) < default:
        raise InputError(
            f"{name} must be a whole number of at least {default}, as torchrun sets it, got {text!r}; unset it, or "
            "start with torchrun"
        )
    return int(text)


def fresh_part(store: Store, rank: int, count: int, waiting: Waiting) -> Store:
    """The part of the store that belongs to these processes alone."""
    name = _name_attempt(store, count, waiting) if rank == 0 else _hear_name(store, rank, count, waiting)
    return dist.PrefixStore(f"widemargin/{name}", store)  # type: ignore[attr-defined]


def _name_attempt(store: Store, count: int, waiting: Waiting) -> str:
    name, missing = secrets.token_hex(8), set(range(1, count))

    def all_heard() -> bool:
        for rank in missing:
            if store.check([f"widemargin/token/{rank}"]):
                token = store.get(f"widemargin/token/{rank}").decode()
                store.set(f"widemargin/answer/{token}", name)
        missing.difference_update([rank for rank in missing if store.check([f"widemargin/heard/{name}/{rank}"])])
        return not missing

    def told() -> str:
        who = ", ".join(map(str, sorted(missing)[:8])) + (", ..." if len(missing) > 8 else "")
        return f"{count - len(missing)} of {count} processes have come, missing: {who}"

    waiting.until(all_heard, told)
    store.set(f"widemargin/begun/{name}", "yes")
    return name


def _hear_name(store: Store, rank: int, count: int, waiting: Waiting) -> str:
    token = secrets.token_hex(8)
    store.set(f"widemargin/token/{rank}", token)
    answer = f"widemargin/answer/{token}"
    waiting.until(lambda: store.check([answer]), lambda: f"process {rank} of {count} has come and hears nothing from 0")
    name: str = store.get(answer).decode()
    store.set(f"widemargin/heard/{name}/{rank}", "yes")
    patient = Waiting(2 * waiting.limit, waiting.now, waiting.pause, lambda _: None)  # it is 0 that speaks
    patient.until(
        lambda: store.check([f"widemargin/begun/{name}"]),
        lambda: f"process {rank} of {count} has come, and others have not",
    )
    return name
