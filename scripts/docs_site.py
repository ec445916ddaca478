"""What MkDocs needs to make a site of the repository's own Markdown (a hook named in ``mkdocs.yml``).

The pages are written for people who read them in the repository: they link to files above ``docs/``, nest lists by two
spaces, and write formulas between dollars. Here pages from elsewhere join the site (results, changes, notebooks, an
index of docstrings), links follow them, formulas become MathML, so that no script has to be fetched, and lists and
formulas are written as Python-Markdown wants them. A link to a file that is not in the site becomes its text.
"""

import ast
import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
RESULTS = ("results/**/README.md", "results/**/figures/*.png")
NOTEBOOKS = "notebooks"
REFERENCE = {
    "widemargin": ("The package", "What `import widemargin` gives.", ["widemargin"]),
    "attacks": ("Attacks", "`widemargin.attacks`", ["attacks"]),
    "objectives": ("Objectives", "`widemargin.objectives`: what is minimized.", ["objectives"]),
    "regularizers": ("Regularizers", "`widemargin.regularizers`: penalties on input gradients.", ["regularizers"]),
    "heads": ("Heads", "`widemargin.heads`: the last layer.", ["heads"]),
    "models": ("Models", "`widemargin.models`", ["models"]),
    "data": ("Data", "`widemargin.data`", ["data"]),
    "training": ("Training", "`widemargin.training`", ["training"]),
    "evaluation": ("Evaluation", "`widemargin.evaluation`", ["evaluation"]),
    "functions": ("Losses and schedules", "Functions of logits and labels; factors by epoch.", ["losses", "schedules"]),
    "types": ("Contracts of the parts", "What an attack, an objective, a regularizer, ... takes and gives.", ["types"]),
}
SITE_OF: dict[str, str] = {}
"""From a path in the repository to one in the site, of what is not in ``docs/``."""
MARK = '<span class="n">(?:added|outside_tables)</span><span class="p">'
MARKED_DEFAULTS = (
    (MARK + r'\(</span>(<span[^>]*>[^<]*</span>)<span class="p">\)', r'\1<span class="p">'),
    (MARK + r"\(\(\)\)", '<span class="p">()'),
    (
        r' <span class="o">=</span> <span class="n">one_of</span><span class="p">\(</span><span[^>]*>\w+</span>'
        r'<span class="p">\)',
        '<span class="p">',
    ),
    (
        r'<span class="n">one_of</span><span class="p">\(</span>\s*<span[^>]*>\w+</span><span class="p">,</span> '
        r'<span class="n">default</span><span class="o">=</span>([^\n]*?)\s*<span class="p">\)',
        r'\1<span class="p">',
    ),
)
"""added(0.0) is 0.0; one_of(ATTACK_KINDS) is no default: the field must be given."""
FENCE = re.compile(r"^( *)(```+|~~~+)")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages and pictures from outside of ``docs/``."""
    SITE_OF.clear()
    results = sorted(found.relative_to(ROOT).as_posix() for pattern in RESULTS for found in ROOT.glob(pattern))
    for path in (*PAGES, *results):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        SITE_OF[path] = path
    for notebook in sorted((ROOT / NOTEBOOKS).glob("*.ipynb")):
        place = f"{NOTEBOOKS}/{notebook.stem}.md"
        SITE_OF[f"{NOTEBOOKS}/{notebook.name}"] = place
        text, pictures = notebook_page(json.loads(notebook.read_text(encoding="utf-8")), notebook.stem)
        files.append(File.generated(config, place, content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"{NOTEBOOKS}/{name}", content=content))
    for part, (title, about, modules) in REFERENCE.items():
        names = [name for module in modules for name in documented(module)]
        index = "\n\n".join([f"# {title}", about, *(f"::: {name}" for name in names)]) + "\n"
        files.append(File.generated(config, f"reference/{part}.md", content=index))
    return files


def documented(part: str) -> list[str]:
    """The full names of the classes and functions that a part of the package shows the outside."""
    package = "widemargin" if part == "widemargin" else f"widemargin.{part}"
    tree = source_of(package)
    lists = (node.value for node in tree.body if isinstance(node, ast.Assign) and is_all(node))
    shown = next(map(ast.literal_eval, lists), None)
    names = shown or [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return [f"{package}.{name}" for name in names if not name.startswith("_") and is_described(package, name)]


def source_of(module: str) -> ast.Module:
    """The syntax tree of a module of ours."""
    place = ROOT / "src" / Path(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def is_all(node: ast.Assign) -> bool:
    """Whether it assigns ``__all__``."""
    return ast.unparse(node.targets[0]) == "__all__"


def is_described(module: str, name: str) -> bool:
    """Whether the name is a class or a function with a docstring, here or where it is imported from."""
    for node in ast.walk(source_of(module)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) is not None
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return is_described(str(node.module), name)
    return False


def notebook_page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook's cells and their outputs as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        text = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            printed = "".join(output.get("text", data.get("text/plain", [])))
            if "image/png" in data:
                picture = f"{name}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({picture})")
            elif printed.strip():
                parts.append(f'<div class="output" markdown>\n\n```text\n{printed.rstrip()}\n```\n\n</div>')
    where = f"This page is the notebook `{NOTEBOOKS}/{name}.ipynb` of the repository; the tests run it."
    parts.insert(1, where)
    return "\n\n".join(parts) + "\n", pictures


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """From the Markdown of the repository to that of the site."""
    del config
    here = page.file.src_uri
    if here.startswith("reference/"):
        return markdown
    inside = {place: path for path, place in SITE_OF.items()}
    source = inside.get(here, f"docs/{here}")

    def moved(found: re.Match[str]) -> str:
        mark, text, link = found.groups()
        path, anchor = link.partition("#")[::2]
        if "://" in link or link.startswith("mailto:") or not path:
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        place = SITE_OF.get(target, target.removeprefix("docs/") if target.startswith("docs/") else "")
        if here.startswith(f"{NOTEBOOKS}/") and not place:
            place = target  # its own pictures
        if not place or files.get_file_from_path(place) is None:
            if (ROOT / target).exists():
                return str(text)
            return found[0]  # for the check of links to name it
        relative = posixpath.relpath(place, posixpath.dirname(here) or ".")
        return f"{mark}[{text}]({relative}{'#' * bool(anchor)}{anchor})"

    return as_python_markdown(markdown, lambda line: LINK.sub(moved, line))


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Signatures show the defaults themselves, not the marks of our dataclasses around them (``core/schema.py``)."""
    del config, files
    if not page.file.src_uri.startswith("reference/"):
        return html
    for pattern, shown in MARKED_DEFAULTS:
        html = re.sub(pattern, shown, html)
    return html


def as_python_markdown(markdown: str, change: Any) -> str:
    """Lists nested by four spaces and set off by an empty line, formulas as MathML; ``change`` is done to each line."""
    lines: list[str] = []
    fence, indent = "", ""
    for line in markdown.splitlines():
        opened = FENCE.match(line)
        if fence:
            lines.append(indent + line)
            fence = "" if opened and opened[2] == fence else fence
            continue
        spaces = line[: len(line) - len(line.lstrip(" "))]
        if opened:
            fence, indent = opened[2], spaces
        is_item = re.match(r" *([-*]|\d+\.) ", line)
        if is_item and lines and lines[-1].strip() and not spaces and not re.match(r" *([-*]|\d+\.) |  ", lines[-1]):
            lines.append("")
        lines.append(spaces + (line if opened else change(line)))
    text = "\n".join(lines) + "\n"
    parts = re.split(r"(```.*?```|`[^`\n]*`)", text, flags=re.DOTALL)
    return "".join(part if part.startswith("`") else with_formulas(part) for part in parts)


def with_formulas(text: str) -> str:
    """What stands between two dollars as a block, between single ones in the line."""
    text = re.sub(
        r"\$\$(.+?)\$\$", lambda found: f'<div class="formula">{mathml(found[1], "block")}</div>', text, flags=re.S
    )
    return re.sub(r"(?<![\w$])\$([^$\n]+)\$(?![\w$])", lambda found: mathml(found[1], "inline"), text)


def mathml(latex: str, display: str) -> str:
    """The formula on one line, as a browser draws it by itself."""
    return str(convert(" ".join(latex.split()), display=display)).replace("\n", "")
