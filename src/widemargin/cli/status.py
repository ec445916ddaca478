"""``widemargin status``: what runs where, what is done, failed and left, and the time it will take."""

import json
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from widemargin.cli.options import Json
from widemargin.core.screen import console_for, show_table
from widemargin.jobs.status import STATES, JobStatus, time_left
from widemargin.jobs.status import status as read_status

EVERY = 5.0
"""Seconds between two looks."""


def status(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What reproduce, sweep, evaluate or train wrote.")],
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until nothing is left.")] = False,
    as_json: Json = False,
) -> None:
    """What runs where, what is done, failed and left, and the time it will take."""
    console = console_for()
    while True:
        found = read_status(folder)
        if as_json:
            typer.echo(json.dumps(_content(found), indent=None if watch else 2))
        else:
            if watch and console.is_terminal:
                console.clear()
            _show(console, found)
        if not watch or all(job.state in ("done", "failed") for job in found):
            return
        time.sleep(EVERY)


def _content(found: list[JobStatus]) -> dict[str, object]:
    seconds, unknown = time_left(found)
    counts = Counter(job.state for job in found)
    return {
        "jobs": [asdict(job) for job in found],
        "counts": {state: counts[state] for state in STATES},
        "seconds_left": seconds,
        "without_estimate": unknown,
    }


def _show(console: Console, found: list[JobStatus]) -> None:
    rows = [
        (
            job.label,
            job.state,
            job.where,
            f"{job.epoch}/{job.epochs}" if job.epochs else "",
            "" if job.state in ("done", "failed") else "?" if job.left is None else duration(job.left),
            job.why or (f"silent for {duration(job.silent)}" if job.silent is not None and job.silent > 60 else ""),
        )
        for job in sorted(found, key=lambda job: STATES.index(job.state))
    ]
    counts = Counter(job.state for job in found)
    said = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    show_table(
        console,
        ("job", "state", "where", "epoch or shard", "left", ""),
        rows,
        left=3,
        notes=[f"{said}; {_left(found)}"],
    )


def _left(found: list[JobStatus]) -> str:
    seconds, unknown = time_left(found)
    if seconds is None:
        return "how long it will take is not known before an epoch is measured"
    if not seconds and not unknown:
        return "nothing is left" if all(job.state == "done" for job in found) else "the same command tries again"
    more = f", and {unknown} of which nothing like it was measured" if unknown else ""
    return f"about {duration(seconds)} left, so many at a time as now{more}"


def duration(seconds: float) -> str:
    """Such as 2 d 3 h, 5 h 20 min, 12 min, 30 s."""
    minutes, hours, days = round(seconds / 60), int(seconds // 3600), int(seconds // 86400)
    if seconds < 90:
        return f"{round(seconds)} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{days} d {hours % 24} h" if hours >= 48 else f"{minutes // 60} h {minutes % 60:02d} min"
