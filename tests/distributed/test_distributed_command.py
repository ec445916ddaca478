"""The command as users start it: in several processes, and under torchrun with one of them killed."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import start
from run_cases import STEPS, TINY, tiny
from test_distributed_steps import assert_same_run

from widemargin.training import train

HERE = Path(__file__).parent


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.replace('kind = "adversarial"', 'kind = "dying"'))
    return path


def command(recipe: Path, out: Path) -> list[str]:
    return ["-m", "widemargin", "--import", "dying", "train", str(recipe), "--out", str(out), "--checkpoint-every", "2"]


def test_the_command_in_two_processes(recipe: Path, tmp_path: Path) -> None:
    log = ["--log", "tensorboard"] if find_spec("tensorboard") else []
    first, second = start([sys.executable, *command(recipe, tmp_path / "two"), *log])
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "processes: 2, which share every batch" in first.stderr
    assert "done: 2 epochs" in first.stderr
    assert second.stdout + second.stderr == ""
    if log:  # the first process alone logs
        assert len(list((tmp_path / "two" / "tensorboard").iterdir())) == 1
    train(tiny(), out=tmp_path / "one", device="cpu")
    assert_same_run(tmp_path / "two", tmp_path / "one")


def torchrun(*command: str, restarts: int) -> subprocess.CompletedProcess[str]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    return subprocess.run(
        [sys.executable, *launch, *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.long
def test_what_one_process_refuses_in_a_step_ends_all(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYING_LOG", str(tmp_path / "steps"))
    monkeypatch.setenv("DYING_REFUSES", "yes")
    finished = torchrun(*command(recipe, tmp_path / "refused"), restarts=0)
    assert finished.returncode != 0
    assert "widemargin: the seventh step is refused" in finished.stderr


@pytest.mark.long
def test_a_killed_process_is_started_again_and_goes_on(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYING_LOG", str(tmp_path / "steps"))
    finished = torchrun(*command(recipe, tmp_path / "killed"), restarts=2)
    assert finished.returncode == 0, finished.stderr
    train(tiny(), out=tmp_path / "one", device="cpu")
    assert_same_run(tmp_path / "killed", tmp_path / "one")
    taken = {path.name: int(path.read_text()) for path in tmp_path.glob("steps-*")}
    assert taken["steps-0-1"] == STEPS + 3
    # from the checkpoint in mid-epoch, two steps into the second epoch
    assert taken["steps-1-0"] == taken["steps-1-1"] == 2 * STEPS - (STEPS + 2)
