"""What the files around the package say of it is true: versions, citation, the workflow, what archives hold."""

import re
import tomllib
from pathlib import Path

import widemargin

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


def test_the_citation_is_of_this_version_and_the_paper():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", text, re.MULTILINE)[1] == widemargin.__version__
    cited = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert f"version = {{{widemargin.__version__}}}" in cited
    for page in (text, cited):
        assert "2210.05118" in page
        assert "Boosting Adversarial Robustness From The Perspective of Effective Margin Regularization" in page


def test_the_changelog_begins_with_this_version():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] in (widemargin.__version__, "Unreleased")
    assert widemargin.__version__ in headings


def test_the_workflow_does_what_the_check_of_a_change_does():
    assert "run: .ci/run" in WORKFLOW
    assert "make release-check" in WORKFLOW
    stated = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert re.search(r"python: \[(.*)\]", WORKFLOW)[1] == ", ".join(f'"{number}"' for number in stated)
    check = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(f"make {target}" in check for target in ("lint typecheck", "test", "docs", "build"))


def test_every_requirement_of_the_documentation_has_a_tested_version():
    pins = set(re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    extras = PROJECT["project"]["optional-dependencies"]
    for requirement in (*extras["docs"], *extras["dev"][1:]):
        assert re.match(r"[\w-]+", requirement)[0] in pins, requirement


def test_the_source_archive_holds_what_the_tests_and_pages_need():
    for name in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]:
        assert (ROOT / name).exists(), name
