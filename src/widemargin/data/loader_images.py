"""Batches of a user's own DataLoader, or of any iterable of batches that can be begun anew and knows its length.

What such a loader draws depends on (seed, epoch) alone, so that a run can be resumed: before every epoch its generators
are seeded, and so are torch, numpy and ``random`` while it works, and only then; outside the states are those of the
program. A run that stopped in mid-epoch begins the epoch anew and passes over the batches it has had. A loader that
cannot keep to this is refused: one that draws from elsewhere (its first batch is asked for twice and must be the same),
whose workers live on from epoch to epoch or hand over batches as they come, or that gives each process other images.
"""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data.distributed import DistributedSampler

from widemargin.core.checks import check_batch, check_range
from widemargin.core.randomness import derived_seed
from widemargin.data.image_set import as_floats
from widemargin.data.unpacking import unpack
from widemargin.errors import InputError

_KEEPS = "so a resumed run would see other images"


@dataclass(frozen=True, eq=False, kw_only=True)
class LoaderImages:
    """The images of a loader, batch by batch: (B, C, H, W) in [0, 1] or uint8, and labels (B,) in [0, num_classes)."""

    loader: Any
    num_classes: int
    name: str
    image_shape: tuple[int, int, int]
    batch_size: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def of(cls, loader: Iterable[object], *, num_classes: int, name: str = "loader") -> Self:
        """The images of this loader; its first batch is loaded twice, to see that it repeats itself."""
        _check_kind(loader, name)
        found = cls(loader=loader, num_classes=num_classes, name=name, image_shape=(1, 1, 1), batch_size=1)
        first, again = (next(found.batches(0, "first", 0), None) for _ in range(2))
        if first is None or again is None:
            raise InputError(f"{name}: the loader gives no batch; give it some images")
        if not all(torch.equal(one, other) for one, other in zip(first, again, strict=True)):
            raise InputError(
                f"{name}: begun twice with the same seeds the loader gives two different first batches, {_KEEPS}; let "
                "it draw from torch's, numpy's or Python's global generator, or from the generator it was given"
            )
        channels, height, width = first[0].shape[1:]
        return replace(found, image_shape=(channels, height, width), batch_size=len(first[0]))

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """As they are measured: the same in every epoch."""
        return self.batches(0, "measure", 0)

    def to(self, device: torch.device | str) -> Self:
        """The same batches, on another device."""
        return replace(self, device=torch.device(device))

    def batches(
        self, seed: int, purpose: str, epoch: int, *, start: int = 0, every: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(images as they come, labels) on the device: of an epoch every so many-th batch, from number ``start`` on."""
        state, count = _RandomState(derived_seed(seed, purpose, epoch)), len(self.loader)
        for generator in _generators(self.loader):
            generator.manual_seed(derived_seed(seed, f"{purpose}-generator", epoch))
        for sampler in _samplers(self.loader):
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
        with state.in_effect():
            iterator = iter(self.loader)
        for number in range(count + 1):
            with state.in_effect():
                batch = next(iterator, None)
            if (batch is None) != (number == count):
                told = f"{number} batches" if batch is None else "more"
                raise InputError(f"{self.name}: the loader said that it has {count} batches, and gave {told}")
            if batch is not None and number >= start and (number - start) % every == 0:
                images, labels = self._checked(batch)
                yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def _checked(self, batch: object) -> tuple[Tensor, Tensor]:
        images, labels = unpack(self.name, batch)
        images = as_floats(images.detach())
        check_batch(self.name, images)
        if images.dim() != 4:
            raise InputError(f"{self.name}: images must be (B, C, H, W), got {tuple(images.shape)}")
        check_range(self.name, images)
        if labels.shape != (len(images),) or labels.is_floating_point() or labels.dtype == torch.bool:
            raise InputError(
                f"{self.name}: labels must be ({len(images)},) whole numbers, got {labels.dtype} {tuple(labels.shape)}"
            )
        low, high = (int(bound) for bound in labels.aminmax())
        if low < 0 or high >= self.num_classes:
            raise InputError(
                f"{self.name}: labels must be in [0, {self.num_classes}) for num_classes={self.num_classes}, found "
                f"{low} to {high}"
            )
        return images.float(), labels.long()


class _RandomState:
    """The global generators' state inside a loader."""

    def __init__(self, seed: int) -> None:
        self._torch = torch.Generator().manual_seed(seed).get_state()
        self._numpy = np.random.RandomState(seed % 2**32).get_state()
        self._python = random.Random(seed).getstate()

    @contextmanager
    def in_effect(self) -> Iterator[None]:
        """Inside they are these; outside as they were."""
        before = torch.get_rng_state(), np.random.get_state(), random.getstate()
        self._set(self._torch, self._numpy, self._python)
        try:
            yield
        finally:
            self._torch, self._numpy, self._python = torch.get_rng_state(), np.random.get_state(), random.getstate()
            self._set(*before)

    def _set(self, of_torch: Tensor, of_numpy: Any, of_python: Any) -> None:
        torch.set_rng_state(of_torch)
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def _samplers(loader: Any) -> list[Any]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    found = getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)
    return list({id(sampler): sampler for sampler in found if sampler is not None}.values())


def _generators(loader: Any) -> list[torch.Generator]:
    found = (getattr(owner, "generator", None) for owner in (loader, *_samplers(loader)))
    return list({id(it): it for it in found if isinstance(it, torch.Generator)}.values())


def _check_kind(loader: Any, name: str) -> None:
    """Refuse what cannot be resumed, or shared by processes."""
    try:
        count = len(loader)
    except TypeError:
        raise InputError(
            f"{name}: the loader must know how many batches it has, and a {type(loader).__name__} has no len(); give a "
            "DataLoader of a map-style data set, or a list of batches"
        ) from None
    if isinstance(loader, Iterator) or not (isinstance(loader, Iterable) or hasattr(loader, "__getitem__")):
        raise InputError(f"{name}: a {type(loader).__name__} cannot be begun anew in every epoch; give a DataLoader")
    if count < 1:
        raise InputError(f"{name}: the loader gives no batch; give it some images")
    if any(isinstance(sampler, DistributedSampler) for sampler in _samplers(loader)):
        raise InputError(
            f"{name}: a DistributedSampler gives every process other images; leave it out: each process takes its rows "
            "of the batch that one would have"
        )
    if getattr(loader, "persistent_workers", False):
        raise InputError(
            f"{name}: persistent_workers=True takes the workers' random numbers from epoch to epoch, {_KEEPS}; set it "
            "to False"
        )
    if not getattr(loader, "in_order", True):
        raise InputError(f"{name}: in_order=False hands over batches as they come, {_KEEPS}; set it to True")
