"""A process in place of ``task_process`` that is there at once and does as it is told, such as ``{"do": "crash"}``."""

import json
import os
import signal
import sys
from pathlib import Path

told = json.loads(sys.argv[1])
folder = Path(told["folder"])
journal = Path(told["journal"])


def note(what: str) -> None:
    with journal.open("a") as stream:
        stream.write(f"{what} {told['name']}\n")


def finish() -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps({"quick": True, "accuracy": {}}))


def wait() -> None:
    sys.stdin.read()  # until the parent is gone


print("a line of progress", flush=True)
note("begins")
if told["do"] == "finish":
    finish()
elif told["do"] == "crash":
    raise RuntimeError("the device is on fire")
elif told["do"] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
elif told["do"] == "silently":
    sys.exit(0)
elif told["do"] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("deaf")
    wait()
elif told["do"] == "interrupt the parent":
    os.kill(os.getppid(), signal.SIGINT)
    wait()
elif told["do"] == "wait":
    wait()
note("ends")
