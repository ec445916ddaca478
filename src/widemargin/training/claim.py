"""The run folder is one run's: its configuration is written before anything else, and another run is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from widemargin.config import RunConfig
from widemargin.config_files import differences, read_toml, to_toml
from widemargin.errors import InputError
from widemargin.evaluation.target import LAST
from widemargin.files import make_folder, write_text_whole

CONFIG = "config.toml"


@contextmanager
def claimed(out: Path, config: RunConfig) -> Iterator[None]:
    """The folder is ours while we set up; where that fails it is given back, so that the corrected run may have it."""
    existed, begun = out.exists(), (out / CONFIG).exists()
    _claim(out, config)
    try:
        yield
    except InputError:
        if not begun:
            (out / CONFIG).unlink()
        if not existed:
            out.rmdir()
        raise


def _claim(out: Path, config: RunConfig) -> None:
    make_folder(out)
    path = out / CONFIG
    if path.exists():
        changed = differences(config, read_toml(path))
        if changed and not (out / LAST).exists():  # nothing was trained yet: a corrected command may have the folder
            write_text_whole(path, to_toml(config))
        elif changed:
            raise InputError(f"{out} holds another run ({'; '.join(changed[:3])}); choose another --out")
    elif any(out.iterdir()):
        raise InputError(f"{out} is not empty and holds no {CONFIG}; choose an empty folder for --out")
    else:
        write_text_whole(path, to_toml(config))
