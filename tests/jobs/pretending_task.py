"""A process in place of ``task_process`` that is there at once and does as it is told, such as ``{"do": "crash"}``."""

import json
import os
import signal
import sys
from pathlib import Path

told = json.loads(sys.argv[1])


def note(what: str) -> None:
    with Path(told["journal"]).open("a") as stream:
        stream.write(f"{what} {told['name']} {os.getpid()}\n")


def finish() -> None:
    folder = Path(told["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps({"quick": True, "accuracy": {}}))


def wait() -> None:
    sys.stdin.read()  # until the parent is gone


def act(what: str) -> None:
    if what == "finish":
        finish()
    elif what == "talk":
        for _ in range(4000):  # more than a pipe holds
            print("a line of many, which somebody has to read", flush=True)
        finish()
    elif what == "crash":
        raise RuntimeError("the device is on fire")
    elif what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "silently":
        sys.exit(0)
    elif what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note("deaf")
        wait()
    elif what == "interrupt the parent":
        os.kill(os.getppid(), signal.SIGINT)
        wait()
    elif what == "wait":
        wait()


print("a line of progress", flush=True)
note("begins")
act(told["do"])
note("ends")
