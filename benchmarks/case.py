"""What is timed: model, objective, penalties and head by name, made into the configuration of a run.

The attack is PGD-10 inside 8/255 with steps of 2/255; the MLP has the paper's MNIST attack (20 steps). Weights of
losses and penalties are the paper's or small: they do not change the time. Penalties are taken at the adversarial
images where the objective makes some.

Steps to be timed, built and warmed up one by one, each with the memory that it alone needed at its peak.
"""

import difflib
import gc
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.naive import naive_step
from benchmarks.timing import WARM_UP, Step
from widemargin.attacks.pgd import PGD
from widemargin.config.run import DataConfig, EMRConfig, IGRConfig, OptimizerConfig, RunConfig
from widemargin.core import randomness
from widemargin.core.checks import check_count, choice
from widemargin.data.batches import Batch
from widemargin.data.image_set import ImageSet
from widemargin.engine.plan import Plan, make_plan
from widemargin.errors import InputError
from widemargin.heads.hypersphere import Hypersphere
from widemargin.heads.linear import Linear
from widemargin.models import MODELS
from widemargin.models.classifier import ModelFactory
from widemargin.models.mlp import MLPConfig
from widemargin.models.resnet import LBGATTeacherConfig
from widemargin.objectives.adversarial import Adversarial
from widemargin.objectives.lbgat import Lbgat
from widemargin.objectives.mail import Mail
from widemargin.objectives.mart import Mart
from widemargin.objectives.standard import Standard
from widemargin.objectives.trades import Trades
from widemargin.recipes.mnist_mlp import AT as MNIST_AT
from widemargin.training.graphed_step import make_steps
from widemargin.training.nonfinite import make_guard
from widemargin.training.setup import make_state
from widemargin.training.step import StepContext, set_learning_rate
from widemargin.types import Objective, Point

NUM_CLASSES = 10
ATTACK = PGD(eps=8 / 255, step_size=2 / 255, steps=10, random_start="uniform")
MNIST_SHAPE, CIFAR_SHAPE = (1, 28, 28), (3, 32, 32)
ALIASES = {"resnet-18": "resnet18", "wrn34-10": "wrn-34-10", "wideresnet-34-10": "wrn-34-10"}
OBJECTIVE_NAMES = ("st", "at", "trades", "mart", "mail", "lbgat")
EMR_KINDS = ("none", "exact", "approximate", "stochastic")
HEAD_NAMES = ("linear", "he")


def find_model(name: str) -> str:
    """The registry's name of a model; people also write resnet-18."""
    known = ALIASES.get(name, name)
    if known in MODELS:
        return known
    near = difflib.get_close_matches(name, [*MODELS, *ALIASES], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "; choose one of these"
    raise InputError(f"--model must be one of {', '.join(map(repr, MODELS))}, got {name!r}{hint}")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of training step; ``model`` is a name of the registry."""

    model: str
    objective: str = "at"
    emr: str = "none"
    igr: bool = False
    head: str = "linear"
    batch_size: int = 128

    def __post_init__(self) -> None:
        choice("", "--objective", self.objective, OBJECTIVE_NAMES)
        choice("", "--emr", self.emr, EMR_KINDS)
        choice("", "--head", self.head, HEAD_NAMES)
        check_count("--batch-size", self.batch_size)
        if self.head == "he" and self.objective == "lbgat":
            raise InputError(
                "--head 'he' has no effect with --objective lbgat, whose student has no label loss; "
                "use --head linear or another objective"
            )
        self.config()

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """MNIST's for the MLP, CIFAR's for the others."""
        return MNIST_SHAPE if self.model == "mlp" else CIFAR_SHAPE

    @property
    def penalty(self) -> str | None:
        """The penalty whose share is measured: EMR, else IGR."""
        return "emr" if self.emr != "none" else "igr" if self.igr else None

    def without_penalty(self) -> "Case":
        """The same step without that penalty."""
        return replace(self, emr="none", igr=self.igr and self.emr != "none")

    def label(self) -> str:
        """For people: AT + approximate EMR."""
        parts = [self.objective.upper()] + ["HE"] * (self.head == "he") + ["IGR"] * self.igr
        return " + ".join(parts + [f"{self.emr} EMR"] * (self.emr != "none"))

    def data(self, device: torch.device) -> ImageSet:
        """One batch of noise; what the pixels show does not change the time."""
        generator = randomness.derived(0, "bench")
        size = (self.batch_size, *self.image_shape)
        images = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
        labels = torch.randint(0, NUM_CLASSES, (self.batch_size,), generator=generator)
        return ImageSet(images, labels, NUM_CLASSES, "synthetic").to(device)

    def config(self) -> RunConfig:
        """The run whose steps are timed."""
        objective = self._objective()
        at: Point = "adversarial" if objective.attacks else "clean"
        kind: Any = self.emr
        scale = 15.0 if self.objective == "trades" else 10.0
        teacher = MLPConfig() if self.model == "mlp" else LBGATTeacherConfig()
        return RunConfig(
            name=f"bench/{self.model}",
            epochs=1,
            batch_size=self.batch_size,
            data=DataConfig(name="synthetic"),
            model=_build(self.model),
            head=Linear() if self.head == "linear" else Hypersphere(scale=scale, margin=0.2),
            objective=objective,
            teacher=teacher if self.objective == "lbgat" else None,
            optimizer=OptimizerConfig(lr=0.01, weight_decay=5e-4),
            emr=None if kind == "none" else EMRConfig(kind=kind, weight=1e-3, at=at),
            igr=IGRConfig(weight=1e-3, at=at) if self.igr else None,
        )

    def _objective(self) -> Objective:
        uniform = MNIST_AT.attack if self.model == "mlp" else ATTACK
        assert isinstance(uniform, PGD)
        gaussian = replace(uniform, random_start="gaussian")
        objectives: dict[str, Objective] = {
            "st": Standard(),
            "at": Adversarial(attack=uniform),
            "trades": Trades(attack=uniform, beta=12.0, inner="ce"),
            "mart": Mart(attack=gaussian),
            "mail": Mail(over="at", attack=gaussian, slope=30.0, bias=-0.07),
            "lbgat": Lbgat(attack=gaussian),
        }
        return objectives[self.objective]


def _build(name: str) -> ModelFactory:
    try:
        factory: ModelFactory = MODELS[name]()
    except TypeError as error:
        raise InputError(
            f"--model {name!r} cannot be made without settings ({error}); give its fields defaults"
        ) from None
    return factory


MOST_COMPILATIONS = 128
SETTLED = 2
"""After this many steps kernels have been chosen, and memory is what a step needs."""


@dataclass(frozen=True)
class Variant:
    """A warm step; ``peak_bytes`` is None where memory is not measured (on the CPU)."""

    step: Step
    peak_bytes: int | None


def plan_of(case: Case, engine: str, device: torch.device) -> Plan:
    """What the engine would compute a case with."""
    data = case.data(device)
    config = case.config()
    model = make_state(config, data).nets.model
    return make_plan(engine, model, data.image_shape, device, attacks=config.objective.attacks)


def engine_variant(case: Case, plan: Plan, device: torch.device) -> Variant:
    """The package's own step under a plan, as training takes it: with the guard against values that are not finite."""

    def make() -> Step:
        config, data = case.config(), case.data(device)
        state = make_state(config, data)
        steps = make_steps(plan, state, config)
        fuse = plan.engine == "fast" and device.type == "cuda"
        state.guard = guard = make_guard(state.nets, state.optimizer, "stop", fuse=fuse)
        images, labels, numbers = data.floats(), data.labels, itertools.count()
        indices = torch.arange(len(labels), device=device)

        def step() -> None:
            context = StepContext(seed=0, epoch=0, step=next(numbers), steps_per_epoch=1_000_000)
            guard.begin(context.total_steps)
            set_learning_rate(state.optimizer, config.optimizer.lr)
            steps(Batch(context.step, indices, images, labels), context)

        return step

    try:
        with _compiling(plan):
            return _warm(make, device)
    except torch.OutOfMemoryError:
        raise InputError(
            f"bench: {case.label()} of {case.model} at --batch-size {case.batch_size} does not fit the memory of "
            f"{device}; use a smaller --batch-size"
        ) from None


def naive_variant(case: Case, device: torch.device) -> Variant | None:
    """The step written by hand; None where it does not fit the memory."""

    def make() -> Step:
        config, data = case.config(), case.data(device)
        state = make_state(config, data)
        images, labels = data.floats(), data.labels
        generator = torch.Generator(device).manual_seed(0)

        def step() -> None:
            naive_step(config, state.nets, state.optimizer, images, labels, generator=generator)

        return step

    try:
        return _warm(make, device)
    except torch.OutOfMemoryError:
        pass  # and forget the exception: it holds what was allocated
    gc.collect()
    torch.cuda.empty_cache()
    return None


def _compiling(plan: Plan) -> AbstractContextManager[object]:
    """Room for every variant's compilations: past a limit of eight torch would stop compiling, and only warn."""
    if plan.compiler is None:
        return nullcontext()
    import torch._dynamo.config as settings  # with it comes the compiler, seconds that others need not wait

    room: AbstractContextManager[object] = settings.patch(recompile_limit=MOST_COMPILATIONS)
    return room


def _warm(make: Callable[[], Step], device: torch.device) -> Variant:
    if device.type != "cuda":
        step = make()
        for _ in range(WARM_UP):
            step()
        return Variant(step, None)
    gc.collect()
    torch.cuda.synchronize(device)
    others = torch.cuda.memory_allocated(device)
    step = make()
    for number in range(WARM_UP):
        if number == SETTLED:
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        step()
    torch.cuda.synchronize(device)
    return Variant(step, torch.cuda.max_memory_allocated(device) - others)
