"""How the processes torchrun started find each other, also after a restart.

torchrun keeps one store for all attempts (torch 2.13): a process started again may read there the address of one that
is dead, and wait for it or fail. So the processes first agree on a part of the store that nobody has written to. Each
leaves a token of its own; the first process answers every token, stale ones too, with this attempt's name, until all
the others have said that they heard it.
"""

import os
import secrets
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from widemargin.errors import InputError

Store = Any
"""torch.distributed.Store, which torch's types do not show."""
POLL_SECONDS = 0.01


def connect(backend: str, *, patience: timedelta) -> None:
    """Begin the process group; ``patience`` is how long one process waits for another."""
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise InputError(f"WORLD_SIZE is set, but not {', '.join(missing)}: start with torchrun, or unset WORLD_SIZE")
    rank, count = told("RANK", 0), told("WORLD_SIZE", 1)
    if rank >= count:
        raise InputError(f"RANK must be below WORLD_SIZE, which is {count}, got {rank}; start with torchrun")
    try:
        store, rank, count = next(iter(dist.rendezvous("env://", timeout=patience)))  # type: ignore[attr-defined]
    except (ValueError, RuntimeError) as error:
        reason = str(error).split("\n", 1)[0]
        raise InputError(f"the processes cannot find each other: {reason}; start them with torchrun") from None
    store.set_timeout(patience)
    dist.init_process_group(
        backend, store=fresh_part(store, rank, count), rank=rank, world_size=count, timeout=patience
    )


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


def fresh_part(store: Store, rank: int, count: int) -> Store:
    """The part of the store that belongs to these processes alone."""
    name = _name_attempt(store, count) if rank == 0 else _hear_name(store, rank)
    return dist.PrefixStore(f"widemargin/{name}", store)  # type: ignore[attr-defined]


def _name_attempt(store: Store, count: int) -> str:
    name, waiting = secrets.token_hex(8), set(range(1, count))
    while waiting:
        for rank in waiting:
            if store.check([f"widemargin/token/{rank}"]):
                token = store.get(f"widemargin/token/{rank}").decode()
                store.set(f"widemargin/answer/{token}", name)
        waiting = {rank for rank in waiting if not store.check([f"widemargin/heard/{name}/{rank}"])}
        time.sleep(POLL_SECONDS)
    return name


def _hear_name(store: Store, rank: int) -> str:
    token = secrets.token_hex(8)
    store.set(f"widemargin/token/{rank}", token)
    name: str = store.get(f"widemargin/answer/{token}").decode()  # waits for it
    store.set(f"widemargin/heard/{name}/{rank}", "yes")
    return name
