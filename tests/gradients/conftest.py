"""Sweeps are taken wherever they can be, also where double backward is as fast; of what cannot be, nothing is said."""

import warnings
from collections.abc import Iterator

import pytest

from widemargin.gradients.sweeps import tape


@pytest.fixture(autouse=True)
def sweeps_wherever_possible(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tape, "WORTHWHILE", 0.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*differentiated twice")
        yield
