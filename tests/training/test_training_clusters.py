"""The scripts of docs/clusters.md, run as they stand, with a small run in place of the large one."""

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from widemargin.config.checkpoint import load_checkpoint
from widemargin.config.toml import to_toml

DOCS = Path(__file__).parents[2] / "docs" / "clusters.md"
SCRIPTS = re.findall(r"```bash\n(.*?)```", DOCS.read_text(), flags=re.S)
SLURM = next(script for script in SCRIPTS if "SBATCH" in script)


def program(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def start(tiny, tmp_path):
    """start(*settings): the Slurm script, with a scontrol that only notes what it is asked, and after what."""

    def begin(*settings):
        (tmp_path / "tiny.toml").write_text(to_toml(tiny("watch.margins=[]", "watch.test=false", *settings)))
        train = f"exec {sys.executable} -m widemargin train {tmp_path}/tiny.toml --out {tmp_path}/run --device cpu\n"
        program(tmp_path / "widemargin", f"#!/bin/sh\n{train}")
        program(
            tmp_path / "scontrol", f'#!/bin/sh\nls {tmp_path}/run > {tmp_path}/then\necho "$@" > {tmp_path}/asked\n'
        )
        (tmp_path / "job.sh").write_text(SLURM)
        paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "77", "OMP_NUM_THREADS": "1"}
        job = ["bash", tmp_path / "job.sh"]
        return subprocess.Popen(job, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=os.environ | paths)

    return begin


def test_at_the_time_limit_the_slurm_script_waits_for_the_checkpoint_and_queues_the_job_again(start, tmp_path):
    job = start("epochs=1000000")
    assert "epoch       1/1000000" in job.stderr.readline()
    job.send_signal(signal.SIGTERM)
    words = job.stderr.read()
    job.wait()
    assert "stopped by SIGTERM" in words
    assert "the same command goes on" in words
    assert (tmp_path / "asked").read_text() == "requeue 77\n"
    assert "last.safetensors" in (tmp_path / "then").read_text()
    load_checkpoint(tmp_path / "run" / "last.safetensors")


def test_a_finished_job_is_not_queued_again(start, tmp_path):
    job = start("epochs=1")
    words = job.stderr.read()
    assert job.wait() == 0
    assert "done: 1 epochs" in words
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_can_be_read_by_bash(script):
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
