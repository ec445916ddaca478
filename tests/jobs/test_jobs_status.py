"""``widemargin status``: every state a job can be in, from what is in the folder, and the time left by hand."""

import json
import os
import socket
import time
from dataclasses import replace

import pytest

from widemargin.config.toml import to_toml, with_overrides
from widemargin.errors import InputError
from widemargin.jobs.launch import JOBS
from widemargin.jobs.status import PlannedJob, planned_training, status, time_left, write_plan
from widemargin.recipes import find_recipe

CONFIG = replace(find_recipe("demo/plain").config, epochs=10)
GONE = 2**22 - 1
"""No process has this number."""


def put(out, job, record=None, epochs=0, seconds=3.0, result=None):
    """What is there of a job."""
    folder, run = out / JOBS / job.folder, out / job.run
    folder.mkdir(parents=True, exist_ok=True)
    if record is not None:
        (folder / "job.json").write_text(json.dumps(record))
    if epochs:
        run.mkdir(parents=True)
        lines = [json.dumps({"epoch": epoch, "seconds": seconds}) for epoch in range(1, epochs + 1)]
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if result is not None:
        (out / job.result).parent.mkdir(parents=True, exist_ok=True)
        (out / job.result).write_text(json.dumps(result))


@pytest.fixture
def work(tmp_path):
    """Jobs in every state; two runs of the same network, one with twice the passes in an epoch."""

    def job(name, config=CONFIG):
        more = {"folder": name, "run": f"{name}/run", "result": f"{name}/result.json", "judged": True}
        return planned_training(name, config, **more)

    twice = replace(job("waiting"), passes=2 * job("waiting").passes)
    planned = [*map(job, ("done", "running", "elsewhere", "stopped", "killed", "failed")), twice]
    write_plan(tmp_path, planned)
    here = {"host": socket.gethostname(), "process": os.getpid(), "launcher": "ray", "id": "abc"}
    jobs = {one.label: one for one in planned}
    put(tmp_path, jobs["done"], here | {"ended": 1.0, "code": 0}, 10, 3.0, {"evaluation_seconds": 20.0})
    put(tmp_path, jobs["running"], here, 4, 3.0)
    put(tmp_path, jobs["elsewhere"], here | {"host": "node7"}, 8, 6.0)
    put(tmp_path, jobs["stopped"], here | {"ended": 1.0, "code": -15, "asked": True}, 5)
    put(tmp_path, jobs["killed"], here | {"process": GONE}, 5)
    put(tmp_path, jobs["failed"], here | {"ended": 1.0, "code": 1, "last": "the device is on fire"}, 1)
    return tmp_path


def test_every_state(work):
    found = {job.label: job for job in status(work)}
    states = {name: job.state for name, job in found.items()}
    assert states == {
        **{name: name for name in ("done", "running", "stopped", "failed", "waiting")},
        "elsewhere": "running",
        "killed": "stopped",
    }
    assert found["elsewhere"].where == "ray abc node7"
    assert found["failed"].why == "the device is on fire"
    assert (found["running"].epoch, found["running"].epochs) == (4, 10)
    old = work / "elsewhere/run/metrics.jsonl"
    os.utime(old, (0, 0))
    assert {job.label: job.state for job in status(work)}["elsewhere"] == "stopped"


def test_the_time_left_is_that_of_epochs_and_judgments_like_those_measured(work):
    found = {job.label: job for job in status(work)}
    speed = (3.0 * 5 + 6.0) / 6  # five jobs took 3 s for an epoch, one 6 s
    assert found["running"].left == pytest.approx(6 * speed + 20)
    assert found["elsewhere"].left == pytest.approx(2 * speed + 20)
    assert found["waiting"].left == pytest.approx(2 * 10 * speed + 20)
    assert found["failed"].left == found["done"].left == 0
    whole = sum(found[name].left for name in ("running", "elsewhere", "stopped", "killed", "waiting"))
    assert time_left(list(found.values())) == (pytest.approx(whole / 2), 0)  # two at a time


def test_another_network_has_no_estimate(work):
    wide = with_overrides(CONFIG, ["model.hidden=[9]"])
    write_plan(work, [planned_training("wide", wide, folder="wide", run="wide/run")])
    found = status(work)
    assert len(found) == 8
    assert found[-1].left is None
    assert time_left(found)[1] == 1


def test_an_evaluation_tells_its_shards(tmp_path):
    jobs = [PlannedJob(label=name, folder=name) for name in ("share", "report")]
    write_plan(tmp_path, jobs)
    begun = time.time() - 100.0
    put(tmp_path, jobs[0], {"host": socket.gethostname(), "process": os.getpid(), "begun": begun})
    (tmp_path / JOBS / "share" / "output.txt").write_text(
        "shard 1 of 10: clean\nshard 5 of 10: clean\nshard 5 of 10: pgd"
    )
    share, report = status(tmp_path)
    assert (share.state, share.epoch, share.epochs) == ("running", 4, 10)
    assert share.left == pytest.approx(150.0, rel=0.1)
    assert (report.state, report.left) == ("waiting", None)
    put(tmp_path, jobs[0], {"host": "x", "ended": begun + 7, "begun": begun, "code": 0})
    assert [(job.state, job.epoch) for job in status(tmp_path)] == [("done", 10), ("waiting", 0)]


def test_what_is_seen(work, command):
    answer = command("status", work)
    assert answer.code == 0
    assert "2 running, 1 waiting, 2 stopped, 1 failed, 1 done; about" in answer.out
    assert "the device is on fire" in answer.out
    content = json.loads(command("status", work, "--json").out)
    assert content["counts"] == {"running": 2, "waiting": 1, "stopped": 2, "failed": 1, "done": 1}
    assert content["seconds_left"] == pytest.approx(time_left(status(work))[0])


def test_a_run_by_itself_and_a_folder_of_nothing(tmp_path, command, refused):
    (tmp_path / "config.toml").write_text(to_toml(CONFIG))
    put(tmp_path, PlannedJob(label="", folder="", run="run"))
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1, "seconds": 2.0}\n')
    (job,) = status(tmp_path)
    assert (job.state, job.epoch, job.left) == ("running", 1, pytest.approx(18.0))
    assert "holds no jobs/jobs.json" in refused("status", tmp_path / "nothing")
    (tmp_path / JOBS / "jobs.json").write_text("[]")
    assert status(tmp_path)[0].label == "demo/plain"
    with pytest.raises(InputError):
        status(tmp_path / JOBS)


def test_reproduce_is_seen(command, tmp_path):
    line = [
        "reproduce",
        "table1",
        "--quick",
        "--rows",
        "st-wd0.01,st-emr",
        "--device",
        "cpu",
        "--out",
        tmp_path / "out",
    ]
    assert command(*line, "--max-time", "0.001s").code == 0
    assert [job.state for job in status(tmp_path / "out")] == ["waiting", "waiting"]
    assert command(*line).code == 0
    assert [(job.state, job.epoch, job.epochs) for job in status(tmp_path / "out")] == [("done", 2, 2)] * 2
    assert "2 done; nothing is left" in command("status", tmp_path / "out", "--watch").out
