"""Margins beside distances: a small table below the paper's, of the rows whose distances were measured.

Does a larger margin go with a larger distance? Across the images of a row, and across the rows.
"""

from collections.abc import Sequence
from statistics import fmean, median

import torch

from widemargin.ranks import rank_correlation
from widemargin.reports.collection.circumstances import kinds
from widemargin.reports.collection.paper import PaperRow, PaperTable
from widemargin.reports.collection.table_text import NONE, Jobs, line
from widemargin.reports.collection.tree import CollectedJob, Pairs
from widemargin.reports.measures import norm_title
from widemargin.reports.tables import plain

TITLE = "Margins and distances (first 1,000)"
SAID = """Of the correctly classified images among the first 1,000: the median effective margin, the median size of the
smallest adversarial perturbation that FAB found, in the same norm; the rank correlation of the two across images."""
HEADS = ("row", "seeds", "images", "median margin ({})", "median distance ({})", "rank correlation")


def distance_text(table: PaperTable, jobs: Jobs) -> str:
    """The rows that have distances, in the paper's order; empty where none has."""
    members = [(row, found) for row in table.rows if (found := _measured(jobs.get(row.recipe, ())))]
    if not members:
        return ""
    measured = [(table.label(row), found) for row, found in members]
    norm = norm_title(measured[0][1][0].norm)
    lines = [line([head.format(norm) for head in HEADS]), line([":--", *["--:"] * (len(HEADS) - 1)])]
    lines += [line([plain(label), *_cells(found)]) for label, found in measured]
    precision = kinds(pairs.precision for _, found in measured for pairs in found)
    return (
        "\n".join(
            [
                f"### {TITLE}\n",
                f"{SAID} Judged in: {plain(precision)}.\n",
                *lines,
                *_across(members),
            ]
        )
        + "\n"
    )


def _measured(jobs: Sequence[CollectedJob]) -> list[Pairs]:
    return [job.distance for job in jobs if job.distance is not None]


def _cells(found: Sequence[Pairs]) -> list[str]:
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
