"""Several jobs at a time: crashes, deadlines, Ctrl-C; first with processes that pretend, then with real quick rows."""

import io
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file

from widemargin.cli.main import run
from widemargin.core import child_process
from widemargin.jobs.job import Resources, Task, choose_rows, jobs
from widemargin.jobs.launch import LocalLauncher, job_command
from widemargin.jobs.pool import describe, run_tasks
from widemargin.recipes.tables import find_table

PRETENDING = Path(__file__).with_name("pretending_task.py")
ROWS = ("st-wd0.01", "st-emr", "at-wd0.01", "at-emr")


class Crew:
    """Tasks whose processes pretend."""

    program = (str(PRETENDING),)

    def __init__(self, out, name="table1", rows=ROWS):
        self.out, self.said, self.told = out, io.StringIO(), {}
        table = find_table(name)
        self.tasks = [Task(job) for job in jobs(table, choose_rows(table, rows), [0], out, is_quick=True)]

    def describe(self, task):
        name = task.job.row.recipe.name.split("/")[1]
        told = {"do": self.told.get(name, "finish"), "name": name, "folder": str(task.job.folder)}
        told |= {"journal": str(self.out / "journal")}
        output = task.job.folder / "output.txt"
        return job_command(self.out, task.label, [*self.program, json.dumps(told)], output)

    def work(self, workers=2, seconds=math.inf, **told):
        self.told = {name.replace("_", "-").replace("0-", "0."): what for name, what in told.items()}
        console = Console(file=self.said, width=200)
        deadline = time.monotonic() + seconds
        return run_tasks(self.tasks, self.describe, LocalLauncher(workers), deadline=deadline, console=console)

    @property
    def journal(self):
        return (self.out / "journal").read_text().splitlines()

    @property
    def done(self):
        return [task.job.row.recipe.name.split("/")[1] for task in self.tasks if task.done]


@pytest.fixture
def crew(tmp_path):
    return Crew(tmp_path)


def test_all_are_done_the_longest_first_and_their_lines_are_passed_on(crew):
    assert crew.work(workers=1) == []
    assert crew.done == list(ROWS)
    begun = [line.split()[1] for line in crew.journal if line.startswith("begins")]
    assert begun == ["at-emr", "st-emr", "at-wd0.01", "st-wd0.01"]
    assert "mnist-mlp/st-emr, seed 0: a line of progress" in crew.said.getvalue()
    assert (crew.tasks[0].job.folder / "output.txt").read_text() == "a line of progress\n"
    assert crew.work() == []
    assert crew.said.getvalue().count("done before") == len(ROWS)


def test_lines_that_cannot_be_kept_do_not_stop_the_process(crew):
    output = crew.tasks[1].job.folder / "output.txt"
    output.mkdir(parents=True)
    assert crew.work(seconds=60, st_emr="talk") == []
    assert crew.done == list(ROWS)
    said = crew.said.getvalue()
    assert said.count(f"mnist-mlp/st-emr, seed 0: lines are missing in {output}: Is a directory") == 1
    assert said.count("a line of many") == 4000


def test_never_more_than_so_many_at_a_time(crew):
    assert crew.work(workers=2) == []
    running = 0
    for line in crew.journal:
        running += 1 if line.startswith("begins") else -1
        assert running <= 2


SHARING = ("at-wd0.0005", "at-emr", "at-wd0.0005-averaged", "at-emr-averaged")


@pytest.fixture
def sharing(tmp_path, crew):
    """As the crew, with two jobs of each of two runs."""
    return Crew(tmp_path, "resnet18-emr", SHARING)


def test_jobs_that_share_a_run_are_done_one_after_the_other(sharing):
    assert sharing.work(workers=4) == []
    assert sharing.done == list(SHARING)
    under_way = set()
    for line in sharing.journal:
        what, name, _ = line.split()
        run = name.removesuffix("-averaged")
        assert (run in under_way) == (what == "ends")
        under_way ^= {run}


def test_of_jobs_that_share_a_run_the_second_has_its_turn_after_a_crash_of_the_first(sharing):
    assert [failure.label for failure in sharing.work(workers=4, at_emr="crash")] == ["cifar-resnet18/at-emr, seed 0"]
    assert sharing.done == ["at-wd0.0005", "at-wd0.0005-averaged", "at-emr-averaged"]


def test_crashes_do_not_stop_the_others(crew):
    failures = crew.work(at_emr="crash", st_emr="die", at_wd0_01="silently")
    whys = {failure.label: failure.why for failure in failures}
    assert whys == {
        "mnist-mlp/at-emr, seed 0": "RuntimeError: the device is on fire",
        "mnist-mlp/st-emr, seed 0": "killed by SIGKILL",
        "mnist-mlp/at-wd0.01, seed 0": "ended with exit code 0, without a result",
    }
    assert crew.done == ["st-wd0.01"]
    assert "Traceback" in (crew.tasks[3].job.folder / "output.txt").read_text()
    assert crew.work() == []
    assert crew.done == list(ROWS)


def test_at_the_deadline_those_at_work_are_asked_to_stop_and_none_begins(crew):
    assert crew.work(seconds=1.0, at_emr="wait", st_emr="wait") == []
    assert crew.done == []
    assert crew.said.getvalue().count("stopped; it can go on") == 2
    assert not any("wd0.01" in line for line in crew.journal)


def test_a_deadline_that_is_over_begins_nothing(crew):
    assert crew.work(seconds=-1.0) == []
    assert not (crew.out / "journal").exists()


def test_who_does_not_listen_is_killed(crew, monkeypatch):
    monkeypatch.setattr(child_process, "PATIENCE", 0.2)
    assert crew.work(seconds=1.0, at_emr="stubborn", st_emr="wait") == []
    assert crew.done == []
    assert "stopped; it can go on" in crew.said.getvalue()


def test_an_interrupt_stops_all(crew):
    with pytest.raises(KeyboardInterrupt):
        crew.work(st_emr="interrupt the parent", at_emr="wait")
    assert crew.done == []
    assert crew.said.getvalue().count("stopped; it can go on") == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_that_dies_before_its_task_begins_has_failed(crew):
    crew.program = ("-c", "raise SystemExit('no such device')")
    failures = crew.work(workers=2)
    assert [failure.why for failure in failures] == ["no such device"] * len(ROWS)


COMMAND = ("reproduce", "table1", "--quick", "--device", "cpu", "--workers", "2")


def test_real_rows_one_of_which_cannot_work(tmp_path, capsys):
    broken = tmp_path / "mnist-mlp-st-emr" / "seed-0" / "run"
    broken.mkdir(parents=True)
    (broken / "something").write_text("of somebody else")
    assert run([*COMMAND, "--rows", "st-wd0.001,st-emr", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "mnist-mlp/st-wd0.001, seed 0: epoch 2/2" in said.err
    assert "1 of 2 failed" in said.err
    assert said.err.count("is not empty and holds no config.toml") == 3  # as it came, when it ended, at the end
    assert "time is out" not in said.err
    result = json.loads((tmp_path / "mnist-mlp-st-wd0.001" / "seed-0" / "result.json").read_text())
    assert result["workers"] == 2
    assert result["engine"] == "eager, float32"
    assert result["device"].startswith("cpu: ")
    rows = (tmp_path / "table1.md").read_text().splitlines()[-2:]
    assert "- / 98.41" not in rows[0]
    assert "- / 97.50" in rows[1]


def test_real_rows_of_workers_are_those_of_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rows = ("st-wd0.001", "at-wd0.001")
    for workers in ("1", "2"):
        out = str(tmp_path / workers)
        assert run([*COMMAND, "--rows", ",".join(rows), "--workers", workers, "--out", out]) == 0
    for row in rows:
        one, other = (tmp_path / workers / f"mnist-mlp-{row}" / "seed-0" for workers in ("1", "2"))
        results = [json.loads((folder / "result.json").read_text()) for folder in (one, other)]
        for name in ("accuracy", "margin_train", "margin_test", "histograms"):
            assert results[0][name] == results[1][name]
        assert load_weights_of(one) == load_weights_of(other)


def load_weights_of(folder: Path) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in load_file(folder / "run" / "last.safetensors").items()}


def test_ctrl_c_ends_the_children_too(tmp_path):
    rows = ("--rows", "at-emr,at-wd0.01,st-emr", "--out", str(tmp_path))
    command = [sys.executable, "-m", "widemargin", *COMMAND, *rows]
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    said = []
    for line in parent.stderr:
        said.append(line)
        if "epoch 1/2" in line:
            parent.send_signal(signal.SIGINT)
            break
    said += parent.stderr.readlines()
    assert parent.wait() == 130, "".join(said)
    assert any("interrupted; the same command goes on" in line for line in said)
    assert not any("Traceback" in line for line in said)
    assert not any("st-wd0" in line for line in said)
    assert children_in(tmp_path) == []


def test_a_child_whose_parent_is_gone_stops(tmp_path):
    table = find_table("table1")
    (job,) = jobs(table, choose_rows(table, ["at-emr"]), [0], tmp_path, is_quick=True)
    resources = Resources(data_dir=None, device="cpu", workers=2)
    told = describe(Task(job), resources=resources, out=tmp_path)
    child = subprocess.Popen([sys.executable, *told.arguments], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdin.close()
    child.stdin = None
    child.communicate()
    assert child.returncode == -signal.SIGTERM
    assert not (job.folder / "result.json").exists()


def children_in(folder: Path) -> list[str]:
    """Processes that were told of the folder, where the system lists them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text(errors="replace")
        except OSError:  # it ended while we looked
            continue
        if str(folder) in words and path.parent.name != str(os.getpid()):
            found.append(words)
    return found


def waiting_process(folder, program, workers=1):
    """A process that has said "ready"; what it says later is in the list."""
    said, ready = [], threading.Event()

    def say(line):
        said.append(line.removeprefix("a job: "))
        if said[-1] == "ready":
            ready.set()

    process = LocalLauncher(workers).start(job_command(folder, "a job", ["-c", program]), say)
    assert ready.wait(60)
    return process, said


WAITING = "print('ready', flush=True); sys.stdin.read()"
ENDS = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit({})); " + WAITING


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (f"import sys; {WAITING}", None),  # it dies of the signal, as training does when its checkpoint is written
        (ENDS.format("0"), None),
        (ENDS.format("'the disk is full'"), "the disk is full"),
    ],
    ids=["dies of it", "ends", "crashes"],
)
def test_a_process_that_crashes_as_it_is_asked_to_stop_has_failed(tmp_path, program, why):
    process, _ = waiting_process(tmp_path, program)
    process.stop()
    ending = process.poll()
    assert (None if ending.stopped else ending.why) == why


@pytest.mark.parametrize(("users", "threads"), [("7", "7"), (None, "3")])
def test_how_many_threads_a_process_has_is_the_users_to_say(tmp_path, monkeypatch, users, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    if users is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", users)
    program = "import os; print(os.environ['OMP_NUM_THREADS'], flush=True); print('ready')"
    process, said = waiting_process(tmp_path, program, workers=2)
    process.wait()
    assert said == [threads, "ready"]


@pytest.mark.parametrize(("workers", "threads"), [(1, 8), (2, 4), (3, 2), (16, 1)])
def test_the_processes_share_the_cores(crew, monkeypatch, workers, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    crew.program = ("-c", "import os; print('cores', os.environ['OMP_NUM_THREADS'])")
    crew.tasks = crew.tasks[:1]
    crew.work(workers=workers)
    assert f"{crew.tasks[0].label}: cores {threads}\n" in crew.said.getvalue()
