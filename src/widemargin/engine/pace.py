"""How far a program may run ahead of its GPU.

Launching a captured step takes microseconds, so without this a program queues seconds of work. Whatever waits for the
GPU then waits for all of it: a checkpoint at a signal or at the end of the time, for one.
"""

import torch

AHEAD = 16
"""Steps: enough that the GPU never waits for the program."""


class Pace:
    """Call it after each step; now and then it waits until the GPU has caught up."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._steps = device, 0
        self._before: torch.cuda.Event | None = None

    def __call__(self) -> None:
        """One more step is queued on the current stream; at most twice ``AHEAD`` are."""
        self._steps += 1
        if self._device.type != "cuda" or self._steps % AHEAD:
            return
        if self._before is not None:
            self._before.synchronize()
        self._before = torch.cuda.Event(blocking=True)
        self._before.record(torch.cuda.current_stream(self._device))
