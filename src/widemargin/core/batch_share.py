"""This process's rows of a batch that several processes share; a single process has all of them.

Under torchrun each process takes its rows of every batch. What depends on the whole batch (its size, its random
numbers, a mean over it) asks here, so that P processes compute what one would. A batch of fewer samples than processes
is repeated: every process takes all of it, and in sums over processes each counts 1/P.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from widemargin.errors import InputError


@dataclass(frozen=True)
class BatchShare:
    """Rows ``start`` to ``stop`` of a batch of ``total`` rows."""

    start: int
    stop: int
    total: int
    processes: int

    @property
    def rows(self) -> slice:
        """These rows as a slice of the batch."""
        return slice(self.start, self.stop)

    @property
    def repeated(self) -> bool:
        """Whether every process has the whole batch."""
        return self.total < self.processes

    @property
    def weight(self) -> float:
        """What one of these rows counts in a sum over all processes."""
        return 1 / self.processes if self.repeated else 1.0


def share_of(total: int, *, rank: int, processes: int) -> BatchShare | None:
    """The rows of one process; sizes differ by one at most. None for a single process."""
    if processes == 1:
        return None
    if total < processes:
        return BatchShare(0, total, total, processes)
    return BatchShare(total * rank // processes, total * (rank + 1) // processes, total, processes)


_CURRENT: ContextVar[BatchShare | None] = ContextVar("share", default=None)


@contextmanager
def sharing(share: BatchShare | None) -> Iterator[None]:
    """What runs inside works on these rows of a batch."""
    token = _CURRENT.set(share)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current() -> BatchShare | None:
    """The share that is in effect; None where the batch is whole."""
    return _CURRENT.get()


def batch_size(rows: int) -> int:
    """The size of the whole batch, of which this process has so many rows."""
    share = current()
    return rows if share is None else share.total


def full_batch_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the whole batch, of which this process has a part of that shape; the first axis is the samples."""
    share = current()
    if share is None:
        return tuple(shape)
    if shape[0] != share.stop - share.start:
        raise InputError(
            f"random numbers for {shape[0]} samples where this process has {share.stop - share.start} of a batch of "
            f"{share.total}; draw them for the batch as it came"
        )
    return share.total, *shape[1:]


def local_rows(whole: Tensor) -> Tensor:
    """This process's rows of what was made for the whole batch."""
    share = current()
    return whole if share is None else whole[share.rows]


def batch_sum(values: Tensor) -> Tensor:
    """The sum of what every process made of its rows of the batch; a constant for the gradient."""
    share = current()
    if share is None or share.repeated:
        return values.detach()
    total = values.detach().clone()
    dist.all_reduce(total)
    return total


def whole_batch(rows: Tensor) -> Tensor:
    """(rows, ...) -> (B, ...): every process's rows; a constant for the gradient."""
    share = current()
    if share is None or share.repeated:
        return rows.detach()
    whole = rows.new_zeros(full_batch_shape(rows.shape))
    whole[share.rows] = rows.detach()
    dist.all_reduce(whole)
    return whole


def batch_mean(values: Tensor) -> Tensor:
    """The mean over the whole batch of (B,) values, of which this process has its rows; a constant for the gradient."""
    return batch_sum(values.sum()) / batch_size(len(values))


def part_of_mean(values: Tensor) -> Tensor:
    """What this process adds to the mean of (B,) values over the whole batch; with its graph."""
    share = current()
    return values.mean() if share is None else values.sum() * (share.weight / share.total)


def sums_over_processes(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The sums of per-sample values over the whole batch, in float64; a single process leaves them as they are."""
    share = current()
    if share is None:
        return values
    sums = torch.stack([value.detach().sum(dtype=torch.float64) for value in values.values()]) * share.weight
    dist.all_reduce(sums)
    return dict(zip(values, sums.unbind(), strict=True))
