"""A program is never more than so many steps ahead of its GPU."""

import pytest
import torch

from widemargin.engine import cuda_graphs
from widemargin.engine.cuda_graphs import AHEAD, Pace


class Device:
    """In place of a GPU: counts the steps that were queued, and those that somebody waited for."""

    def __init__(self):
        self.queued = self.waited = 0

    def event(self, *, blocking):
        assert blocking
        return Event(self)


class Event:
    def __init__(self, device):
        self.device = device

    def record(self, stream):
        assert stream == "the stream of cuda:1"
        self.at = self.device.queued

    def synchronize(self):
        self.device.waited = max(self.device.waited, self.at)


def test_at_most_so_many_steps_ahead(monkeypatch):
    device = Device()
    monkeypatch.setattr(cuda_graphs.torch.cuda, "Event", device.event)
    monkeypatch.setattr(cuda_graphs.torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    step, ahead = Pace(torch.device("cuda:1")), []
    for _ in range(10 * AHEAD):
        device.queued += 1
        step()
        ahead.append(device.queued - device.waited)
    assert AHEAD < max(ahead) <= 2 * AHEAD
    assert device.waited == 9 * AHEAD


@pytest.mark.parametrize("steps", [1, 3 * AHEAD])
def test_a_cpu_has_no_queue(steps, monkeypatch):
    monkeypatch.setattr(cuda_graphs.torch.cuda, "Event", None)
    step = Pace(torch.device("cpu"))
    for _ in range(steps):
        step()
