"""A process in place of ``task_process`` that is there at once and does as it is told, such as ``{"do": "crash"}``.

It does its tasks one after the other, those that end the process or wait last; the lines of several are marked.
"""

import json
import os
import signal
import sys
from pathlib import Path

told = json.loads(sys.argv[1])
journal = Path(told["journal"])


def note(what: str, task: dict) -> None:
    with journal.open("a") as stream:
        stream.write(f"{what} {task['name']} {os.getpid()}\n")


def finish(task: dict) -> None:
    folder = Path(task["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps({"quick": True, "accuracy": {}}))


def wait() -> None:
    sys.stdin.read()  # until the parent is gone


def act(what: str, number: int, task: dict) -> None:
    if what == "finish":
        finish(task)
    elif what == "crash":
        if len(told["tasks"]) == 1:
            raise RuntimeError("the device is on fire")
        print(f"[{number}] failed: RuntimeError: the device is on fire", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as lanes end when one of them has failed
    elif what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "silently":
        sys.exit(0)
    elif what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note("deaf", task)
        wait()
    elif what == "interrupt the parent":
        os.kill(os.getppid(), signal.SIGINT)
        wait()
    elif what == "wait":
        wait()


tasks = list(enumerate(told["tasks"]))
for number, task in tasks:
    print(f"[{number}] " * (len(tasks) > 1) + "a line of progress", flush=True)
    note("begins", task)
if any(task["do"] == "say nothing" for _, task in tasks):
    print("a word from the process", flush=True)
ORDER = ("finish", "crash")
for number, task in sorted(tasks, key=lambda numbered: numbered[1]["do"] not in ORDER):
    act(task["do"], number, task)
    note("ends", task)
if len(tasks) > 1 and any(task["do"] not in ("finish", "wait") for _, task in tasks):
    sys.exit(1)
