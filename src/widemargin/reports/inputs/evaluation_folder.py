"""An evaluation folder: ``report.json``, ``examples.jsonl`` and, where asked for, ``gallery.npz``."""

from pathlib import Path

from widemargin.errors import InputError
from widemargin.reports.inputs.evaluation import Alarm, Distance, Evaluation, Margins, Radius
from widemargin.reports.inputs.examples import EXAMPLES, read_examples
from widemargin.reports.inputs.fields import Fields, read_json
from widemargin.reports.inputs.gallery_file import GALLERY, read_gallery

REPORT = "report.json"
AGAIN = "evaluate again, which makes it anew from the shards"
EXAMPLES_DIGEST, GALLERY_DIGEST = "examples", "gallery"
FAMILY, FORMAT = "widemargin-evaluation-", "widemargin-evaluation-1"


def read_evaluation(folder: Path) -> Evaluation | None:
    """Read a finished evaluation; None where ``report.json`` is somebody else's."""
    path = folder / REPORT
    content = read_json(path, AGAIN)
    if not isinstance(content, dict) or not str(content.get("format", "")).startswith(FAMILY):
        return None
    if content["format"] != FORMAT:
        raise InputError(
            f"{path} has the format {content['format']!r}, this version reads {FORMAT!r}; update widemargin"
        )
    return _evaluation(folder, Fields(path, content))


def _evaluation(folder: Path, report: Fields) -> Evaluation:
    data = report.table("data")
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
        epoch=report.whole("epoch"),
        data=data.text("name"),
        source=data.text("source"),
        head_scale=report.number("head_scale"),
        split=data.text("split", "test"),
        count=data.whole("count"),
        whole=data.whole("whole"),
        norm=report.text("norm", "linf"),
        eps=[radius(row) for row in report.tables("eps")],
        step_size=report.number("step_size"),
        seed=report.whole("seed"),
        shard_size=report.whole("shard_size"),
        batch_size=report.whole("batch_size"),
        attacks=[str(name) for name in report.list("attacks")],
        search=_search(report),
        accuracy=report.table("accuracy").numbers(),
        curves=curves(report.table("curves")),
        margins={key: margins(report.table("margins").table(key)) for key in report.table("margins").values},
        margin_norm=report.text("margin_norm") or report.text("norm", "linf"),
        distance=_distance(report),
        alarms=[
            Alarm(a.text("name", "alarm"), a.text("message"), a.text("suggestion")) for a in report.tables("alarms")
        ],
        notes=[str(note) for note in report.list("notes")],
        versions=report.table("versions").words(),
        device=report.text("device"),
        precision=report.text("precision"),
        seconds=report.table("seconds").numbers(),
        config=report.table("config").values,
        examples=read_examples(folder / EXAMPLES, digest=report.text(EXAMPLES_DIGEST)),
        gallery=read_gallery(folder / GALLERY, digest=report.text(GALLERY_DIGEST)),
    )


def radius(row: Fields) -> Radius:
    """One eps."""
    value = row.number("value")
    if value is None:
        raise InputError(f"{row.path}: {row.prefix}value is missing; evaluate again")
    return Radius(row.text("written", f"{value:g}"), value)


def margins(row: Fields) -> Margins:
    """One summary of margins."""
    return Margins(
        count=row.whole("count") or 0,
        mean=row.number("mean"),
        std=row.number("std"),
        quantiles=row.table("quantiles").numbers(),
    )


def _search(report: Fields) -> str:
    """Older files say it in the words for people alone."""
    told = "tf32" if report.text("precision").endswith("searched with TF32") else "float32"
    return report.text("search", told)


def _distance(report: Fields) -> Distance | None:
    row = report.table("distance")
    if not row.values:
        return None
    return Distance(row.whole("count") or 0, row.number("median"), row.number("rank_correlation"))


def curves(table: Fields) -> dict[str, list[tuple[Radius, float]]]:
    """Attack -> accuracy at each eps, the smallest first."""
    return {attack: sorted(_curve(table.tables(attack)), key=lambda point: point[0].value) for attack in table.values}


def _curve(rows: list[Fields]) -> list[tuple[Radius, float]]:
    found = [(row, row.number("eps"), row.number("accuracy")) for row in rows]
    return [
        (Radius(row.text("written", f"{eps:g}"), eps), accuracy)
        for row, eps, accuracy in found
        if eps is not None and accuracy is not None
    ]
