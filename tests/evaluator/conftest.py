"""Attacks short enough for tests."""

import os

import official
import pytest

from widemargin.evaluation import evaluator, judge


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_the_disk():
    """Processes die in these tests, machines do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def tf32_here(monkeypatch):
    """As if this device had TF32; the switches are what tests then look at."""
    monkeypatch.setattr(evaluator, "has_tf32", lambda device: True)


@pytest.fixture
def short(monkeypatch):
    """AutoAttack with few iterations, as in ``officially(lengths=SHORT)``."""
    monkeypatch.setattr(judge, "make_reference", official.shortened(judge.make_reference, official.SHORT))


@pytest.fixture
def very_short(monkeypatch):
    """The same with hardly any."""
    monkeypatch.setattr(judge, "make_reference", official.shortened(judge.make_reference, official.VERY_SHORT))
