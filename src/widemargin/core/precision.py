"""What numbers are computed in, as context managers: TF32 or float32, autocast, default type, deterministic algorithms.

Published numbers are judged in full float32; training may be quicker with TF32, or on a CPU with factors rounded to
bfloat16, on purpose. Torch's switches for it belong to the whole process: the block that was entered last decides, and
the last one to be left puts back what the user had, whichever threads they are in. Torch has two ways to ask:
``allow_tf32`` with ``set_float32_matmul_precision``, and ``fp32_precision``. The first is used unless the user has said
something in the second: it cannot be read then, or what it sets is overruled. What an operator inherited there is its
own after. Both know of CPUs that multiply in less than float32 (mkldnn).

Deterministic algorithms are for runs whose bits repeat on a GPU; a CPU with a fixed number of threads repeats its bits
without them.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

Switches = tuple[bool | str, ...]
"""The first way: ``allow_tf32`` of convolutions, the precision of matrix products, and on CPUs of both. The second:
``fp32_precision`` of convolutions, matrix products, recurrent layers, and products and convolutions on CPUs."""
FULL: tuple[Switches, Switches] = (False, "highest", "ieee", "ieee"), ("ieee",) * 5
TF32: tuple[Switches, Switches] = (True, "high", "tf32", "ieee"), ("tf32", "tf32", "tf32", "ieee", "ieee")
BFLOAT16_FACTORS: tuple[Switches, Switches] = (
    (False, "highest", "bf16", "bf16"),
    ("ieee", "ieee", "ieee", "bf16", "bf16"),
)


def full_float32() -> AbstractContextManager[None]:
    """Convolutions and matrix products without TF32 inside, the user's settings restored after."""
    return _switched(FULL)


def allowing_tf32() -> AbstractContextManager[None]:
    """Both with TF32 inside."""
    return _switched(TF32)


def bfloat16_factors() -> AbstractContextManager[None]:
    """Both, on a CPU, with factors rounded to bfloat16 and sums in float32; a GPU's are full float32."""
    return _switched(BFLOAT16_FACTORS)


CpuProducts = Literal["float32", "bfloat16 factors", "bfloat16"]
"""How a CPU may multiply: as it is, float32 tensors rounded inside the product, or bfloat16 tensors."""


@cache
def quickest_cpu_products() -> CpuProducts:
    """How this CPU multiplies fastest, measured in a tenth of a second; float32 unless another is clearly faster.

    Which processors round inside a product is the library's choice: some that have the instructions do not.
    """
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return "float32"
    a, b = torch.ones(256, 1024), torch.ones(1024, 1024)
    small = a.bfloat16(), b.bfloat16()
    seconds = {"float32": _seconds_of_a_product(a, b), "bfloat16": _seconds_of_a_product(*small)}
    with bfloat16_factors():
        seconds["bfloat16 factors"] = _seconds_of_a_product(a, b)
    if seconds["float32"] < CLEARLY * min(seconds.values()):
        return "float32"
    return "bfloat16 factors" if seconds["bfloat16 factors"] < CLEARLY * seconds["bfloat16"] else "bfloat16"


CLEARLY = 1.3


def _seconds_of_a_product(a: Tensor, b: Tensor) -> float:
    """The quickest of several."""

    def seconds() -> float:
        start = time.process_time()  # so that a busy machine says the same as an idle one
        torch.mm(a, b)
        return time.process_time() - start

    return min(seconds() for _ in range(6))


@contextmanager
def no_autocast() -> Iterator[None]:
    """Operators compute in the type of their tensors inside, whatever is around."""
    with ExitStack() as inside:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                inside.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def default_type(wanted: torch.dtype) -> Iterator[None]:
    """New tensors are of this type inside; the user's own default, which the whole process has, is restored after."""
    before = torch.get_default_dtype()
    if before == wanted:
        yield
        return
    torch.set_default_dtype(wanted)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def convolutions_use_tf32() -> bool:
    """Whether they do now."""
    return _read()[0] in (True, "tf32")


def products_use_tf32() -> bool:
    """Whether matrix products do now."""
    return _read()[1] in ("high", "medium", "tf32")


_lock = threading.Lock()
_open: dict[object, Switches] = {}
"""What each block that somebody is in wants, in the order in which they were entered."""
_users: Switches = ()


@contextmanager
def _switched(ways: tuple[Switches, Switches]) -> Iterator[None]:
    """The switches as wanted, in the way that the user's own settings are read."""
    global _users
    block = object()
    with _lock:
        if not _open:
            _users = _read()
        _open[block] = ways[isinstance(_users[0], str)]
        _set(_open[block])
    try:
        yield
    finally:
        with _lock:
            del _open[block]
            _set(next(reversed(_open.values()), _users))


def _read() -> Switches:
    backends: Any = torch.backends
    with suppress(RuntimeError):  # which the older way raises where it cannot say what is set
        if backends.fp32_precision == backends.cudnn.fp32_precision == "none":  # else they overrule it
            products = "highest"
            if backends.cuda.matmul.allow_tf32:
                products = "high"
                with suppress(RuntimeError):  # if CPUs were told otherwise
                    products = torch.get_float32_matmul_precision()
            cpu = backends.mkldnn.matmul.fp32_precision, backends.mkldnn.conv.fp32_precision
            return backends.cudnn.allow_tf32, products, *cpu
    return tuple(part.fp32_precision for part in _parts())


def _set(wanted: Switches) -> None:
    backends: Any = torch.backends
    if isinstance(wanted[0], str):
        for part, value in zip(_parts(), wanted, strict=True):
            part.fp32_precision = value
    elif wanted != _read():
        backends.cudnn.allow_tf32, products, on_cpus, backends.mkldnn.conv.fp32_precision = wanted
        torch.set_float32_matmul_precision(str(products))
        backends.mkldnn.matmul.fp32_precision = on_cpus  # which that has set too


def _parts() -> tuple[Any, ...]:
    backends: Any = torch.backends
    cpu = backends.mkldnn.matmul, backends.mkldnn.conv
    return backends.cudnn.conv, backends.cuda.matmul, backends.cudnn.rnn, *cpu


WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""What torch asks for: cuBLAS then works in memory of a fixed size. It is read when the first product is computed."""


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Inside, an operator that has no deterministic form is refused by torch; the user's settings are restored."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark
