"""Jobs of Slurm's: what is submitted, what is preempted, found again or lost, on a small Slurm of the tests'."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from launching import epochs_said, measured, until

from widemargin import InputError
from widemargin.config.toml import to_toml
from widemargin.core.child_process import Ending
from widemargin.jobs.launch import job_command, make_launcher
from widemargin.training import train

submitit = pytest.importorskip("submitit", reason="submitit is in the extra slurm")
from widemargin.integrations import slurm  # noqa: E402

FAKE = Path(__file__).with_name("fake_slurm.py")
COMMANDS = ("sbatch", "srun", "sacct", "scancel", "scontrol", "preempt")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """cluster("preempt", "1") gives a command of Slurm's; its files are in cluster.place."""
    place = tmp_path / "slurm"
    place.mkdir()
    for name in COMMANDS:
        script = place / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} {name} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(place))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    slurm.submitit.SlurmJob.watcher.clear()

    def give(*words):
        subprocess.run(words, check=True)

    give.place = place
    return give


OPTIONS = "partition=gpu,gpus-per-node=1,cpus-per-task=4,time=24:00:00,exclusive,nodelist=n[1-2,4]"


@pytest.fixture
def sweep(tiny, tmp_path):
    """The command for a sweep of one point, long enough to be met at work."""
    (tmp_path / "tiny.toml").write_text(to_toml(tiny("epochs=60", "watch.margins=[]", "data.train_limit=80")))
    line = ["sweep", str(tmp_path / "tiny.toml"), "--grid", "emr.weight=0.1", "--out", str(tmp_path / "out")]
    return [*line, "--launcher", "slurm", "--slurm", OPTIONS, "--device", "cpu"]


def test_a_job_outlives_its_command_and_after_a_preemption_goes_on_with_nothing_done_twice(
    cluster, sweep, command, tmp_path
):
    run = tmp_path / "out/points/emr.weight=0.1"
    first = subprocess.Popen([sys.executable, "-m", "widemargin", *sweep], stderr=subprocess.PIPE, text=True)
    until(lambda: len(measured(run)) > 2, first)
    cluster("preempt", "1")
    first.send_signal(signal.SIGINT)
    said = first.communicate()[1]
    assert first.returncode == 130, said
    assert "emr.weight=0.1: submitted as 1" in said
    assert "1 jobs go on without this command; given again, it waits for them" in said
    (job,) = json.loads(command("status", tmp_path / "out", "--json").out)["jobs"]
    assert job["where"].startswith("slurm 1 ")
    assert (job["label"], job["epochs"]) == ("emr.weight=0.1", 60)
    assert job["state"] != "failed"
    answer = command(*sweep)
    assert answer.code == 0, answer.err
    assert "emr.weight=0.1: was submitted as 1" in answer.err
    assert len(list(cluster.place.glob("*.state"))) == 1
    output = tmp_path / "out/jobs/emr.weight=0.1/output.txt"
    assert "stopped by SIGTERM" in output.read_text()
    assert epochs_said(output) == list(range(1, 61))
    assert [line["epoch"] for line in measured(run)] == list(range(1, 61))
    script = (cluster.place / "1.sbatch").read_text()
    for option in ("partition=gpu", "gpus-per-node=1", "time=1440", "exclusive", "requeue", "open-mode=append"):
        assert f"#SBATCH --{option}\n" in script
    assert "#SBATCH --nodelist='n[1-2,4]'" in script
    assert "--cpus-per-task=4" in next(line for line in script.splitlines() if line.startswith("srun"))
    again = command(*sweep)
    assert "emr.weight=0.1: done before" in again.err
    assert "1 of 1 points" in again.out
    assert "nothing is left" in command("status", tmp_path / "out", "--watch").out


def test_a_job_that_fails_is_told(cluster, sweep, command, tmp_path):
    sweep[sweep.index("emr.weight=0.1")] = "optimizer.lr=1e38"
    answer = command(*sweep)
    assert answer.code == 1
    assert "failed: optimizer.lr=1e38: widemargin: " in answer.err
    state = json.loads(command("status", tmp_path / "out", "--json").out)
    assert state["counts"] == {"running": 0, "waiting": 0, "stopped": 0, "failed": 1, "done": 0}
    assert state["jobs"][0]["why"].startswith("widemargin: ")


def test_an_evaluation_in_shares_is_the_evaluation(cluster, tiny, command, tmp_path):
    run = train(tiny("epochs=1"), out=tmp_path / "run", device="cpu").folder
    line = [
        "evaluate",
        run,
        "--attacks",
        "clean,pgd2",
        "--eps",
        "0.1",
        "--shard-size",
        "8",
        "--device",
        "cpu",
        "--json",
    ]
    alone = json.loads(command(*line, "--out", tmp_path / "alone").out)
    shared = [*line, "--out", tmp_path / "out", "--launcher", "slurm", "--slurm", "time=10", "--jobs", "2"]
    answer = command(*shared)
    assert answer.code == 0, answer.err
    timeless = ("seconds", "created", "versions")
    found = json.loads(answer.out)
    assert {key: found[key] for key in found if key not in timeless} == {
        key: alone[key] for key in alone if key not in timeless
    }
    outputs = {path.parent.name: path.read_text() for path in (tmp_path / "out/jobs").glob("*/output.txt")}
    assert {name: [int(n) for n in re.findall("shard (.) of 3: clean", said)] for name, said in outputs.items()} == {
        "share-0-of-2": [1, 3],
        "share-1-of-2": [2],
        "report": [],  # nothing is judged twice
    }
    again = command(*shared)
    assert again.code == 0
    assert json.loads(again.out) == found


def executed(executor, folder, *arguments):
    attempt = slurm.SlurmLauncher(executor).start(job_command(folder, "a job", arguments), lambda _: None)
    until(lambda: attempt.poll() is not None)
    return attempt.poll()


def test_submitits_own_executors_run_the_same_job(tmp_path):
    for executor in (submitit.DebugExecutor(tmp_path / "debug"), submitit.LocalExecutor(tmp_path / "local")):
        folder = tmp_path / type(executor).__name__
        said = "import sys; print('a line'); sys.exit({})"
        assert executed(executor, folder, "-c", said.format(0)) == Ending(0, "a line")
        assert executed(executor, folder, "-c", said.format(3)) == Ending(3, "a line")
        assert (folder / "jobs/a-job/output.txt").read_text() == "a line\na line\n"


def test_a_job_that_vanishes_is_a_failure(cluster, tmp_path):
    launcher = make_launcher("slurm", tmp_path, slurm="time=10", ray=None)
    killer = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    attempt = launcher.start(job_command(tmp_path, "a job", ["-c", killer]), lambda _: None)
    attempt._job._results_timeout_s = 0
    until(lambda: attempt._job.done(force_check=True))
    ending = attempt.poll()
    assert ending.code == 1
    assert not ending.stopped
    assert ending.why.startswith("Slurm's job 1 ended without a result (COMPLETED): ")


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("30:00", 30), ("30:01", 31), ("24:00:00", 1440), ("2-12", 3600), ("1-0:30", 1470), ("1-1:1:1", 1502)],
)
def test_durations_as_slurm_writes_them(text, minutes):
    assert slurm.minutes(text) == minutes


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (None, "--slurm needs the time limit"),
        ("partition=gpu", "--slurm needs the time limit"),
        ("time=tomorrow", "time=tomorrow is no duration of Slurm's"),
        ("time=10,partition=", "'partition=' is no option of sbatch's"),
        ("time=10,time=20", "'time=20' is no option of sbatch's, or is given twice"),
        ("time=10,2=3", "'2=3' is no option"),
    ],
)
def test_options_that_are_none(told, says, tmp_path):
    with pytest.raises(InputError, match=says):
        make_launcher("slurm", tmp_path, slurm=told, ray=None)


def test_where_slurm_is_not_and_where_it_refuses(cluster, sweep, command, refused, monkeypatch):
    (cluster.place / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    answer = command(*sweep)
    assert answer.code == 2
    assert "Slurm refused the job: sbatch: error: invalid partition; see --slurm" in answer.err
    monkeypatch.setenv("PATH", "/nowhere")
    assert shutil.which("srun") is None
    assert "Run the command on a machine from which sbatch works" in refused(*sweep)
