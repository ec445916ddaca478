"""How a run trains beside its configuration: options of a call, which ``config.toml`` does not hold."""

from dataclasses import dataclass

from widemargin.checks import check_count, check_number, choice
from widemargin.training.nonfinite import ON_NONFINITE


@dataclass(frozen=True, kw_only=True)
class Options:
    """What each means is told at ``train``."""

    engine: str = "auto"
    on_nonfinite: str = "stop"
    sync_bn: bool | None = None
    checkpoint_every: int | None = None
    deterministic: bool = False
    checkpoint_pause: float = 0.0

    def __post_init__(self) -> None:
        choice("", "--on-nonfinite", self.on_nonfinite, ON_NONFINITE)
        if self.checkpoint_every is not None:
            check_count("--checkpoint-every", self.checkpoint_every)
        check_number(
            "checkpoint_pause",
            self.checkpoint_pause,
            fits=lambda seconds: seconds >= 0,
            rule="a number of seconds, 0 or more",
            hint="0 saves at the end of every epoch",
        )
