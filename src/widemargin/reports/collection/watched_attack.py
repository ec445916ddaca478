"""The name of the attack that a run was watched with."""

from widemargin.reports.collection.tree import CollectedJob
from widemargin.reports.inputs.fields import Fields
from widemargin.reports.inputs.run_folder import CONFIG


def watched_attack(job: CollectedJob) -> str:
    """``PGD-20, eps 0.1``; "attacked" where the run does not say."""
    attack = Fields(job.run.folder / CONFIG, job.run.config).table("watch").table("attack")
    steps, eps = attack.whole("steps"), attack.number("eps")
    if attack.text("kind") != "pgd" or steps is None or eps is None:
        return "attacked"
    return f"PGD-{steps}, eps {eps:g}"
