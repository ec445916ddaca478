"""A tiny run and a stop after its first epoch."""

import signal
import tomllib

import pytest

from widemargin.config.toml import from_dict, with_overrides
from widemargin.core.signals import Stop
from widemargin.training import train

TINY = """
name = "tiny/st"
epochs = 3
batch_size = 40
data = { name = "mnist-embedded", train_limit = 120, test_limit = 20, held_out = 20 }
model = { kind = "mlp", hidden = [16] }
optimizer = { lr = 0.1, momentum = 0.9 }
emr = { kind = "stochastic", weight = 0.1 }
watch.margins = ["test"]
watch.attack = { kind = "pgd", eps = "8/255", step_size = "2/255", steps = 2, random_start = "uniform" }
"""


@pytest.fixture(scope="session")
def tiny():
    """tiny("seed=1", ...): the configuration with what a user would --set."""
    return lambda *settings: with_overrides(from_dict(tomllib.loads(TINY)), settings)


class StopAfter:
    """A tracker that stops the run after so many epochs, as SIGTERM would."""

    def __init__(self, epochs):
        self.epochs, self.stop = epochs, Stop()

    def begin(self, config, name):
        """Nothing to begin."""

    def log(self, metrics, step):
        """Ask for the stop."""
        if step == self.epochs:
            self.stop.received = signal.SIGTERM

    def finish(self):
        """Nothing to finish."""


@pytest.fixture
def train_in_two_calls(tiny):
    """train_in_two_calls(out, make_trackers): stopped after the first epoch, then to the end."""

    def give(out, make_trackers, *, first=True):
        stopping = StopAfter(1)
        trackers = make_trackers() if first else []
        result = train(tiny(), out=out, device="cpu", trackers=[*trackers, stopping], stop=stopping.stop)
        assert (result.finished, result.epoch) == (False, 1)
        result = train(tiny(), out=out, device="cpu", trackers=make_trackers())
        assert (result.finished, result.epoch) == (True, 3)
        return result

    return give
