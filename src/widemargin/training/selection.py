"""Which epoch counts: the best on the validation split, where there is one; never chosen on the test set."""

from widemargin.config import RunConfig
from widemargin.training.log import Line
from widemargin.training.state import TrainState


def note_score(state: TrainState, line: Line) -> bool:
    """Whether this epoch is the best so far on the validation split, by robust accuracy where an attack is watched."""
    score = line.get("validation_robust", line.get("validation_clean"))
    if score is None or (state.best_score is not None and score <= state.best_score):
        return False
    state.best_score, state.best_epoch = score, state.epoch
    return True


def patience_is_over(state: TrainState, config: RunConfig) -> bool:
    """Whether early stopping ends the run: no better epoch for as many watched epochs as it has patience for."""
    if config.stopping is None or state.best_epoch is None:
        return False
    return state.epoch - state.best_epoch >= config.stopping.patience * config.watch.every


def describe_selection(config: RunConfig, which: str) -> str:
    """How these weights were chosen, in words for the checkpoint."""
    average = "" if config.averaging is None else f", weights averaged with decay {config.averaging.decay:g}"
    if which == "last":
        return f"the last step trained{average}"
    rule = "clean accuracy" if config.watch.attack is None else f"accuracy under {config.watch.attack!r}"
    return f"highest {rule} on {config.data.held_out} held-out training images{average}"
