"""Where things are in the tree: ``rows/<recipe>/seed-<n>/`` for each job; notes, figures and the page beside it."""

from pathlib import Path

ROWS, NOTES, FIGURES, PAGE = "rows", "notes", "figures", "README.md"
CONFIG, METRICS, RESULT = "config.toml", "metrics.jsonl", "result.json"
EVALUATION, AUTOATTACK, MARGINS, DISTANCE = "evaluation.json", "autoattack.json", "margins.json", "distance.json"


def job_folder(into: Path, recipe: str, seed: int) -> Path:
    """The folder of one job."""
    return into / ROWS / recipe.replace("/", "-") / f"seed-{seed}"
