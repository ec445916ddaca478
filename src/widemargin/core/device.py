"""What computes: the device that --device asks for, and its name for records."""

import platform
from pathlib import Path

import torch

from widemargin.errors import InputError

CPU_INFO = Path("/proc/cpuinfo")


def choose_device(name: str, *, local_rank: int | None = None) -> torch.device:
    """A GPU if there is one under "auto", by turns for the processes of one machine; else what was asked for."""
    if name == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda" if local_rank is None else f"cuda:{local_rank % torch.cuda.device_count()}")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).tolist()  # which a device without values, such as meta, cannot do
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--device {name!r} cannot be used here: {reason}; use auto or cpu") from None
    return device


def hardware_name(device: torch.device) -> str:
    """Such as "NVIDIA H200"; of a processor what the system calls it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return f"cpu: {value.strip()}"
    return f"cpu: {platform.processor() or platform.machine()}"
