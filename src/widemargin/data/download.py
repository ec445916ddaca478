"""Fetch official files that are missing; on failure say, in one line, what to put where.

Pooch writes to a temporary file beside the destination, compares the checksum and only then renames, so a file under
its final name is always whole. Pooch and rich are imported when something is fetched, not before.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from widemargin.data.sources import OfficialFile
from widemargin.errors import InputError
from widemargin.files import check_file

_CHUNK = 1 << 16
_PATIENCE = 30  # seconds without an answer


def fetch(files: Iterable[OfficialFile], folder: Path, *, dataset: str) -> list[Path]:
    """Download those of ``files`` that ``folder`` lacks; return where each one is."""
    wanted = list(files)
    for file in wanted:
        check_file(folder / file.name)
        if not (folder / file.name).is_file():
            _fetch_one(file, folder, wanted, dataset)
    return [folder / file.name for file in wanted]


def missing(files: Iterable[OfficialFile], folder: Path, *, dataset: str, reason: str) -> InputError:
    """The one line for the user: why it failed, and which files to put where."""
    needed = [file for file in files if not (folder / file.name).is_file()]
    places = "; ".join(f"put {file.urls[0]} (md5 {file.md5}) at {folder / file.name}" for file in needed)
    return InputError(f"{dataset}: {reason}; {places}; or use the data set 'mnist-embedded', which needs no file")


def _fetch_one(file: OfficialFile, folder: Path, wanted: list[OfficialFile], dataset: str) -> None:
    """Try each address in turn."""
    try:
        import pooch
    except ImportError as error:
        reason = "files are missing and the package pooch, which downloads them, is not installed"
        raise missing(wanted, folder, dataset=dataset, reason=reason) from error
    failure: Exception | None = None
    for url in file.urls:
        try:
            with _Bar(file.name) as bar:
                loader = pooch.HTTPDownloader(progressbar=bar, chunk_size=_CHUNK, timeout=_PATIENCE)
                pooch.retrieve(url, f"sha256:{file.sha256}", file.name, folder, downloader=loader)
            (folder / file.name).chmod(0o644)  # pooch's temporary files are for the owner only
            return
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
            failure = error
    reason = f"cannot download {file.name} from {', '.join(_host(url) for url in file.urls)} ({_brief(failure)})"
    raise missing(wanted, folder, dataset=dataset, reason=reason) from failure


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _brief(error: Exception | None) -> str:
    if type(error).__name__ == "ConnectionError":  # of requests; its own words are a page of nested causes
        return "no connection"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}{'...' if len(text) > 160 else ''}"


class _Bar:
    """A progress bar of rich in the form that pooch drives: ``total``, ``update``, ``reset``, ``close``."""

    def __init__(self, title: str) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        from widemargin.screen import console_for

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        console = console_for(stderr=True)
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(title, total=None)
        self.total = 0

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    def update(self, size: int) -> None:
        """``size`` more bytes have come."""
        self._progress.update(self._task, advance=size, total=self.total or None)

    def reset(self) -> None:
        """Begin at 0 again; pooch does so before it fills the bar."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Nothing to do: leaving the ``with`` block stops the bar."""
