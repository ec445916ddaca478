"""The examples run as they stand, on the tiny data they bring."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS: dict[str, tuple[str, ...]] = {
    "own_loop": (),
    "lightning_callback": ("lightning",),
    "transformers_trainer": ("transformers", "accelerate"),
    "accelerate_loop": ("accelerate",),
    "track_and_export": ("tensorboard", "onnxruntime", "onnxscript"),
}
"""The libraries of each."""


def test_none_is_forgotten():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_it_runs(name, monkeypatch, tmp_path, capsys):
    for library in NEEDS[name]:
        pytest.importorskip(library, reason=f"{library} is not in the dev extra")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "accuracy %" in capsys.readouterr().out
