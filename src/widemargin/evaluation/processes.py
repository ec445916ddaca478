"""Several processes (torchrun) share one evaluation, or the training of one run, and agree on what they refuse.

Of the shards of an evaluation, and of the batches on which a run is watched, process r takes every n with n mod P = r.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from widemargin.errors import InputError
from widemargin.evaluation.rendezvous import connect, told

Piece = TypeVar("Piece")
PATIENCE = timedelta(days=30)
"""How long one process waits for another, which may have a whole shard more to judge; the default is half an hour."""


@dataclass(frozen=True)
class Processes:
    """This process among its fellows."""

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

    def together(self, pieces: dict[int, Piece]) -> dict[int, Piece]:
        """The numbered pieces of all processes, in order."""
        found: list[dict[int, Piece]] = [pieces]
        if self.count > 1:
            found = [{}] * self.count
            dist.all_gather_object(found, pieces)
        every = {number: piece for part in found for number, piece in part.items()}
        return {number: every[number] for number in sorted(every)}

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Wait for every process at the end; what one of them refuses inside, all refuse, with the same words."""
        if self.count == 1:
            yield
            return
        refusal = None
        try:
            yield
        except InputError as error:
            refusal = str(error)
        said: list[str | None] = [None] * self.count
        dist.all_gather_object(said, refusal)
        if (common := _common(said)) is not None:
            raise InputError(common)


def _common(said: list[str | None]) -> str | None:
    """The first refusal, with its process where the others did not say the same."""
    rank, refusal = next(((rank, words) for rank, words in enumerate(said) if words is not None), (0, None))
    alike = all(words == refusal for words in said)
    return refusal if alike else f"{refusal} (said by process {rank} of {len(said)})"


@contextmanager
def processes(folder: Path | None) -> Iterator[Processes]:
    """The processes torchrun started, or this one alone; ``folder`` is where they all write."""
    count = told("WORLD_SIZE", 1)
    if count == 1:
        yield Processes()
        return
    if folder is None:
        raise InputError("evaluate with several processes needs a folder they share: give out=... (--out)")
    begun = dist.is_initialized()
    if not begun:
        connect("gloo", patience=PATIENCE)
    try:
        yield Processes(rank=dist.get_rank(), count=count)
    finally:
        if not begun:
            dist.destroy_process_group()
