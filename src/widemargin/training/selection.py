"""Which epoch counts: the best on the validation split, where there is one; never chosen on the test set."""

from collections.abc import Mapping
from typing import Any

from widemargin.config import RunConfig
from widemargin.training.state import Best, TrainState


def better(best: Best | None, measured: Mapping[str, Any], epoch: int) -> Best | None:
    """This epoch, if it is better than the best so far on the validation split; under attack, where one is watched."""
    score = score_of(measured)
    if score is None or (best is not None and score <= best.score):
        return None
    return Best(score=score, epoch=epoch)


def score_of(measured: Mapping[str, Any]) -> float | None:
    """What epochs are compared by; None where nothing was measured on a validation split."""
    score: float | None = measured.get("validation_robust", measured.get("validation_clean"))
    return score


def patience_is_over(state: TrainState, config: RunConfig) -> bool:
    """Whether early stopping ends the run: no better epoch for as many watched epochs as it has patience for."""
    if config.stopping is None or state.best is None:
        return False
    return state.epoch - state.best.epoch >= config.stopping.patience * config.watch.every


def describe_selection(config: RunConfig, which: str, *, averaged: bool) -> str:
    """How these weights were chosen, in words for the checkpoint."""
    average = f", weights averaged with decay {config.averaging.decay:g}" if averaged and config.averaging else ""
    if which == "last":
        return f"the last step trained{average}"
    rule = "clean accuracy" if config.watch.attack is None else f"accuracy under {config.watch.attack!r}"
    return f"highest {rule} on {config.data.held_out} held-out training images{average}"
