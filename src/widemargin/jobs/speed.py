"""How long a recipe trains on this machine: an estimate, from one small step of its network timed now.

The step is one of adversarial training with a single attack step, as the engine would take it but neither compiled nor
captured: 5 passes over its images and an update. Its time for a pass is that of every pass of the run (``cost``), and
the update comes once a step. On a CPU the batch is made small, so that a wide network takes a second; passes over a
large one are somewhat faster or slower for an image. What is watched meanwhile and the judgment are not in it.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from widemargin.attacks.pgd import PGD
from widemargin.config.run import DataConfig, RunConfig
from widemargin.core import randomness
from widemargin.data.batches import Batch
from widemargin.data.image_set import ImageSet
from widemargin.engine.plan import forward_flops, make_plan
from widemargin.jobs.cost import run_passes
from widemargin.models.classifier import ImageShape, ModelConfig, ModelFactory
from widemargin.objectives.adversarial import Adversarial
from widemargin.training.graphed_step import make_steps
from widemargin.training.setup import make_state
from widemargin.training.step import StepContext
from widemargin.types import Replays

SETS: dict[str, tuple[int, ImageShape, int]] = {
    "mnist-embedded": (12_000, (1, 28, 28), 10),
    "mnist": (60_000, (1, 28, 28), 10),
    "fashion-mnist": (60_000, (1, 28, 28), 10),
    "cifar10-embedded": (100, (3, 32, 32), 10),
    "cifar10": (50_000, (3, 32, 32), 10),
}
"""Training images, their shape, classes: so that nothing is read, or fetched, for an estimate."""
PASSES = 5
CPU_FLOPS = 2e10
"""So much work is timed on a CPU, at least two images."""
REPEATS, LONG = 3, 2.0
"""Steps timed, and the seconds after which one is enough."""


@dataclass(frozen=True)
class Speed:
    """Seconds of one pass over one image, and of one update of all weights."""

    a_pass: float
    an_update: float


class Stopwatch:
    """Measures each network once."""

    def __init__(self, device: torch.device, say: Callable[[str], None]) -> None:
        self._device, self._say = device, say
        self._speeds: dict[object, Speed] = {}

    def hours(self, config: RunConfig) -> float | None:
        """Of training; None where the number of images is not known."""
        if config.data.name not in SETS:
            return None
        count, _, classes = SETS[config.data.name]
        train = min(count - config.data.held_out, config.data.train_limit or count)
        steps = math.ceil(train / config.batch_size)
        images = steps * config.batch_size if config.data.extra else train
        replays = config.objective.replays if isinstance(config.objective, Replays) else 1
        seconds = 0.0
        for name, passes in run_passes(config, classes).items():
            model = config.model if name == "model" or config.teacher is None else config.teacher
            speed = self._speed(config, model)
            seconds += passes * images * speed.a_pass + config.epochs * replays * steps * speed.an_update
        return seconds / 3600

    def _speed(self, config: RunConfig, model: ModelFactory) -> Speed:
        if isinstance(model, ModelConfig):  # which costs the same whatever it subtracts from the pixels
            model = replace(model, normalize=None)
        key = model, config.data.name, config.batch_size if self._device.type == "cuda" else 0
        if key not in self._speeds:
            self._say(f"timing a step of {model!r}")
            self._speeds[key] = measured_speed(config, model, self._device)
        return self._speeds[key]


def measured_speed(config: RunConfig, model: ModelFactory, device: torch.device) -> Speed:
    """Of this network on noise of the data's shape, with the run's batch, or a smaller one on a CPU."""
    _, shape, classes = SETS[config.data.name]
    own = RunConfig(
        name=config.name,
        epochs=1,
        batch_size=config.batch_size,
        data=DataConfig(name=config.data.name),
        model=model,
        objective=Adversarial(attack=PGD(eps=0.03, step_size=0.01, steps=1)),
        optimizer=replace(config.optimizer, clip=None),
    )
    noise = randomness.derived(0, "speed")
    state = make_state(own, ImageSet(torch.zeros(1, *shape), torch.zeros(1).long(), classes, "noise").to(device))
    batch = own.batch_size
    if device.type != "cuda":
        batch = min(batch, max(2, int(CPU_FLOPS / PASSES / forward_flops(state.nets.model, shape, device))))
    images = torch.rand(batch, *shape, generator=noise).to(device)
    labels = torch.randint(classes, (batch,), generator=noise).to(device)
    plan = replace(make_plan("auto", state.nets.model, shape, device, attacks=True), compiler=None, graphs=False)
    steps = make_steps(plan, state, own)
    one = Batch(0, torch.arange(batch, device=device), images, labels)
    step = _seconds(lambda: steps(one, StepContext(seed=0, epoch=0, step=0, steps_per_epoch=1)), device)
    update = _seconds(state.optimizer.step, device)
    return Speed(max(step - update, 0.1 * step) / (PASSES * batch), update)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The shortest time of several, after one that prepares it."""
    times: list[float] = []
    while len(times) < 2 or (len(times) <= REPEATS and sum(times) < LONG):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return min(times[1:])
