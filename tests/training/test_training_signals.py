"""SIGTERM and Ctrl-C end a run at a step boundary, with a checkpoint; a second Ctrl-C ends it at once."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from faults import COMMAND
from widemargin.config.checkpoint import load_checkpoint
from widemargin.config.toml import to_toml
from widemargin.core.child_process import UNFINISHED
from widemargin.core.signals import StopNowError
from widemargin.training import Stop, train

TERM, INT = signal.SIGTERM, signal.SIGINT
STEPS = 4  # in an epoch of 150 images
STEP_POINTS = 8  # before and after a step, its backward pass, its update and the average
WATCHED = (
    "data.held_out=40",
    'watch={attack={kind="pgd", eps=0.1, step_size=0.05, steps=2}, margins=["train"]}',
    'objective={kind="adversarial", attack={kind="pgd", eps=0.1, step_size=0.05, steps=2, random_start="uniform"}}',
    "averaging={decay=0.9}",
)


@pytest.fixture(scope="module")
def config(tiny):
    return tiny(*WATCHED)


@pytest.fixture(scope="module")
def undisturbed(config, tmp_path_factory, left_in):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    train(config, out=out)
    return left_in(out)


@pytest.fixture
def command(config, nursery, tmp_path):
    """command(*points): ``widemargin train`` in a process of its own, which gets these signals at these points."""
    return lambda *points: nursery.run(to_toml(config), tmp_path / "run", *points, script=COMMAND)


def in_step(number: int) -> int:
    """The point in the middle of the given step, counted from 1."""
    return (number - 1) * STEP_POINTS + 3


def place(folder) -> tuple[int, int]:
    description = load_checkpoint(folder / "last.safetensors").description
    return description.epoch, description.step


@pytest.mark.parametrize("number", [TERM, INT])
@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (("step", in_step(1)), (0, 1)),
        (("step", in_step(STEPS + 3)), (1, 3)),
        (("step", in_step(3 * STEPS)), (2, STEPS)),  # the measurement after the last step is not waited for
        (("watch", 3), (0, STEPS)),  # nor when it is under way
        (("write", 2), (1, 0)),  # a save is
        (("between", 5), (1, 0)),  # so is the line of the metrics
    ],
)
def test_a_signal_stops_at_a_step_boundary_and_the_same_command_goes_on(
    number, point, expected, command, tmp_path, undisturbed, left_in
):
    stopped = command((*point, number))
    assert stopped.code == UNFINISHED
    epoch, step = expected
    inside = {0: "", 1: " and 1 step"}.get(step, f" and {step} steps")
    epochs = f"stopped by {signal.Signals(number).name} after {epoch} of 3 epochs{inside}"
    assert stopped.err.splitlines()[-1] == f"{epochs}; the same command goes on from {tmp_path / 'run'}"
    assert place(tmp_path / "run") == expected
    assert command().code == 0
    left_in(tmp_path / "run").assert_same(undisturbed)


def test_one_signal_after_the_other_until_the_end(command, tmp_path, undisturbed, left_in):
    for point in (in_step(2), in_step(3), in_step(1), in_step(2)):
        assert command(("step", point, TERM)).code == UNFINISHED
    assert place(tmp_path / "run") == (1, STEPS)
    assert command(("watch", 1, INT)).code == UNFINISHED
    assert place(tmp_path / "run") == (1, STEPS)
    assert command().code == 0
    left_in(tmp_path / "run").assert_same(undisturbed)


@pytest.mark.parametrize("first", [TERM, INT])
@pytest.mark.parametrize("second", [("step", in_step(STEPS + 2) + 1), ("write", 150)])
def test_a_second_ctrl_c_stops_at_once(first, second, command, tmp_path, undisturbed, left_in):
    """In the same step, or in the save that follows it: the checkpoint before stays."""
    stopped = command(("step", in_step(STEPS + 2), first), (*second, INT))
    assert stopped.code == 130
    assert "interrupted; a training run goes on" in stopped.err
    assert "Traceback" not in stopped.err
    assert place(tmp_path / "run") == (1, 0)
    assert command().code == 0
    left_in(tmp_path / "run").assert_same(undisturbed)


def test_a_second_sigterm_changes_nothing(command, tmp_path):
    stopped = command(("step", in_step(2), TERM), ("step", in_step(2) + 1, TERM))
    assert stopped.code == UNFINISHED
    assert place(tmp_path / "run") == (0, 2)


def test_a_signal_during_the_very_last_save_does_not_unfinish_the_run(command, tmp_path, undisturbed, left_in):
    points = command().passed
    left_in(tmp_path / "run").assert_same(undisturbed)
    for path in (tmp_path / "run").iterdir():
        path.unlink()
    ended = command(("write", points["write"], TERM))
    assert ended.code == 0
    assert "done: 3 epochs" in ended.err


CATCHING = """
import signal
before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
try:
    train(config, out=out)
except KeyboardInterrupt:
    code = 7
assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
"""


@pytest.mark.parametrize(("number", "code"), [(INT, 7), (TERM, -TERM)])
def test_from_python_the_signal_takes_its_usual_course_after_the_checkpoint(number, code, config, nursery, tmp_path):
    ended = nursery.run(to_toml(config), tmp_path / "run", ("step", in_step(2), number), script=CATCHING)
    assert ended.code == code, ended.err
    assert place(tmp_path / "run") == (0, 2)


OWN_HANDLER = """
import signal
heard = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append((out / "last.safetensors").exists()))
result = train(config, out=out)
code = 7 if heard == [True] and not result.finished else 1
"""
IGNORED = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
code = 7 if train(config, out=out).finished else 1
"""


@pytest.mark.parametrize(("script", "number"), [(OWN_HANDLER, TERM), (IGNORED, INT)])
def test_a_process_s_own_ways_with_signals_are_kept(script, number, config, nursery, tmp_path):
    ended = nursery.run(to_toml(config), tmp_path / "run", ("step", in_step(2), number), script=script)
    assert ended.code == 7, ended.err


def test_a_command_started_with_sigint_ignored_goes_on_ignoring_it(config, nursery, tmp_path):
    """As in the background of a script, where Ctrl-C is meant for somebody else; SIGTERM still stops it."""
    script = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + COMMAND
    points = [("step", in_step(2), INT), ("step", in_step(2) + 1, INT), ("step", in_step(3), TERM)]
    stopped = nursery.run(to_toml(config), tmp_path / "run", *points, script=script)
    assert stopped.code == UNFINISHED
    assert "stopped by SIGTERM after 0 of 3 epochs and 3 steps" in stopped.err
    assert place(tmp_path / "run") == (0, 3)


INTERRUPTED = """
import os, signal, sys, widemargin.__main__
from widemargin.core import signals
def interrupt(times=1):
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
def on_import(module, times):
    seen = []
    def hook(event, args):
        if event == "import" and args[0] == module and not seen:
            seen.append(module)
            interrupt(times)
    sys.addaudithook(hook)
def work():
    signals.install_handlers()
    signals.begin_work("these words")
class Cleaning:
    def __enter__(self): return self
    def __exit__(self, *_): interrupt()
class Dying:
    def __del__(self): interrupt()
sys.argv = ["widemargin", "train", "demo/plain", "--out", "run"]
"""
NOT_BEGUN = "widemargin: interrupted before the work began; nothing was changed\n"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("on_import('typer', 1); widemargin.__main__.main()", NOT_BEGUN),
        ("on_import('torch._C', 1); widemargin.__main__.main()", NOT_BEGUN),
        ("on_import('torch', 2); widemargin.__main__.main()", NOT_BEGUN),
        ("on_import('torch.nn', 2); widemargin.__main__.main()", NOT_BEGUN),
        ("work()\nwith Cleaning(): interrupt()", "widemargin: these words\n"),
        ("work()\nDying()", "widemargin: interrupted\n"),
        ("work()\nsignals.end_work()\ninterrupt()", ""),
        ("work()\ninterrupt()", ""),  # nobody catches it
        (
            "signal.signal(signal.SIGINT, signal.SIG_IGN); work(); interrupt(); signals.end_work(); interrupt()\n"
            "sys.exit(130)",
            "",
        ),
    ],
)
def test_an_interrupt_at_any_moment_ends_in_a_line_and_no_traceback(script, says):
    done = subprocess.run([sys.executable, "-c", INTERRUPTED + script], capture_output=True, text=True, check=False)
    assert done.returncode in (130, -INT)
    assert done.stderr == says


def test_in_another_thread_no_handler_is_touched(tiny, tmp_path):
    results, before = [], signal.getsignal(INT)
    thread = threading.Thread(target=lambda: results.append(train(tiny("epochs=1"), out=tmp_path)))
    thread.start()
    thread.join()
    assert results[0].finished
    assert signal.getsignal(INT) is before


def test_a_block_that_need_not_be_waited_for_is_left(tmp_path):
    stop = Stop()
    with stop.handle_signals(), pytest.raises(StopNowError), stop.interrupting():
        os.kill(os.getpid(), TERM)
    assert stop.received == TERM
    with pytest.raises(StopNowError), stop.interrupting():
        pytest.fail("asked already")
