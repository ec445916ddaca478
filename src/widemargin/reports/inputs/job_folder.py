"""The folder of a job of ``widemargin reproduce``: what its ``result.json`` says holds for every evaluation inside.

The evaluation that the job's numbers are from, and what AutoAttack found later of the same images, are the job's own
row; they are not shown a second time.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from widemargin.reports.inputs.evaluation import Evaluation

PARTS = ("evaluation", "autoattack")
"""The folders inside a job whose numbers are of its row."""
Jobs = Mapping[Path, Evaluation]


def told_by_jobs(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Each job whole; other evaluations inside a job know whether it was made quick, and of what configuration."""
    jobs = {evaluation.folder.resolve(): evaluation for evaluation in evaluations if evaluation.kind == "reproduction"}
    inside: dict[Path, dict[str, Evaluation]] = defaultdict(dict)
    for evaluation in evaluations:
        if evaluation.kind == "evaluation" and evaluation.folder.name in PARTS:
            inside[evaluation.folder.resolve().parent][evaluation.folder.name] = evaluation
    joined = set()
    for folder in jobs:
        for part in (inside[folder][name] for name in PARTS if name in inside[folder]):
            if _is_of(jobs[folder], part):
                jobs[folder] = _with(jobs[folder], part)
                joined.add(part.file)
    return [_told(evaluation, jobs) for evaluation in evaluations if evaluation.file not in joined]


def _is_of(job: Evaluation, part: Evaluation) -> bool:
    """Whether it judged the job's weights on the same images at the same eps, and found what the job says."""
    return (
        part.finished
        and (part.data, part.split, part.norm) == (job.data, job.split, job.norm)
        and [radius.value for radius in part.eps] == [radius.value for radius in job.eps]
        and part.count == (job.count or part.count)
        and part.checkpoint == (job.checkpoint or part.checkpoint)
        and all(part.accuracy.get(name, value) == value for name, value in job.accuracy.items())
    )


def _with(job: Evaluation, part: Evaluation) -> Evaluation:
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


def _told(evaluation: Evaluation, jobs: Jobs) -> Evaluation:
    if evaluation.kind == "reproduction":
        return jobs[evaluation.folder.resolve()]
    job = next((jobs[above] for above in evaluation.folder.resolve().parents if above in jobs), None)
    return evaluation if job is None else replace(evaluation, quick=job.quick, config=evaluation.config or job.config)
