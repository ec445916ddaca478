"""``README.md`` of the tree: every table beside the paper's numbers, and the figures.

The same tree makes the same bytes. What is said of several seeds of a row is one line where it differs in its numbers
alone; what the numbers of a table were made with (hardware, engine, precision, versions, time) is one sentence.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from matplotlib.figure import Figure

from paper.figures import curve_figure, distance_figure, eps_figure, histogram_figure, judges_figure
from paper.plans import ALL, CURVES, DISTANCES, GROUPS, HISTOGRAMS, JUDGES, OVER_EPS, Section
from paper.rows import PaperRow, PaperTable
from paper.tables import (
    ABOVE,
    AUTOATTACK_TITLE,
    BELOW,
    CERTIFIED_TITLE,
    FAR_ACCURACY,
    FAR_MARGIN,
    FLATTERED_TITLE,
    NONE,
    Jobs,
    autoattack_text,
    cells_of,
    certified_text,
    columns_of,
    distance_text,
    flattered_text,
    is_far,
    kinds,
    table_text,
)
from paper.tree import FIGURES, NOTES, PAGE, CollectedJob, read_tree
from widemargin.core.files import make_folder, write_text_atomic
from widemargin.core.records import read_text
from widemargin.report.compare import differs_from
from widemargin.report.pictures import save_picture
from widemargin.report.tables import plain_text


@dataclass(frozen=True)
class Shown:
    """A picture that was drawn; ``note`` is what concerns it alone."""

    section: Section
    file: str
    title: str
    note: str = ""


def generate(into: Path, tables: Sequence[PaperTable]) -> list[Path]:
    """Write them; figures for which nothing is left are removed."""
    jobs = by_recipe(read_tree(into))
    folder = make_folder(into / FIGURES)
    shown, written = [], [into / PAGE]
    for picture, figure in _pictures(tables, jobs):
        files = [(folder / picture.file).with_suffix(suffix) for suffix in (".png", ".pdf", ".svg")]
        if figure is None:
            for file in files:
                file.unlink(missing_ok=True)
            continue
        for file in files:
            save_picture(figure, file)
        written += files
        shown.append(picture)
    write_text_atomic(into / PAGE, page_text(tables, jobs, into / NOTES, shown))
    return written


def by_recipe(jobs: Sequence[CollectedJob]) -> Jobs:
    """Recipe -> its jobs, by seed."""
    found: dict[str, list[CollectedJob]] = {}
    for job in jobs:
        found.setdefault(job.recipe, []).append(job)
    return found


def _pictures(tables: Sequence[PaperTable], jobs: Jobs) -> Iterator[tuple[Shown, Figure | None]]:
    """Each picture, drawn; None where there is nothing to draw."""
    for table in tables:
        yield Shown(JUDGES, f"judges-{table.name}.png", table.title), judges_figure(table, jobs)
    for plan in CURVES:
        yield Shown(plan.section, plan.file, plan.title, plan.note), curve_figure(plan, jobs)
    for group in GROUPS:
        shown = Shown(HISTOGRAMS, f"histogram-{group.name}.png", f"Margins, {group.title}", group.histogram_note)
        yield shown, histogram_figure(group, jobs)
    for group in GROUPS:
        shown = Shown(DISTANCES, f"distance-{group.name}.png", f"Margin against distance, {group.title}")
        yield shown, distance_figure(group.name, jobs)
    for group in GROUPS:
        shown = Shown(OVER_EPS, f"eps-{group.name}.png", f"Accuracy against eps, {group.title}")
        yield shown, eps_figure(group, jobs)


def figures_text(pictures: Sequence[Shown]) -> str:
    """The last part of the page; pictures of a kind come after each other."""
    parts = ["## Figures\n", f"{ALL}\n"]
    for section, members in groupby(pictures, key=lambda picture: picture.section):
        parts += [f"### {section.title}\n", f"{section.said}\n"]
        for picture in members:
            parts += [f"#### {picture.title}\n", *([f"{picture.note}\n"] if picture.note else [])]
            parts.append(f"![{picture.title}]({FIGURES}/{picture.file})\n")
    return "\n".join(parts)


HEAD = f"""# Results

Our numbers beside the paper's. This page and its figures are made from the files in this folder alone by
`python -m paper page --into` it; do not edit it. How the numbers are made: `docs/results.md`.

In a cell: ours / the paper's (ours minus the paper's). Ours is the mean over the seeds, ± their standard deviation
where there are two or more; "{NONE}" is what was not run. Accuracy in percent; margins in L2, pixels in [0, 1], means
over correctly classified images that have a boundary. {ABOVE} and {BELOW} mark what is more than {FAR_ACCURACY:g}
points of accuracy, or {FAR_MARGIN:g} of margin, above or below the paper.
"""

LATER = "AutoAttack is not in the paper's table; it was run afterwards, on some rows (`docs/results.md`)."


def page_text(tables: Sequence[PaperTable], jobs: Jobs, notes: Path, pictures: Sequence[Shown]) -> str:
    """The page; its pictures have been drawn."""
    parts, left = [HEAD, _overview(tables, jobs)], []
    for table in tables:
        note = notes / f"{table.name}.md"
        if note.is_file() or any(row.recipe in jobs for row in table.rows):
            parts.append(_section(table, jobs, note))
        else:
            left.append(f"- {plain_text(table.title)}: all {len(table.rows)} rows")
    if left:
        parts.append("\n".join(["## Not run yet\n", *left]) + "\n")
    if pictures:
        parts.append(figures_text(pictures))
    return "\n".join(parts)


def _overview(tables: Sequence[PaperTable], jobs: Jobs) -> str:
    lines = ["| table | rows run | jobs | numbers compared | far from the paper |", "|:--|--:|--:|--:|--:|"]
    for table in tables:
        run = [row for row in table.rows if row.recipe in jobs]
        cells = [
            (c, cell) for row in run for c, cell in cells_of(table, row, jobs).items() if cell.difference is not None
        ]
        far = sum(is_far(column, cell) for column, cell in cells)
        count = sum(len(jobs[row.recipe]) for row in run)
        title = plain_text(table.title)
        lines.append(f"| {title} | {len(run)} of {len(table.rows)} | {count} | {len(cells)} | {far} |")
    return "\n".join(lines) + "\n\nA job that two tables share is counted in both.\n"


def _section(table: PaperTable, jobs: Jobs, note: Path) -> str:
    """``note`` is what a person wrote; its links begin in the folder of notes, the page is one above."""
    run = [row for row in table.rows if row.recipe in jobs]
    written = read_text(note).strip().replace("](../", "](") if note.is_file() else ""
    parts = [f"## {table.title}\n", f"{written or f'(Not written yet: `{NOTES}/{note.name}`.)'}\n"]
    if not run:
        return "\n".join([*parts, f"Not run yet: all {len(table.rows)} rows.\n"])
    missing = [f"`{table.label(row)}`" for row in table.rows if row not in run]
    parts.append(table_text(table, jobs))
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)}.\n")
    if "autoattack" not in table.columns and "autoattack" in columns_of(table, jobs):
        judged = [job.autoattack for row in run for job in jobs[row.recipe] if job.autoattack.values]
        precision = kinds(report.text("precision", "unknown") for report in judged)
        parts.append(LATER + (f" It judged in: {plain_text(precision)}." if judged else "") + "\n")
    parts.append(plain_text(circumstances([job for row in run for job in jobs[row.recipe]])) + "\n")
    remarks = [f"- {plain_text(remark)}" for row in run for remark in _remarks(table, row, jobs[row.recipe])]
    if remarks:
        parts.append("\n".join(remarks) + "\n")
    parts += [text for small in SMALL if (text := small(table, jobs))]
    return "\n".join(parts)


SMALL = (flattered_text, autoattack_text, distance_text, certified_text)
"""Small tables below one of the paper's, of the rows that were judged again."""


def _remarks(table: PaperTable, row: PaperRow, jobs: Sequence[CollectedJob]) -> list[str]:
    """What a reader must know before comparing a row."""
    name = table.label(row)
    told = [f"{name}: {row.reference.note}"] * bool(jobs and row.reference.note)
    settings = ({**job.run.config, "init_from": None} for job in jobs)  # a row may begin with another row's weights
    changed = dict.fromkeys(differs_from(config, row.reference) for config in settings)
    told += [f"{name}: changed from the recipe: {differs}" for differs in changed if differs]
    told += [f"{name}, {text}" for text in by_seed(_left_out(jobs))]
    told += [f"{name}, {text}" for text in by_seed([(job.seed, alarm) for job in jobs for alarm in _alarms(job)])]
    return list(dict.fromkeys(told))


def _left_out(jobs: Sequence[CollectedJob]) -> list[tuple[int, str]]:
    """(seed, what to say), where more than a percent of the images is in no mean of margins."""
    found = [(job.seed, *job.correct_without_margin) for job in jobs]
    return [
        (
            seed,
            f"{without:,} of {correct:,} correctly classified test images have no boundary, because the network's "
            "output does not change around them; the mean margin is without them",
        )
        for seed, without, correct in found
        if 100 * without > correct
    ]


def _alarms(job: CollectedJob) -> list[str]:
    """Each alarm once: what the judgment of the table says, a later one does not say again."""
    found: dict[tuple[str, str], str] = {}
    judged = (
        ("", job.evaluation),
        ("", job.autoattack),
        (f" ({AUTOATTACK_TITLE})", job.autoattack_8_255),
        ("", job.strongest),
        (f" ({FLATTERED_TITLE}, first 1,000)", job.autoattack_1000),
        (f" ({CERTIFIED_TITLE})", job.certified),
    )
    for where, report in judged:
        for alarm in report.tables("alarms"):
            name, message = alarm.text("name"), alarm.text("message")
            found.setdefault((name, message), f"alarm {name}{where}: {message}")
    return list(found.values())


def circumstances(jobs: Sequence[CollectedJob]) -> str:
    """Each kind that occurs, the most frequent first, with how many jobs have it where they differ."""
    tables = (job.result.table("versions").words() for job in jobs)
    versions = (", ".join(f"{name} {number}" for name, number in sorted(t.items())) or "unknown" for t in tables)
    parts = [
        f"Hardware: {kinds(job.result.text('device', 'unknown') for job in jobs)}.",
        f"Trained with: {kinds(job.result.text('engine', 'unknown') for job in jobs)}.",
        f"Judged in: {kinds(job.evaluation.text('precision', 'unknown') for job in jobs)}.",
        f"Versions: {kinds(versions)}.",
    ]
    trained = {(job.result.text("trained_as", job.recipe), job.seed): job for job in jobs}  # rows may share a run
    training = _hours(sum(job.result.number("training_seconds") or 0.0 for job in trained.values()))
    judging = _hours(sum(job.result.number("evaluation_seconds") or 0.0 for job in jobs))
    together = max(job.result.whole("workers") or 1 for job in jobs)
    shared = f", up to {together} jobs sharing the device" if together > 1 else ""
    return " ".join([*parts, f"Time of all jobs together: {training} of training, {judging} of judging{shared}."])


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


NUMBER = re.compile(r"([0-9]+(?:[.,][0-9]+)*%?)")


def by_seed(said: Sequence[tuple[int, str]]) -> list[str]:
    """One line for the seeds of which the same is said, but for its numbers."""
    alike: dict[tuple[int, tuple[str, ...]], list[tuple[int, list[str]]]] = {}
    times: Counter[tuple[int, tuple[str, ...]]] = Counter()
    for seed, text in said:
        parts = NUMBER.split(text)  # words, a number, words, ...
        words = tuple(parts[::2])
        alike.setdefault((times[seed, words], words), []).append((seed, parts))
        times[seed, words] += 1
    return [_in_one_line(members) for members in alike.values()]


def _in_one_line(members: Sequence[tuple[int, list[str]]]) -> str:
    """What the seeds have in common once, from the first number that differs to the last for each of them."""
    who = f"seed{'s' * (len(members) > 1)} {', '.join(str(seed) for seed, _ in members)}"
    texts = [parts for _, parts in members]
    first = texts[0]
    differs = [place for place, part in enumerate(first) if any(parts[place] != part for parts in texts)]
    if not differs:
        return f"{who}: {''.join(first)}"
    begin, end = differs[0], differs[-1] + 1
    each = ("; " if len(differs) > 1 else ", ").join("".join(parts[begin:end]) for parts in texts)
    return f"{who}: {''.join(first[:begin])}{each}{''.join(first[end:])}"
