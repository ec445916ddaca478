"""A cluster of two nodes on this machine: jobs that share a GPU, a node that is killed under its job, a crash."""

import json
import signal
import threading

import pytest
from launching import epochs_said, measured, until

from widemargin import InputError
from widemargin.config.toml import to_toml, with_overrides
from widemargin.core.child_process import Ending, read_record
from widemargin.jobs.launch import job_command, make_launcher
from widemargin.training import train

ray = pytest.importorskip("ray", reason="ray is in the extra of that name, and too large for the dev environment")
from ray.cluster_utils import Cluster  # noqa: E402

from widemargin.integrations import ray as adapter  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    """A head without processors, and two nodes with one each; both have a GPU in name."""
    small = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    made.small = small
    made.nodes = [made.add_node(num_cpus=1, num_gpus=1, **small) for _ in range(2)]
    yield made
    ray.shutdown()
    made.shutdown()


def outcomes(launcher, folder, scripts):
    """How several jobs end that run at the same time, by their names."""
    attempts = {
        name: launcher.start(job_command(folder, name, ["-c", script]), lambda _: None)
        for name, script in scripts.items()
    }
    until(lambda: all(attempt.poll() is not None for attempt in attempts.values()))
    return {name: attempt.poll() for name, attempt in attempts.items()}


def test_jobs_take_what_they_are_said_to_take(cluster, tmp_path):
    launcher = make_launcher("ray", tmp_path, slurm=None, ray=f"{cluster.address},gpus=0.5,cpus=0.5")
    assert launcher.resources == {"num_gpus": 0.5, "num_cpus": 0.5}
    says = "import os; print('sees', os.environ['CUDA_VISIBLE_DEVICES'])"
    found = outcomes(launcher, tmp_path, {"one": says, "other": says, "crash": f"{says}; raise SystemExit(3)"})
    assert found["one"] == found["other"] == Ending(0, "sees 0")
    assert found["crash"] == Ending(3, "sees 0")
    assert make_launcher("ray", tmp_path, slurm=None, ray=cluster.address).resources == {"num_gpus": 1.0}


def test_a_job_that_somebody_kills_is_begun_again_and_one_that_is_asked_to_stop_is_not(cluster, tmp_path):
    launcher = make_launcher("ray", tmp_path, slurm=None, ray=f"{cluster.address},gpus=0")
    once = tmp_path / "once"
    dies = f"import os, pathlib; p = pathlib.Path({str(once)!r}); again = p.exists(); p.touch(); "
    dies += "print('again') if again else os.kill(os.getpid(), 9)"
    assert outcomes(launcher, tmp_path, {"dies": dies}) == {"dies": Ending(0, "again")}
    waits = job_command(tmp_path, "waits", ["-c", "print('here', flush=True); import time; time.sleep(1000)"])
    attempt = launcher.start(waits, lambda _: None)
    until(lambda: waits.output.is_file())
    attempt.ask_to_stop()
    until(lambda: attempt.poll() is not None)
    assert attempt.poll().stopped
    until(lambda: read_record(waits.folder).get("code") == -signal.SIGTERM)


def test_a_node_killed_in_mid_job_loses_nothing_and_repeats_only_the_epoch_under_way(cluster, tiny, command, tmp_path):
    config = tiny("epochs=60", "watch.margins=[]", "data.train_limit=80")
    (tmp_path / "tiny.toml").write_text(to_toml(config))
    out = tmp_path / "out"
    names = [f"emr.weight={weight}" for weight in ("0.1", "0.2")]
    runs = {name: out / "points" / name for name in names}
    at_death = []

    def kill():
        until(lambda: all(len(measured(run)) > 2 for run in runs.values()))
        records = {name: read_record(out / "jobs" / name) for name in names}
        assert records[names[0]]["node"] != records[names[1]]["node"]
        (node,) = (node for node in cluster.nodes if node.node_id == records[names[0]]["node"])
        cluster.remove_node(node, allow_graceful=False)
        at_death.append(records)

    killer = threading.Thread(target=kill)
    killer.start()
    line = ["sweep", tmp_path / "tiny.toml", "--grid", "emr.weight=0.1,0.2", "--out", out, "--device", "cpu"]
    answer = command(*line, "--launcher", "ray", "--ray", f"{cluster.address},gpus=0,cpus=1")
    killer.join()
    assert answer.code == 0, answer.err
    assert "2 of 2 points" in answer.out
    (before,) = at_death
    survivor = read_record(out / "jobs" / names[1])
    moved = read_record(out / "jobs" / names[0])
    assert moved["node"] == survivor["node"] == before[names[1]]["node"] != before[names[0]]["node"]
    assert epochs_said(out / "jobs" / names[1] / "output.txt") == list(range(1, 61))
    said = epochs_said(out / "jobs" / names[0] / "output.txt")
    repeated = {epoch for epoch in said if said.count(epoch) > 1}
    assert len(repeated) <= 1  # the one under way
    assert len(set(range(1, 61)) - set(said)) <= 1  # saved, and its line died with the node
    for name, run in runs.items():
        alone = train(with_overrides(config, [name]), out=tmp_path / name, device="cpu").metrics
        assert [without_times(line) for line in measured(run)] == [without_times(line) for line in alone]
    state = json.loads(command("status", out, "--json").out)
    assert state["counts"]["done"] == 2


def without_times(line):
    return {key: value for key, value in line.items() if not key.endswith("seconds")}


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (None, "--ray needs the cluster's address first"),
        ("gpus=1", "--ray needs the cluster's address first"),
        ("auto,gpus=1.5", "'gpus=1.5' is not what a job takes"),
        ("auto,gpus=-1", "'gpus=-1' is not what a job takes"),
        ("auto,gpus=1,gpus=1", "'gpus=1' is not what a job takes"),
        ("auto,disks=1", "'disks=1' is not what a job takes"),
    ],
)
def test_addresses_and_amounts_that_are_none(told, says):
    with pytest.raises(InputError, match=says):
        adapter.parsed_options(told)


def test_more_than_any_node_has(cluster, tmp_path):
    with pytest.raises(InputError, match="a job takes cpus=64, and no node has more than 1"):
        make_launcher("ray", tmp_path, slurm=None, ray=f"{cluster.address},cpus=64")
