"""Search folders for everything a report can show."""

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from widemargin.errors import InputError
from widemargin.reports.inputs.evaluation import Evaluation
from widemargin.reports.inputs.evaluation_folder import REPORT, read_evaluation
from widemargin.reports.inputs.fields import attempted, visible
from widemargin.reports.inputs.job_folder import told_by_jobs
from widemargin.reports.inputs.labels import labelled
from widemargin.reports.inputs.result_file import RESULT, read_result
from widemargin.reports.inputs.run_folder import Run, is_run, read_run
from widemargin.reports.inputs.sweep_file import POINTS, SWEEP, Sweep, read_sweep
from widemargin.reports.inputs.unfinished_evaluation import is_unfinished_evaluation, read_unfinished


@dataclass
class Findings:
    """What was found, in the order of the folders given."""

    runs: list[Run] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    sweeps: list[Sweep] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Why a file could not be shown, a line each."""

    def labels(self) -> list[str]:
        """Every label once, in order; a label's place here is its color."""
        names = [*(run.label for run in self.runs), *(evaluation.label for evaluation in self.evaluations)]
        return list(dict.fromkeys(names))

    def color(self, label: str) -> int:
        """The number of a label's color, the same in every figure."""
        return self._colors[label]

    @cached_property
    def _colors(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.labels())}


def search(folders: Sequence[Path]) -> Findings:
    """Everything in the folders; a folder in which there is nothing to show is a mistake.

    A file that cannot be shown is one line of ``faults``, and the rest is shown.
    """
    found, seen = Findings(), set[Path]()
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; give run, evaluation or sweep folders")
        before = _count(found)
        known, wrong = len(seen), len(found.faults)
        for inside in _folders(folder, found.faults):
            if inside.resolve() not in seen:
                seen.add(inside.resolve())
                _read(inside, found)
        if _count(found) == before and len(seen) > known and len(found.faults) == wrong:
            raise InputError(f"{folder} holds no run, evaluation, sweep or result; was it the right folder?")
    if _count(found) == 0 and found.faults:
        more = f" (and {len(found.faults) - 1:,} more)" if len(found.faults) > 1 else ""
        raise InputError(f"nothing can be shown: {found.faults[0]}{more}")
    found.runs, found.evaluations = labelled(found.runs, told_by_jobs(found.evaluations))
    return found


def _count(found: Findings) -> int:
    return len(found.runs) + len(found.evaluations) + len(found.sweeps)


def _folders(folder: Path, faults: list[str]) -> Iterator[Path]:
    """The folder and those inside it; not hidden ones, and not the runs of a sweep, which its map shows."""

    def closed(error: OSError) -> None:
        faults.append(visible(f"cannot look into {error.filename}: {error.strerror or error}"))

    for here, inside, files in os.walk(folder, onerror=closed):
        if not os.access(here, os.X_OK):
            closed(PermissionError(errno.EACCES, os.strerror(errno.EACCES), here))
            inside.clear()
            continue
        inside[:] = sorted(
            name for name in inside if not name.startswith(".") and not (name == POINTS and SWEEP in files)
        )
        yield Path(here)


def _read(folder: Path, found: Findings) -> None:
    evaluation = attempted(partial(_evaluation, faults=found.faults), folder, found.faults)
    if evaluation is not None:
        found.evaluations.append(evaluation)
    if (folder / RESULT).is_file() and (result := attempted(read_result, folder, found.faults)) is not None:
        found.evaluations.append(result)
    if (folder / SWEEP).is_file() and (sweep := attempted(read_sweep, folder, found.faults)) is not None:
        found.sweeps.append(sweep)
    if attempted(is_run, folder, found.faults):
        run = read_run(folder, found.faults)
        if run.config or not run.unread:
            found.runs.append(run)


def _evaluation(folder: Path, faults: list[str]) -> Evaluation | None:
    if (folder / REPORT).is_file():
        return read_evaluation(folder, faults)
    return read_unfinished(folder, faults) if is_unfinished_evaluation(folder) else None
