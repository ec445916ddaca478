"""Links between the pages lead somewhere, to the heading they name; the files they name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / "results" / "notes").glob("*.md")]
PAGES += [page for page in (ROOT / "results" / "README.md", ROOT / "CONTRIBUTING.md") if page.is_file()]


def links(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def anchors(page):
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_resolves(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_has_every_page():
    listed = {link.partition("#")[0] for link in links(ROOT / "docs" / "README.md")}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= listed


def named_files(page):
    """What is a path of ours in backticks: a file, or a folder of the package."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    words = re.findall(r"`([\w./-]+\.py|[\w./-]+/)(?:::[^`]*)?`", text)
    return [word for word in words if not re.match(r"(runs|data|root|parts|shards)/", word)]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *PAGES[: len([*(ROOT / "docs").glob("*.md")])], ROOT / "CONTRIBUTING.md"]
)
def test_every_file_named_is_there(page):
    tests = {path.name for path in (ROOT / "tests").rglob("*.py")}
    for word in named_files(page):
        found = [place for place in (ROOT, ROOT / "src" / "widemargin", ROOT / "src") if (place / word).exists()]
        assert found or word in tests, word
