"""AutoAttack, part by part: how many images each part broke of those that were still right before it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from widemargin.reports.charts.frame import Text
from widemargin.reports.charts.stacked import stacked
from widemargin.reports.inputs.evaluation import Evaluation
from widemargin.reports.inputs.search import Findings
from widemargin.reports.measures import attack_title
from widemargin.reports.page.section import Figure, Section, first
from widemargin.reports.tables import Entry, Head, TextTable

AUTOATTACK = "autoattack"
WRONG, ROBUST = "Wrong unattacked", "Still right"


@dataclass(frozen=True)
class Breakdown:
    """One AutoAttack run: (part, images broken) in the order of the attack."""

    label: str
    parts: tuple[tuple[str, int], ...]


def breakdown(found: Findings) -> Section | None:
    """Bars and counts for each evaluation with AutoAttack."""
    rows = [row for evaluation in found.evaluations for row in breakdowns(evaluation)]
    if not rows:
        return None
    drawn, left_out = first(rows)
    names = list(dict.fromkeys(name for row in rows for name, _ in row.parts if name not in (WRONG, ROBUST)))
    styles = {WRONG: "part-wrong", ROBUST: "part-right"} | {n: f"part-{i % 4}" for i, n in enumerate(names)}
    described = "; ".join(f"{row.label}: {_said(row.parts)}" for row in drawn)
    text = Text(id="breakdown", title="What AutoAttack's parts broke", description=described, x="", y="")
    bars = [(row.label, [(attack_title(name), styles[name], count) for name, count in row.parts]) for row in drawn]
    figure = Figure(picture=stacked(text, bars), title=text.title, caption="Each bar is all images of one evaluation.")
    order = [WRONG, *names, ROBUST]
    table = TextTable(
        title="Images broken by each part of AutoAttack",
        heads=[Head("Evaluation"), *(Head(attack_title(name)) for name in order)],
        rows=[(Entry(row.label), [_count(dict(row.parts).get(name)) for name in order]) for row in rows],
    )
    keys = [(attack_title(name), styles[name]) for name in order]
    return Section(
        id="autoattack",
        title="AutoAttack, part by part",
        lines=["Each part attacks only the images that all parts before it left right.", *left_out],
        figures=[figure],
        tables=[table],
        template="breakdown.html",
        more={"keys": keys},
    )


def breakdowns(evaluation: Evaluation) -> list[Breakdown]:
    """One for each eps at which AutoAttack ran; none where nobody knows on how many images."""
    if not _images(evaluation):
        return []
    suffixes = [name.removeprefix(AUTOATTACK) for name in evaluation.accuracy if _is_whole(name)]
    return [_breakdown(evaluation, suffix) for suffix in suffixes]


def _images(evaluation: Evaluation) -> int:
    return evaluation.count or (len(evaluation.examples) if evaluation.examples else 0)


def _is_whole(name: str) -> bool:
    return name.partition("@")[0] == AUTOATTACK


def _breakdown(evaluation: Evaluation, suffix: str) -> Breakdown:
    label = f"{evaluation.label}, eps {suffix[1:]}" if suffix else evaluation.label
    count = _images(evaluation)
    clean = evaluation.accuracy.get("clean", 100.0)
    left = round(clean * count / 100)
    parts = [(WRONG, count - left)]
    for name, accuracy in _parts(evaluation, suffix):
        parts.append((name, max(0, left - round(accuracy * count / 100))))
        left = round(accuracy * count / 100)
    if len(parts) == 1:
        parts += _from_examples(evaluation, suffix)
        left = round(evaluation.accuracy[AUTOATTACK + suffix] * count / 100)
    return Breakdown(label, (*parts, (ROBUST, left)))


def _parts(evaluation: Evaluation, suffix: str) -> Iterable[tuple[str, float]]:
    for name, accuracy in evaluation.accuracy.items():
        if name.startswith(f"{AUTOATTACK}/") and name.partition("@")[0] + suffix == name:
            yield name.partition("@")[0].removeprefix(f"{AUTOATTACK}/"), accuracy


def _from_examples(evaluation: Evaluation, suffix: str) -> list[tuple[str, int]]:
    """Without accuracies after each part, each example says what broke it, at each of several eps."""
    examples = evaluation.examples
    if examples is None:
        return []
    breakers = [at.get(suffix[1:]) for at in examples.broken_at] if suffix else examples.broken_by
    return list(Counter(name for name in breakers if name).items())


def _said(parts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{attack_title(name)} {count:,}" for name, count in parts)


def _count(count: int | None) -> Entry:
    return Entry("-" if count is None else f"{count:,}")
