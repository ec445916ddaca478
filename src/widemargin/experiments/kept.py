"""Weights that another job's run keeps beside its own become a run folder of the job they are for.

It is what that job's own training would have left, without what resuming needs: the configuration, the metrics and the
weights. So everything that reads a job's folder finds it as usual.
"""

import json
import shutil

from widemargin.config_files import to_toml
from widemargin.experiments.job import RUN, Job
from widemargin.files import make_folder, write_text_whole
from widemargin.training import RunResult
from widemargin.training.claim import CONFIG
from widemargin.training.log import METRICS, Line
from widemargin.training.run_checkpoint import AVERAGED
from widemargin.training.watch import MEASURED

PREFIX = f"{AVERAGED}_"


def weights_of(job: Job, run: RunResult) -> RunResult:
    """The run to be judged: the one that was trained, or the job's part of it, in the job's own folder."""
    folder = job.folder / RUN
    if run.folder == folder:
        return run
    make_folder(folder)
    for weights in sorted((run.folder / AVERAGED).glob("*.safetensors")):
        shutil.copyfile(weights, folder / weights.name)
    metrics = [_own(line) for line in run.metrics]
    write_text_whole(folder / METRICS, "".join(json.dumps(line) + "\n" for line in metrics))
    write_text_whole(folder / CONFIG, to_toml(job.config))
    return RunResult(folder, run.finished, run.epoch, metrics)


def _own(line: Line) -> Line:
    """The line as the averaged weights' own: what was measured of the trained ones is left out."""
    shared = {key: value for key, value in line.items() if not key.startswith((PREFIX, *MEASURED))}
    return shared | {key.removeprefix(PREFIX): value for key, value in line.items() if key.startswith(PREFIX)}
