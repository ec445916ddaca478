"""The only thing that changes during training: networks, optimizer, where we are, and what this epoch added up to."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from widemargin.config import OptimizerConfig
from widemargin.types import Nets


@dataclass
class TrainState:
    """Everything a resumed run needs; see ``tensors`` and ``restore``."""

    nets: Nets
    optimizer: torch.optim.SGD
    epoch: int = 0
    """Epochs finished."""
    step: int = 0
    """Steps done in the epoch under way."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Per-sample sums over the epoch under way, on the device: reading them is the only time training waits."""
    best_score: float | None = None
    best_epoch: int | None = None

    def add(self, values: dict[str, Tensor]) -> None:
        """Add per-sample values (B,) to the sums."""
        for name, value in values.items():
            total = value.detach().sum(dtype=torch.float64)
            self.sums[name] = self.sums[name] + total if name in self.sums else total

    def tensors(self) -> dict[str, Tensor]:
        """What resuming needs besides the weights."""
        stored = {f"sums/{name}": value for name, value in self.sums.items()}
        for name, parameter in self.nets.model.named_parameters():
            momentum = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                stored[f"momentum/{name}"] = momentum
        if self.best_score is not None and self.best_epoch is not None:
            stored["best"] = torch.tensor([self.best_score, self.best_epoch], dtype=torch.float64)
        return stored

    def restore(self, stored: dict[str, Tensor], *, epoch: int, step: int) -> None:
        """Take back what ``tensors`` gave."""
        self.epoch, self.step = epoch, step
        device = next(self.nets.model.parameters()).device
        self.sums = {k.removeprefix("sums/"): v.to(device) for k, v in stored.items() if k.startswith("sums/")}
        for name, parameter in self.nets.model.named_parameters():
            if f"momentum/{name}" in stored:
                self.optimizer.state[parameter]["momentum_buffer"] = stored[f"momentum/{name}"].to(device)
        if "best" in stored:
            self.best_score, self.best_epoch = float(stored["best"][0]), int(stored["best"][1])


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.SGD:
    """SGD on every parameter."""
    return torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
