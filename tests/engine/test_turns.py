"""Who traces a network is alone; who calls one is not."""

import threading

import pytest

from widemargin.engine import turns
from widemargin.engine.turns import calling_networks, tracing_networks

PATIENCE = 30.0


def together(*works):
    """Run them at once; their errors are ours."""
    errors = []

    def kept(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=kept, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "threads wait for each other"
    for error in errors:
        raise error


def test_many_call_at_once():
    everybody_inside = threading.Barrier(4)

    def call():
        with calling_networks():
            everybody_inside.wait(PATIENCE)

    together(*[call] * 4)


def test_who_traces_is_alone():
    inside, seen = {"calling": 0, "tracing": 0}, []
    counting = threading.Lock()

    def enter(kind, turn):
        for _ in range(200):
            with turn():
                with counting:
                    inside[kind] += 1
                    seen.append(dict(inside))
                with counting:
                    inside[kind] -= 1

    callers = [lambda: enter("calling", calling_networks)] * 3
    together(*callers, *[lambda: enter("tracing", tracing_networks)] * 2)
    assert len(seen) == 1000
    assert all(found["tracing"] == 0 or found == {"calling": 0, "tracing": 1} for found in seen)
    assert not turns._callers
    assert not turns._tracer


def test_callers_do_not_wait_for_one_that_waits_to_trace():
    order, somebody_calls, later_is_done = [], threading.Event(), threading.Event()

    def call_long():
        with calling_networks():
            somebody_calls.set()
            assert later_is_done.wait(PATIENCE)
            order.append("long call")

    def trace():
        somebody_calls.wait(PATIENCE)
        with tracing_networks():
            order.append("trace")

    def call_later():
        somebody_calls.wait(PATIENCE)
        while not turns._changed._waiters:  # the one that traces
            pass
        with calling_networks():
            order.append("later call")
        later_is_done.set()

    together(call_long, trace, call_later)
    assert order == ["later call", "long call", "trace"]


def test_two_that_call_may_both_go_on_to_trace():
    both_call = threading.Barrier(2)

    def work():
        with calling_networks():
            both_call.wait(PATIENCE)
            with tracing_networks():
                assert turns._tracer == [threading.get_ident()]
                with calling_networks(), tracing_networks():
                    assert not turns._callers
            assert threading.get_ident() in turns._callers

    together(work, work)


@pytest.mark.parametrize("turn", [calling_networks, tracing_networks])
def test_an_error_ends_the_turn(turn):
    with pytest.raises(ZeroDivisionError), turn():
        raise ZeroDivisionError
    alone = []

    def trace():
        with tracing_networks():
            alone.append(True)

    together(trace)
    assert alone
