import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from sqlalchemy.exc import SQLAlchemyError

from widemargin.cli.main import run
from widemargin.errors import InputError
from widemargin.jobs.grid import Sweep, parse_grid
from widemargin.jobs.sweep import READY, _join, failures, own_storage, results, storage_refusals, work
from widemargin.recipes import find_recipe

WORKER = Path(__file__).with_name("sweep_worker.py")
POINTS = sorted(f"emr.weight={weight},emr.every={every}" for weight in ("0.1", "0.2", "0.3") for every in ("1", "2"))


def start(out, role):
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(out), role], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def sweep_over(weights, out):
    grid, storage = {"emr.weight": list(weights)}, f"sqlite:///{out / 'sweep.db'}"
    return Sweep(config=find_recipe("demo/emr").config, grid=grid, out=out, storage=storage)


def test_two_workers_started_at_once_finish_the_grid_no_point_twice(tmp_path):
    workers = [start(tmp_path, role) for role in ("one", "two")]
    answers = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert sorted((tmp_path / "done").read_text().splitlines()) == POINTS
    assert answers == ["32.0\n", "32.0\n"]


def test_the_point_of_a_killed_worker_is_not_lost(tmp_path):
    victim = start(tmp_path, "victim")
    assert victim.stdout.readline() == "hanging\n"
    victim.kill()
    victim.wait()
    survivor = start(tmp_path, "survivor")
    survivor.communicate(timeout=120)
    assert survivor.returncode == 0
    assert sorted((tmp_path / "done").read_text().splitlines()) == POINTS
    log = (tmp_path / "log").read_text().splitlines()
    assert sum(line.startswith("victim") for line in log) == 1
    # Whoever joins later finds nothing left to do.
    late = start(tmp_path, "late")
    late.communicate(timeout=120)
    assert not any(line.startswith("late") for line in (tmp_path / "log").read_text().splitlines())


def test_the_point_of_a_worker_that_died_before_its_first_heartbeat_is_not_lost(tmp_path):
    sweep = replace(sweep_over(["0.1", "0.2"], tmp_path), heartbeat=1)
    _join(sweep, sweep.points()).ask()  # taken, and nobody works on it
    study = work(sweep, lambda config, _folder: {"score": config.emr.weight})
    assert sorted(point["emr.weight"] for point, _ in results(study)) == ["0.1", "0.2"]


def test_a_point_that_fails_stops_no_other_and_is_tried_again(tmp_path):
    sweep = sweep_over(["0.1", "0.2", "0.3"], tmp_path)
    points, broken = sweep.points(), [0.1]

    def run_point(config, _folder):
        if config.emr.weight in broken:
            raise InputError("a loss is not finite")
        return {"score": config.emr.weight}

    study = work(sweep, run_point)
    assert len(results(study)) == 2
    assert failures(study, points) == [("emr.weight=0.1", "a loss is not finite")]
    broken.clear()
    study = work(sweep, run_point)
    assert len(results(study)) == 3
    assert failures(study, points) == []


def test_an_interrupted_point_goes_on_with_the_next_call(tmp_path):
    sweep, ran = sweep_over(["0.1", "0.2"], tmp_path), []

    def run_point(config, _folder):
        ran.append(config.emr.weight)
        if len(ran) == 1:
            raise KeyboardInterrupt
        return {"score": config.emr.weight}

    with pytest.raises(KeyboardInterrupt):
        work(sweep, run_point)
    study = work(sweep, run_point)
    assert len(results(study)) == 2
    assert sorted(ran) == [0.1, 0.1, 0.2]


def test_values_that_are_lists():
    assert parse_grid(["model.hidden=[64, 64],[32]", 'emr={kind="exact", weight=1},none']) == {
        "model.hidden": ["[64, 64]", "[32]"],
        "emr": ['{kind="exact", weight=1}', "none"],
    }


TINY = [
    *("--set", "model.hidden=[8]", "--set", "data.train_limit=100", "--set", "data.test_limit=20"),
    *("--set", "epochs=1", "--set", "optimizer.schedule={kind = 'constant'}"),
]


def test_from_the_command_line_to_the_page(tmp_path, capsys):
    command = ["sweep", "demo/emr", "--out", str(tmp_path), "--grid", "emr.weight=0.1,0.3", *TINY]
    command += ["--grid", "emr.projections=1,2"]
    assert run(command) == 0
    said = capsys.readouterr().out
    assert "4 of 4 points" in said
    assert "test, clean, %" in said
    assert "To choose by held-out training images, say --set data.held_out" in said
    (line,) = (line for line in said.splitlines() if line.startswith("as a page: "))
    assert run([*line.removeprefix("as a page: widemargin ").split(), "--out", str(tmp_path / "page.html")]) == 0
    assert "emr.projections" in (tmp_path / "page.html").read_text()
    record = json.loads((tmp_path / "sweep.json").read_text())
    assert len(record["points"]) == 4
    assert {point["results"]["scored"] for point in record["points"]} == {"test_clean"}
    assert len(list((tmp_path / "points").glob("*/last.safetensors"))) == 4
    assert run([*command[:-1], "emr.projections=1,3"]) == 2
    assert "another grid or configuration" in capsys.readouterr().err


def test_points_that_fail_are_told_at_the_end(tmp_path, capsys):
    command = ["sweep", "demo/emr", "--out", str(tmp_path), "--grid", "optimizer.lr=1e38", *TINY, "--set", "epochs=2"]
    for _ in range(2):
        assert run(command) == 1
        out, err = capsys.readouterr()
        assert "0 of 1 points" in out
        assert "failed: optimizer.lr=1e38: " in err
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ([], "--grid is missing"),
        (["emr.weight"], "write path=value,value"),
        (["emr.weight="], "write path=value,value"),
        (["emr.weight=1,1"], "given twice"),
        (["emr.weight=1", "emr.weight=2"], "given twice"),
        (["model.hidden=[8],[8]"], "given twice"),
    ],
)
def test_grids_that_are_none(grid, message):
    with pytest.raises(InputError, match=message):
        parse_grid(grid)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "emr.wait=1"], "unknown key 'emr.wait'"),
        (["--grid", "emr.temperature=1,2"], "emr.temperature has no effect on stochastic EMR"),
        (["--grid", "emr.weight=0.1,0.2,0.10"], "emr.weight=0.1 and emr.weight=0.10 are the same run"),
        (["--grid", "emr.weight=1", "--storage", "nonsense://x"], "cannot be opened"),
        (["--grid", "emr.weight=1", "--heartbeat", "0"], "--heartbeat must be at least 1"),
        (["--grid", "emr.weight=1", "--heartbeat", str(10**20)], "and at most a day"),
    ],
)
def test_mistakes(arguments, message, tmp_path, capsys):
    assert run(["sweep", "demo/emr", "--out", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "points").exists()


@pytest.mark.parametrize(
    "storage",
    [
        "nonsense://me:s3cret@host/db",
        "nonsense://me:s3cret@host:port/db",
        "nonsense://me:s3cret@rest/s3cret@host/db",
        "nonsense://me:a%20s3cret@host/db",
        "me:s3cret@host/db",
        "nonsense://host/db?password=s3cret",
        "sqlite:////dev/null/me:s3cret@x.db",
    ],
)
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_a_password_is_told_to_nobody(storage, tmp_path, capsys):
    assert run(["sweep", "demo/emr", "--out", str(tmp_path), "--grid", "emr.weight=1", "--storage", storage]) == 2
    said = capsys.readouterr()
    assert "cannot be opened" in said.err
    assert "***" in said.err
    assert "s3cret" not in said.out + said.err
    assert not any("s3cret" in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_a_driver_that_repeats_the_password_is_not_repeated():
    with pytest.raises(InputError) as refusal, storage_refusals("postgresql://me:p%40ss w0rd@host/db"):
        raise SQLAlchemyError("no user me with p@ss w0rd (p%40ss w0rd) at w0rd@host\nand much more")
    assert "me with ***" in str(refusal.value)
    assert "p@ss" not in str(refusal.value)
    assert "p%40ss" not in str(refusal.value)


def _no_database(path):
    path.write_text("years of work")


def _of_another_study(path):
    study = optuna.create_study(study_name="demo/emr", storage=f"sqlite:///{path}", direction="maximize")
    study.set_user_attr(READY, True)


def _cut(path):
    _of_another_study(path)
    path.write_bytes(path.read_bytes()[:20_000])


def _overwritten(path):
    _of_another_study(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + bytes([7]) * (len(whole) - 8192))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_no_database, "file is not a database"),
        (_of_another_study, "is of another grid or configuration"),
        (_cut, "malformed"),
        (_overwritten, "malformed"),
        (lambda path: path.mkdir(), "unable to open database file"),
    ],
)
def test_a_damaged_database_is_told_in_a_line(damage, says, tmp_path, capsys):
    damage(tmp_path / "sweep.db")
    assert run(["sweep", "demo/emr", "--out", str(tmp_path), "--grid", "emr.weight=1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not (tmp_path / "points").exists()


@pytest.mark.parametrize("name", ["s?x", "a%41", "# [", "?"])
def test_the_storage_is_in_the_folder_whatever_its_name(name, tmp_path):
    (tmp_path / name).mkdir()
    sweep = replace(sweep_over(["0.1"], tmp_path / name), storage=own_storage(tmp_path / name))
    work(sweep, lambda config, _folder: {"score": 1.0})
    assert (tmp_path / name / "sweep.db").exists()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_scores_of_two_kinds_have_a_column_each_and_every_points_schedule_is_looked_at(tmp_path, capsys):
    command = ["sweep", "demo/emr", "--out", str(tmp_path), "--grid", "data.held_out=20,0", "--grid", "epochs=1,2"]
    assert run([*command, *TINY[:6], "--set", "optimizer.schedule={kind = 'steps', milestones = [1]}"]) == 0
    said = capsys.readouterr()
    assert "validation, clean, %" in said.out
    assert "test, clean, %" in said.out
    assert "To choose by held-out training images" in " ".join(said.out.split())
    assert said.err.count("note: optimizer.schedule.milestones has 1, the run ends at 1 epochs") == 1
    command = ["sweep", "demo/emr", "--out", str(tmp_path / "held"), "--grid", "emr.weight=0.1", *TINY[:8]]
    assert run([*command, "--set", "data.held_out=20"]) == 0
    said = capsys.readouterr()
    assert "validation, clean, %" in said.out
    assert "test images" not in said.out
    assert "note: optimizer.schedule comes down at 8 epochs, the run ends at 1" in said.err


def test_without_a_score_nothing_is_begun(tmp_path, capsys):
    command = ["sweep", "demo/emr", "--out", str(tmp_path / "sweep"), "--grid", "data.held_out=20,0", *TINY]
    assert run([*command, "--set", "watch.test=false", "--set", "watch.attack=none"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a sweep needs a score, and the run with data.held_out=0 measures none; say --set data.held_out=" in line
    assert list(tmp_path.iterdir()) == []


def test_a_point_under_way_is_taken(tmp_path):
    sweep = sweep_over(["0.1", "0.2"], tmp_path)
    taken = _join(sweep, sweep.points()).ask()
    study = _join(sweep, sweep.points())  # another worker joins
    assert [trial.state.name for trial in study.get_trials()] == ["RUNNING", "WAITING"]
    study.tell(taken, 1.0)
    assert len(_join(sweep, sweep.points()).get_trials()) == 2


def test_a_fraction_in_a_grid_makes_no_folder_in_a_folder(tmp_path):
    sweep = sweep_over(["0.1"], tmp_path)
    folder = sweep.folder({"evaluation.eps": "8/255", "emr.weight": "0.1"})
    assert folder == tmp_path / "points" / "evaluation.eps=8-255,emr.weight=0.1"
