"""Search folders for everything a report can show."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from widemargin.errors import InputError
from widemargin.reports.inputs.evaluation import Evaluation
from widemargin.reports.inputs.evaluation_folder import REPORT, read_evaluation
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

    def labels(self) -> list[str]:
        """Every label once, in order; a label's place here is its color."""
        names = [*(run.label for run in self.runs), *(evaluation.label for evaluation in self.evaluations)]
        return list(dict.fromkeys(names))

    def color(self, label: str) -> int:
        """The number of a label's color, the same in every figure."""
        return self.labels().index(label)


def search(folders: Sequence[Path]) -> Findings:
    """Everything in the folders; a folder in which there is nothing to show is a mistake."""
    found, seen = Findings(), set[Path]()
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; give run, evaluation or sweep folders")
        before = _count(found)
        known = len(seen)
        for inside in _folders(folder):
            if inside.resolve() not in seen:
                seen.add(inside.resolve())
                _read(inside, found)
        if _count(found) == before and len(seen) > known:
            raise InputError(f"{folder} holds no run, evaluation, sweep or result; was it the right folder?")
    found.runs, found.evaluations = labelled(found.runs, told_by_jobs(found.evaluations))
    return found


def _count(found: Findings) -> int:
    return len(found.runs) + len(found.evaluations) + len(found.sweeps)


def _folders(folder: Path) -> Iterator[Path]:
    """The folder and those inside it; not hidden ones, and not the runs of a sweep, which its map shows."""
    for here, inside, files in os.walk(folder):
        inside[:] = sorted(
            name for name in inside if not name.startswith(".") and not (name == POINTS and SWEEP in files)
        )
        yield Path(here)


def _read(folder: Path, found: Findings) -> None:
    evaluation = _evaluation(folder)
    if evaluation is not None:
        found.evaluations.append(evaluation)
    if (folder / RESULT).is_file() and (result := read_result(folder)) is not None:
        found.evaluations.append(result)
    if (folder / SWEEP).is_file() and (sweep := read_sweep(folder)) is not None:
        found.sweeps.append(sweep)
    if is_run(folder):
        found.runs.append(read_run(folder))


def _evaluation(folder: Path) -> Evaluation | None:
    if (folder / REPORT).is_file():
        return read_evaluation(folder)
    return read_unfinished(folder) if is_unfinished_evaluation(folder) else None
