"""The collected jobs in ``results/``: where their files are, and the jobs read back.

``rows/<recipe>/seed-<n>/`` has the few files kept of a job; notes, figures and the page lie beside
``rows/``. All that a page or a figure says is made of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from widemargin.config.checkpoint import CONFIG
from widemargin.core.records import Fields, read_table
from widemargin.errors import InputError
from widemargin.evaluation.folder import Radius, curves
from widemargin.evaluation.minimal_norm import ONLY_FAB
from widemargin.jobs.job import RESULT
from widemargin.report.runs import Run, read_run

ROWS, NOTES, FIGURES, PAGE = "rows", "notes", "figures", "README.md"
EVALUATION, MARGINS, DISTANCE = "evaluation.json", "margins.json", "distance.json"
AUTOATTACK, AUTOATTACK_8_255, EPS = "autoattack.json", "autoattack-8-255.json", "eps.json"
STRONGEST, AUTOATTACK_1000, CERTIFIED = "strongest.json", "autoattack-1000.json", "certified.json"


def job_folder(into: Path, recipe: str, seed: int) -> Path:
    """The folder of one job."""
    return into / ROWS / recipe.replace("/", "-") / f"seed-{seed}"


@dataclass(frozen=True)
class Counts:
    """Margins counted in bins of ``width``, the first of them at ``first`` widths."""

    norm: str
    width: float
    first: int
    counts: Sequence[int]
    without: int = 0
    """Images that have no margin: the network says the same all around them."""


@dataclass(frozen=True)
class Pairs:
    """(margin, distance) of some images, and how their orders agree."""

    norm: str
    pairs: Sequence[tuple[float, float]]
    correlation: float | None
    precision: str = "unknown"
    method: str = ONLY_FAB
    """Which attacks looked for the distances; earlier versions had one and did not say."""


@dataclass(frozen=True)
class EpsCurve:
    """Accuracy without attack, and under one at each eps, the smallest first."""

    clean: float
    points: Sequence[tuple[Radius, float]]


@dataclass(frozen=True, kw_only=True)
class CollectedJob:
    """One recipe with one seed."""

    recipe: str
    seed: int
    result: Fields
    run: Run
    evaluation: Fields
    autoattack: Fields
    autoattack_8_255: Fields
    """At the eps of RobustBench, on the first images."""
    strongest: Fields
    """The table's PGD and the strongest one, on all images."""
    autoattack_1000: Fields
    """The same two and AutoAttack, on the first images."""
    certified: Fields
    """With (certified radius, margin, distance) of each of the first images that is correctly classified."""
    margins: Counts | None
    """Of the test images, misclassified ones left of zero."""
    distance: Pairs | None
    over_eps: EpsCurve | None

    @property
    def correct_without_margin(self) -> tuple[int, int]:
        """(how many correctly classified test images have no margin and are in no mean, how many there are)."""
        images, clean = self.evaluation.table("data").whole("count"), self.result.table("accuracy").number("clean")
        measured = self.result.table("margin_test").whole("count")
        if images is None or clean is None or measured is None:
            return 0, 0
        correct = round(clean * images / 100)
        return max(0, correct - measured), correct

    def numbers(self) -> dict[str, Any]:
        """Accuracies, AutoAttack's among them where it was run later, and margins."""
        accuracy = self.result.table("accuracy").numbers()
        later = self.autoattack.table("accuracy").number("autoattack")
        accuracy |= {} if later is None else {"autoattack": later}
        names = ("margin_train", "margin_test")
        return {"accuracy": accuracy} | {name: {"mean": self.result.table(name).number("mean")} for name in names}


def read_tree(into: Path) -> list[CollectedJob]:
    """Every job, by recipe and seed."""
    folders = [path.parent for path in (into / ROWS).glob(f"*/seed-*/{RESULT}")]
    if not folders:
        raise InputError(
            f"{into / ROWS} holds no collected job; give the folders that 'widemargin reproduce --out' named"
        )
    return sorted((_job(folder) for folder in folders), key=lambda job: (job.recipe, job.seed))


def _job(folder: Path) -> CollectedJob:
    result = _table(folder / RESULT)
    recipe, seed = result.text("recipe"), result.whole("seed")
    if not recipe or seed is None:
        raise InputError(f"{result.path} has no recipe or no seed; collect the job again")
    evaluation = _table(folder / EVALUATION)
    return CollectedJob(
        recipe=recipe,
        seed=seed,
        result=result,
        run=read_run(folder),
        evaluation=evaluation,
        autoattack=_table(folder / AUTOATTACK),
        autoattack_8_255=_table(folder / AUTOATTACK_8_255),
        strongest=_table(folder / STRONGEST),
        autoattack_1000=_table(folder / AUTOATTACK_1000),
        certified=_table(folder / CERTIFIED),
        margins=_counts(_table(folder / MARGINS).table("margin_test"), evaluation),
        distance=_pairs(_table(folder / DISTANCE)),
        over_eps=_eps_curve(_table(folder / EPS)),
    )


def _table(path: Path) -> Fields:
    """A file of the job; empty where there is none."""
    return Fields(path, read_table(path, "collect the job again") if path.is_file() else {})


def _counts(table: Fields, evaluation: Fields) -> Counts | None:
    """``evaluation`` says how many test images there are."""
    width, first = table.number("width"), table.whole("first")
    if not table.values or not width or first is None:
        return None
    counts = [int(count) for count in table.list("counts")]
    images = evaluation.table("data").whole("count") or 0
    return Counts(table.text("norm", "l2"), width, first, counts, max(0, images - sum(counts)))


def _pairs(table: Fields) -> Pairs | None:
    pairs = [(float(margin), float(distance)) for margin, distance in table.list("pairs")]
    if not pairs:
        return None
    found = table.table("distance")
    correlation, method = found.number("rank_correlation"), found.text("method", ONLY_FAB)
    return Pairs(table.text("norm", "l2"), pairs, correlation, table.text("precision", "unknown"), method)


def _eps_curve(table: Fields) -> EpsCurve | None:
    clean, found = table.table("accuracy").number("clean"), curves(table.table("curves"))
    points = next(iter(found.values()), [])
    return EpsCurve(clean, points) if clean is not None and points else None


def over_seeds(jobs: Sequence[CollectedJob], key: str) -> tuple[list[float], list[float]]:
    """(epochs, means): of each epoch that every seed has."""
    curves = [dict(job.run.curve(key)) for job in jobs]
    epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
    return epochs, [fmean(curve[epoch] for curve in curves) for epoch in epochs]


def clean_accuracy(jobs: Sequence[CollectedJob]) -> float:
    """What they end with without an attack, on test images or else held-out ones; 0 where it was not watched."""
    ends = (over_seeds(jobs, key)[1] for key in ("test_clean", "validation_clean"))
    return next((values[-1] for values in ends if values), 0.0)


def watched_attack(job: CollectedJob) -> str:
    """``PGD-20, eps 0.1``; "attacked" where the run does not say."""
    attack = Fields(job.run.folder / CONFIG, job.run.config).table("watch").table("attack")
    steps, eps = attack.whole("steps"), attack.number("eps")
    if attack.text("kind") != "pgd" or steps is None or eps is None:
        return "attacked"
    return f"PGD-{steps}, eps {eps:g}"
