"""Ray: every job is one of Ray's tasks, placed where its GPU, or its fraction of one, is free.

``--ray`` is the address of the cluster, ``auto`` for the one this machine is in, then what a job takes: ``gpus=0.5``,
``cpus=4``. A job whose node dies, or that somebody kills, is begun again elsewhere and goes on from its last
checkpoint. The folder of the work must be seen from every node.
"""

import logging
import re
import signal
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, TaskCancelledError

from widemargin.core.child_process import UNFINISHED, ChildProcess, Command, Ending, Say
from widemargin.errors import InputError

TRIES = 20
"""After nodes that died under it, or kills."""
RESOURCES = {"gpus": "num_gpus", "cpus": "num_cpus"}


class KilledError(Exception):
    """The process was killed, by whom Ray does not know: the node ran out of memory, say."""


def run_command(command: Command) -> Ending:
    """On a node: the command in a process of its own."""
    context = ray.get_runtime_context()
    child = ChildProcess(command, wait=True, launcher="ray", id=context.get_task_id() or "", node=context.get_node_id())
    ending = child.wait()
    if ending.code in (UNFINISHED, -signal.SIGKILL, -signal.SIGTERM) and not ending.asked:
        raise KilledError(ending.why)
    return ending


class RayAttempt:
    """A task of Ray's."""

    def __init__(self, reference: Any) -> None:
        self._reference, self._asked = reference, False

    def poll(self) -> Ending | None:
        """How it ended."""
        try:
            found: Ending = ray.get(self._reference, timeout=0)
        except GetTimeoutError:
            return None
        except TaskCancelledError:
            return Ending(-signal.SIGTERM, asked=True)
        except (RayError, KilledError) as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            return Ending(1, lines[-1].strip() if lines else type(error).__name__, asked=self._asked)
        return found

    def ask_to_stop(self) -> None:
        """Interrupt it: its process is asked to stop, and waited for."""
        if not self._asked:
            self._asked = True
            ray.cancel(self._reference, force=False)

    def kill(self) -> None:
        """End it and its process."""
        ray.cancel(self._reference, force=True)


@dataclass(frozen=True)
class RayLauncher:
    """Tasks that take these resources."""

    resources: dict[str, float]
    room = float("inf")
    outlives = False

    def start(self, command: Command, say: Say) -> RayAttempt:
        """Give it to Ray."""
        del say
        task = ray.remote(run_command).options(
            name=command.label, max_retries=TRIES, retry_exceptions=[KilledError], **self.resources
        )
        return RayAttempt(task.remote(command))


def parsed_options(text: str | None) -> tuple[str, dict[str, float]]:
    """``auto,gpus=0.5,cpus=2`` as the address and what a job takes."""
    address, *parts = [part.strip() for part in (text or "").split(",")]
    if not address or "=" in address:
        raise InputError("--ray needs the cluster's address first: --ray auto, HOST:6379 or ray://HOST:10001")
    resources: dict[str, float] = {}
    for part in parts:
        key, _, value = part.partition("=")
        amount = float(value) if re.fullmatch(r"[0-9]{1,5}|[0-9]{0,5}\.[0-9]+", value) else -1.0
        if key not in RESOURCES or RESOURCES[key] in resources or amount < 0 or (amount > 1 and amount % 1):
            raise InputError(
                f"--ray: {part!r} is not what a job takes; write gpus=2, or a part of one: gpus=0.5; cpus=4"
            )
        resources[RESOURCES[key]] = amount
    return address, resources


def make_launcher(told: str | None, _folder: object) -> RayLauncher:
    """Connected; unless told otherwise a job takes a GPU where the cluster has some."""
    address, resources = parsed_options(told)
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RayError, ValueError, TimeoutError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"--ray {address}: {reason}; is it the head of a cluster?") from None
    has = ray.cluster_resources()
    resources.setdefault("num_gpus", 1.0 if has.get("GPU") else 0.0)
    for name, key in RESOURCES.items():
        most = max((node["Resources"].get(name[:-1].upper(), 0) for node in ray.nodes() if node["Alive"]), default=0)
        if resources.get(key, 0) > most:
            raise InputError(f"--ray: a job takes {name}={resources[key]:g}, and no node has more than {most:g}")
    return RayLauncher(resources)
