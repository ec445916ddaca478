"""The same code has the same digest wherever it lies, and any other code has another."""

import shutil
from pathlib import Path

import pytest

import widemargin
from widemargin.cli.main import run
from widemargin.config.checkpoint import software_versions
from widemargin.core.versions import installed_version, own_version, source_digest

PACKAGE = Path(widemargin.__file__).parent


def test_a_copy_elsewhere_and_other_line_ends_make_no_difference(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.png", "*.gz"))
    (copy / "errors.py").write_bytes((copy / "errors.py").read_bytes().replace(b"\n", b"\r\n"))
    assert source_digest(copy) == source_digest(PACKAGE)
    assert len(source_digest(copy)) == 12


def test_an_editors_files_and_files_that_cannot_be_read_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    before = source_digest(tmp_path)
    (tmp_path / ".#a.py").symlink_to("me@host.1:2")
    assert source_digest(tmp_path) == before
    (tmp_path / "gone.py").symlink_to("nowhere")
    assert source_digest(tmp_path) == "unknown"


@pytest.mark.parametrize("change", ["content", "name", "more", "border"])
def test_other_code_has_another_digest(tmp_path: Path, change: str) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("x = 1\n")
        (tmp_path / name / "b.py").write_text("y = 2\n")
    other = tmp_path / "two"
    if change == "content":
        (other / "a.py").write_text("x = 2\n")
    elif change == "name":
        (other / "a.py").rename(other / "c.py")
    elif change == "more":
        (other / "c.py").write_text("")
    else:  # the same bytes, cut elsewhere
        (other / "a.py").write_text("x = 1\nb.py")
        (other / "b.py").write_text("\ny = 2\n")
    assert source_digest(other) != source_digest(tmp_path / "one")


def test_the_version_is_printed_and_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"widemargin {own_version()}\n"
    assert software_versions()["widemargin"] == own_version()
    assert own_version().endswith(f", code {source_digest(PACKAGE)}")
    assert installed_version("no-such-package") == "source"
