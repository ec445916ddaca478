"""Run notebooks without Jupyter: ``python scripts/run_notebooks.py notebooks/*.ipynb`` and keep their outputs in them.

A code cell is Python, in one namespace for all cells. Of a cell the notebook keeps what was printed, what its last
expression is, and the figures of matplotlib. Magic commands and shell lines are not Python and are errors.
"""

import ast
import base64
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib as mpl


def run_notebook(notebook: dict[str, Any], name: str) -> None:
    """Run the code cells in order, and write into each its outputs."""
    mpl.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        cell["execution_count"] = number
        cell["outputs"] = run_cell("".join(cell["source"]), names, f"{name}, cell {number}")


def run_cell(source: str, names: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The outputs of a cell, in the format of a notebook."""
    from matplotlib import pyplot

    tree = ast.parse(source, filename=where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value, printed = None, io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        )
    for number in pyplot.get_fignums():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, format="png", dpi=80, bbox_inches="tight", metadata={"Software": None})
        data = {"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": ["<Figure>"]}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    pyplot.close("all")
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append({"output_type": "execute_result", "execution_count": None, "data": data, "metadata": {}})
    return outputs


def main(paths: list[Path]) -> None:
    """Run each file and write it again."""
    for path in paths:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        run_notebook(notebook, path.name)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path}: done")


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
