"""A name on the page for everything: short, unique, and the same for a run and its one evaluation."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from widemargin.reports.inputs.evaluation import Evaluation
from widemargin.reports.inputs.run_folder import Run


def labelled(runs: Sequence[Run], evaluations: Sequence[Evaluation]) -> tuple[list[Run], list[Evaluation]]:
    """The same with their labels set; an evaluation without a name of its own takes its run's."""
    names = unique([run.name for run in runs], [_hints_of_run(run) for run in runs])
    runs = [replace(run, label=name) for run, name in zip(runs, names, strict=True)]
    owners = [owner(evaluation, runs) for evaluation in evaluations]
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


def owner(evaluation: Evaluation, runs: Sequence[Run]) -> Run | None:
    """The run that an evaluation judges: the one that holds it, that its target names, or that has its weights."""
    target = Path(evaluation.target)
    places = [evaluation.folder.resolve(), *([target.resolve()] if evaluation.target and target.exists() else [])]
    for run in runs:
        folder = run.folder.resolve()
        if any(folder == place or folder in place.parents for place in places):
            return run
    same = [run for run in runs if evaluation.checkpoint in run.checksums()] if evaluation.checkpoint else []
    if same:
        return same[0]
    alike = [run for run in runs if any(_ends_with(run.folder, path) for path in (target, target.parent))]
    return alike[0] if len(alike) == 1 else None


def _ends_with(folder: Path, path: Path) -> bool:
    """Whether a path, relative to who knows where, may be this folder."""
    return bool(path.parts) and folder.resolve().parts[-len(path.parts) :] == path.parts


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
    return next(label for tail in _tails(folder) if (label := f"{name} · {tail}") not in taken)


def _telling(hints: list[Sequence[str]]) -> list[str]:
    for column in zip(*hints, strict=False):
        if len(set(column)) == len(column):
            return list(column)
    return [str(number) for number in range(1, len(hints) + 1)]


def _own_name(evaluation: Evaluation) -> str:
    return evaluation.name or Path(evaluation.target).name or evaluation.folder.name


def _hints_of_run(run: Run) -> list[str]:
    return [f"seed {run.config.get('seed', 0)}", *_tails(run.folder)]


def _hints_of_evaluation(evaluation: Evaluation) -> list[str]:
    eps = ", ".join(radius.written for radius in evaluation.eps)
    seed = f"seed {evaluation.seed}"
    return [seed, evaluation.weights, evaluation.norm, f"eps {eps}", evaluation.data, *_tails(evaluation.folder)]


def _tails(folder: Path) -> list[str]:
    """The last part of a path, the last two, and so on."""
    parts = folder.resolve().parts
    return ["/".join(parts[-length:]).replace("//", "/") for length in range(1, len(parts) + 1)]
