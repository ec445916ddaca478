"""Weights that another job's run keeps beside its own become a run folder of the job they are for.

It is what that job's own training would have left, without what resuming needs: the configuration, the metrics with
the alarms that they raise, and the weights. So everything that reads a job's folder finds it as usual.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from widemargin.checkpoints import load_checkpoint, save_checkpoint
from widemargin.config import RunConfig
from widemargin.config_files import to_dict, to_toml
from widemargin.evaluation.target import CONFIG
from widemargin.experiments.job import RUN, Job
from widemargin.files import make_folder, write_text_whole
from widemargin.training import RunResult
from widemargin.training.alarms import new_alarms
from widemargin.training.log import METRICS, Line
from widemargin.training.watch import AVERAGED, MEASURED

PREFIX, ALARMS = f"{AVERAGED}_", "alarms"


def weights_of(job: Job, run: RunResult) -> RunResult:
    """The run to be judged: the one that was trained, or the job's part of it, in the job's own folder."""
    folder = job.folder / RUN
    if run.folder == folder:
        return run
    make_folder(folder)
    for weights in sorted((run.folder / AVERAGED).glob("*.safetensors")):
        _adopt(weights, folder / weights.name, job.config)
    metrics = _with_alarms([_own(line) for line in run.metrics], job.config)
    write_text_whole(folder / METRICS, "".join(json.dumps(line) + "\n" for line in metrics))
    write_text_whole(folder / CONFIG, to_toml(job.config))
    return RunResult(folder, run.finished, run.epoch, metrics)


def _adopt(source: Path, place: Path, config: RunConfig) -> None:
    """The same weights, under the name and the configuration of their job."""
    checkpoint = load_checkpoint(source)
    save_checkpoint(place, replace(checkpoint, description=replace(checkpoint.description, config=to_dict(config))))


def _own(line: Line) -> Line:
    """The line as the averaged weights' own: what was measured of the trained ones is left out."""
    shared = {key: value for key, value in line.items() if not key.startswith((ALARMS, PREFIX, *MEASURED))}
    return shared | {key.removeprefix(PREFIX): value for key, value in line.items() if key.startswith(PREFIX)}


def _with_alarms(lines: Iterable[Line], config: RunConfig) -> list[Line]:
    """Each line with the alarms that it raises, as a run notes them."""
    told: list[Line] = []
    for line in lines:
        alarms = new_alarms([*told, line], config)
        told.append(line | ({ALARMS: [alarm.name for alarm in alarms]} if alarms else {}))
    return told
