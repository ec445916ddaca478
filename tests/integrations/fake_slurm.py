"""A small Slurm for tests: sbatch, srun, sacct, scancel and scontrol, by the name it is called with.

Jobs run at once, on this machine; their state is in the folder of the commands. Like Slurm it signals every process of
a job but the batch script (``preempt``), and runs a job again that is queued again.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

PLACE = Path(os.environ.get("FAKE_SLURM", "."))


def sbatch(script):
    number = str(1 + len(list(PLACE.glob("*.state"))))
    (PLACE / f"{number}.state").write_text("RUNNING")
    (PLACE / f"{number}.sbatch").write_text(Path(script).read_text())
    nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.Popen([sys.executable, __file__, "supervise", number], start_new_session=True, **nowhere)
    print(f"Submitted batch job {number}")


def supervise(number):
    again = PLACE / f"{number}.again"
    while True:
        subprocess.run(
            ["bash", str(PLACE / f"{number}.sbatch")], env=os.environ | {"SLURM_JOB_ID": number}, check=False
        )
        if not again.exists():
            break
        again.unlink()
    (PLACE / f"{number}.state").write_text("COMPLETED")


def srun(*words):
    files = {words[i]: words[i + 1] for i in range(len(words)) if words[i] in ("--output", "--error")}
    names = {name: path.replace("%j", os.environ["SLURM_JOB_ID"]).replace("%t", "0") for name, path in files.items()}
    command = words[next(i for i, word in enumerate(words) if word.endswith("python") or "python3" in word) :]
    with Path(names["--output"]).open("a") as out, Path(names["--error"]).open("a") as err:
        sys.exit(subprocess.run(command, stdout=out, stderr=err, check=False).returncode)


def sacct(*_):
    print("JobID|State|NodeList")
    for path in PLACE.glob("*.state"):
        print(f"{path.stem}|{path.read_text()}|node1")


def scontrol(what, number):
    assert what == "requeue"
    (PLACE / f"{number}.again").touch()


def scancel(number):
    send(number, signal.SIGTERM)


def preempt(number):
    """As at the time limit: SIGUSR2, from ``#SBATCH --signal``."""
    assert re.search(r"#SBATCH --signal=USR2@\d+", (PLACE / f"{number}.sbatch").read_text())
    send(number, signal.SIGUSR2)


def send(number, what):
    """To every process of the job but the script and srun."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = path.joinpath("environ").read_text(errors="replace").split("\0")
            words = path.joinpath("cmdline").read_text(errors="replace").split("\0")
        except OSError:
            continue
        ours = {f"SLURM_JOB_ID={number}", f"FAKE_SLURM={PLACE}"} <= set(environment)
        if (
            ours
            and not words[0].endswith("bash")
            and not any(word.endswith(("fake_slurm.py", "srun")) for word in words)
        ):
            os.kill(int(path.name), what)


if __name__ == "__main__":
    name = Path(sys.argv[0]).name
    if name == "fake_slurm.py":
        name = sys.argv.pop(1)
    globals()[name](*sys.argv[1:])
