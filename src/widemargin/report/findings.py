"""What a report shows: run folders, evaluations, sweeps and reproduced rows, found by searching folders.

Each is read as far as it was written, with the names of whoever wrote it. A file that cannot be shown is one line of
``Findings.faults``, and the rest is shown. Everything gets a label, its name on the page: short, unique, and the same
for a run and its one evaluation.
"""

import errno
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, count, product
from pathlib import Path

from widemargin.core.records import Fields, attempted, read_json, visible
from widemargin.errors import InputError
from widemargin.evaluation.folder import REPORT, Evaluation, Radius, accuracies, margins, read_evaluation
from widemargin.evaluation.unfinished import is_unfinished_evaluation, read_unfinished
from widemargin.jobs.grid import POINTS, SWEEP
from widemargin.jobs.job import RESULT
from widemargin.report.runs import Run, is_run, read_run
from widemargin.report.sweeps import Sweep, read_sweep

AGAIN = "remove it, and the same widemargin reproduce judges the job again"
NORM = "l2"
"""Of the margins in the paper's tables."""


def read_result(folder: Path) -> Evaluation | None:
    """Read a reproduced row; None where ``result.json`` is somebody else's."""
    content = read_json(folder / RESULT, AGAIN)
    if not isinstance(content, dict) or not {"recipe", "accuracy"} <= content.keys():
        return None
    result = Fields(folder / RESULT, content)
    config = result.table("config")
    plan, data = config.table("evaluation"), config.table("data")
    eps = plan.size("eps")
    kept = {"correct": "margin_test", "train": "margin_train"}
    times = {name: result.number(f"{name}_seconds") for name in ("training", "evaluation")}
    return Evaluation(
        folder=folder,
        file=result.path,
        kind="reproduction",
        target=str(folder / "run"),
        name=result.text("recipe"),
        weights=result.text("weights"),
        selection=result.text("selection"),
        epoch=result.count("epoch"),
        data=data.text("name"),
        norm=plan.text("norm", "linf"),
        eps=[] if eps is None else [Radius(plan.text("eps"), eps)],
        step_size=plan.size("step_size"),
        seed=result.whole("seed"),
        attacks=plan.texts("attacks"),
        accuracy=accuracies(result.table("accuracy")),
        margins=[margins(result.table(name), of, NORM) for of, name in kept.items() if result.values.get(name)],
        margin_norm=NORM,
        versions=result.table("versions").words(),
        device=result.text("device"),
        seconds={name: seconds for name, seconds in times.items() if seconds is not None},
        config=dict(config.values),
        quick=bool(result.values.get("quick")),
    )


PARTS = ("evaluation", "autoattack")
"""The folders inside a job whose numbers are of its row."""


def joined_to_jobs(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Each job whole; other evaluations inside a job know whether it was made quick, and of what configuration."""
    jobs = {evaluation.folder.resolve(): evaluation for evaluation in evaluations if evaluation.kind == "reproduction"}
    others = {evaluation.folder.resolve(): evaluation for evaluation in evaluations if evaluation.kind == "evaluation"}
    for folder, name in product(jobs, PARTS):
        part = others.get(folder / name)
        if part is not None and _is_part_of(jobs[folder], part):
            jobs[folder] = _joined(jobs[folder], part)
            del others[folder / name]
    found = []
    for evaluation in evaluations:
        folder = evaluation.folder.resolve()
        if evaluation.kind == "reproduction":
            found.append(jobs[folder])
        elif folder in others:
            job = next((jobs[above] for above in folder.parents if above in jobs), None)
            if job is not None:
                evaluation = replace(evaluation, quick=job.quick, config=evaluation.config or job.config)
            found.append(evaluation)
    return found


def _is_part_of(job: Evaluation, part: Evaluation) -> bool:
    """Whether it judged the job's weights on the same images at the same eps, and found what the job says."""
    return (
        part.finished
        and (part.data, part.split, part.norm) == (job.data, job.split, job.norm)
        and [radius.value for radius in part.eps] == [radius.value for radius in job.eps]
        and part.count == (job.count or part.count)
        and part.checkpoint == (job.checkpoint or part.checkpoint)
        and all(part.accuracy.get(name, value) == value for name, value in job.accuracy.items())
    )


def _joined(job: Evaluation, part: Evaluation) -> Evaluation:
    known = {(margins.of, margins.norm) for margins in job.margins}
    alarms = job.alarms if part.alarms is None else list(dict.fromkeys([*(job.alarms or ()), *part.alarms]))
    return replace(
        job,
        checkpoint=part.checkpoint,
        source=part.source,
        count=part.count,
        whole=part.whole,
        shard_size=part.shard_size,
        batch_size=part.batch_size,
        attacks=list(dict.fromkeys([*job.attacks, *part.attacks])),
        search=part.search,
        accuracy={**job.accuracy, **part.accuracy},
        classes={**job.classes, **part.classes},
        curves={**job.curves, **part.curves},
        margins=[*job.margins, *(margins for margins in part.margins if (margins.of, margins.norm) not in known)],
        margin_norm=part.margin_norm if part.examples else job.margin_norm,
        alarms=alarms,
        notes=list(dict.fromkeys([*job.notes, *part.notes])),
        precision=part.precision,
        seconds={**job.seconds, **part.seconds},
        examples=part.examples or job.examples,
        gallery=job.gallery or part.gallery,
    )


def labelled(runs: Sequence[Run], evaluations: Sequence[Evaluation]) -> tuple[list[Run], list[Evaluation]]:
    """The same with their labels set; an evaluation without a name of its own takes its run's."""
    names = unique([run.name for run in runs], [[f"seed {run.seed}", *_tails(run.folder)] for run in runs])
    runs = [replace(run, label=name) for run, name in zip(runs, names, strict=True)]
    owned = list(zip(evaluations, owners_of(evaluations, runs), strict=True))
    wanted = [run.label if run else e.name or Path(e.target).name or e.folder.name for e, run in owned]
    labels = unique(wanted, [_hints(evaluation) for evaluation in evaluations])
    taken, found = {*names, *labels}, []
    for label, (evaluation, run) in zip(labels, owned, strict=True):
        name = evaluation.name or (run.name if run else None)
        if run is None and label in names:  # it is not the run of that name that was judged
            hints = chain(_tails(evaluation.folder), map(str, count(2)))
            label = next(longer for hint in hints if (longer := f"{label} · {hint}") not in taken)
        found.append(replace(evaluation, label=label, name=name))
    return runs, found


def _hints(e: Evaluation) -> list[str]:
    """What may tell evaluations of one name apart."""
    eps = ", ".join(radius.written for radius in e.eps)
    return [f"seed {e.seed}", e.weights, e.norm, f"eps {eps}", e.data, *_tails(e.folder)]


def _tails(folder: Path) -> list[str]:
    """The last part of a path, the last two, and so on."""
    parts = folder.resolve().parts
    return ["/".join(parts[-length:]).replace("//", "/") for length in range(1, len(parts) + 1)]


def unique(names: Sequence[str], hints: Sequence[Sequence[str]]) -> list[str]:
    """Names that occur twice get the first hint that tells their bearers apart, or a number."""
    groups = defaultdict(list)
    for number, name in enumerate(names):
        groups[name].append(number)
    labels = list(names)
    for name, members in groups.items():
        columns = zip(*(hints[member] for member in members), strict=False)
        counts = map(str, range(1, len(members) + 1))
        told = next((column for column in columns if len(set(column)) == len(column)), tuple(counts))
        for member, hint in zip(members, told, strict=True):
            labels[member] = f"{name} · {hint}" if len(members) > 1 else name
    return labels


def owners_of(evaluations: Sequence[Evaluation], runs: Sequence[Run]) -> list[Run | None]:
    """The run that each evaluation judges: the one that holds it, that its target names, or that has its weights."""
    places = _Places(runs)
    return [places.owner(evaluation) for evaluation in evaluations]


class _Places:
    """Where the runs are, so that ten thousand evaluations find theirs among ten thousand."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._at: dict[Path, int] = {}
        self._named: dict[str, list[int]] = defaultdict(list)
        for number, run in enumerate(runs):
            folder = run.folder.resolve()
            self._at.setdefault(folder, number)
            self._named[folder.name].append(number)

    @cached_property
    def _weights(self) -> dict[str, Run]:
        return {checksum: run for run in reversed(self._runs) for checksum in run.checksums()}

    def owner(self, evaluation: Evaluation) -> Run | None:
        target = Path(evaluation.target)
        places = [place for path in (evaluation.folder, target) if (place := _place(path)) is not None]
        around = [self._at[above] for place in places for above in (place, *place.parents) if above in self._at]
        if around:
            return self._runs[min(around)]
        if evaluation.checkpoint and evaluation.checkpoint in self._weights:
            return self._weights[evaluation.checkpoint]
        alike = {  # a path relative to who knows where
            number
            for path in (target, target.parent)
            for number in self._named.get(path.name, ())
            if self._runs[number].folder.resolve().parts[-len(path.parts) :] == path.parts
        }
        return self._runs[alike.pop()] if len(alike) == 1 else None


def _place(path: Path) -> Path | None:
    """Where a path leads, if it is one: a file may hold any words."""
    try:
        return path.resolve() if path.parts and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None


@dataclass
class Findings:
    """What was found, in the order of the folders given."""

    runs: list[Run] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    sweeps: list[Sweep] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Why a file could not be shown, a line each."""

    def labels(self) -> list[str]:
        """Every label once, in order."""
        names = [*(run.label for run in self.runs), *(evaluation.label for evaluation in self.evaluations)]
        return list(dict.fromkeys(names))

    def color(self, label: str) -> int:
        """The number of the color of the model behind a label, the same in every figure."""
        return self._colors[label]

    @cached_property
    def _colors(self) -> dict[str, int]:
        """A run and all that judged it have one color, and so has all that judged the same weights."""
        keys: dict[str, object] = {run.label: run.folder for run in self.runs}
        for evaluation, run in zip(self.evaluations, owners_of(self.evaluations, self.runs), strict=True):
            own = evaluation.checkpoint or evaluation.label
            keys.setdefault(evaluation.label, own if run is None else run.folder)
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
        return {label: numbers[key] for label, key in keys.items()}


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
    found.runs, found.evaluations = labelled(found.runs, joined_to_jobs(found.evaluations))
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
    finished = (folder / REPORT).is_file()
    read = read_evaluation if finished else read_unfinished if is_unfinished_evaluation(folder) else None
    if read and (evaluation := attempted(partial(read, faults=found.faults), folder, found.faults)) is not None:
        found.evaluations.append(evaluation)
    if (folder / RESULT).is_file() and (result := attempted(read_result, folder, found.faults)) is not None:
        found.evaluations.append(result)
    if (folder / SWEEP).is_file() and (sweep := attempted(read_sweep, folder, found.faults)) is not None:
        found.sweeps.append(sweep)
    if attempted(is_run, folder, found.faults):
        run = read_run(folder, found.faults)
        if run.config or not run.unread:
            found.runs.append(run)
