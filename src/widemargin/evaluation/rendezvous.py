"""How the processes torchrun started find each other, also after a restart.

torchrun keeps one store for all attempts (torch 2.13): a process started again may read there the address of one that
is dead, and wait for it or fail. So the processes first agree on a part of the store that nobody has written to. Each
leaves a token of its own; the first process answers every token, stale ones too, with this attempt's name, until all
the others have said that they heard it.
"""

import secrets
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

Store = Any
"""torch.distributed.Store, which torch's types do not show."""
POLL_SECONDS = 0.01


def connect(backend: str, *, patience: timedelta) -> None:
    """Begin the process group; ``patience`` is how long one process waits for another."""
    store, rank, count = next(iter(dist.rendezvous("env://", timeout=patience)))  # type: ignore[attr-defined]
    store.set_timeout(patience)
    dist.init_process_group(
        backend, store=fresh_part(store, rank, count), rank=rank, world_size=count, timeout=patience
    )


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
