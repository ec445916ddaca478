"""Commands for one process refuse to be several, and say what to do instead."""

import pytest

from widemargin import InputError
from widemargin.distributed.group import check_single_process


@pytest.mark.parametrize("world", [None, "1"])
def test_a_process_alone_passes(monkeypatch, world):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world is not None:
        monkeypatch.setenv("WORLD_SIZE", world)
    check_single_process("demo", "never said")


def test_several_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(InputError, match=r"^demo is for one process, and torchrun started 8 .*; walk; .* train "):
        check_single_process("demo", "walk")


COMMANDS = {
    "sweep": (("sweep", "demo/plain", "--grid", "seed=0,1"), "start the same command several times"),
    "reproduce": (("reproduce", "table1"), "--workers does several jobs at a time"),
    "demo": (("demo",), "it takes about two minutes"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_refuses_before_it_writes(refused, monkeypatch, tmp_path, name):
    arguments, instead = COMMANDS[name]
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = refused(*arguments, "--out", tmp_path / "out")
    assert f"{name} is for one process, and torchrun started 2 (WORLD_SIZE): start it without torchrun" in message
    assert instead in message
    assert not (tmp_path / "out").exists()
