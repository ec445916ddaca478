"""The name of what computes: the GPU, or the processor."""

import platform
from pathlib import Path

import torch

CPU_FACTS = Path("/proc/cpuinfo")


def hardware_name(device: torch.device) -> str:
    """Such as "NVIDIA H200"; of a processor what the system calls it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if CPU_FACTS.is_file():
        for line in CPU_FACTS.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return f"cpu: {value.strip()}"
    return f"cpu: {platform.processor() or platform.machine()}"
