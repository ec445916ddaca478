"""``result.json`` of ``widemargin reproduce``: a row of a table, trained and judged, as an evaluation."""

from pathlib import Path

from widemargin.errors import InputError
from widemargin.reports.inputs.evaluation import Evaluation, Radius
from widemargin.reports.inputs.evaluation_folder import accuracies, margins
from widemargin.reports.inputs.fields import Fields, read_json

RESULT = "result.json"
AGAIN = "remove it, and the same widemargin reproduce judges the job again"
NORM = "l2"
"""Of the margins in the paper's tables."""


def read_result(folder: Path) -> Evaluation | None:
    """Read a reproduced row; None where ``result.json`` is somebody else's."""
    path = folder / RESULT
    content = read_json(path, AGAIN)
    if not isinstance(content, dict) or not {"recipe", "accuracy"} <= content.keys():
        return None
    return _evaluation(folder, Fields(path, content))


def _evaluation(folder: Path, result: Fields) -> Evaluation:
    config = result.table("config")
    plan, data = config.table("evaluation"), config.table("data")
    kept = {"correct": "margin_test", "train": "margin_train"}
    return Evaluation(
        folder=folder,
        file=result.path,
        kind="reproduction",
        target=str(folder / "run"),
        name=result.text("recipe"),
        weights=result.text("weights"),
        selection=result.text("selection"),
        epoch=result.count("epoch"),
        data=data.text("name"),
        norm=plan.text("norm", "linf"),
        eps=[_radius(plan)] if plan.values.get("eps") is not None else [],
        step_size=plan.size("step_size"),
        seed=result.whole("seed"),
        attacks=plan.texts("attacks"),
        accuracy=accuracies(result.table("accuracy")),
        margins=[margins(result.table(name), of, NORM) for of, name in kept.items() if result.values.get(name)],
        margin_norm=NORM,
        versions=result.table("versions").words(),
        device=result.text("device"),
        seconds={
            name: value
            for name, key in (("training", "training_seconds"), ("evaluation", "evaluation_seconds"))
            if (value := result.number(key)) is not None
        },
        config=config.values,
        quick=bool(result.values.get("quick")),
    )


def _radius(plan: Fields) -> Radius:
    value = plan.size("eps")
    if value is None:
        raise InputError(f"{plan.path}: {plan.prefix}eps is missing")
    return Radius(plan.text("eps"), value)
