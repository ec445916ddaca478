"""The TF32 switches of the process: nested, wanted by several threads at once, and put back."""

import subprocess
import sys
import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from widemargin import effective_margin
from widemargin.core.precision import allowing_tf32, convolutions_use_tf32, full_float32, products_use_tf32


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
            with full_float32(), allowing_tf32():
                assert switches() == (True, True)
            assert switches() == (False, False)
        assert switches() == (True, True)
    with pytest.raises(ZeroDivisionError), full_float32():
        raise ZeroDivisionError


@pytest.mark.parametrize("outer", [nullcontext, allowing_tf32])
def test_the_last_thread_to_leave_puts_everything_back(users, outer):
    """One enters, another enters, the first leaves, the second goes on and leaves."""
    seen, (second_is_in, first_is_out) = [], (threading.Event(), threading.Event())

    def second():
        with full_float32():
            second_is_in.set()
            first_is_out.wait(timeout=30)
            seen.append(switches())

    thread = threading.Thread(target=second)
    with outer():
        with full_float32():
            thread.start()
            second_is_in.wait(timeout=30)
        first_is_out.set()
        thread.join(timeout=60)
        assert seen == [(False, False)]
        assert switches() == (users if outer is nullcontext else (True, True))


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
            assert convolutions_use_tf32()
            assert products_use_tf32()
        assert newer() == ("ieee", "ieee")
        assert not products_use_tf32()
    assert newer() == said
    assert convolutions_use_tf32() == (said[0] == "tf32")
    assert products_use_tf32() == (said[1] == "tf32")


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
from widemargin.core.precision import allowing_tf32, full_float32, products_use_tf32

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


def test_a_cpu_computes_in_full_float32_too():
    script = """
import torch
from widemargin.core.precision import full_float32
parts = torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv
for part in parts:
    part.fp32_precision = "bf16"
with full_float32():
    print(*(part.fp32_precision for part in parts))
print(*(part.fp32_precision for part in parts))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["ieee ieee", "bf16 bf16"]
