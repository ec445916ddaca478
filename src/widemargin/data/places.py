"""Which folders are searched for a data set's files."""

import os
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "WIDEMARGIN_DATA"


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The argument, else the environment variable WIDEMARGIN_DATA, else the platform's cache folder."""
    chosen = data_dir or os.environ.get(VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else _cache()


def candidates(folder: Path, dataset: str) -> tuple[Path, Path]:
    """``folder/<dataset>`` first, since some data sets share file names; then ``folder`` itself."""
    return folder / dataset, folder


def idx_spellings(name: str) -> Iterator[str]:
    """The names under which an idx file is found: gzipped, unpacked, unpacked with a dot."""
    plain = name.removesuffix(".gz")
    yield from (name, plain, plain.replace("-idx", ".idx"), name.replace("-idx", ".idx"))


def _cache() -> Path:
    try:
        import pooch
    except ImportError:
        return Path.home() / ".cache" / "widemargin"
    return Path(pooch.os_cache("widemargin"))
