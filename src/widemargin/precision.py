"""Where numbers are published, arithmetic is plain float32: no TF32 convolutions behind a researcher's back."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_float32() -> Iterator[None]:
    """Convolutions and matrix products without TF32 inside, the user's settings restored after."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        _allow_tf32(False, False)
        yield
    finally:
        _allow_tf32(*before)


def _allow_tf32(convolutions: bool, products: bool) -> None:
    torch.backends.cudnn.allow_tf32 = convolutions
    torch.backends.cuda.matmul.allow_tf32 = products
