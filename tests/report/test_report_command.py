"""``widemargin report`` as a user gives it."""

import pytest

from report_folders import write_evaluation, write_run
from widemargin.cli.main import run


def test_the_command_writes_four_files(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "run", epochs=2)
    monkeypatch.chdir(tmp_path)
    assert run(["report", "run"]) == 0
    assert capsys.readouterr().out.split() == ["report.html", "report.md", "report.csv", "report.tex"]
    assert {path.name for path in tmp_path.iterdir()} == {"run", "report.html", "report.md", "report.csv", "report.tex"}
    assert "<h1>cifar-resnet18/at</h1>" in (tmp_path / "report.html").read_text()


def test_out_and_title(tmp_path):
    write_run(tmp_path / "run", epochs=2)
    out = tmp_path / "new" / "folder" / "page.html"
    assert run(["report", str(tmp_path / "run"), "--out", str(out), "--title", "Mine & yours"]) == 0
    assert "<h1>Mine &amp; yours</h1>" in out.read_text()
    assert (out.parent / "page.csv").is_file()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere is not a folder"),
        (["empty"], "holds no run"),
        (["run", "--out", "page.pdf"], "--out must name an .html file"),
        (["run", "--out", "run"], "--out must name an .html file"),
        (["bad"], "report.json is not valid JSON"),
        ([], "Missing argument"),
    ],
)
def test_mistakes_end_in_one_line(tmp_path, monkeypatch, capsys, arguments, says):
    write_run(tmp_path / "run", epochs=2)
    (tmp_path / "empty").mkdir()
    write_evaluation(tmp_path / "bad", count=3)
    (tmp_path / "bad" / "report.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    assert run(["report", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert says in captured.err
    assert not list(tmp_path.glob("report*"))
