"""The best rows of a table by our own numbers: in each block, the highest accuracy under the table's strongest PGD.

A block is one method on one network: the rows of the paper's table with the same name, which differ in weight decay.
"""

from collections.abc import Sequence
from statistics import fmean

from widemargin.experiments.job import Job
from widemargin.recipes.tables import Row

Block = tuple[str, str]


def block_of(row: Row) -> Block:
    """("mnist-mlp", "AT+LSoftmax"), say; a row that the paper does not have is one of ST or AT."""
    config = row.recipe.config
    return config.name.split("/")[0], row.published.row or ("AT" if config.objective.attacks else "ST")


def best_rows(rows: Sequence[Row], work: Sequence[Job]) -> list[Row]:
    """The best row of each block, over the seeds that are done; of equal ones the first."""
    best: dict[Block, tuple[float, Row]] = {}
    for row in rows:
        score = _score([job for job in work if job.row is row])
        if score is not None and (block_of(row) not in best or score > best[block_of(row)][0]):
            best[block_of(row)] = score, row
    return [row for _, row in best.values()]


def _score(work: Sequence[Job]) -> float | None:
    plan = work[0].config.evaluation if work else None
    attacks = [name for name in plan.attacks if name.startswith("pgd")] if plan else []
    results = [result for job in work if (result := job.result()) is not None]
    return fmean(result["accuracy"][attacks[-1]] for result in results) if attacks and results else None
