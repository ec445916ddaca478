"""A job: one row of a table with one seed, in a folder of its own, ``OUT/<recipe>/seed-<n>``.

The run is inside, and ``result.json`` when it is judged. Tables that share a row share its folder. A row of averaged
weights that another row's run keeps beside its own (``Recipe.averages_of``) is trained there. A task is a job to train
and judge, or a finished job to judge once more; a task that is done is not done again.

The best rows of a table are so by our own numbers: for each method on each network (the rows of the paper's table with
the same name, which differ in weight decay) the row of the highest accuracy under the table's strongest PGD.

A quick job is its recipe made small: two epochs (schedules and burn-in shrunk with them), a handful of embedded images,
two attack steps, narrow networks, noise in place of a second source's images. Every line of its code still runs, in
seconds; its numbers mean nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from widemargin.attacks.pgd import PGD
from widemargin.config.checkpoint import BEST, CONFIG, LAST, read_checksum
from widemargin.config.run import AveragingConfig, AWPConfig, DataConfig, RunConfig
from widemargin.config.toml import differences, read_toml
from widemargin.core.records import read_table
from widemargin.errors import InputError
from widemargin.evaluation.folder import REPORT
from widemargin.models.classifier import ModelConfig
from widemargin.objectives.ikl import Ikl
from widemargin.objectives.mail import Mail
from widemargin.recipes import find_recipe
from widemargin.recipes.recipe import Recipe
from widemargin.recipes.tables import Row, Table
from widemargin.schedules import Cosine, OneCycle, OneCycleMomentum, Piecewise, Steps, Triangular, WarmUp

RUN, RESULT = "run", "result.json"


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
    starts_in: Path | None
    """The run whose weights it begins with."""
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
        if self.starts_in is not None:
            config = replace(config, init_from=str(self.starts_in))
        return smoke(config) if self.quick else config

    def result(self) -> dict[str, Any] | None:
        """What was found, if it is done; what it was judged with afterwards is among the accuracies."""
        path = self.folder / RESULT
        if not path.is_file():
            return None
        result = read_table(path, "remove it, and the same command judges the job again")
        ours = self.row.recipe.name, self.seed
        recorded = result.get("recipe", ours[0]), result.get("seed", ours[1])
        if recorded != ours:
            raise InputError(
                f"{path} is of {recorded[0]}, seed {recorded[1]}, and its folder is of {ours[0]}, seed {ours[1]}; put "
                "back its own, or remove it, and the same command judges the job again"
            )
        if result["quick"] != self.quick:
            raise InputError(
                f"{path} is of a run {_kind(result['quick'])}, this one is {_kind(self.quick)}; choose another --out"
            )
        self._check_recipe()
        judged = self.judged_with("autoattack") or {"accuracy": {}}
        added = {name: value for name, value in judged["accuracy"].items() if name == "autoattack"}
        return result | {"accuracy": result["accuracy"] | added}

    def _check_recipe(self) -> None:
        """Refuse a run of what the recipe was in another version; what was watched may differ."""
        path = self.folder / RUN / CONFIG
        if self.quick or not path.is_file():
            return
        allowed = ("watch.", "init_from:")  # the second says in which folder the first weights lie
        changed = [change for change in differences(self.config, read_toml(path)) if not change.startswith(allowed)]
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
        found = [row for row in table.rows if name in (row.recipe.name, row.recipe.name.split("/")[1])]
        if not found:
            known = ", ".join(dict.fromkeys(row.recipe.name for row in table.rows))
            raise InputError(f"{option}: {name!r} is not in this table; its rows are {known}")
        chosen += found
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
            starts_in=_folder(out, find_recipe(trained.starts_from), seed) / RUN if trained.starts_from else None,
            quick=is_quick,
            margins=margins,
        )
        for row in rows
        for trained in (find_recipe(row.recipe.averages_of) if row.recipe.averages_of else row.recipe,)
        for seed in seeds
    ]


def _folder(out: Path, recipe: Recipe, seed: int) -> Path:
    return out / recipe.name.replace("/", "-") / f"seed-{seed}"


def method_of(row: Row) -> tuple[str, str]:
    """("mnist-mlp", "AT+LSoftmax"), say; a row that the paper does not have is one of ST or AT."""
    config = row.recipe.config
    return config.name.split("/")[0], row.published.row or ("AT" if config.objective.attacks else "ST")


def best_rows(rows: Sequence[Row], work: Sequence[Job]) -> list[Row]:
    """The best row of each method, over the seeds that are done; of equal ones the first."""
    best: dict[tuple[str, str], tuple[float, Row]] = {}
    for row in rows:
        score, method = _score([job for job in work if job.row is row]), method_of(row)
        if score is not None and (method not in best or score > best[method][0]):
            best[method] = score, row
    return [row for _, row in best.values()]


def _score(work: Sequence[Job]) -> float | None:
    plan = work[0].config.evaluation if work else None
    attacks = [name for name in plan.attacks if name.startswith("pgd")] if plan else []
    results = [result for job in work if (result := job.result()) is not None]
    return fmean(result["accuracy"][attacks[-1]] for result in results) if attacks and results else None


@dataclass(frozen=True)
class Task:
    """``judgment`` is None for the job itself."""

    job: Job
    judgment: str | None = None

    @property
    def label(self) -> str:
        """For people."""
        return self.job.name + (f", {self.judgment}" if self.judgment else "")

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        if self.judgment is None:
            return self.job.result() is not None
        return self.job.judged_with(self.judgment) is not None


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Where the data is and what computes; ``workers`` jobs share it."""

    data_dir: str | None
    device: str
    engine: str = "auto"
    workers: int = 1


EPOCHS, BATCH, TRAIN, TEST, HELD_OUT, MARGINS, ATTACK_STEPS = 2, 32, 64, 40, 20, 16, 2
EMBEDDED = {"mnist": "mnist-embedded", "cifar10": "cifar10-embedded"}
SUMMARY = (
    f"{EPOCHS} epochs, {TRAIN} embedded training and {TEST} test images, batches of {BATCH}, {ATTACK_STEPS} attack "
    "steps, WRN-10-1 and ResNet-18 of width 8; a second source is noise"
)
TIMES: dict[type, tuple[str, ...]] = {
    OneCycle: ("epochs", "peak"),
    Triangular: ("epochs", "peak"),
    Cosine: ("epochs", "start"),
    WarmUp: ("epochs",),
    AveragingConfig: ("warmup",),
}
"""Which settings are epochs, and shrink with them; those that are whole numbers have lines of their own."""


def smoke(config: RunConfig) -> RunConfig:
    """The same run made small, as ``--quick`` has it: every line of its code runs, and its numbers mean nothing."""
    small: RunConfig = _small(config, EPOCHS / config.epochs)
    return replace(
        small,
        epochs=EPOCHS,
        batch_size=min(config.batch_size, BATCH),
        data=replace(
            config.data,
            name=EMBEDDED.get(config.data.name, config.data.name),
            held_out=min(config.data.held_out, HELD_OUT),
            train_limit=TRAIN,
            test_limit=TEST,
        ),
        watch=replace(small.watch, margin_samples=MARGINS),
    )


def _small(value: Any, ratio: float) -> Any:
    """The value with everything inside it made small."""
    if isinstance(value, ModelConfig):
        return value.smoke()
    if isinstance(value, PGD):
        return replace(value, steps=min(value.steps, ATTACK_STEPS))
    if isinstance(value, Steps):
        return replace(value, milestones=tuple(epoch * ratio for epoch in value.milestones))
    if isinstance(value, Piecewise):
        return replace(value, points=tuple((epoch * ratio, factor) for epoch, factor in value.points))
    if not is_dataclass(value) or isinstance(value, type | DataConfig):
        return value
    parts = {field.name: _small(getattr(value, field.name), ratio) for field in fields(value) if field.init}
    parts |= {name: ratio * getattr(value, name) for name in TIMES.get(type(value), ())}
    if isinstance(value, Mail):
        parts["burn_in"] = min(value.burn_in, 1)
    elif isinstance(value, AWPConfig):
        parts["start"] = min(value.start, 1)
    elif isinstance(value, Ikl):
        parts["ramp"] = min(value.ramp, EPOCHS)
    elif isinstance(value, OneCycleMomentum):
        parts["epochs"] = max(1, round(ratio * value.epochs))
    return replace(value, **parts)
