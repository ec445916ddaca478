"""Jobs in the folders that ``widemargin reproduce`` made: finished ones, and those that are not."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from widemargin.errors import InputError
from widemargin.reports.collection.layout import RESULT, ROWS
from widemargin.reports.inputs.fields import Fields, read_json
from widemargin.reports.inputs.result_file import AGAIN

RUN = "run"


@dataclass(frozen=True)
class FoundJob:
    """A finished job."""

    folder: Path
    result: Fields
    recipe: str
    seed: int


@dataclass
class FoundJobs:
    """What the folders hold."""

    finished: list[FoundJob] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)


def find_jobs(folders: Sequence[Path], into: Path) -> FoundJobs:
    """Search the folders; refuses quick runs, a job that is there twice, and the tree itself."""
    found = FoundJobs()
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; give what 'widemargin reproduce --out' named")
        if (into / ROWS).resolve() in (folder.resolve(), *folder.resolve().parents):
            raise InputError(f"{folder} holds what was collected already; give what 'widemargin reproduce --out' named")
        before = len(found.finished)
        for inside in _folders(folder, into / ROWS):
            _look(inside, found)
        if len(found.finished) == before:
            raise InputError(f"{folder} holds no finished job of 'widemargin reproduce'; was it the right folder?")
    _refuse_twins(found.finished)
    return found


def _folders(folder: Path, tree: Path) -> Iterator[Path]:
    """The folder and those inside it, in order; not hidden ones, not inside a job, not the tree."""
    for here, inside, files in os.walk(folder):
        yield Path(here)
        job = RESULT in files or RUN in inside
        kept = [] if job else sorted(name for name in inside if not name.startswith("."))
        inside[:] = [name for name in kept if (Path(here) / name).resolve() != tree.resolve()]


def _look(folder: Path, found: FoundJobs) -> None:
    path = folder / RESULT
    if not path.is_file():
        if (folder / RUN).is_dir() or (folder.name.startswith("seed-") and (folder / "output.txt").is_file()):
            found.unfinished.append(folder)
        return
    content = read_json(path, AGAIN)
    if not isinstance(content, dict) or not {"recipe", "seed", "accuracy", "quick"} <= content.keys():
        return
    result = Fields(path, content)
    if content["quick"]:
        raise InputError(f"{path} is of a --quick run, whose numbers mean nothing; give folders of full runs")
    found.finished.append(FoundJob(folder, result, result.text("recipe"), result.whole("seed") or 0))


def _refuse_twins(jobs: Sequence[FoundJob]) -> None:
    seen: dict[tuple[str, int], Path] = {}
    for job in jobs:
        other = seen.setdefault((job.recipe, job.seed), job.folder)
        if other.resolve() != job.folder.resolve():
            raise InputError(f"{other} and {job.folder} are both {job.recipe}, seed {job.seed}; give one of them")
