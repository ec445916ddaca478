"""What can be said of an evaluation before it is finished: its settings, and the shards that are done."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from widemargin.core.records import DIGEST, MIB, Fields, Lines, Record, attempted, read_json, read_text
from widemargin.errors import InputError
from widemargin.evaluation.examples import KEYS, check_shard, columns
from widemargin.evaluation.folder import COLUMNS, SETTINGS, SHARDS, Evaluation, Radius

SHARD = 32 * MIB
"""Bytes of one."""


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


def read_unfinished(folder: Path, faults: list[str] | None = None) -> Evaluation | None:
    """What can be said so far; None where the settings are somebody else's."""
    content = read_json(folder / SETTINGS)
    if not isinstance(content, dict) or not {"attacks", "eps", "norm"} <= content.keys():
        return None
    settings, tally = Fields(folder / SETTINGS, content), _Tally()
    examples = columns(folder / SHARDS, tally.counted(_examples(folder / SHARDS, content, faults)))
    return Evaluation(
        folder=folder,
        file=settings.path,
        finished=False,
        data=settings.text("data"),
        count=len(examples) if examples else 0,
        norm=settings.text("norm", "linf"),
        margin_norm=settings.text("norm", "linf"),
        eps=[_radius_as_kept(settings, value) for value in settings.list("eps")],
        step_size=settings.number("step_size"),
        seed=settings.whole("seed"),
        shard_size=settings.count("shard_size"),
        batch_size=settings.count("batch_size"),
        attacks=settings.texts("attacks"),
        accuracy=tally.accuracy(),
        examples=examples,
    )


def _examples(shards: Path, settings: Record, faults: list[str] | None) -> Iterator[Record]:
    """The examples of all shards, each shard once. A damaged one is left out whole."""
    seen: dict[int, Path] = {}
    for path in sorted(shards.glob("*.jsonl")):
        yield from attempted(partial(_shard, settings=settings, seen=seen), path, faults) or ()


def _shard(path: Path, settings: Record, seen: dict[int, Path]) -> Sequence[Record]:
    """Its examples, each of which can be shown; ``seen`` are the shards so far, by their first image."""
    lines: Sequence[Record] = list(Lines(path, SHARD))
    if lines and DIGEST in lines[0]:
        images = path.with_suffix(".sha256")
        header, lines = check_shard(path, lines, settings, read_text(images).strip() if images.is_file() else "")
        other = seen.setdefault(header["first"], path)
        if other != path:
            raise InputError(f"{path} holds the same images as {other}; remove one of them")
    examples = [  # a header has no verdicts; in earlier versions it may be missing
        {key: line[key] for key in KEYS if key in line} for line in lines if isinstance(line.get("verdicts"), dict)
    ]
    columns(path, examples)
    return examples


class _Tally:
    """How many examples are right by each verdict, counted in passing."""

    def __init__(self) -> None:
        self._right: Counter[str] = Counter()
        self._all: Counter[str] = Counter()

    def counted(self, lines: Iterable[Record]) -> Iterator[Record]:
        for line in lines:
            for name, verdict in line["verdicts"].items():
                self._right[name] += bool(verdict)
                self._all[name] += 1
            if len(self._all) > COLUMNS:
                raise InputError(f"the examples hold more than {COLUMNS:,} kinds of verdicts; were they damaged?")
            yield line

    def accuracy(self) -> dict[str, float]:
        return {name: 100.0 * self._right[name] / count for name, count in self._all.items()}


def _radius_as_kept(settings: Fields, value: Any) -> Radius:
    """An eps as it is kept: as written, or as written and as a number."""
    written = value[0] if isinstance(value, list) and value else value
    one = Fields(settings.path, {"eps": written}, settings.prefix)
    size = one.size("eps")
    if size is None:
        raise InputError(f"{settings.path}: eps has no size; evaluate again")
    return Radius(one.text("eps"), size)
