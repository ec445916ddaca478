"""Waiting for jobs, and what they said they did."""

import re
import time

from widemargin.core.records import Lines

PATIENCE = 120.0


def until(reached, process=None):
    """Until it is, while the process that is to bring it about goes on; else the test fails."""
    give_up = time.monotonic() + PATIENCE
    while not reached():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.02)


def measured(run):
    """The lines of a run's metrics so far."""
    path = run / "metrics.jsonl"
    return list(Lines(path, bad=[])) if path.is_file() else []


def epochs_said(output):
    """The epochs that were trained, in order, over all attempts."""
    return [int(number) for number in re.findall(r"^epoch +(\d+)/", output.read_text(), re.MULTILINE)]
