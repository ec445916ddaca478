"""What the numbers were measured on."""

import torch

from widemargin.precision import convolutions_use_tf32, products_use_tf32


def describe_device(device: torch.device) -> str:
    """The GPU's name, or the CPU with its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type}, {threads} thread{'s' * (threads > 1)}"


def tf32_settings(device: torch.device) -> dict[str, bool]:
    """Whether float32 convolutions and products may use TF32 here, as torch has it set."""
    gpu = device.type == "cuda"
    return {
        "convolutions": gpu and convolutions_use_tf32(),
        "products": gpu and products_use_tf32(),
    }
