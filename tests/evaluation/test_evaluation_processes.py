"""Several processes share the shards of one evaluation and end with the report of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from evaluation_child import evaluate
from test_evaluation_resume import CHILD, counted, records, weights

from widemargin import InputError
from widemargin.distributed.group import Processes

REFUSING = Path(__file__).with_name("refusing_child.py")


def two_processes(*command):
    """torchrun, whose two processes speak through gloo."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launch, *command], env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )


def test_two_processes_equal_one(tmp_path):
    torch.save(weights(), tmp_path / "weights.pt")
    evaluate(counted(), tmp_path / "one")
    finished = two_processes(CHILD, tmp_path / "weights.pt", tmp_path / "two")
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


SAID = {
    "one_has_other_images": ("evaluate: images must be in [0, 1]", " (said by process 1 of 2)"),
    "one_has_other_images_late": ("evaluate: images must be in [0, 1]", " (said by process 1 of 2)"),
    "one_has_other_settings": ("evaluate.shard_size must be a whole number", " (said by process 1 of 2)"),
    "the_first_finds_another_evaluation": (
        "",
        "(seed: 1 here, 0 there); choose another --out (said by process 0 of 2)",
    ),
    "the_folder_is_anothers": (
        "another process works in ",
        "choose another folder (--out at the command line) (said by process 0 of 2)",
    ),
    "all_have_no_images": ("evaluate: the data is empty", "give at least one example"),
}


def test_what_one_process_refuses_all_refuse_with_the_same_words(tmp_path):
    finished = two_processes(REFUSING, tmp_path)
    assert finished.returncode == 0, finished.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    for case, (begins, ends) in SAID.items():
        assert first[case].startswith(begins), case
        assert first[case].endswith(ends), case
    at_the_command_line = first["one_has_no_weights_at_the_command_line"]
    assert at_the_command_line["code"] == 2
    assert at_the_command_line["said"].startswith("widemargin: absent.pt does not exist")
    assert len(at_the_command_line["said"].splitlines()) == 1
    assert sorted(path.name for path in (tmp_path / "one_has_other_images").iterdir()) == [
        "answers.json",
        "settings.json",
    ]
    done = {path.name for path in (tmp_path / "one_has_other_images_late" / "shards").glob("*.jsonl")}
    assert done == {"00000.jsonl", "00001.jsonl", "00002.jsonl"}  # the work of the others is kept
