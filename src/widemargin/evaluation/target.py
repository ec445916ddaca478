"""What an evaluation is pointed at: a run folder or a checkpoint file."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from widemargin.checkpoints import PREVIOUS, Description, load_checkpoint, restore_model
from widemargin.config import RunConfig
from widemargin.config_files import differences, read_toml
from widemargin.data import ImageSet
from widemargin.errors import InputError, WidemarginWarning
from widemargin.files import check_file

BEST, LAST, CONFIG = "best.safetensors", "last.safetensors", "config.toml"
AVERAGED = "averaged"
"""The folder of averaged weights that are judged beside a run's own, and what their measurements begin with."""
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
    if path.is_dir():
        _check_folder(path, file, description)
        if file.name == LAST and _chose(description.run_config(), description.epoch):
            warnings.warn(
                f"{path / BEST} is missing; these are the run's last weights", WidemarginWarning, stacklevel=2
            )
            lost = f"; {BEST}, chosen on held-out images, is missing"
            description = replace(description, selection=description.selection + lost)
    return Target(model=restore_model(checkpoint, source=file), path=file, description=description)


def _check_folder(folder: Path, file: Path, description: Description) -> None:
    """Refuse weights that are not of the run whose folder this is."""
    beside = folder.name == AVERAGED and not (folder / CONFIG).is_file()
    config = (folder.parent if beside else folder) / CONFIG
    if not config.is_file():
        return
    run = read_toml(config)
    if beside and run.averaging is not None:
        run = replace(run, averaging=replace(run.averaging, beside=False))
    check_run(file, description, run)


def check_run(file: Path, description: Description, config: RunConfig) -> None:
    """Refuse a checkpoint of another run than this."""
    changed = differences(description.run_config(), config)
    if changed:
        raise InputError(
            f"{file} is of another run than the {CONFIG} of its folder ({'; '.join(changed[:3])}); put back the one "
            "that belongs there"
        )


def _chose(config: RunConfig, epoch: int) -> bool:
    """Whether the run has chosen best weights by then."""
    return config.data.held_out > 0 and epoch >= min(config.watch.every, config.epochs)


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
