"""Where things are in the tree: ``rows/<recipe>/seed-<n>/`` for each job; notes, figures and the page beside it."""

from pathlib import Path

ROWS, NOTES, FIGURES, PAGE = "rows", "notes", "figures", "README.md"
CONFIG, METRICS, RESULT = "config.toml", "metrics.jsonl", "result.json"
EVALUATION, MARGINS, DISTANCE = "evaluation.json", "margins.json", "distance.json"
AUTOATTACK, AUTOATTACK_8_255, EPS = "autoattack.json", "autoattack-8-255.json", "eps.json"


def job_folder(into: Path, recipe: str, seed: int) -> Path:
    """The folder of one job."""
    return into / ROWS / recipe.replace("/", "-") / f"seed-{seed}"
