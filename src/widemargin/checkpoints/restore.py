"""From a checkpoint to the model it describes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from widemargin.checkpoints.file import Checkpoint
from widemargin.errors import InputError
from widemargin.models import build_model
from widemargin.models.budget import no_larger_than


def restore_model(checkpoint: Checkpoint, *, source: Path) -> nn.Module:
    """The model the checkpoint describes, with its weights, in evaluation mode."""
    description = checkpoint.description
    config = description.run_config()
    with no_larger_than(checkpoint.weights, source=str(source)):
        model = build_model(
            config.model,
            image_shape=description.image_shape,
            num_classes=description.num_classes,
            seed=0,
            make_head=config.head,
        )
    load_weights(model, checkpoint.weights, source=source)
    return model.eval()


def load_weights(model: torch.nn.Module, weights: Mapping[str, Tensor], *, source: Path) -> None:
    """Load weights that must fit, or say which do not."""
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    found = {key: tuple(value.shape) for key, value in weights.items()}
    wrong = [
        key for key in [*expected, *(k for k in found if k not in expected)] if expected.get(key) != found.get(key)
    ]
    if wrong:
        key = wrong[0]
        raise InputError(
            f"{source} does not fit a {type(model).__name__}: {key} is {found.get(key, 'missing')} in the file and "
            f"{expected.get(key, 'absent')} in the model ({len(wrong)} such); is it a checkpoint of another model?"
        )
    model.load_state_dict(dict(weights))


@contextmanager
def fitting(source: Path) -> Iterator[None]:
    """What a checkpoint holds for training is put back inside; where it does not fit, that is said in one line."""
    try:
        yield
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{source} does not fit this run: {reason}; is it a checkpoint of another run?") from None
