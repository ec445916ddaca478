"""A grid of settings over a recipe, worked off by any number of workers on any machines through one Optuna study.

The first worker creates the study (names are unique, so only one can) and enqueues every point; each worker takes the
next waiting point until none waits. A worker that dies stops its heartbeat; its point is enqueued again and its run
folder goes on from the last checkpoint. A point that is done is never run twice; one that failed, or was interrupted,
does not stop the others and is tried again by the next call.
"""

import json
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from widemargin.config.run import RunConfig
from widemargin.config.toml import to_dict
from widemargin.core.files import folder_lock
from widemargin.errors import InputError
from widemargin.jobs.grid import Point, Sweep, words

RunPoint = Callable[[RunConfig, Path], dict[str, Any]]
"""Runs one point; its results hold at least a ``score``."""

READY, POINT, GRID, FAILED = "every point enqueued", "fixed_params", "grid", "failed"
TAKEN = TrialState.COMPLETE, TrialState.RUNNING
POLL_SECONDS = 1.0
MAX_RETRY = 10


def own_storage(out: Path) -> str:
    """The address of the storage in the folder itself, whatever characters its name has."""
    return URL.create("sqlite", database=str((out / "sweep.db").resolve())).render_as_string()


def work(sweep: Sweep, run_point: RunPoint) -> optuna.Study:
    """Join the sweep and work until every point is done, or failed, by somebody."""
    points = sweep.points()
    sweep.out.mkdir(parents=True, exist_ok=True)
    with storage_refusals(sweep.storage):
        with folder_lock(sweep.out, wait=True):  # two workers that create the tables at once trip over each other
            study = _join(sweep, points)

        seen: set[int] = set()
        while True:
            states = [trial.state for trial in study.get_trials(deepcopy=False)]
            if TrialState.WAITING in states:
                _take_point(study, sweep, run_point)
            elif TrialState.RUNNING in states:  # another worker's: wait for it, or for it to be given up
                _begin_heartbeats(study, seen)
                fail_stale_trials(study)
                time.sleep(POLL_SECONDS)
            else:
                return study


@contextmanager
def storage_refusals(storage: str) -> Iterator[None]:
    """What the database refuses inside, or gives back damaged, is told in a line."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        raise _unusable(storage, "used", error) from None


def _unusable(storage: str, verb: str, error: Exception) -> InputError:
    """Nothing of the password is in it: neither as it was given, nor as the driver understood it."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ is not None else error
    reason = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    found = re.search(r"^(?:[^:/]*://)?[^:/]*:(.*)@", storage)
    parts = [found[1], *(part for part in re.split("[:/@]", found[1]) if len(part) > 3)] if found else []
    for secret in filter(None, [*parts, *map(unquote, parts)]):
        reason = reason.replace(secret, "***")
    shown = storage.replace(f":{found[1]}@", ":***@") if found else storage
    return InputError(
        f"--storage {shown!r} cannot be {verb}: {reason}; see that the database is there and whole, or use another"
    )


def _take_point(study: optuna.Study, sweep: Sweep, run_point: RunPoint) -> None:
    """Run one waiting point. Workers take theirs one after the other: SQLite lets two take the same at once."""
    with ExitStack() as turn:
        turn.enter_context(folder_lock(sweep.out, wait=True))

        def objective(trial: optuna.Trial) -> float:
            turn.close()  # it is ours
            return _run_trial(trial, sweep, run_point)

        study.optimize(objective, n_trials=1, catch=(InputError,))


def _begin_heartbeats(study: optuna.Study, seen: set[int]) -> None:
    """Once for each running trial: one whose worker died before its first heartbeat would never count as stale."""
    storage = study._storage
    for trial in _trials(study, TrialState.RUNNING):
        if trial._trial_id not in seen and isinstance(storage, BaseHeartbeat):
            seen.add(trial._trial_id)
            storage.record_heartbeat(trial._trial_id)


def _join(sweep: Sweep, points: list[Point]) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # its warnings are tracebacks of what is told in a line
    storage = _open(sweep)
    description = json.dumps({"config": to_dict(sweep.config), GRID: sweep.grid}, sort_keys=True)
    try:
        study = optuna.create_study(study_name=sweep.config.name, storage=storage, direction="maximize")
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(study_name=sweep.config.name, storage=storage)
        _wait_until_ready(study, points, description)
    else:
        study.set_user_attr("description", description)
        _enqueue(study, points)
    if study.user_attrs.get("description") != description:
        raise InputError(
            f"the study {sweep.config.name!r} in this storage is of another grid or configuration; "
            "use another --storage (or --out), or the same --grid and --set"
        )
    for point in points:  # failed and interrupted ones
        if not _trials(study, *TAKEN, TrialState.WAITING, point=point):
            study.enqueue_trial(point)
    return study


def _open(sweep: Sweep, tries: int = 5) -> RDBStorage:
    warnings.filterwarnings("ignore", category=ExperimentalWarning)  # heartbeats have been "experimental" since 2021
    try:
        return RDBStorage(
            sweep.storage,
            engine_kwargs={"connect_args": {"timeout": 60}} if sweep.storage.startswith("sqlite") else {},
            heartbeat_interval=sweep.heartbeat,
            grace_period=3 * sweep.heartbeat,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=MAX_RETRY),
        )
    except Exception as error:
        reason = str(error)
        # Another worker, with another --out, is creating the tables at this very moment.
        if tries > 1 and ("already exists" in reason or "alembic_version" in reason):
            time.sleep(POLL_SECONDS / 5)
            return _open(sweep, tries - 1)
        raise _unusable(sweep.storage, "opened", error) from None


def _enqueue(study: optuna.Study, points: list[Point]) -> None:
    for point in points:
        study.enqueue_trial(point, skip_if_exists=True)
    study.set_user_attr(READY, True)


def _wait_until_ready(study: optuna.Study, points: list[Point], description: str, patience: float = 30.0) -> None:
    """The creator enqueues at once; one that died in the middle of it is replaced."""
    deadline = time.monotonic() + patience
    while not study.user_attrs.get(READY):
        if time.monotonic() > deadline:
            study.set_user_attr("description", description)
            _enqueue(study, points)
        time.sleep(POLL_SECONDS / 10)


def _run_trial(trial: optuna.Trial, sweep: Sweep, run_point: RunPoint) -> float:
    trials = trial.study.get_trials(deepcopy=False)
    if POINT not in trials[trial.number].system_attrs:  # another worker took the last waiting point first
        raise optuna.TrialPruned("no point was waiting")
    point = {path: str(trial.suggest_categorical(path, list(values))) for path, values in sweep.grid.items()}
    if any(other.number < trial.number for other in _trials(trial.study, *TAKEN, point=point)):
        raise optuna.TrialPruned("this point is done or under way elsewhere")
    try:
        results = run_point(sweep.configure(point), sweep.folder(point))
    except InputError as error:
        trial.set_user_attr(FAILED, str(error))
        raise
    trial.set_user_attr("results", results)
    return float(results["score"])


def _trials(study: optuna.Study, *states: TrialState, point: Point | None = None) -> list[FrozenTrial]:
    """Those in one of these states, of all points or of one."""
    found = study.get_trials(deepcopy=False, states=states)
    return [trial for trial in found if point is None or trial.system_attrs.get(POINT) == point]


def failures(study: optuna.Study, points: list[Point]) -> list[tuple[str, str]]:
    """(point, why) of every point that is not done, in words: what the last try that said something said."""
    told = []
    for point in points:
        if not _trials(study, TrialState.COMPLETE, point=point):
            attributes = [trial.user_attrs for trial in _trials(study, TrialState.FAIL, point=point)]
            reasons = [str(found[FAILED]) for found in attributes if FAILED in found]
            told.append((words(point), reasons[-1] if reasons else "interrupted"))
    return told


def results(study: optuna.Study) -> list[tuple[Point, dict[str, Any]]]:
    """(point, results) of every point that is done."""
    done = _trials(study, TrialState.COMPLETE)
    return [(dict(trial.params), dict(trial.user_attrs["results"])) for trial in done]
