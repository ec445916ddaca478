"""A job: one row of a table with one seed, in a folder of its own, ``OUT/<recipe>/seed-<n>``.

The run is inside, and ``result.json`` when it is judged. Tables that share a row share its folder. A row whose weights
another row's run keeps beside its own (``Recipe.kept_by``) is trained there (``kept``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from widemargin.checkpoints import read_checksum
from widemargin.config import RunConfig
from widemargin.config_files import differences, read_toml
from widemargin.errors import InputError
from widemargin.evaluation.target import BEST, CONFIG, LAST
from widemargin.experiments.quick import quick
from widemargin.recipes import Recipe, find_recipe
from widemargin.recipes.tables import Row, Table
from widemargin.records import read_table

RUN, RESULT, REPORT = "run", "result.json", "report.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One row with one seed."""

    table: str
    row: Row
    seed: int
    folder: Path
    trained: Recipe
    """What its weights come from: the row's recipe, or the one whose run keeps them."""
    trained_in: Path
    quick: bool
    margins: bool
    """Whether the table reports margins."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.row.recipe.name}, seed {self.seed}"

    @property
    def config(self) -> RunConfig:
        """What the row stands for."""
        return self._with_seed(self.row.recipe)

    @property
    def trained_config(self) -> RunConfig:
        """What is trained."""
        return self._with_seed(self.trained)

    def _with_seed(self, recipe: Recipe) -> RunConfig:
        config = replace(recipe.config, seed=self.seed)
        return quick(config) if self.quick else config

    def result(self) -> dict[str, Any] | None:
        """What was found, if it is done; what it was judged with afterwards is among the accuracies."""
        path = self.folder / RESULT
        if not path.is_file():
            return None
        result = read_table(path, "remove it, and the same command judges the job again")
        ours = self.row.recipe.name, self.seed
        told = result.get("recipe", ours[0]), result.get("seed", ours[1])
        if told != ours:
            raise InputError(
                f"{path} is of {told[0]}, seed {told[1]}, and its folder is of {ours[0]}, seed {ours[1]}; put back its "
                "own, or remove it, and the same command judges the job again"
            )
        if result["quick"] != self.quick:
            raise InputError(
                f"{path} is of a run {_kind(result['quick'])}, this one is {_kind(self.quick)}; choose another --out"
            )
        self._check_recipe()
        later = self.judged_with("autoattack") or {"accuracy": {}}
        added = {name: value for name, value in later["accuracy"].items() if name == "autoattack"}
        return result | {"accuracy": result["accuracy"] | added}

    def _check_recipe(self) -> None:
        """Refuse a run of what the recipe was in another version; what was only watched may differ."""
        path = self.folder / RUN / CONFIG
        if self.quick or not path.is_file():
            return
        changed = [change for change in differences(self.config, read_toml(path)) if not change.startswith("watch.")]
        if changed:
            raise InputError(
                f"{self.folder} holds a run of {self.row.recipe.name} as another version defines it "
                f"({'; '.join(changed[:3])}); choose another --out, or move that folder away"
            )

    def judged_with(self, judgment: str) -> dict[str, Any] | None:
        """The report of a later judgment, if it is done."""
        path = self.folder / judgment / REPORT
        if not path.is_file():
            return None
        remedy = f"remove the folder {path.parent}, and the same command judges again"
        report = read_table(path, remedy)
        weights = next((file for name in (BEST, LAST) if (file := self.folder / RUN / name).is_file()), None)
        ours = None if weights is None else read_checksum(weights)
        if ours is not None and report.get("checkpoint") not in (None, ours):
            raise InputError(f"{path} is of other weights than {weights}; put back its own, or {remedy}")
        return report


def _kind(is_quick: bool) -> str:
    return "made quick" if is_quick else "of full length"


def choose_rows(table: Table, names: Sequence[str] | None, option: str = "--rows") -> list[Row]:
    """The rows asked for by recipe name (whole or its last part), or all."""
    if names is None:
        return list(table.rows)
    chosen = []
    for name in names:
        fits = [row for row in table.rows if name in (row.recipe.name, row.recipe.name.split("/")[1])]
        if not fits:
            known = ", ".join(dict.fromkeys(row.recipe.name for row in table.rows))
            raise InputError(f"{option}: {name!r} is not in this table; its rows are {known}")
        chosen += fits
    return chosen


def jobs(table: Table, rows: Sequence[Row], seeds: Sequence[int], out: Path, *, is_quick: bool) -> list[Job]:
    """Every row with every seed."""
    margins = "margin_test" in table.columns
    return [
        Job(
            table=table.name,
            row=row,
            seed=seed,
            folder=_folder(out, row.recipe, seed),
            trained=trained,
            trained_in=_folder(out, trained, seed) / RUN,
            quick=is_quick,
            margins=margins,
        )
        for row, trained in ((row, _trained(row.recipe)) for row in rows)
        for seed in seeds
    ]


def _trained(recipe: Recipe) -> Recipe:
    return find_recipe(recipe.kept_by) if recipe.kept_by else recipe


def _folder(out: Path, recipe: Recipe, seed: int) -> Path:
    return out / recipe.name.replace("/", "-") / f"seed-{seed}"
