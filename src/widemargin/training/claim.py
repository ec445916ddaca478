"""The run folder is one run's, and one process's while it works there.

The folder is locked first. Then the run's configuration is written before anything else; another run is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from widemargin.checkpoints import PREVIOUS
from widemargin.config import RunConfig
from widemargin.config_files import differences, read_toml, to_toml
from widemargin.errors import InputError
from widemargin.evaluation.target import BEST, CONFIG, LAST
from widemargin.files import held, make_folder, write_text_whole
from widemargin.partial_file import is_partial


@contextmanager
def claimed(out: Path, config: RunConfig) -> Iterator[None]:
    """The folder is ours inside; where nothing but the configuration was written, an error gives it back.

    So the corrected command may have it.
    """
    existed = out.exists()
    _make(out)
    with held(out):
        begun = (out / CONFIG).exists()
        try:
            _claim(out, config)
            yield
        except InputError:
            if not begun:
                _give_back(out, existed=existed)
            raise


def _make(out: Path) -> None:
    """Only make the folder: what another process may be writing there is not ours to sweep away."""
    with suppress(OSError):
        out.mkdir(parents=True, exist_ok=True)
    if not out.is_dir():
        make_folder(out)  # which says why there can be none


def _claim(out: Path, config: RunConfig) -> None:
    make_folder(out)
    path = out / CONFIG
    if path.exists():
        changed = differences(config, read_toml(path))
        if changed and not _trained(out):  # a corrected command may have the folder
            write_text_whole(path, to_toml(config))
        elif changed:
            told = "; ".join(changed[:3])
            raise InputError(f"{out} holds another run ({told}); choose another --out, or --set what it has")
    elif not all(map(is_partial, out.iterdir())):
        raise InputError(f"{out} is not empty and holds no {CONFIG}; choose an empty folder for --out")
    else:
        config.check_watched()
        write_text_whole(path, to_toml(config))


def _trained(out: Path) -> bool:
    return any((out / name).exists() for name in (LAST, PREVIOUS, BEST))


def _give_back(out: Path, *, existed: bool) -> None:
    if {path.name for path in out.iterdir()} <= {CONFIG}:
        (out / CONFIG).unlink(missing_ok=True)
        if not existed:
            out.rmdir()
