"""The notebooks run as they stand, and what they say of their numbers holds."""

import json
from pathlib import Path

import pytest
from scripts.run_notebooks import run_cell, run_notebook

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
LARGEST = 100_000


def printed(notebook):
    return "".join(
        "".join(output.get("text", output.get("data", {}).get("text/plain", [])))
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
    )


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["emr-in-a-loop", "judging", "margins"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    assert path.stat().st_size < LARGEST
    notebook = json.loads(path.read_text(encoding="utf-8"))
    kept = printed(notebook)
    assert kept, "python scripts/run_notebooks.py keeps the outputs"
    run_notebook(notebook, path.name)
    text = printed(notebook)
    assert len(text.splitlines()) == len(kept.splitlines())
    if path.stem == "margins":
        assert "proven <= found for every image: True" in text
    if path.stem == "judging":
        assert all(alarm in text for alarm in ("vanishing-gradients:", "flattering-loss:", "survives-huge-eps:"))
        assert "By autoattack emr is ahead of plain" in text
    if path.stem == "emr-in-a-loop":
        rows = [line.split() for line in text.splitlines() if line.startswith("0")]
        attacked = [float(row[2].rstrip("%")) for row in rows]
        assert attacked == sorted(attacked)
        assert len(attacked) == 4


def test_what_a_cell_leaves():
    names = {}
    assert run_cell("x = 2", names, "here") == []
    (stream,) = run_cell("print('said')\nNone", names, "here")
    assert stream["text"] == ["said\n"]
    (result,) = run_cell("x + 1", names, "here")
    assert result["data"]["text/plain"] == ["3"]
    (shown,) = run_cell("from matplotlib import pyplot as p; p.plot([1, 2]); None", names, "here")
    assert shown["data"]["image/png"].startswith("iVBOR")
    with pytest.raises(ZeroDivisionError):
        run_cell("1 / 0", names, "here")
