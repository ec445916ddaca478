"""``make docs`` makes a site without a warning; it asks for nothing from elsewhere, and its search works from disk."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.report.chromium_pipe import PROGRAM, Browser

for library in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
    pytest.importorskip(library, reason="in the extra docs")

ROOT = Path(__file__).parents[2]
ASKED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_is_there(site):
    made = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"} <= made
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == {
        p.stem for p in site.glob("notebooks/*.html")
    }
    for name in ("PGD", "effective_margin", "ApproximateEMR", "certified_margin", "evaluate"):
        assert f'id="widemargin.{name}"' in (site / "reference" / "widemargin.html").read_text("utf-8")
    signatures = "".join(path.read_text("utf-8") for path in (site / "reference").glob("*.html"))
    assert not re.search(r">(added|outside_tables|one_of)<", signatures)


def test_no_page_fetches_anything_from_elsewhere(site):
    pages = [*site.rglob("*.html")]
    assert len(pages) > 40
    assert [(page.name, found) for page in pages for found in ASKED.findall(page.read_text("utf-8"))] == []
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"(?:url\([\"']?|@import\s+[\"'])(?:https?:)?//", styles)


def test_formulas_are_drawn_without_a_script(site):
    page = (site / "idea.html").read_text("utf-8")
    assert page.count("<math") >= 5
    assert "$$" not in page


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium")
def test_it_is_read_and_searched_from_disk(site, tmp_path):
    browser = Browser(tmp_path)
    try:
        for page in ("index.html", "idea.html", "reference/attacks.html"):
            browser.open(site / page, width=1300)
            assert browser.complaints() == []
            assert {address.partition(":")[0] for address in browser.requests()} <= {"file", "data"}
        browser.run("document.querySelector('[data-md-toggle=search]').click()")
        type_it = """(() => {
            const box = document.querySelector('[data-md-component=search-query]');
            box.focus(); box.value = 'temperature'; box.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}));
            return document.querySelectorAll('.md-search-result__item').length; })()"""
        deadline = time.monotonic() + 60
        while not browser.run(type_it):
            assert time.monotonic() < deadline, "the search finds nothing"
        assert "temperature" in str(browser.run("document.querySelector('.md-search-result__list').innerText"))
        assert browser.complaints() == []
    finally:
        browser.close()


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path):
    """The check of links is on: the same settings, with one page that has a wrong one."""
    (tmp_path / "docs" / "assets").mkdir(parents=True)
    (tmp_path / "docs" / "index.md").write_text(
        "# One\n\n[there](nowhere.md), [here](#no-such-heading)\n", encoding="utf-8"
    )
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    text = text.replace("hooks: [scripts/docs_site.py]", "").replace("paths: [src]", "paths: []")
    (tmp_path / "mkdocs.yml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nowhere.md" in done.stderr
    assert "no-such-heading" in done.stderr
