"""Lanes: threads that end for themselves, lines that are told apart, one signal for all."""

import os
import signal
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from widemargin.config import EvaluationConfig
from widemargin.errors import InputError
from widemargin.experiments.job import choose_rows, jobs
from widemargin.experiments.judging import piece_size
from widemargin.experiments.lanes import MOST, lanes_for, side_by_side
from widemargin.experiments.task import Task
from widemargin.models import CNNConfig, MLPConfig, ResNet18Config, WideResNetConfig
from widemargin.recipes.tables import find_table

CPU = torch.device("cpu")


def test_each_lane_ends_for_itself(capfd):
    def perform(task, console, stop):
        assert stop.asked is None
        console.print(f"this is {task}", end="")
        if task == "refused":
            raise InputError("a value is\n  wrong")
        if task == "broken":
            raise ZeroDivisionError("by nothing")
        console.print(f" and {task} ends")

    assert side_by_side(["fine", "refused", "broken"], perform, CPU) == 2
    said = capfd.readouterr().err.splitlines()
    fine, refused, broken = ([line for line in said if line.startswith(f"[{number}] ")] for number in range(3))
    assert fine == ["[0] begins", "[0] this is fine and fine ends"]
    assert refused == ["[1] begins", "[1] this is refused", "[1] failed: a value is wrong"]
    assert broken[:3] == ["[2] begins", "[2] this is broken", "[2] Traceback (most recent call last):"]
    assert broken[-1] == "[2] failed: ZeroDivisionError: by nothing"
    assert all(line.startswith("[") for line in said)


def test_they_work_at_once():
    together = threading.Barrier(3)
    assert side_by_side(range(3), lambda task, console, stop: together.wait(timeout=30), CPU) == 0


def test_a_free_lane_takes_the_next_task():
    under_way, most, done, counting = 0, [], [], threading.Lock()
    two = threading.Barrier(2)

    def perform(task, console, stop):
        nonlocal under_way
        with counting:
            under_way += 1
            most.append(under_way)
        if task < 2:
            two.wait(timeout=30)
        with counting:
            under_way -= 1
            done.append(task)
        if task == 3:
            raise InputError("a setting is wrong")

    assert side_by_side(range(6), perform, CPU, 2) == 2  # what was refused does not end the lane
    assert sorted(done) == list(range(6))
    assert max(most) == 2


def test_a_lane_whose_task_crashed_takes_no_more(capfd):
    done = []

    def perform(task, console, stop):
        done.append(task)
        raise RuntimeError("out of memory")

    assert side_by_side(range(5), perform, CPU, 2) == 1
    assert sorted(done) == [0, 1]
    assert "[2]" not in capfd.readouterr().err


def test_a_signal_asks_all_of_them_and_then_takes_its_course():
    heard, stopped, begun = [], [], threading.Barrier(3)
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))

    def perform(task, console, stop):
        with stop.at_once():  # a measurement: in a lane it goes on to its end
            begun.wait(timeout=30)
            if task == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            while stop.asked is None:
                threading.Event().wait(timeout=0.01)
        stopped.append(task)

    try:
        assert side_by_side(range(3), perform, CPU) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert sorted(stopped) == [0, 1, 2]
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize(
    ("row", "judgment", "asked", "gpu", "lanes"),
    [
        ("st-emr", None, None, True, MOST),
        ("st-emr", None, None, False, 1),
        ("st-emr", None, 3, False, 3),
        ("st-emr", "autoattack", None, True, 1),
        ("st-emr", "distance", 3, True, 1),
        ("st-emr", "eps", 3, True, 1),
    ],
)
def test_how_many_share_a_process(row, judgment, asked, gpu, lanes, tmp_path):
    table = find_table("table1")
    (job,) = jobs(table, choose_rows(table, [row]), [0], tmp_path, is_quick=True)
    assert lanes_for(Task(job, judgment), asked, gpu=gpu) == lanes


def test_large_networks_have_a_process_of_their_own(tmp_path):
    table = find_table("resnet18")
    (job, *_) = jobs(table, table.rows, [0], tmp_path, is_quick=True)
    plain = EvaluationConfig(attacks=("clean",), eps=0.031, step_size=0.01)
    recipe = replace(job.row.recipe, config=replace(job.config, evaluation=plain))
    without = replace(job, row=replace(job.row, recipe=recipe))
    for each in (job, without):
        assert lanes_for(Task(each), None, gpu=True) == 1
        assert lanes_for(Task(each), 4, gpu=True) == 1


def test_a_refusal_does_not_end_the_only_lane():
    done = []

    def perform(task, console, stop):
        done.append(task)
        if task == 0:
            raise InputError("wrong")

    assert side_by_side(range(3), perform, CPU, 1) == 2
    assert done == [0, 1, 2]


def test_the_exit_code_does_not_depend_on_who_ends_first():
    other, known = [], threading.Event()

    def perform(task, console, stop):
        if task == 1:
            other.append(threading.current_thread())
            known.set()
            raise InputError("wrong")
        known.wait(30)
        other[0].join(30)
        raise RuntimeError("broken")

    assert side_by_side(range(2), perform, CPU) == 1


@pytest.mark.parametrize(
    ("network", "gib", "size"),
    [
        (MLPConfig, 8, 10_000),
        (CNNConfig, 140, 10_000),
        (CNNConfig, 12, 5000),
        (ResNet18Config, 140, 2500),
        (ResNet18Config, 80, 2500),
        (ResNet18Config, 24, 1250),
        (ResNet18Config, 8, 312),
        (WideResNetConfig, 140, None),
    ],
)
def test_a_smaller_gpu_judges_fewer_images_at_once(network, gib, size, monkeypatch):
    memory = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    assert piece_size(network, torch.device("cuda")) == size


def judged_by(job, *attacks):
    """The same job with another plan of evaluation."""
    plan = EvaluationConfig(attacks=attacks, eps=0.031, step_size=0.01)
    recipe = replace(job.row.recipe, config=replace(job.config, evaluation=plan))
    return replace(job, row=replace(job.row, recipe=recipe))


def one_job(name, row, out):
    table = find_table(name)
    (job,) = jobs(table, choose_rows(table, [row]), [0], out, is_quick=True)
    return job


def test_a_small_network_that_autoattack_judges_has_a_process_of_its_own(tmp_path):
    job = one_job("table1", "st-emr", tmp_path)
    judged, plain = (Task(judged_by(job, "clean", *more)) for more in (("autoattack",), ()))
    assert judged.job.is_small
    assert lanes_for(judged, 3, gpu=False) == lanes_for(judged, None, gpu=True) == 1
    assert (lanes_for(plain, 3, gpu=False), lanes_for(plain, None, gpu=True)) == (3, MOST)


def test_large_networks_share_a_process_on_a_cpu_where_that_is_asked(tmp_path):
    task = Task(judged_by(one_job("resnet18", "at", tmp_path), "clean"))
    assert not task.job.is_small
    assert lanes_for(task, 3, gpu=False) == 3
    assert lanes_for(task, None, gpu=False) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_signal_no_task_begins_and_a_failure_is_what_the_exit_code_tells(fails):
    heard, begun = [], []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))

    def perform(task, console, stop):
        begun.append(task)
        os.kill(os.getpid(), signal.SIGTERM)
        while stop.asked is None:
            threading.Event().wait(timeout=0.01)
        if fails:
            raise InputError("a setting is wrong")

    try:
        assert side_by_side(range(3), perform, CPU, 1) == (2 if fails else 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert begun == [0]
    assert heard == ([] if fails else [signal.SIGTERM])
