"""What an evaluation is pointed at: a run folder or a checkpoint file."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from widemargin.checkpoints import PREVIOUS, Description, load_checkpoint, restore_model
from widemargin.data import ImageSet
from widemargin.errors import InputError
from widemargin.files import check_file

BEST, LAST = "best.safetensors", "last.safetensors"
PICKLED = (".pt", ".pth", ".ckpt")
"""Files of torch, which hold weights from elsewhere."""


@dataclass(frozen=True)
class Target:
    """A model ready to be judged, and where it comes from."""

    model: nn.Module
    path: Path
    description: Description

    def test_limit(self, limit: int | None) -> int | None:
        """So many test images at most: the run's own limit (``data.test_limit``), or a smaller one asked for."""
        own = self.description.run_config().data.test_limit
        return min((most for most in (own, limit) if most is not None), default=None)

    def check_fits(self, data: ImageSet) -> None:
        """Refuse images of another shape, or of classes the model has no output for."""
        shape, classes = self.description.image_shape, self.description.num_classes
        if data.image_shape != shape or int(data.labels.max()) >= classes:
            raise InputError(
                f"{data.name} holds images {data.image_shape} of {data.num_classes} classes, but {self.path} was "
                f"trained on images {shape} of {classes} classes; choose the data set it was trained on"
            )


def load(path: str | Path) -> nn.Module:
    """The network of a run folder or a checkpoint, in evaluation mode: the run's best weights, else its last."""
    return load_target(Path(path)).model.eval()


def load_target(path: Path) -> Target:
    """The best weights of a run folder (else its last), or the weights of a checkpoint file."""
    file = _checkpoint_file(path)
    checkpoint = load_checkpoint(file)
    description = checkpoint.description
    if file.name == PREVIOUS:
        description = replace(description, selection="the checkpoint before the last one")
    return Target(model=restore_model(checkpoint, source=file), path=file, description=description)


def _checkpoint_file(path: Path) -> Path:
    check_file(path)
    if path.is_file():
        if path.suffix in PICKLED:
            raise InputError(
                f"{path} is no checkpoint of a run; weights from elsewhere are judged by widemargin evaluate alone"
            )
        return path
    for name in (BEST, LAST):
        check_file(path / name)
        if (path / name).is_file():
            return path / name
    if (path / PREVIOUS).is_file():
        raise InputError(
            f"the folder {path} holds no {LAST}; train goes on from its {PREVIOUS}, which can be given here by name"
        )
    if path.is_dir():
        raise InputError(f"the folder {path} holds no {BEST} or {LAST}; is it a run folder, and has an epoch finished?")
    if ":" in path.name:
        raise InputError(
            f"{path} looks like a factory of yours; widemargin evaluate takes it, and measures its margins too"
        )
    raise InputError(f"{path} does not exist; give a run folder (what --out named) or a checkpoint file")
