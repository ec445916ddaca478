"""The TF32 switches of the process: nested, and wanted by several threads at once."""

import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from widemargin import effective_margin
from widemargin.precision import (
    allowing_tf32,
    as_the_user_has_it,
    convolutions_use_tf32,
    full_float32,
    products_use_tf32,
)


def switches() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


@pytest.fixture(params=[(True, False), (False, True)])
def users(request):
    original = switches()
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = request.param
    yield request.param
    assert switches() == request.param
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = original


def test_nested_blocks(users):
    with allowing_tf32():
        assert switches() == (True, True)
        with full_float32():
            assert switches() == (False, False)
            with full_float32(), as_the_user_has_it():
                assert switches() == users
            assert switches() == (False, False)
        assert switches() == (True, True)


def test_threads_that_want_the_same_share_it(users):
    together = threading.Barrier(3)
    seen = []

    def measure():
        with full_float32():
            together.wait(timeout=30)  # passes only if all are inside at once
            seen.append(switches())

    run_all([measure] * 3)
    assert seen == [(False, False)] * 3


def test_a_thread_that_wants_another_setting_waits(users):
    inside, leave = threading.Event(), threading.Event()
    seen = []

    def measure():
        with full_float32():
            inside.set()
            leave.wait(timeout=30)
            seen.append(switches())

    def train():
        inside.wait(timeout=30)
        with as_the_user_has_it():
            seen.append(switches())

    threads = [threading.Thread(target=target) for target in (measure, train)]
    for thread in threads:
        thread.start()
    inside.wait(timeout=30)
    threads[1].join(timeout=0.1)
    assert threads[1].is_alive()
    leave.set()
    for thread in threads:
        thread.join(timeout=30)
    assert seen == [(False, False), users]


def test_many_threads_never_see_the_setting_of_another(users):
    wrong = []

    def change(block, expected):
        for _ in range(200):
            with block():
                if switches() != expected:
                    wrong.append(expected)

    wanted = [(full_float32, (False, False)), (allowing_tf32, (True, True)), (as_the_user_has_it, users)]
    run_all([lambda b=block, e=expected: change(b, e) for block, expected in wanted * 2])
    assert wrong == []


def test_threads_that_change_over_inside_a_block_do_not_wait_for_ever(users):
    together = threading.Barrier(2)
    seen = []

    def change(outer, inner):
        with outer():
            together.wait(timeout=30)
            with inner():
                seen.append(switches())
            seen.append(switches())

    run_all([lambda: change(full_float32, allowing_tf32)] * 2)
    assert sorted(seen) == [(False, False)] * 2 + [(True, True)] * 2


def test_leaving_an_inner_block_does_not_change_what_another_thread_shares(users):
    shared, left = threading.Event(), threading.Event()
    seen = []

    def leave():
        with allowing_tf32():
            with full_float32():
                shared.wait(timeout=30)
            left.set()  # only once the other has left, for the outer block wants another setting

    def measure():
        with full_float32():
            shared.set()
            left.wait(timeout=0.1)
            seen.append(switches())

    run_all([leave, measure])
    assert seen == [(False, False)]


@pytest.fixture
def newer():
    """(convolutions, products) as ``fp32_precision`` has them; put back after the test."""

    def read():
        return torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision

    before = read()
    yield read
    torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("said", [("ieee", "tf32"), ("tf32", "tf32"), ("none", "ieee")])
def test_what_was_said_by_fp32_precision_is_followed_and_put_back(newer, said):
    torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision = said
    with pytest.raises(RuntimeError):  # torch's older way cannot say this
        switches()
    with full_float32():
        assert newer() == ("ieee", "ieee")
        with allowing_tf32():
            assert newer() == ("tf32", "tf32")
            with as_the_user_has_it():
                assert newer() == said
                assert convolutions_use_tf32() == (said[0] == "tf32")
                assert products_use_tf32() == (said[1] == "tf32")
        assert newer() == ("ieee", "ieee")
    assert newer() == said


@pytest.mark.parametrize("parent", ["fp32_precision", "cudnn.fp32_precision"])
def test_what_both_ways_said_is_full_float32_inside(newer, parent):
    """A parent setting overrules what the older way sets."""
    owner = torch.backends.cudnn if parent.startswith("cudnn") else torch.backends
    before, products = owner.fp32_precision, torch.backends.cuda.matmul.allow_tf32
    try:
        owner.fp32_precision = "tf32"
        torch.backends.cuda.matmul.allow_tf32 = True
        with full_float32():
            assert newer() == ("ieee", "ieee")
            assert torch.backends.cudnn.rnn.fp32_precision == "ieee"
            assert not convolutions_use_tf32()
        assert convolutions_use_tf32()
        assert products_use_tf32()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = products
        owner.fp32_precision = before


def test_margins_do_not_depend_on_how_tf32_was_asked_for(newer):
    model, x, y = nn.Linear(6, 3), torch.rand(4, 6), torch.tensor([0, 1, 2, 0])
    expected = effective_margin(model, x, y)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert torch.equal(effective_margin(model, x, y), expected)
    assert newer()[1] == "tf32"


SAID_BEFORE = """
import sys, torch
from torch import nn
from widemargin import effective_margin
from widemargin.precision import allowing_tf32, full_float32, products_use_tf32

def read():
    return torch.get_float32_matmul_precision(), torch.backends.mkldnn.matmul.fp32_precision, products_use_tf32()

torch.set_float32_matmul_precision(sys.argv[1])
before = read()
with full_float32():
    print(*read())
    with allowing_tf32():
        print(*read())  # torch's compiler reads it
effective_margin(nn.Linear(6, 3), torch.rand(4, 6), torch.tensor([0, 1, 2, 0]))
print(read() == before, *before)
"""


@pytest.mark.parametrize(
    ("said", "before"), [("medium", "medium bf16 True"), ("high", "high tf32 True"), ("highest", "highest ieee False")]
)
def test_what_set_float32_matmul_precision_said_can_be_read_and_is_put_back(said, before):
    command = [sys.executable, "-c", SAID_BEFORE, said]  # a process where nothing else was said
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["highest ieee False", "high tf32 True", f"True {before}"]


@pytest.mark.parametrize("part", ["matmul", "conv"])
def test_a_cpu_computes_in_full_float32_too(part):
    said = f"part = torch.backends.mkldnn.{part}; part.fp32_precision = 'bf16'"
    looked = "with full_float32():\n    print(part.fp32_precision)\nprint(part.fp32_precision)"
    script = f"import torch; from widemargin.precision import full_float32\n{said}\n{looked}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ieee", "bf16"]


def run_all(targets):
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
