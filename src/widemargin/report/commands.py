"""How everything on the page is made again: the commands that train, sweep, evaluate and report."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from widemargin.config.checkpoint import CONFIG
from widemargin.core.schema import LiteralFloat
from widemargin.errors import InputError
from widemargin.evaluation.folder import Evaluation, Radius
from widemargin.evaluation.minimal_norm import FULL
from widemargin.report.compare import References, changes, lead_to
from widemargin.report.findings import Findings
from widemargin.report.page import Commands, Parts, Sentence
from widemargin.report.runs import Run
from widemargin.report.sweeps import Sweep


def reproducing_commands(found: Findings, references: References, folders: Sequence[Path], out: Path) -> Parts:
    """Train, sweep, evaluate, report; what lived in memory only, no command can say."""
    named = [evaluation for evaluation in found.evaluations if evaluation.target]
    on_disk = [e for e in named if not any(name.endswith("in memory") for name in (e.target, e.data))]
    typed = [
        *(train_command(run, references) for run in found.runs),
        *(sweep_command(sweep, references) for sweep in found.sweeps),
        *(evaluate_command(evaluation) for evaluation in on_disk),
        ["widemargin", "report", *map(str, folders), "--out", str(out)],
    ]
    said = (
        "These commands make the runs, the evaluations and this page again, each in its own folder; what is finished "
        "there is not done again. Add --data-dir or --import where you gave them."
    )
    return [Sentence(said), Commands([shlex.join(command) for command in dict.fromkeys(map(tuple, typed))])]


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
    options: dict[str, str | float | None] = {
        "--attacks": ",".join(evaluation.attacks),
        "--eps": ",".join(map(_typed, evaluation.eps)),
        "--norm": evaluation.norm,
        "--step-size": evaluation.step_size,
        "--seed": evaluation.seed,
    }
    if evaluation.kind == "evaluation":
        on_test, normalize = evaluation.split == "test", evaluation.normalize or ""
        options |= {
            "--dataset": (evaluation.source or evaluation.data) if on_test else "",
            "--split": "" if on_test else evaluation.split,
            "--limit": evaluation.count,
            "--shard-size": evaluation.shard_size,
            "--batch-size": evaluation.batch_size,
            "--search": "" if evaluation.search == "float32" else evaluation.search,
            "--head-scale": evaluation.head_scale,
            "--normalize": "" if normalize.startswith("unknown") else normalize,
            "--out": str(evaluation.folder),
        }
    words = [word for option, value in options.items() if value not in (None, "") for word in (option, str(value))]
    if evaluation.distance is not None:
        words += ["--distance"] if evaluation.distance.method == FULL else ["--distance", evaluation.distance.method]
    return ["widemargin", "evaluate", evaluation.target, *words]


def _typed(radius: Radius) -> str:
    """As it was written, unless that was short for a longer number."""
    try:
        return radius.written if float(LiteralFloat(radius.written)) == radius.value else repr(radius.value)
    except InputError:
        return repr(radius.value)
