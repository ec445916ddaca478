"""The tables of the page as Markdown: ours, the paper's, the difference, and a mark where they are far apart.

Below a table of the paper's stand two small ones, where some of its rows have them: AutoAttack at 8/255, and margins
beside distances. Does a larger margin go with a larger distance? Across the images of a row, and across the rows. And
what a table's own PGD leaves out: by how much stronger attacks lower it, and what is proven of the first images.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

import torch

from paper.rows import PaperRow, PaperTable
from paper.tree import CollectedJob, Pairs
from widemargin.core.records import Fields
from widemargin.evaluation.distance import rank_correlation
from widemargin.report.compare import Cell, compare, signed
from widemargin.report.tables import markdown_lines, plain_text
from widemargin.report.wording import column_title, norm_title

FAR_ACCURACY, FAR_MARGIN = 2.0, 0.15
ABOVE, BELOW, NONE = "▲", "▼", "-"

Jobs = Mapping[str, Sequence[CollectedJob]]


def is_far(column: str, cell: Cell) -> bool:
    """Whether ours is more than 2 points, or a margin 0.15, from the paper's."""
    limit = FAR_MARGIN if column.startswith("margin_") else FAR_ACCURACY
    return cell.difference is not None and round(abs(cell.difference), 6) > limit


def columns_of(table: PaperTable, jobs: Jobs) -> list[str]:
    """The table's columns, and AutoAttack's where a row was judged by it later."""
    numbers = [job.numbers() for row in table.rows for job in jobs.get(row.recipe, ())]
    later = ["autoattack"] if any("autoattack" in found["accuracy"] for found in numbers) else []
    return list(dict.fromkeys([*table.columns, *later]))


def cells_of(table: PaperTable, row: PaperRow, jobs: Jobs) -> dict[str, Cell]:
    """A row's cells, over its seeds."""
    return compare(columns_of(table, jobs), row.results, [job.numbers() for job in jobs.get(row.recipe, ())])


def table_text(table: PaperTable, jobs: Jobs) -> str:
    """The rows, in the paper's order; one that was not run has the paper's numbers alone."""
    columns = columns_of(table, jobs)
    lines = []
    for row in table.rows:
        cells = cells_of(table, row, jobs)
        members = jobs.get(row.recipe, ())
        shown = [cell_text(column, cells[column]) + _fewer(column, members) for column in columns]
        lines.append([plain_text(table.label(row)), str(len(members) or NONE), *shown])
    return "\n".join(_numbers_table(["row", "seeds", *map(column_title, columns)], lines)) + "\n"


def _numbers_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Names on the left, numbers on the right."""
    return markdown_lines(heads, rows, align=[":--", *["--:"] * (len(heads) - 1)])


def _fewer(column: str, jobs: Sequence[CollectedJob]) -> str:
    """How many seeds have AutoAttack, where some have it and others not yet."""
    judged = sum("autoattack" in job.numbers()["accuracy"] for job in jobs)
    if column != "autoattack" or judged in (0, len(jobs)):
        return ""
    return f" ({judged} seed{'s' * (judged > 1)})"


def cell_text(column: str, cell: Cell) -> str:
    """``97.52 ± 0.08 / 97.50 (+0.02)``: ours over the seeds, the paper's, the difference."""
    spread = "" if cell.spread is None else f" ± {cell.spread:.2f}"
    ours = NONE if cell.ours is None else f"{cell.ours:.2f}{spread}"
    if cell.paper is None:
        return ours
    return f"{ours} / {cell.paper:.2f}{_difference(column, cell)}"


def _difference(column: str, cell: Cell) -> str:
    if cell.difference is None:
        return ""
    text = signed(cell.difference)
    if not is_far(column, cell):
        return f" ({text})"
    return f" (**{text}** {ABOVE if cell.difference > 0 else BELOW})"


def kinds(values: Iterable[str]) -> str:
    """Each value that occurs, with how many jobs have it where they differ."""
    counted = sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))
    if len(counted) == 1:
        return counted[0][0]
    return "; ".join(f"{value.replace(';', ',')} ({count} job{'s' * (count > 1)})" for value, count in counted)


AUTOATTACK_TITLE = "AutoAttack at 8/255 (first 1,000)"
AUTOATTACK_SAID = (
    "Not in the paper, whose eps is 0.031. 8/255 is the eps of RobustBench, which takes all 10,000 test images; the\n"
    "columns here are of the first 1,000."
)
COLUMNS = ("clean", "autoattack")


def autoattack_text(table: PaperTable, jobs: Jobs) -> str:
    """The rows that have it, in the paper's order; empty where none has."""
    lines, judged_in = [], []
    for row in table.rows:
        reports = [job.autoattack_8_255 for job in jobs.get(row.recipe, ())]
        judged = [report for report in reports if "autoattack" in report.table("accuracy").values]
        if judged:
            cells = compare(COLUMNS, {}, [{"accuracy": report.table("accuracy").numbers()} for report in judged])
            shown = [cell_text(column, cells[column]) for column in COLUMNS]
            lines.append([plain_text(table.label(row)), str(len(judged)), *shown])
            judged_in += [report.text("precision", "unknown") for report in judged]
    heads = ["row", "seeds", *map(column_title, COLUMNS)]
    return _judged_text(AUTOATTACK_TITLE, AUTOATTACK_SAID, judged_in, _numbers_table(heads, lines)) if lines else ""


def _judged_text(title: str, said: str, judged_in: Iterable[str], lines: Sequence[str]) -> str:
    return "\n".join([f"### {title}\n", f"{said} Judged in: {plain_text(kinds(judged_in))}.\n", *lines]) + "\n"


DISTANCE_TITLE = "Margins and distances (first 1,000)"
DISTANCE_SAID = (
    "Of the correctly classified images among the first 1,000: the median effective margin, the median size of the\n"
    "smallest adversarial perturbation that {} found, in the same norm; the rank correlation of the two across images."
)
FOUND_BY = {"fab-t": "FAB", "full": "DDN, ALMA or FAB", "quick": "DDN or ALMA"}
"""In L2, by method."""
HEADS = ("row", "seeds", "images", "median margin ({})", "median distance ({})", "rank correlation")


def distance_text(table: PaperTable, jobs: Jobs) -> str:
    """The rows that have distances, in the paper's order; empty where none has."""
    measured = [
        (row, found)
        for row in table.rows
        if (found := [job.distance for job in jobs.get(row.recipe, ()) if job.distance is not None])
    ]
    if not measured:
        return ""
    norm = norm_title(measured[0][1][0].norm)
    cells = [[plain_text(table.label(row)), *_distance_cells(found)] for row, found in measured]
    lines = [*_numbers_table([head.format(norm) for head in HEADS], cells), *_across(measured)]
    judged_in = (pairs.precision for _, found in measured for pairs in found)
    methods = (pairs.method for _, found in measured for pairs in found)
    said = DISTANCE_SAID.format(kinds(FOUND_BY.get(method, method) for method in methods))
    return _judged_text(DISTANCE_TITLE, said, judged_in, lines)


def _distance_cells(found: Sequence[Pairs]) -> list[str]:
    known = [pairs.correlation for pairs in found if pairs.correlation is not None]
    images = round(fmean(len(pairs.pairs) for pairs in found))
    medians = [f"{_median(found, place):.3f}" for place in (0, 1)]
    return [str(len(found)), str(images), *medians, f"{fmean(known):.3f}" if known else NONE]


def _median(found: Sequence[Pairs], place: int) -> float:
    """Of the margins (0) or the distances (1), over the seeds."""
    return fmean(median(pair[place] for pair in pairs.pairs) for pairs in found)


def _across(members: Sequence[tuple[PaperRow, Sequence[Pairs]]]) -> list[str]:
    """Whether rows with larger margins have larger distances; of one network and data set alone."""
    if len({row.recipe.split("/")[0] for row, _ in members}) > 1:
        return []
    margins, distances = (torch.tensor([_median(found, place) for _, found in members]) for place in (0, 1))
    correlation = rank_correlation(margins, distances)
    if correlation is None:
        return []
    return ["", f"Across these {len(members)} rows, the medians have the rank correlation {correlation:.2f}."]


FLATTERED_TITLE = "By how much PGD flatters"
FLATTERED_SAID = (
    "The table's PGD climbs the cross-entropy alone. The strongest PGD is, per image, the worst of five with the same\n"
    "steps: the cross-entropy of the logits, of 3 and of 10 times the logits, the margin, and the DLR. AutoAttack is\n"
    "of the first 1,000 images, with the other two on the same ones. Last comes by how much PGD is above it there."
)
STRONGEST = "-strongest"
FLATTERED_HEADS = ("PGD", "strongest", "PGD (1,000)", "strongest (1,000)", "AutoAttack (1,000)", "PGD - AutoAttack")


def flattered_text(table: PaperTable, jobs: Jobs) -> str:
    """The rows judged by the strongest PGD, in the paper's order; empty where none was."""
    lines, judged_in = [], []
    for row in table.rows:
        members = jobs.get(row.recipe, ())
        whole = [job.strongest for job in members if job.strongest.values]
        first = [job.autoattack_1000 for job in members if job.autoattack_1000.values]
        if not whole and not first:
            continue
        found = [*_three(whole)[:2], *_three(first)]
        above = [pgd - worst for pgd, worst in zip(found[2], found[4], strict=True)]
        cells = [cell_text("", Cell.over_seeds(values, None)) for values in (*found, above)]
        lines.append([plain_text(table.label(row)), str(max(len(whole), len(first))), *cells])
        judged_in += [f"{report.text('device')}, {report.text('precision', 'unknown')}" for report in (*whole, *first)]
    heads = ["row", "seeds", *FLATTERED_HEADS]
    return _judged_text(FLATTERED_TITLE, FLATTERED_SAID, judged_in, _numbers_table(heads, lines)) if lines else ""


def _three(reports: Sequence[Fields]) -> list[list[float]]:
    """Accuracies under the table's PGD, under the strongest and under AutoAttack."""
    found: list[list[float]] = [[], [], []]
    for report in reports:
        numbers = report.table("accuracy").numbers()
        strongest = next(name for name in numbers if name.endswith(STRONGEST))
        for values, name in zip(found, (strongest.removesuffix(STRONGEST), strongest, "autoattack"), strict=True):
            values += [numbers[name]] if name in numbers else []
    return found


CERTIFIED_TITLE = "Certified, margin, distance (first 100)"
CERTIFIED_SAID = (
    "Of the correctly classified images among the first 100, medians in the same norm: the radius within which CROWN\n"
    "proves the prediction, the effective margin, and the distance of the nearest adversarial image found. The true\n"
    "distance is between the first and the last, whose ratio is next."
)
CERTIFIED_HEADS = ("images", "certified ({0})", "margin ({0})", "distance ({0})", "certified / distance")


def certified_text(table: PaperTable, jobs: Jobs) -> str:
    """The rows with certified radii, in the paper's order; empty where none has."""
    lines, judged_in, norm = [], [], "l2"
    for row in table.rows:
        found = [job.certified for job in jobs.get(row.recipe, ()) if job.certified.list("triples")]
        if not found:
            continue
        medians = [[median(triple[place] for triple in one.list("triples")) for place in range(3)] for one in found]
        radius, margin, distance = (fmean(values) for values in zip(*medians, strict=True))
        images = round(fmean(len(one.list("triples")) for one in found))
        numbers = [f"{radius:.3f}", f"{margin:.3f}", f"{distance:.3f}", f"{radius / distance:.2f}"]
        lines.append([plain_text(table.label(row)), str(len(found)), str(images), *numbers])
        judged_in += [f"{one.text('device')}, {one.text('precision', 'unknown')}" for one in found]
        norm = found[0].text("norm", norm)
    heads = ["row", "seeds", *(head.format(norm_title(norm)) for head in CERTIFIED_HEADS)]
    return _judged_text(CERTIFIED_TITLE, CERTIFIED_SAID, judged_in, _numbers_table(heads, lines)) if lines else ""
