"""Parts of a schedule that a run never gets to: most often its epochs were changed and the schedule was forgotten."""

from widemargin.config.run import RunConfig
from widemargin.schedules import OneCycle, Piecewise, Schedule, Steps


def unreached(config: RunConfig) -> list[str]:
    """One sentence for each schedule of which something is left when the run ends, with the setting to change."""
    schedules: dict[str, Schedule] = {"optimizer": config.optimizer.schedule}
    schedules |= {name: part.schedule for name in ("emr", "igr") if (part := getattr(config, name)) is not None}
    return [
        text for name, schedule in schedules.items() if (text := _left(f"{name}.schedule", schedule, config.epochs))
    ]


def _left(path: str, schedule: Schedule, epochs: int) -> str:
    if isinstance(schedule, OneCycle) and schedule.epochs > epochs:
        return (
            f"{path} comes down at {schedule.epochs:g} epochs, the run ends at {epochs}: "
            f"--set {path}.epochs={epochs} --set {path}.peak={schedule.peak * epochs / schedule.epochs:g}"
        )
    if isinstance(schedule, Steps):
        late, setting = [at for at in schedule.milestones if at >= epochs], "milestones"
    elif isinstance(schedule, Piecewise):
        late, setting = [at for at, _ in schedule.points if at >= epochs], "points"
    else:
        return ""
    if not late:
        return ""
    return (
        f"{path}.{setting} has {', '.join(f'{at:g}' for at in late)}, the run ends at {epochs} epochs and never gets "
        f"there: change it with --set '{path}.{setting}=[...]'"
    )
