"""A name on the page for everything: short, unique, and the same for a run and its one evaluation."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, count
from pathlib import Path

from widemargin.reports.inputs.evaluation import Evaluation
from widemargin.reports.inputs.run_folder import Run


def labelled(runs: Sequence[Run], evaluations: Sequence[Evaluation]) -> tuple[list[Run], list[Evaluation]]:
    """The same with their labels set; an evaluation without a name of its own takes its run's."""
    names = unique([run.name for run in runs], [_hints_of_run(run) for run in runs])
    runs = [replace(run, label=name) for run, name in zip(runs, names, strict=True)]
    owners = owners_of(evaluations, runs)
    wanted = [run.label if run else _own_name(e) for run, e in zip(owners, evaluations, strict=True)]
    labels = unique(wanted, [_hints_of_evaluation(evaluation) for evaluation in evaluations])
    taken = {*names, *labels}
    labels = [
        _other(label, e.folder, taken) if run is None and label in names else label
        for label, e, run in zip(labels, evaluations, owners, strict=True)
    ]
    return runs, [
        replace(evaluation, label=label, name=evaluation.name or (run.name if run else None))
        for evaluation, label, run in zip(evaluations, labels, owners, strict=True)
    ]


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
        alike = {number for path in (target, target.parent) for number in self._like(path)}
        return self._runs[alike.pop()] if len(alike) == 1 else None

    def _like(self, path: Path) -> list[int]:
        """The runs that a path, relative to who knows where, may be."""
        tail = path.parts
        return [n for n in self._named.get(path.name, ()) if self._runs[n].folder.resolve().parts[-len(tail) :] == tail]


def _place(path: Path) -> Path | None:
    """Where a path leads, if it is one: a file may hold any words."""
    try:
        return path.resolve() if path.parts and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None


def unique(names: Sequence[str], hints: Sequence[Sequence[str]]) -> list[str]:
    """Names that occur twice get the first hint that tells their bearers apart."""
    groups = defaultdict(list)
    for number, name in enumerate(names):
        groups[name].append(number)
    labels = list(names)
    for name, members in groups.items():
        if len(members) > 1:
            for number, hint in zip(members, _telling([hints[member] for member in members]), strict=True):
                labels[number] = f"{name} · {hint}"
    return labels


def _other(name: str, folder: Path, taken: Collection[str]) -> str:
    """The name with as much of the folder as nobody else has; it is not the run of that name that was judged."""
    hints = chain(_tails(folder), map(str, count(2)))
    return next(label for hint in hints if (label := f"{name} · {hint}") not in taken)


def _telling(hints: list[Sequence[str]]) -> list[str]:
    for column in zip(*hints, strict=False):
        if len(set(column)) == len(column):
            return list(column)
    return [str(number) for number in range(1, len(hints) + 1)]


def _own_name(evaluation: Evaluation) -> str:
    return evaluation.name or Path(evaluation.target).name or evaluation.folder.name


def _hints_of_run(run: Run) -> list[str]:
    return [f"seed {run.seed}", *_tails(run.folder)]


def _hints_of_evaluation(evaluation: Evaluation) -> list[str]:
    eps = ", ".join(radius.written for radius in evaluation.eps)
    seed = f"seed {evaluation.seed}"
    return [seed, evaluation.weights, evaluation.norm, f"eps {eps}", evaluation.data, *_tails(evaluation.folder)]


def _tails(folder: Path) -> list[str]:
    """The last part of a path, the last two, and so on."""
    parts = folder.resolve().parts
    return ["/".join(parts[-length:]).replace("//", "/") for length in range(1, len(parts) + 1)]
