"""What a reader must know before comparing a row: unfinished, on few images, unlike its recipe, of another size."""

from collections.abc import Mapping

from widemargin.records import shortened
from widemargin.reports.changes import changes
from widemargin.reports.inputs.evaluation import Evaluation
from widemargin.reports.inputs.run_folder import Run
from widemargin.reports.reference import Reference

MANY = 4
HARMLESS = ("seed=", "watch.", "evaluation.")
"""Changes of these leave the trained model what it is (the seed is named elsewhere)."""
TEST_IMAGES = {
    "mnist-embedded": 3_000,
    "mnist": 10_000,
    "fashion-mnist": 10_000,
    "cifar10-embedded": 60,
    "cifar10": 10_000,
}
"""How many the data sets have: evaluations of earlier versions did not say."""


def notes_of_evaluation(evaluation: Evaluation, run: Run | None, reference: Reference | None) -> list[str]:
    """What must be known of an evaluation, its run and its recipe."""
    notes = [] if evaluation.finished else [f"unfinished: {evaluation.count or 0:,} examples so far"]
    if evaluation.quick:
        notes.append("made quick: a short run and short attacks, not to be compared")
    if run is not None:
        notes += state(run)
    notes += _fewer_images(evaluation)
    notes += differences(settings_of(evaluation, run), reference)
    if evaluation.quick:
        return notes
    if reference is not None and (why := why_not_compared(evaluation, run, reference)):
        return [*notes, f"{why}, so it is not compared with the paper"]
    return notes + _other_size(evaluation, reference) + _other_step(evaluation, reference)


def why_not_compared(evaluation: Evaluation, run: Run | None, reference: Reference) -> str:
    """What makes the published numbers no comparison at all; empty where they are one."""
    if evaluation.quick:
        return "it was made quick"
    if not settings_of(evaluation, run):
        return "its configuration is not known"
    if evaluation.split != "test":
        return "it was judged on held-out images"
    published = reference.settings.get("data", {}).get("name", "")
    if evaluation.data and published and evaluation.data != published:
        return f"it was judged on {evaluation.data}, its recipe's data is {published}"
    return trained_less(settings_of(evaluation, run), reference)


def trained_less(settings: Mapping[str, object], reference: Reference) -> str:
    """What makes a run too small to be held against its recipe; empty where nothing does."""
    ours, theirs = settings.get("epochs"), reference.settings.get("epochs", 0)
    if isinstance(ours, int) and 2 * ours < theirs:
        return f"it was trained for {ours:,} epoch{'s' * (ours != 1)}, its recipe for {theirs:,}"
    limit, theirs = (_data(table).get("train_limit") for table in (settings, reference.settings))
    return f"it was trained on {limit:,} images alone" if isinstance(limit, int) and theirs is None else ""


def _data(settings: Mapping[str, object]) -> Mapping[str, object]:
    data = settings.get("data")
    return data if isinstance(data, dict) else {}


def settings_of(evaluation: Evaluation, run: Run | None) -> Mapping[str, object]:
    """The configuration of what was judged; empty where it is not known."""
    return evaluation.config or (run.config if run is not None else {})


def _fewer_images(evaluation: Evaluation) -> list[str]:
    if evaluation.split != "test":
        return ["judged on held-out images"]
    whole = evaluation.whole or TEST_IMAGES.get(evaluation.data)
    if not evaluation.finished or evaluation.count is None or whole is None or evaluation.count >= whole:
        return []
    return [f"judged on the first {evaluation.count:,} of {whole:,} test images"]


def differences(settings: Mapping[str, object], reference: Reference | None) -> list[str]:
    """The recipe's own note, and which of its settings were changed."""
    if reference is None or not settings:
        return []
    found = changes(settings, reference.settings)
    changed = [shortened(change, 200) for change in found if not change.startswith(HARMLESS)]
    shown = ", ".join(changed[:MANY]) + (f" and {len(changed) - MANY} more" if len(changed) > MANY else "")
    note = [reference.note] if reference.note else []
    return note + ([f"changed from the recipe: {shown}"] if changed else [])


def _other_size(evaluation: Evaluation, reference: Reference | None) -> list[str]:
    if reference is None or not reference.results or not evaluation.eps:
        return []
    norm, eps = reference.plan.get("norm", "linf"), reference.plan.get("eps")
    if norm == evaluation.norm and any(reference.same_eps(radius.value) for radius in evaluation.eps):
        return []
    return [f"published under attack only at {norm} eps {eps}"]


def _other_step(evaluation: Evaluation, reference: Reference | None) -> list[str]:
    names = sorted({evaluation.radius_of(name)[0] for name in evaluation.accuracy})
    if reference is None or not reference.results or not any(name.startswith("pgd") for name in names):
        return []
    compared = [radius.value for radius in evaluation.eps if reference.same_eps(radius.value)]
    if all(reference.same_step(evaluation.step_size, eps) for eps in compared):
        return []
    ours, theirs = (f"{step:g}" if step else "eps/4" for step in (evaluation.step_size, reference.step))
    return [f"its PGD has steps of {ours}, the recipe's of {theirs}, so it is not compared"]


def state(run: Run) -> list[str]:
    """How far an unfinished run is."""
    lost = [f"the metrics of {run.lost} epochs are lost"] if run.lost else []
    if run.finished or run.unread or run.planned is None:
        return lost
    return [f"epoch {run.done} of {run.planned}", *lost]
