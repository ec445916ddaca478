"""What a person sees: ``print(report)`` is the command's table; a bar moves in a terminal, a pipe stays silent."""

import io
import re

import pytest
import torch
from rich.console import Console
from small_networks import conv_net, pictures

import widemargin
from widemargin.core import screen
from widemargin.evaluation import progress
from widemargin.evaluation.progress import EvaluationDisplay

QUICK = {"sanity": False, "eps": 8 / 255}


def evaluated(**options):
    torch.manual_seed(0)
    return widemargin.evaluate(conv_net(4), pictures(4, 12), ["clean", "pgd2"], **QUICK, **options)


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def test_printing_a_report_shows_the_table_of_the_command(capsys, tmp_path):
    report = evaluated(out=tmp_path / "evaluation")
    print(report)
    text = capsys.readouterr().out
    assert re.search(r"│ attack +│ accuracy % │ +95% interval │|┃ attack +┃ accuracy % ┃ +95% interval ┃", text)
    for name, value in report.accuracy.items():
        assert re.search(rf"│ {name} +│ +{value:.2f} │", text)
    assert "a model in memory: 12 test images of tensors in memory; linf eps 0.0313725; step eps/4; seed 0" in text
    assert f"records: {tmp_path / 'evaluation'}" in text
    assert "\x1b" not in text
    assert repr(report).startswith("Report(")


def test_a_notebook_gets_the_same_text_and_no_display_of_its_own(monkeypatch):
    report = evaluated()
    usual = str(report)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert str(report) == usual


def test_a_pipe_is_silent(capsys):
    evaluated()
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_a_bar_by_default(monkeypatch):
    shown = terminal()
    monkeypatch.setattr(progress, "console_for", lambda *, stderr: shown)
    evaluated(shard_size=5)
    text = shown.file.getvalue()
    assert "shard 3 of 3" in text
    assert "100%" in text


def test_a_console_that_is_no_terminal_gets_lines(monkeypatch):
    console = Console(file=io.StringIO(), width=100)
    evaluated(shard_size=5, margins=False, console=console)
    pieces = [f"shard {shard} of 3: {what}" for shard in (1, 2, 3) for what in ("clean", "pgd2")]
    assert console.file.getvalue().splitlines() == pieces


@pytest.mark.parametrize(("widgets", "animated"), [(None, False), (object(), True)])
def test_a_notebook_has_a_bar_where_it_has_widgets(widgets, animated, monkeypatch):
    monkeypatch.setattr(screen, "find_spec", lambda name: widgets)
    console = Console(file=io.StringIO(), force_jupyter=True)
    assert screen.can_animate(console) is animated
    assert not screen.can_animate(Console(file=io.StringIO(), force_jupyter=True, quiet=True))


def test_the_bar_goes_by_pieces_and_never_back(monkeypatch):
    console = terminal()
    display = EvaluationDisplay(console, count=20, shard_size=10, notes=["look"], first_process=True)
    with display:
        display.begin(pieces=3)
        (task,) = display._bar.tasks
        assert task.total == 6
        done = []
        for shard, whats in ((0, ("clean", "pgd2", "margin", "a retry")), (1, ("clean",))):
            for what in whats:
                display(shard, what)
                done.append(task.completed)
            display.finish(shard)
            done.append(task.completed)
        assert done == [1, 2, 2, 2, 3, 4, 6]
    assert "note: look" in console.file.getvalue()


def test_of_several_processes_on_a_terminal_one_speaks():
    console = terminal()
    with EvaluationDisplay(console, count=20, shard_size=10, notes=[], first_process=False) as display:
        display.begin(pieces=2)
        display(1, "clean")
        display.finish(1)
    assert console.file.getvalue() == ""
