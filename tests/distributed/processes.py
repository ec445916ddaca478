"""Start processes that know of each other, as torchrun would, with less to import."""

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

WORKER = Path(__file__).with_name("worker.py")
Job = tuple[str, tuple[Any, ...]]
"""A name of ``worker.JOBS`` and its arguments."""


def run_jobs(folder: Path, jobs: Sequence[Job], *, processes: int = 2) -> list[list[Any]]:
    """For every job what each process made of it."""
    (folder / "jobs.pickle").write_bytes(pickle.dumps(list(jobs)))
    answers = start([sys.executable, str(WORKER), str(folder)], processes=processes)
    assert all(answer.returncode == 0 for answer in answers), "\n".join(answer.stderr for answer in answers)
    names = [[folder / f"{number}-{rank}.pt" for rank in range(processes)] for number in range(len(jobs))]
    return [[torch.load(path, weights_only=False) for path in paths] for paths in names]


def start(command: Sequence[str], *, processes: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """The same command in every process."""
    shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [
        subprocess.Popen(
            command,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    outputs = [process.communicate() for process in started]
    return [
        subprocess.CompletedProcess(command, process.returncode, *output)
        for process, output in zip(started, outputs, strict=True)
    ]


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
