"""A process in place of ``task_process`` that is there at once and does as it is told, such as ``{"do": "crash"}``.

Of several tasks so many as it has lanes are under way; those that end the process or wait are acted on last. A lane
that crashed takes no more. The lines of several are marked.
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
    elif what == "talk":
        for _ in range(4000):  # more than a pipe holds
            print(f"[{number}] " * several + "a line of many, which somebody has to read", flush=True)
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


ORDER = ("finish", "crash")
waiting, several, lanes = list(enumerate(told["tasks"])), len(told["tasks"]) > 1, told["lanes"]
under_way: list[tuple[int, dict]] = []
while waiting or under_way:
    while waiting and len(under_way) < lanes:
        number, task = waiting.pop(0)
        if several:
            print(f"[{number}] begins", flush=True)
        print(f"[{number}] " * several + "a line of progress", flush=True)
        note("begins", task)
        if task["do"] == "say nothing":
            print("a word from the process", flush=True)
        under_way.append((number, task))
    if not under_way:
        break
    number, task = min(under_way, key=lambda numbered: numbered[1]["do"] not in ORDER)
    act(task["do"], number, task)
    note("ends", task)
    under_way.remove((number, task))
    lanes -= task["do"] == "crash"
if several and any(task["do"] not in ("finish", "wait") for task in told["tasks"]):
    sys.exit(1)
