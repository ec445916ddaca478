"""An evaluation still under way: ``settings.json`` and the shards finished so far, without a ``report.json``."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from widemargin.errors import InputError
from widemargin.records import DIGEST, read_shard, read_text
from widemargin.reports.inputs.evaluation import Evaluation, Radius
from widemargin.reports.inputs.examples import examples_of
from widemargin.reports.inputs.fields import Fields, read_json, read_lines
from widemargin.written import Written

SETTINGS, SHARDS = "settings.json", "shards"


def is_unfinished_evaluation(folder: Path) -> bool:
    """Whether an evaluation was begun here: its settings are the first thing it writes."""
    return (folder / SETTINGS).is_file() and ((folder / SHARDS).is_dir() or b'"attacks"' in _start(folder / SETTINGS))


def _start(path: Path) -> bytes:
    """Enough of a file, which may be anybody's, to see whose it is."""
    try:
        with path.open("rb") as stream:
            return stream.read(10_000)
    except OSError:
        return b""


def read_unfinished(folder: Path) -> Evaluation | None:
    """What can be said so far; None where the settings are somebody else's."""
    content = read_json(folder / SETTINGS)
    if not isinstance(content, dict) or not {"attacks", "eps", "norm"} <= content.keys():
        return None
    settings = Fields(folder / SETTINGS, content)
    lines = _examples(folder / SHARDS, content)
    return Evaluation(
        folder=folder,
        file=settings.path,
        finished=False,
        data=settings.text("data"),
        count=len(lines),
        norm=settings.text("norm", "linf"),
        margin_norm=settings.text("norm", "linf"),
        eps=[_radius(settings, value) for value in settings.list("eps")],
        step_size=settings.number("step_size"),
        seed=settings.whole("seed"),
        shard_size=settings.whole("shard_size"),
        batch_size=settings.whole("batch_size"),
        attacks=[str(name) for name in settings.list("attacks")],
        accuracy=_accuracy(lines),
        examples=examples_of(folder / SHARDS, lines) if lines else None,
    )


def _examples(folder: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those of every shard, each once."""
    lines: list[dict[str, Any]] = []
    seen: dict[int, Path] = {}
    for path in sorted(folder.glob("*.jsonl")):
        images = path.with_suffix(".sha256")
        of = read_text(images).strip() if images.is_file() else ""
        found = read_lines(path)[0]
        if not found or DIGEST not in found[0]:  # of an earlier version: a header may be missing
            lines += [line for line in found if isinstance(line.get("verdicts"), dict)]
            continue
        header, rows = read_shard(path, read_text(path), settings, of)
        other = seen.setdefault(header["first"], path)
        if other != path:
            raise InputError(f"{path} holds the same images as {other}; remove one of them")
        lines += rows
    return lines


def _radius(settings: Fields, value: Any) -> Radius:
    """An eps as it is kept: as written, or as written and as a number."""
    written = value[0] if isinstance(value, list) and value else value
    try:
        return Radius(str(written), float(Written(str(written))))
    except InputError as error:
        raise InputError(f"{settings.path}: eps: {error}") from None


def _accuracy(lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    verdicts: dict[str, list[bool]] = {}
    for line in lines:
        for name, verdict in line["verdicts"].items():
            verdicts.setdefault(name, []).append(bool(verdict))
    return {name: 100.0 * sum(found) / len(found) for name, found in verdicts.items()}
