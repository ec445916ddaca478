"""What the engine uses: precision, memory layout, compilation, CUDA graphs and kernels; chosen by device and model."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from widemargin.core.checks import choice
from widemargin.core.modes import evaluating
from widemargin.core.precision import allowing_tf32, bfloat16_factors, quickest_cpu_products

Engine = Literal["auto", "eager", "fast"]
ENGINES: tuple[Engine, ...] = ("auto", "eager", "fast")

HEAVY = 0.05e9
"""FLOPs of one image's forward pass from which on smaller types and compiling pay: the paper's CNN (0.1e9) trains
adversarially in less than half the time; its MLP (0.008e9) would gain a sixth, too little for a smaller type."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run computes with. The default is the reference: eager float32."""

    engine: Literal["eager", "fast"] = "eager"
    precision: Literal["float32", "tf32", "bfloat16", "bfloat16 factors"] = "float32"
    """``bfloat16 factors`` is what a CPU has in place of TF32: float32 tensors, products of rounded factors."""
    search: Literal["float32", "bfloat16"] = "float32"
    """What attacks search in, where ``precision`` is not smaller already."""
    channels_last: bool = False
    compiler: str | None = None
    """A backend of torch.compile, or None."""
    graphs: bool = False
    """Whether a whole step is captured as one CUDA graph."""

    @property
    def tf32(self) -> bool:
        """Whether convolutions and matrix products are float32 with TF32's shorter fractions."""
        return self.precision == "tf32"

    @property
    def reduced(self) -> torch.dtype | None:
        """The smaller type of convolutions and matrix products, if there is one."""
        return torch.bfloat16 if self.precision == "bfloat16" else None

    @property
    def reduced_search(self) -> torch.dtype | None:
        """The smaller type in which attacks search, if there is one."""
        return torch.bfloat16 if self.search == "bfloat16" else self.reduced

    def describe(self) -> str:
        """For people and records."""
        parts: list[str] = [self.engine, self.precision] + ["attacks in bfloat16"] * (self.search == "bfloat16")
        parts += ["channels last"] * self.channels_last + [f"compiled ({self.compiler})"] * bool(self.compiler)
        return ", ".join(parts + ["CUDA graphs"] * self.graphs)


def make_plan(
    engine: str,
    model: nn.Module,
    image_shape: tuple[int, ...],
    device: torch.device,
    *,
    attacks: bool = False,
    began_as: str | None = None,
) -> Plan:
    """The plan for ``auto``, ``eager`` or ``fast``; ``auto`` is fast where there is a GPU.

    A CPU that multiplies bfloat16 tensors clearly faster uses them under ``auto`` for the attacks of training, if there
    are any, and eager float32 for all the rest; under ``fast`` for everything, in whichever way is fastest there. A run
    that goes on under ``auto`` on a CPU stays with what it ``began_as`` (the description of its plan).
    """
    choice("", "--engine", engine, ENGINES)
    if engine == "eager":
        return Plan()
    if device.type != "cuda" and engine == "auto":
        quick = Plan(engine="fast", search="bfloat16")
        if began_as is not None:
            return quick if began_as == quick.describe() else Plan()
        return quick if attacks and quickest_cpu_products() == "bfloat16" else Plan()
    if device.type != "cuda":
        return Plan(engine="fast", precision=quickest_cpu_products())
    heavy = forward_flops(model, image_shape, device) >= HEAVY
    modern = torch.cuda.get_device_capability(device)[0] >= 8
    quicker: Literal["tf32", "bfloat16"] = "bfloat16" if heavy else "tf32"
    return Plan(
        engine="fast",
        precision=quicker if modern else "float32",
        channels_last=heavy and any(isinstance(module, nn.Conv2d) for module in model.modules()),
        compiler="inductor" if heavy else None,
        graphs=True,
    )


def forward_flops(model: nn.Module, image_shape: tuple[int, ...], device: torch.device) -> float:
    """FLOPs (a multiply-add counts two) of one image's forward pass: convolutions and matrix products."""
    from torch.utils.flop_counter import FlopCounterMode  # a second to import

    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad(), evaluating(model):
        model(torch.zeros(1, *image_shape, device=device))
    return float(counter.get_total_flops())


@contextmanager
def choosing_kernels(plan: Plan, device: torch.device) -> Iterator[None]:
    """Inside, kernels are chosen as the plan says, the user's settings restored after.

    A replayed graph has made its choice.
    """
    if device.type != "cuda":
        with bfloat16_factors() if plan.precision == "bfloat16 factors" else nullcontext():
            yield
        return
    heavy = plan.graphs and plan.compiler is not None  # arithmetic takes the time
    with allowing_tf32() if plan.tf32 else nullcontext(), searching_kernels(heavy):
        yield


@contextmanager
def searching_kernels(wanted: bool) -> Iterator[None]:
    """Inside, cuDNN tries its kernels and takes the fastest; not where a deterministic run was asked for."""
    if not wanted or torch.are_deterministic_algorithms_enabled():
        yield
        return
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.benchmark_limit
    cudnn.benchmark, cudnn.benchmark_limit = True, 0  # all kernels, not the first ten
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.benchmark_limit = before
