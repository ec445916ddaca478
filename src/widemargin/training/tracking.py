"""A run told to trackers as it goes: a line of metrics an epoch, and for those that show them margins and adversaries.

Only the first process does it. Trackers see what ``metrics.jsonl`` holds, from its first line, so one that is given to
a run that goes on shows the epochs before too. Nothing here changes what is trained: pictures are made in evaluation
mode with random numbers of their own. A tracker that fails is left out from then on, with one warning.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from widemargin.config.run import RunConfig
from widemargin.config.toml import to_dict
from widemargin.core import randomness
from widemargin.core.modes import copied_buffers, with_values
from widemargin.data.batches import Images, in_order
from widemargin.errors import WidemarginWarning
from widemargin.margins import effective_margin
from widemargin.types import Nets, ShowsPictures, Tracker

MARGINS, ADVERSARIES = 256, 8
"""Images whose margins are shown, and that are shown themselves with their adversarial ones."""


class Tracking:
    """The trackers of a run, as long as they work."""

    def __init__(self, trackers: Iterable[Tracker] = ()) -> None:
        self._trackers = list(trackers)

    @property
    def shows_pictures(self) -> bool:
        """Whether anybody can show them."""
        return any(isinstance(tracker, ShowsPictures) for tracker in self._trackers)

    def begin(self, config: RunConfig, lines: Sequence[Mapping[str, Any]]) -> None:
        """Tell what the run is, and what it measured so far."""
        for tracker in self._trackers[:]:
            self._safely(tracker, partial(tracker.begin, to_dict(config), config.name))
        for line in lines:
            self.log(line)

    def log(self, line: Mapping[str, Any]) -> None:
        """One epoch."""
        metrics = {name: float(value) for name, value in line.items() if type(value) in (int, float)}
        metrics["alarms"] = float(len(line.get("alarms", ())))
        for tracker in self._trackers[:]:
            self._safely(tracker, partial(tracker.log, metrics, line["epoch"]))

    def show(self, nets: Nets, data: Images, config: RunConfig, epoch: int) -> None:
        """Margins and adversarial images of the first images of that data."""
        for tracker in [tracker for tracker in self._trackers if isinstance(tracker, ShowsPictures)]:
            self._safely(tracker, partial(_show, tracker, nets, data, config, epoch))

    def finish(self) -> None:
        """Once."""
        for tracker in self._trackers[:]:
            self._safely(tracker, tracker.finish)
        self._trackers = []

    def _safely(self, tracker: Any, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever the library, its server or the network make of it
            self._trackers.remove(tracker)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            warnings.warn(
                f"{type(tracker).__name__} does not log any more ({reason}); the run goes on, and what it measures is "
                "in metrics.jsonl; the same command with --log adds what is missing",
                WidemarginWarning,
                stacklevel=4,
            )


def _show(tracker: ShowsPictures, nets: Nets, data: Images, config: RunConfig, epoch: int) -> None:
    x, y = next(in_order(data, MARGINS))
    margins = effective_margin(nets.model, x, y)
    tracker.histogram("margins", margins[margins.isfinite()].cpu(), epoch)
    x, y = x[:ADVERSARIES], y[:ADVERSARIES]
    x_adv = _adversarial(nets, x, y, config, epoch)
    if x_adv is not None:
        difference = (0.5 + 5 * (x_adv - x)).clamp(0, 1)
        rows = [torch.cat(list(images), dim=2) for images in (x, x_adv, difference)]
        tracker.image("clean, adversarial, difference x 5", torch.cat(rows, dim=1).cpu(), epoch)


def _adversarial(nets: Nets, x: Tensor, y: Tensor, config: RunConfig, epoch: int) -> Tensor | None:
    """By the attack that the run is watched with, else that of its objective, else the one it is to be judged by."""
    generator = randomness.derived(config.seed, "tracking", epoch)
    attack = config.watch.attack
    if attack is None and config.objective.attacks:
        with with_values(copied_buffers(nets.model)):
            return config.objective.perturb(nets, x, y, epoch=epoch - 1, generator=generator)
    if attack is None and config.evaluation is not None:
        attack = config.evaluation.strongest()
    return None if attack is None else attack(nets.model, x, y, generator=generator)
