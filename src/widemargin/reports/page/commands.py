"""The commands that make the same numbers again."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from widemargin.errors import InputError
from widemargin.reports.changes import changes, lead_to
from widemargin.reports.inputs.evaluation import Evaluation, Radius
from widemargin.reports.inputs.run_folder import CONFIG, Run
from widemargin.reports.inputs.search import Findings
from widemargin.reports.inputs.sweep_file import Sweep
from widemargin.reports.page.section import Section
from widemargin.reports.reference import Reference
from widemargin.written import Written

References = Mapping[str, Reference]


def commands(found: Findings, references: References, folders: Sequence[Path], out: Path) -> Section:
    """Train, sweep, evaluate, report."""
    typed: list[list[str]] = [train_command(run, references) for run in found.runs]
    typed += [sweep_command(sweep, references) for sweep in found.sweeps]
    typed += [evaluate_command(evaluation) for evaluation in found.evaluations if _from_command_line(evaluation)]
    typed.append(["widemargin", "report", *map(str, folders), "--out", str(out)])
    return Section(
        id="reproduce",
        title="How to reproduce",
        lines=[
            "These commands make the runs, the evaluations and this page again, each in its own folder; what is "
            "finished there is not done again. Add --data-dir or --import where you gave them."
        ],
        commands=[shlex.join(command) for command in dict.fromkeys(map(tuple, typed))],
        template="commands.html",
    )


def train_command(run: Run, references: References) -> list[str]:
    """The recipe with its changes, or the run's own configuration file where that cannot be said."""
    out = ["--out", str(run.folder)]
    settings = _settings(run.name, run.config, references)
    if settings is None:
        return ["widemargin", "train", str(run.folder / CONFIG), *out]
    return ["widemargin", "train", run.name, *settings, *out]


def _settings(name: str, config: Mapping[str, Any], references: References) -> list[str] | None:
    reference = references.get(name)
    if reference is None or not config:
        return None
    overrides = changes(config, reference.settings)
    if not lead_to(overrides, reference.settings, config):
        return None
    return [word for override in overrides for word in ("--set", override)]


def sweep_command(sweep: Sweep, references: References) -> list[str]:
    """The grid over the recipe; what all its points changed is read off one of them."""
    grid = [word for key, values in sweep.grid.items() for word in ("--grid", f"{key}={','.join(values)}")]
    settings = _settings(sweep.recipe, sweep.config, references) or []
    pairs = zip(settings[::2], settings[1::2], strict=True)
    common = [word for pair in pairs if pair[1].partition("=")[0] not in sweep.grid for word in pair]
    return ["widemargin", "sweep", sweep.recipe, *grid, *common, "--out", str(sweep.folder)]


def evaluate_command(evaluation: Evaluation) -> list[str]:
    """The evaluation with everything that its numbers depend on."""
    words = ["widemargin", "evaluate", evaluation.target]
    options = {
        "--attacks": ",".join(evaluation.attacks),
        "--eps": ",".join(map(_typed, evaluation.eps)),
        "--norm": evaluation.norm,
        "--step-size": "" if evaluation.step_size is None else repr(evaluation.step_size),
        "--seed": "" if evaluation.seed is None else str(evaluation.seed),
    }
    if evaluation.kind == "evaluation":
        options |= {
            "--dataset": (evaluation.source or evaluation.data) if evaluation.split == "test" else "",
            "--split": "" if evaluation.split == "test" else evaluation.split,
            "--limit": "" if evaluation.count is None else str(evaluation.count),
            "--shard-size": "" if evaluation.shard_size is None else str(evaluation.shard_size),
            "--batch-size": "" if evaluation.batch_size is None else str(evaluation.batch_size),
            "--search": "" if evaluation.search == "float32" else evaluation.search,
            "--head-scale": "" if evaluation.head_scale is None else repr(evaluation.head_scale),
            "--normalize": "" if evaluation.normalize.startswith("unknown") else evaluation.normalize,
            "--out": str(evaluation.folder),
        }
    words += [word for option, value in options.items() if value for word in (option, value)]
    return [*words, "--distance"] if evaluation.distance is not None else words


def _typed(radius: Radius) -> str:
    """As it was written, unless that was short for a longer number."""
    try:
        return radius.written if float(Written(radius.written)) == radius.value else repr(radius.value)
    except InputError:
        return repr(radius.value)


def _from_command_line(evaluation: Evaluation) -> bool:
    """Whether a command can say it: not of a model or of images that lived in memory only."""
    return bool(evaluation.target) and not any(
        name.endswith("in memory") for name in (evaluation.target, evaluation.data)
    )
