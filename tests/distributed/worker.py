"""One of several processes: does the jobs of a list in order, and leaves what came out in a folder."""

import pickle
import sys
from pathlib import Path

import layer_cases
import run_cases
import step_cases
import torch
import torch.distributed as dist

JOBS = {
    "steps": step_cases.trained,
    "norm": layer_cases.normalized,
    "odd": layer_cases.odd,
    "run": run_cases.whole_run,
    "begun": run_cases.begun_run,
    "refusals": run_cases.refusals,
    "norms": run_cases.norms,
    "stops": run_cases.stops,
}


def main(folder: Path) -> None:
    """Every process does every job; its result is ``number-rank.pt``."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    for number, (job, arguments) in enumerate(pickle.loads((folder / "jobs.pickle").read_bytes())):
        found = JOBS[job](*arguments, rank=rank, processes=processes)
        torch.save(found, folder / f"{number}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
