"""``widemargin sweep``: a grid of settings, shared by any number of workers."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from widemargin.cli.options import (
    IMPORTED,
    DataDir,
    Device,
    Launcher,
    OnNonfinite,
    RayAddress,
    SlurmOptions,
    note_unreached,
)
from widemargin.config.checkpoint import METRICS
from widemargin.config.run import RunConfig
from widemargin.config.toml import to_toml, with_overrides
from widemargin.core.child_process import Command, is_finished
from widemargin.core.files import make_folder, write_text_atomic
from widemargin.core.records import sealed
from widemargin.core.screen import console_for, say, show_table
from widemargin.distributed.group import check_single_process
from widemargin.errors import InputError
from widemargin.jobs.grid import SWEEP, Point, Sweep, parse_grid, words
from widemargin.jobs.launch import Launcher as JobLauncher
from widemargin.jobs.launch import job_command, make_launcher, run_jobs
from widemargin.jobs.status import PlannedJob, planned_training, write_plan
from widemargin.recipes import find_recipe
from widemargin.training.run_folder import Line, read_metrics
from widemargin.training.trainer import train

SCORES = ("validation_robust", "validation_clean", "test_robust", "test_clean")
A_DAY = 86_400
CHOSEN_ON_TEST = (
    "These are test images: what is chosen by them looks better than it is. To choose by held-out training images, "
    "say --set data.held_out=2000"
)


def sweep(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or a .toml file.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs, sweep.json and, by default, the shared storage.")],
    grid: Annotated[
        list[str],
        typer.Option("--grid", metavar="PATH=VALUE,VALUE", help="Values of one setting; repeat for more settings."),
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a setting of all runs.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Database URL that workers share: sqlite:///, postgresql:// or mysql://.", show_default="in --out"
        ),
    ] = None,
    heartbeat: Annotated[
        int, typer.Option(help="Seconds between heartbeats; a worker silent for three of them is considered dead.")
    ] = 60,
    on_nonfinite: OnNonfinite = "stop",
    launcher: Launcher = "local",
    slurm: SlurmOptions = None,
    ray: RayAddress = None,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Run every point of a grid once; start the same command on more machines and they share the work.

    A point that fails does not stop the others; the command then ends with exit code 1, and given again tries it again.
    --launcher makes every point a job of Slurm's or Ray's.
    """
    # Optuna takes a second to import
    from widemargin.jobs.sweep import failures, own_storage, results, storage_refusals, work

    check_single_process("sweep", "to share it, start the same command several times, on as many machines as you like")
    if not 1 <= heartbeat <= A_DAY:
        raise InputError(f"--heartbeat must be at least 1 second and at most a day, got {heartbeat}")
    config = with_overrides(find_recipe(recipe).config, settings or [])
    plan = Sweep(
        config=config,
        grid=parse_grid(grid),
        out=out,
        storage=storage or own_storage(out),
        heartbeat=heartbeat,
    )
    points = plan.points()
    _check_scored(plan, points)
    cluster = make_launcher(launcher, out, slurm=slurm, ray=ray)
    make_folder(out)
    console = console_for(stderr=True)
    note_unreached(map(plan.configure, points), console)
    jobs = [_job(plan, point, ["--device", device, "--on-nonfinite", on_nonfinite], data_dir) for point in points]
    write_plan(out, [job.planned(out) for job in jobs])
    places = {plan.folder(point): f"{number}/{len(points)}" for number, point in enumerate(points, start=1)}
    whys = None if cluster is None else _launched(jobs, cluster, console)

    def run_point(config: RunConfig, folder: Path) -> dict[str, Any]:
        if whys is not None:  # a job has
            if folder in whys:
                raise InputError(whys[folder])
            metrics = read_metrics(folder)
            return _scores(metrics[-1], metrics)
        say(console, f"{places[folder]} {folder.name}", style="bold")
        result = train(config, out=folder, data_dir=data_dir, device=device, console=console, on_nonfinite=on_nonfinite)
        return _scores(result.metrics[-1], result.metrics)

    study = work(plan, run_point)
    with storage_refusals(plan.storage):
        done, failed = results(study), failures(study, points)
    _show(plan.grid, done, len(points), config.name, out)
    for point, why in failed:
        say(console_for(stderr=True, failures=True), f"failed: {point}: {why}", style="bold red")
    if failed:
        raise typer.Exit(1)


@dataclass(frozen=True)
class PointJob:
    """A point of the grid as a job of its own: ``widemargin train`` in the point's folder."""

    config: RunConfig
    run: Path
    command: Command

    @property
    def label(self) -> str:
        """For people."""
        return self.command.label

    @property
    def done(self) -> bool:
        """Whether it has trained to its end."""
        return is_finished(self.command) and (self.run / METRICS).is_file()

    def planned(self, out: Path) -> PlannedJob:
        """As ``widemargin status`` reads it."""
        run = str(self.run.relative_to(out))
        return planned_training(self.label, self.config, folder=self.command.folder.name, run=run)


def _job(plan: Sweep, point: Point, options: Sequence[str], data_dir: str | None) -> PointJob:
    folder = plan.folder(point)
    imported = [word for name in IMPORTED for word in ("--import", name)]
    data = [] if data_dir is None else ["--data-dir", data_dir]
    command = job_command(plan.out, words(point), ())
    recipe = command.folder / "config.toml"
    line = ["-m", "widemargin", *imported, "train", str(recipe), "--out", str(folder), *options, *data]
    return PointJob(plan.configure(point), folder, replace(command, arguments=tuple(line)))


def _launched(jobs: Sequence[PointJob], launcher: JobLauncher, console: Console) -> dict[Path, str]:
    """Run them; (folder, why) of those that are not done."""
    for job in jobs:
        write_text_atomic(make_folder(job.command.folder) / "config.toml", to_toml(job.config))
    failures = run_jobs(jobs, lambda job: job.command, launcher, console=console)
    whys = {failure.label: failure.why for failure in failures}
    return {job.run: whys.get(job.label, "interrupted") for job in jobs if not job.done}


def _check_scored(plan: Sweep, points: Sequence[Point]) -> None:
    """Every run measures something to compare it by."""
    for point, config in ((point, plan.configure(point)) for point in points):
        if not config.data.held_out and not config.watch.test:
            raise InputError(
                f"a sweep needs a score, and the run with {words(point)} measures none; "
                "say --set data.held_out=2000 or --set watch.test=true"
            )


def _scores(last: Line, metrics: list[Line]) -> dict[str, Any]:
    """The last epoch's measurements; the score is the best validation value, or the last test value without a split."""
    name = next(key for key in SCORES if key in last)
    if [line["epoch"] for line in metrics] != list(range(1, len(metrics) + 1)):
        raise InputError(
            "metrics of this point are lost, so its best epoch is not known; remove its folder to run it again"
        )
    values = [line[name] for line in metrics if name in line]
    score = max(values) if name.startswith("validation") else values[-1]
    return {key: value for key, value in last.items() if isinstance(value, float)} | {"score": score, "scored": name}


def _show(
    grid: Mapping[str, Sequence[str]],
    done: list[tuple[dict[str, str], dict[str, Any]]],
    count: int,
    name: str,
    out: Path,
) -> None:
    scores = list(dict.fromkeys(values["scored"] for _, values in done))
    header = (*grid, *([f"{score.replace('_', ', ')}, %" for score in scores] or ["score"]))
    rows = []
    for point, values in sorted(done, key=lambda pair: -pair[1].get("score", -math.inf)):
        cells = (f"{values['score']:.2f}" if values["scored"] == score else "" for score in scores)
        rows.append((*(point[path] for path in grid), *cells))
    console, title = console_for(), f"{name}: {len(done)} of {count} points"
    show_table(console, header, rows, left=len(header), title=title)
    if any(score.startswith("test") for score in scores):
        say(console, CHOSEN_ON_TEST)
    record = {"recipe": name, "grid": grid, "points": [{"point": point, "results": values} for point, values in done]}
    write_text_atomic(out / SWEEP, json.dumps(sealed(record), indent=2) + "\n")
    if done:
        say(console, f"as a page: widemargin report {shlex.quote(str(out))}")
