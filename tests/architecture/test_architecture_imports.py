"""The shape of the package: imports point downwards, and importing it has no side effects."""

import ast
import graphlib
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import widemargin

ROOT = Path(widemargin.__file__).parent
LEVELS = (  # below them core, types and errors
    ("losses", "schedules", "data"),
    ("gradients", "heads", "attacks", "optimizers"),
    ("distributed", "margins"),
    ("regularizers", "models", "objectives", "certificates", "integrations"),
    ("config",),
    ("engine",),
    ("evaluation",),
    ("training",),
    ("recipes",),
    ("jobs",),
    ("report",),
    ("cli",),
)
LEVEL = {part: number for number, parts in enumerate(LEVELS, start=1) for part in parts}
FOUNDATION = {"core", "types", "errors"}
LONGEST_CHAIN = 20
PRIVATE_WORDS = {
    *("alone", "fits", "fixed", "kept", "later", "means", "moment", "nests", "once", "or_plain", "picked", "plain"),
    *("pushed", "searched", "turns", "twin", "underway", "wrapped", "written"),
}
"""Of no field: nobody searches for them."""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def imported_by(name: str, *, at_load: bool = False) -> set[str]:
    """The modules of ours that a module imports: when it is loaded, or wherever in the file."""
    found: set[str] = set()
    tree = ast.parse(SOURCES[name].read_text(encoding="utf-8"))
    for node in tree.body if at_load else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in SOURCES else str(node.module))
    return {module for module in found if module.split(".")[0] == "widemargin"}


def import_or_skip(name: str) -> ModuleType:
    """An integration imports its library, which need not be there."""
    if name.startswith("widemargin.integrations."):
        return pytest.importorskip(name, reason="its library is in an extra", exc_type=ModuleNotFoundError)
    return importlib.import_module(name)


def part_of(module: str) -> str:
    """widemargin.training.step -> training."""
    return module.split(".")[1] if "." in module else ""


def level_of(module: str) -> int:
    """0 is the foundation."""
    return 0 if part_of(module) in FOUNDATION else LEVEL[part_of(module)]


INSIDE = [name for name in SOURCES if name not in ("widemargin", "widemargin.__main__")]


def test_the_scan_sees_the_package():
    assert len(INSIDE) > 60
    assert {"data", "models", "config", "training", "recipes", "cli"} <= {part_of(name) for name in INSIDE}
    assert "widemargin.training.step" in imported_by("widemargin.training.trainer")
    assert "widemargin.core.randomness" in imported_by("widemargin.training.step")


@pytest.mark.parametrize("name", INSIDE)
def test_imports_point_downwards(name):
    for other in imported_by(name):
        assert other in SOURCES, f"{name} imports {other}, which is not there"
        assert other != "widemargin", f"{name} imports the public names; import the module that has them"
        mine, theirs = part_of(name), part_of(other)
        if level_of(name) == 0:
            assert level_of(other) == 0, f"{name} is part of the foundation and imports {other}"
        elif mine != theirs:
            assert level_of(other) < level_of(name), f"{name} imports {other}, which is not below it"


@pytest.mark.parametrize(
    ("part", "never"),
    [
        ("objectives", "regularizers"),
        ("regularizers", "objectives"),
        ("evaluation", "training"),
        ("models", "objectives"),
        ("engine", "objectives"),
    ],
)
def test_parts_that_must_not_know_each_other(part, never):
    for name in (name for name in INSIDE if part_of(name) == part):
        assert never not in {part_of(other) for other in imported_by(name)}, name


def test_a_report_reads_what_training_wrote_and_never_trains():
    known = {other for name in INSIDE if part_of(name) == "report" for other in imported_by(name)}
    assert {other for other in known if part_of(other) == "training"} <= {"widemargin.training.alarms"}


def test_nobody_imports_the_command_line():
    users = {name for name in SOURCES if "cli" in {part_of(other) for other in imported_by(name)}}
    assert {name for name in users if part_of(name) != "cli"} == {"widemargin.__main__"}


def test_no_module_imports_itself_by_a_detour_and_no_chain_is_long():
    graph = {name: imported_by(name, at_load=True) - {name} for name in SOURCES}
    depth: dict[str, int] = {}
    for name in graphlib.TopologicalSorter(graph).static_order():
        depth[name] = 1 + max((depth[other] for other in graph[name]), default=0)
    assert max(depth.values()) <= LONGEST_CHAIN, max(depth, key=lambda name: depth[name])
    everywhere = {name: imported_by(name) - {name} for name in INSIDE}
    list(graphlib.TopologicalSorter(everywhere).static_order())


@pytest.mark.parametrize("name", SOURCES)
def test_files_classes_and_functions_have_no_private_word_for_a_name(name):
    tree = ast.parse(SOURCES[name].read_text(encoding="utf-8"))
    defined = (ast.ClassDef, ast.FunctionDef)
    names = {name.split(".")[-1], *(node.name for node in ast.walk(tree) if isinstance(node, defined))}
    assert not {word.strip("_").lower() for word in names} & PRIVATE_WORDS


@pytest.mark.parametrize("name", SOURCES)
def test_names_and_doors(name):
    assert SOURCES[name].stem not in {"utils", "helpers", "misc", "base", "common"}
    tree = ast.parse(SOURCES[name].read_text(encoding="utf-8"))
    assert "TODO" not in (ast.get_docstring(tree) or "TODO"), f"{name} does not say what it is"


@pytest.mark.parametrize("name", INSIDE)
def test_no_function_of_a_package_hides_a_module(name):
    """``from widemargin.report import page`` is the module, whatever the package has among its names."""
    import_or_skip(name)
    package, _, module = name.rpartition(".")
    assert isinstance(getattr(sys.modules[package], module), ModuleType)


def test_one_module_prints():
    """So that all that is printed is text without markup, escapes or passwords, and is not cut in a pipe."""
    for name in (name for name in INSIDE if name != "widemargin.core.screen"):
        for call in (node for node in ast.walk(ast.parse(SOURCES[name].read_text())) if isinstance(node, ast.Call)):
            words, what = ast.unparse(call.func), ast.unparse(call)
            last = words.split(".")[-1]
            assert last not in ("print", "secho"), f"{name}: {what}; use screen.say or screen.show_table"
            if last == "Console":
                assert "quiet=True" in what or "file=" in what, f"{name}: {what}; use screen.console_for"
            if last == "echo":
                assert "json.dumps" in what or "own_version()" in what, f"{name}: {what}; use screen.say"


IMPORTING = """
import random, sys
import numpy, torch
def state():
    return numpy.random.get_state()[1].tobytes(), torch.get_rng_state().tolist(), random.getstate()
before = state()
threads, default = torch.get_num_threads(), (torch.get_default_dtype(), torch.get_default_device())
import widemargin
assert before == state(), "importing widemargin draws random numbers"
heavy = [name for name in ("matplotlib", "typer", "rich", "pooch", "PIL") if name in sys.modules]
import importlib, pkgutil
for module in pkgutil.walk_packages(widemargin.__path__, "widemargin."):
    if module.name != "widemargin.__main__" and not module.name.startswith("widemargin.integrations."):
        importlib.import_module(module.name)
assert before[:2] == state()[:2], "importing a module draws random numbers"  # rich itself draws from random
assert threads == torch.get_num_threads()
assert default == (torch.get_default_dtype(), torch.get_default_device())
assert "matplotlib.pyplot" not in sys.modules, "pyplot chooses a backend for the user"
assert "pooch" not in sys.modules, "pooch is for downloads only"
print("heavy:", *heavy)
"""


def test_importing_widemargin_has_no_side_effects_and_is_light(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", IMPORTING],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "heavy:"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_importing_widemargin_does_not_wait_for_torch(tmp_path):
    script = "import sys, widemargin; print('torch' in sys.modules, hasattr(widemargin, 'PGD'), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]


def test_a_report_does_not_wait_for_optuna(tmp_path):
    script = "import sys, widemargin.report; print(*{'optuna', 'sqlalchemy', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_public_names_come_from_where_they_are_written():
    for name in widemargin.__all__:
        value = getattr(widemargin, name)
        assert isinstance(value, str) or value is getattr(sys.modules[value.__module__], name)
    shown = {name for name in dir(widemargin) if not name.startswith("_")}
    modules = {name.split(".")[1] for name in SOURCES if "." in name and not name.endswith("__main__")}
    assert shown == modules | set(widemargin.__all__) - {"__version__"}
    assert widemargin.attacks is sys.modules["widemargin.attacks"]
    with pytest.raises(AttributeError, match="module 'widemargin' has no attribute 'nothing'"):
        _ = widemargin.nothing


def test_every_public_name_is_there():
    assert sorted(widemargin.__all__) == sorted(set(widemargin.__all__))
    assert all(hasattr(widemargin, name) for name in widemargin.__all__)
    promised = {"effective_margin", "ExactEMR", "ApproximateEMR", "StochasticEMR", "FGSM", "PGD", "InputError"}
    assert promised <= set(widemargin.__all__)
