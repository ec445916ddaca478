"""What computes: the device that --device asks for, and its name for records."""

import platform
from pathlib import Path

import torch

from widemargin.errors import InputError

CPU_INFO = Path("/proc/cpuinfo")


def choose_device(name: str) -> torch.device:
    """A GPU if there is one under "auto", else what was asked for."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
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
