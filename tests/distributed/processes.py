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
import torch.distributed as dist

Job = tuple[str, tuple[Any, ...]]
"""A name in ``main`` and its arguments."""


def run_jobs(folder: Path, jobs: Sequence[Job], *, processes: int = 2) -> list[list[Any]]:
    """For every job what each process made of it."""
    (folder / "jobs.pickle").write_bytes(pickle.dumps(list(jobs)))
    answers = start([sys.executable, __file__, str(folder)], processes=processes)
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


def main(folder: Path) -> None:
    """In each of the processes: every job in order; its result is ``number-rank.pt``."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # where the faults are
    import layer_cases
    import run_cases
    import step_cases

    jobs = {
        "steps": step_cases.trained,
        "norm": layer_cases.normalized,
        "odd": layer_cases.odd,
        "run": run_cases.whole_run,
        "begun": run_cases.begun_run,
        "refusals": run_cases.refusals,
        "norms": run_cases.norms,
        "stops": run_cases.stops,
    }
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    for number, (job, arguments) in enumerate(pickle.loads((folder / "jobs.pickle").read_bytes())):
        found = jobs[job](*arguments, rank=rank, processes=processes)
        torch.save(found, folder / f"{number}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
