"""A shard as far as it is judged: columns of verdicts, and what was measured; from its lines and back to them.

More columns may come later. What broke an image is no column: it follows from the verdicts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from widemargin.attacks.names import AUTOATTACK, AUTOATTACK_PARTS, variant_names
from widemargin.core.records import Record
from widemargin.evaluation.columns import CLEAN, Column, columns_of_settings, labels

_OF_A_LINE = ("index", "label", "prediction", "verdicts", "broken_by", "broken_at", "strongest_by")
"""Whatever else a line has was measured."""
BY = "_by"
"""Ends the key beside that of a measurement, of what found it."""
PROVEN, BOUND = "proven", "upper bound"
"""What a margin of many classes is, in ``margin_by``."""
COUNTS = ("refuted", "again")
"""Finds that did not hold in float32, and images whose distance was searched again."""


@dataclass(kw_only=True)
class JudgedShard:
    """Everything per image, in their order."""

    first: int
    labels: list[int]
    predictions: list[int]
    verdicts: dict[Column, list[bool]]
    measured: dict[str, list[Any]] = field(default_factory=dict)
    depends: dict[str, Any] = field(default_factory=dict)
    """What a measurement depends on, where there is more than one way."""
    seconds: dict[Column | str, float] = field(default_factory=dict)
    undecided: dict[Column, list[int]] = field(default_factory=dict)
    """By column, the indices of attacked images without a prediction."""
    counts: dict[str, int] = field(default_factory=dict)
    images: dict[Column, str] = field(default_factory=dict)
    """By column, the digest of the file with the adversarial images."""

    @classmethod
    def begun(cls, first: int, labels: list[int], predictions: list[int], seconds: float) -> "JudgedShard":
        """With the predictions alone."""
        clean = Column(attack=CLEAN)
        right = [prediction == label for prediction, label in zip(predictions, labels, strict=True)]
        return cls(
            first=first, labels=labels, predictions=predictions, verdicts={clean: right}, seconds={clean: seconds}
        )

    @classmethod
    def from_lines(
        cls, header: Record, rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
    ) -> "JudgedShard":
        """What the lines say; ``settings`` are those of the folder, which tell what the labels of old lines mean."""
        told = header.get("columns")
        known = (
            columns_of_settings(settings)
            if told is None
            else {label: Column.from_json(table) for label, table in told.items()}
        )
        meant = {label: known.get(label, Column(attack=label)) for label in rows[0]["verdicts"]}
        keys = [key for key in rows[0] if key not in _OF_A_LINE]
        return cls(
            first=header["first"],
            labels=[row["label"] for row in rows],
            predictions=[row["prediction"] for row in rows],
            verdicts={column: [row["verdicts"][label] for row in rows] for label, column in meant.items()},
            measured={key: [row[key] for row in rows] for key in keys},
            depends=dict(header.get("depends", {})),
            seconds={meant.get(name, name): value for name, value in header.get("seconds", {}).items()},
            undecided={meant[name]: where for name, where in header.get("undecided", {}).items()},
            counts={name: header[name] for name in COUNTS if name in header},
            images={meant[name]: digest for name, digest in header.get("images", {}).items()},
        )

    def set_aside(self, name: str) -> None:
        """Keep a measurement that was made in another way, under a name of its own."""
        if name in self.measured:
            aside = f"{name} ({self.depends.pop(name, 'as before')})"
            for end in ("", BY):
                if name + end in self.measured:
                    self.measured[aside + end] = self.measured.pop(name + end)

    def bring_back(self, name: str, depends: Any) -> bool:
        """Whether a measurement in that way was set aside; it is in its place again."""
        aside = f"{name} ({'as before' if depends is None else depends})"
        if aside not in self.measured:
            return False
        for end in ("", BY):
            if aside + end in self.measured:
                self.measured[name + end] = self.measured.pop(aside + end)
        self.depends |= {} if depends is None else {name: depends}
        return True

    def lines(self) -> tuple[Record, list[Record]]:
        """(header, a line for each image), with the labels of the columns that are here."""
        names = labels(self.verdicts)
        header: Record = {
            "first": self.first,
            "count": len(self.labels),
            "columns": {name: column.to_json() for column, name in names.items()},
            "seconds": {names[key] if isinstance(key, Column) else key: value for key, value in self.seconds.items()},
            **self.counts,
        }
        tables: dict[str, dict[Column, Any]] = {"undecided": self.undecided, "images": self.images}
        header |= {key: {names[c]: value for c, value in table.items()} for key, table in tables.items() if table}
        header |= {"depends": self.depends} if self.depends else {}
        return header, list(self.rows(names, list(self.measured)))

    def rows(self, names: Mapping[Column, str], measured: Sequence[str]) -> Iterator[Record]:
        """A line for each image, of these columns alone, called so."""
        breakers = {column: self._breakers(column) for column in names if column.attack == AUTOATTACK}
        winners = {column: self._winners(column, names) for column in names if variant_names(column.attack)}
        for place, (label, prediction) in enumerate(zip(self.labels, self.predictions, strict=True)):
            parts = {column.written: broken[place] for column, broken in breakers.items()}
            broken_by = (
                part if len(parts) == 1 else f"{part}@{eps}" for eps, part in parts.items() if part is not None
            )
            row: Record = {
                "index": self.first + place,
                "label": label,
                "prediction": prediction,
                "verdicts": {name: self.verdicts[column][place] for column, name in names.items()},
                "broken_by": next(broken_by, None),
                "broken_at": parts,
            }
            row |= {"strongest_by": {names[c]: by[place] for c, by in winners.items()}} if winners else {}
            yield row | {key: self.measured[key][place] for key in measured}

    def _breakers(self, whole: Column) -> list[str | None]:
        """The part of AutoAttack that broke each image at that eps."""
        return self._first_wrong({part: part_column(whole, part) for part in AUTOATTACK_PARTS})

    def _winners(self, strongest: Column, names: Mapping[Column, str]) -> list[str | None]:
        """The label of the first variant that broke each image."""
        variants = [sibling(strongest, name) for name in variant_names(strongest.attack)]
        return self._first_wrong({names[variant]: variant for variant in variants if variant in names})

    def _first_wrong(self, columns: Mapping[str, Column]) -> list[str | None]:
        there = {name: self.verdicts[column] for name, column in columns.items() if column in self.verdicts}
        clean = self.verdicts[Column(attack=CLEAN)]
        return [
            next((name for name, right in there.items() if not right[place]), None) if clean[place] else None
            for place in range(len(self.labels))
        ]


def sibling(column: Column, attack: str) -> Column:
    """The column of another attack at the same eps with the same step."""
    return Column(attack=attack, radius=column.radius, step_size=column.step_size, written=column.written)


def part_column(whole: Column, part: str) -> Column:
    """The column of a part of AutoAttack at the eps of the whole."""
    return sibling(whole, f"{AUTOATTACK}/{part}")
