"""The folder of a job of ``widemargin reproduce``: what its ``result.json`` says holds for every evaluation inside."""

from collections.abc import Sequence
from dataclasses import replace

from widemargin.reports.inputs.evaluation import Evaluation


def told_by_jobs(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """The same; those inside a job's folder know whether it was made quick, and of what configuration."""
    jobs = [evaluation for evaluation in evaluations if evaluation.kind == "reproduction"]
    return [_told(evaluation, jobs) for evaluation in evaluations]


def _told(evaluation: Evaluation, jobs: Sequence[Evaluation]) -> Evaluation:
    for job in jobs:
        if job.folder.resolve() in evaluation.folder.resolve().parents:
            return replace(evaluation, quick=job.quick, config=evaluation.config or job.config)
    return evaluation
