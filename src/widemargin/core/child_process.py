"""A command in a process of its own: what it says in a file, what becomes of it in a record that others can read.

``job.json`` says where it runs since when, then how it ended. Its folder stays locked until the process itself is gone,
so that of two attempts, on whatever machine, the second waits for the first. The process's standard input is a line to
its parent: when the parent is gone, killed even, the process stops as at SIGTERM (``follow_parent``).
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from widemargin.core.files import folder_lock, write_text_atomic
from widemargin.errors import InputError

OUTPUT, RECORD = "output.txt", "job.json"
FOLLOWS = "WIDEMARGIN_FOLLOWS_PARENT"
"""The environment variable that makes the command line follow its parent."""
PATIENCE = 120.0
"""Seconds between asking to stop and killing: a step may be compiling."""
POLL_SECONDS = 0.1
UNFINISHED = 75
"""The exit code of a run that stopped in good order before its end, as ``EX_TEMPFAIL`` of sysexits.h: try again."""
STOPPED = (0, UNFINISHED, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)
"""Exit codes of what stops in good order when it is asked to."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Command:
    """Python with these arguments; the folder is the job's own, and so is the file of its lines."""

    label: str
    arguments: tuple[str, ...]
    folder: Path
    output: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    place: str = field(default_factory=os.getcwd)
    """The current folder, from which relative paths are meant."""


@dataclass(frozen=True)
class Ending:
    """How it ended: the exit code (negative for a signal), the last line that is not empty, whether it was asked to."""

    code: int
    last: str = ""
    asked: bool = False

    @property
    def stopped(self) -> bool:
        """Whether somebody asked it to stop, and it did."""
        return self.asked and self.code in (*STOPPED, -signal.SIGKILL)

    @property
    def why(self) -> str:
        """For people."""
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        return (self.last if self.code else "") or f"ended with exit code {self.code}, without a result"


class ChildProcess:
    """The process; its lines go to its output file, after those of earlier attempts, and to ``say``.

    ``wait`` for an earlier attempt that has not ended, where it is refused otherwise. ``ignored`` signals do not reach
    the process. ``poll`` and ``stop`` may be called in a signal's handler.
    """

    def __init__(
        self,
        command: Command,
        say: Say | None = None,
        *,
        wait: bool = False,
        ignored: signal.Signals | None = None,
        **where: str,
    ) -> None:
        self.command = command
        self._say = say or (lambda _: None)
        self._last, self._writable = "", True
        self._asked: float | None = None
        self._ending: Ending | None = None
        command.folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(command.folder, wait=wait) as lock:
            self._process = subprocess.Popen(
                [sys.executable, *command.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                cwd=command.place,
                env={**os.environ, **command.environment, FOLLOWS: "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
                start_new_session=True,  # Ctrl-C reaches the parent alone, which asks each process once
                pass_fds=() if lock is None else (lock,),
                preexec_fn=None if ignored is None else lambda: signal.signal(ignored, signal.SIG_IGN),
            )
        self._record = {
            **where,
            "host": socket.gethostname(),
            "process": self._process.pid,
            "begun": time.time(),
            "arguments": list(command.arguments),
        }
        self._write_record()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._await_end, daemon=True).start()

    def poll(self) -> Ending | None:
        """How it ended, if it has."""
        return self._ending

    def wait(self) -> Ending:
        """Until it has ended; whatever interrupts the wait stops the process."""
        try:
            while self._ending is None:
                time.sleep(POLL_SECONDS)
        finally:
            self.stop()
        return self._ending

    def ask_to_stop(self) -> None:
        """Once, in good order; who does not listen is killed after a while."""
        if self._asked is None:
            self._asked = time.monotonic()
            self._process.terminate()
        elif time.monotonic() - self._asked > PATIENCE:
            self.kill()

    def stop(self) -> None:
        """Ask it, and wait until it has ended."""
        while self._ending is None:
            self.ask_to_stop()
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """End it and what it started, now."""
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()

    def _await_end(self) -> None:
        code = self._process.wait()
        self._reader.join(timeout=5.0)  # a process that it started may hold the line open
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        ending = Ending(code, self._last, asked=self._asked is not None)
        self._record |= {"ended": time.time(), **asdict(ending)}
        self._write_record()
        self._ending = ending

    def _read(self) -> None:
        for line in self._process.stdout or ():
            text = line.rstrip("\n")
            self._last = text.rstrip() or self._last
            self._write(text)
            self._say(f"{self.command.label}: {text.rstrip()}")

    def _write(self, text: str) -> None:
        """A line that cannot be written is lost, which is said once: who stops reading stops the process, too."""
        path = self.command.output
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as stream:
                stream.write(f"{text}\n")
        except OSError as error:
            if self._writable:
                self._writable = False
                self._say(f"{self.command.label}: lines are missing in {path}: {error.strerror or error}")

    def _write_record(self) -> None:
        with suppress(InputError):  # a full disk is told by the command itself
            write_text_atomic(self.command.folder / RECORD, json.dumps(self._record))


def read_record(folder: Path) -> dict[str, Any]:
    """What is known of the job of that folder; nothing before it begins."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_finished(command: Command) -> bool:
    """Whether exactly this was done, to its end."""
    record = read_record(command.folder)
    return record.get("code") == 0 and record.get("arguments") == list(command.arguments) and not record.get("asked")


def follow_parent() -> None:
    """Stop as at SIGTERM when the parent, which never writes, is gone."""

    def follow() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE)
        os._exit(2)  # nobody is left to kill a step that does not end

    threading.Thread(target=follow, daemon=True).start()
