"""``widemargin compare``: which of two models is better, by how much, and whether it could be chance."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from widemargin.cli.options import Json, listed
from widemargin.core.screen import console_for, say, show_table
from widemargin.errors import InputError
from widemargin.evaluation.compare_folders import JudgedFolder, common_names, compare_sides, read_sides
from widemargin.evaluation.comparison import NUMBERS, Comparison, strongest_common

Side = Annotated[
    str,
    typer.Argument(
        help="An evaluation folder; several, for the seeds of one model, as a comma-separated list or a quoted pattern."
    ),
]


def compare(
    first: Side,
    second: Side,
    by: Annotated[
        str | None,
        typer.Option(
            help="autoattack, pgd20, clean, margin, distance, ...; default: the strongest attack in common.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Which of two evaluated models is better: paired on the same images, over seeds where there are several."""
    sides = read_sides(_folders("FIRST", first), _folders("SECOND", second))
    chosen = by or strongest_common([judged.images for side in sides for judged in side])
    found = compare_sides(sides, chosen)
    others = [compare_sides(sides, name) for name in _other_names(sides, chosen)]
    if as_json:
        typer.echo(json.dumps(_record(found, others, sides), indent=2))
        return
    console = console_for()
    say(console, found.sentence())
    unit = "points" if all(name not in NUMBERS for name in (found.by, *(other.by for other in others))) else ""
    header = ("by", found.first, found.second, f"difference{f', {unit}' if unit else ''}", "95% interval", "p")
    show_table(console, header, [_row(one) for one in (found, *others)], notes=list(_notes(found, sides)))


def _folders(name: str, text: str) -> list[str]:
    """A list, in which patterns stand for what they match."""
    folders: list[str] = []
    for part in listed(text):
        anchor = Path(part).anchor
        found = Path(anchor or ".").glob(str(Path(part).relative_to(anchor)))
        matched = sorted(map(str, found)) if any(sign in part for sign in "*?[") else [part]
        if not matched:
            raise InputError(f"{name}: nothing matches {part!r}; give evaluation folders")
        folders += matched
    if not folders:
        raise InputError(f"{name} must name at least one evaluation folder, got {text!r}")
    return folders


def _other_names(sides: tuple[list[JudgedFolder], list[JudgedFolder]], chosen: str) -> Iterator[str]:
    """What else all of them have; numbers only where some image has one on both sides."""
    for name in common_names(sides):
        if name == chosen:
            continue
        if name in NUMBERS and not all(
            (judged.images.numbers[name].isfinite() & judged.images.verdicts["clean"]).any()
            for side in sides
            for judged in side
        ):
            continue
        yield name


def _row(one: Comparison) -> Sequence[str]:
    spell = "{:.4g}" if one.by in NUMBERS else "{:.2f}"
    numbers = [spell.format(value) for value in (one.value_first, one.value_second)]
    signed = spell.replace(":", ":+")
    p_value = "" if one.p_value is None else "< 0.001" if one.p_value < 0.001 else f"{one.p_value:.3f}"
    interval = f"{signed.format(one.low)} to {signed.format(one.high)}"
    return one.by, *numbers, signed.format(one.difference), interval, p_value


def _notes(found: Comparison, sides: tuple[list[JudgedFolder], list[JudgedFolder]]) -> Iterator[str]:
    """What the numbers are of."""
    counts = [len(side) for side in sides]
    if max(counts) == 1:
        yield (
            f"{found.images:,} images, paired; the first alone is ahead on {found.only_first:,}, the second alone on "
            f"{found.only_second:,} ({found.by})"
        )
        return
    how = "paired by seed" if found.paired else "not paired: their seeds are not the same"
    yield f"{counts[0]} and {counts[1]} seeds on the same {found.images:,} images, {how}"


def _record(
    found: Comparison, others: Sequence[Comparison], sides: tuple[list[JudgedFolder], list[JudgedFolder]]
) -> dict[str, Any]:
    folders = [[judged.images.name for judged in side] for side in sides]
    record = {"sentence": found.sentence(), **asdict(found), "decided": found.decided, "folders": folders}
    return record | {"others": [asdict(one) | {"decided": one.decided} for one in others]}
