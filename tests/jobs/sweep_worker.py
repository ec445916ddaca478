"""A worker for the sweep's tests: notes each point it runs; told to, it hangs in its first one until it is killed."""

import os
import sys
from pathlib import Path

from widemargin.jobs.grid import Sweep
from widemargin.jobs.sweep import work
from widemargin.recipes import find_recipe


def main(out: Path, role: str) -> None:
    sweep = Sweep(
        config=find_recipe("demo/emr").config,
        grid={"emr.weight": ["0.1", "0.2", "0.3"], "emr.every": ["1", "2"]},
        out=out,
        storage=f"sqlite:///{out / 'sweep.db'}",
        heartbeat=1,
    )

    def run_point(config, folder):
        with (out / "log").open("a") as log:
            log.write(f"{role} {folder.name}\n")
        if role == "victim":
            sys.stdout.write("hanging\n")
            sys.stdout.flush()
            sys.stdin.read()  # until killed
        with (out / "done").open("a") as done:
            done.write(f"{folder.name}\n")
        return {"score": config.emr.weight * 100 + config.emr.every, "pid": os.getpid()}

    study = work(sweep, run_point)
    sys.stdout.write(f"{study.best_value}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
