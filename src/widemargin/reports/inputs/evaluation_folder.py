"""An evaluation folder: ``report.json``, ``examples.jsonl`` and, where asked for, ``gallery.npz``."""

import re
from functools import partial
from pathlib import Path

from widemargin.errors import InputError
from widemargin.reports.inputs.evaluation import Alarm, Distance, Evaluation, Margins, Radius
from widemargin.reports.inputs.examples import EXAMPLES, read_examples
from widemargin.reports.inputs.fields import Fields, attempted, read_json
from widemargin.reports.inputs.gallery_file import GALLERY, read_gallery

REPORT = "report.json"
AGAIN = "evaluate again, which makes it anew from the shards"
EXAMPLES_DIGEST, GALLERY_DIGEST = "examples", "gallery"
COLUMNS = 1000
"""Accuracies of one evaluation: some attacks at some eps."""
FAMILY, FORMAT = "widemargin-evaluation-", "widemargin-evaluation-1"


def read_evaluation(folder: Path, faults: list[str] | None = None) -> Evaluation | None:
    """Read a finished evaluation; None where ``report.json`` is somebody else's."""
    path = folder / REPORT
    content = read_json(path, AGAIN)
    if not isinstance(content, dict) or not str(content.get("format", "")).startswith(FAMILY):
        return None
    if content["format"] != FORMAT:
        raise InputError(
            f"{path} has the format {content['format']!r}, this version reads {FORMAT!r}; update widemargin"
        )
    return _evaluation(folder, Fields(path, content), faults)


def _evaluation(folder: Path, report: Fields, faults: list[str] | None) -> Evaluation:
    data, norm = report.table("data"), report.text("norm", "linf")
    margin_norm = report.text("margin_norm") or norm
    if not report.table("accuracy").values:
        raise InputError(f"{report.path} has no accuracy; evaluate again")
    return Evaluation(
        folder=folder,
        file=report.path,
        target=report.text("target"),
        name=report.text("name") or None,
        weights=report.text("weights"),
        checkpoint=report.text("checkpoint"),
        selection=report.text("selection"),
        epoch=report.count("epoch"),
        data=data.text("name"),
        source=data.text("source"),
        head_scale=report.number("head_scale"),
        normalize=report.text("normalize"),
        split=data.text("split", "test"),
        count=data.count("count"),
        whole=data.count("whole"),
        norm=norm,
        eps=[radius(row) for row in report.tables("eps")],
        step_size=report.number("step_size"),
        seed=report.whole("seed"),
        shard_size=report.count("shard_size"),
        batch_size=report.count("batch_size"),
        attacks=report.texts("attacks"),
        search=_search(report),
        accuracy=accuracies(report.table("accuracy")),
        curves=curves(report.table("curves")),
        margins=[margins(report.table("margins").table(of), of, margin_norm) for of in report.table("margins").values],
        margin_norm=margin_norm,
        distance=_distance(report),
        alarms=[
            Alarm(a.text("name", "alarm"), a.text("message"), a.text("suggestion"))
            for a in report.tables("alarms")[:COLUMNS]
        ],
        notes=report.texts("notes")[:COLUMNS],
        versions=report.table("versions").words(),
        device=report.text("device"),
        precision=report.text("precision"),
        seconds=report.table("seconds").numbers(),
        config=report.table("config").values,
        examples=attempted(partial(read_examples, digest=report.text(EXAMPLES_DIGEST)), folder / EXAMPLES, faults),
        gallery=attempted(partial(read_gallery, digest=report.text(GALLERY_DIGEST)), folder / GALLERY, faults),
    )


def radius(row: Fields) -> Radius:
    """One eps."""
    value = row.number("value")
    if value is None:
        raise InputError(f"{row.path}: {row.prefix}value is missing; evaluate again")
    return Radius(row.text("written", f"{value:g}"), value)


def accuracies(table: Fields) -> dict[str, float]:
    """Accuracy in percent by attack, and by eps where there are several."""
    if len(table.values) > COLUMNS:
        raise InputError(f"{table.path} holds {len(table.values):,} accuracies, more than {COLUMNS:,}")
    return table.percents()


def margins(row: Fields, of: str, norm: str) -> Margins:
    """One summary of margins."""
    quantiles = row.table("quantiles")
    for key in quantiles.values:
        if not re.fullmatch(r"[01]|0?\.[0-9]{1,9}|1\.0{1,9}", key):
            raise InputError(f"{row.path}: {quantiles.prefix}{key} must be a share such as 0.25")
    return Margins(of, norm, row.count("count") or 0, row.number("mean"), row.number("std"), quantiles.numbers())


def _search(report: Fields) -> str:
    """Older files say it in the words for people alone."""
    told = "tf32" if report.text("precision").endswith("searched with TF32") else "float32"
    return report.text("search", told)


def _distance(report: Fields) -> Distance | None:
    row = report.table("distance")
    if not row.values:
        return None
    return Distance(row.count("count") or 0, row.number("median"), row.number("rank_correlation"))


def curves(table: Fields) -> dict[str, list[tuple[Radius, float]]]:
    """Attack -> accuracy at each eps, the smallest first."""
    return {attack: sorted(_curve(table.tables(attack)), key=lambda point: point[0].value) for attack in table.values}


def _curve(rows: list[Fields]) -> list[tuple[Radius, float]]:
    found = [(row, row.number("eps"), row.percent("accuracy")) for row in rows]
    return [
        (Radius(row.text("written", f"{eps:g}"), eps), accuracy)
        for row, eps, accuracy in found
        if eps is not None and accuracy is not None
    ]
