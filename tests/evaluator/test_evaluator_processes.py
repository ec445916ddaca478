"""Several processes share the shards of one evaluation and end with the report of one."""

import os
import subprocess
import sys

import pytest
import torch
from evaluation_child import evaluate
from test_evaluator_resume import CHILD, counted, records, weights

from widemargin import InputError
from widemargin.evaluation.processes import Processes


def test_two_processes_equal_one(tmp_path):
    torch.save(weights(), tmp_path / "weights.pt")
    evaluate(counted(), tmp_path / "one")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    finished = subprocess.run(
        [*launch, CHILD, tmp_path / "weights.pt", tmp_path / "two"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert records(tmp_path / "two") == records(tmp_path / "one")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_shard_is_judged_by_one(count):
    group = [Processes(rank, count) for rank in range(count)]
    for shard in range(10):
        assert sum(process.mine(shard) for process in group) == 1
    assert [process.first for process in group] == [True] + [False] * (count - 1)


def test_several_processes_without_a_folder_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"several processes needs a folder they share: give out=... \(--out\)"):
        evaluate(counted(), None)
