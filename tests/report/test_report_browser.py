"""The page in a real browser: every figure is seen, nothing complains, it fits a phone, the text can be read."""

import math
import os
from xml.etree import ElementTree

import pytest
from chromium_pipe import PROGRAM, Browser

from report_folders import write_everything
from widemargin.cli.report import references
from widemargin.report import write_report

if PROGRAM is None and os.environ.get("CI") != "true":
    pytest.skip("no chromium on this machine; install Debian's chromium to run these", allow_module_level=True)

FIGURES = """
[...document.querySelectorAll("figure")].map(figure => {
  const box = figure.getBoundingClientRect();
  const picture = figure.querySelector("svg, table, img").getBoundingClientRect();
  const images = [...figure.querySelectorAll("img")];
  return {
    title: (figure.querySelector("figcaption") || figure).textContent.trim(),
    width: picture.width, height: picture.height, right: box.right, left: box.left,
    loaded: images.every(image => image.complete && image.naturalWidth > 0),
    drawn: figure.querySelectorAll("svg path, svg rect, td, img").length,
  };
})
"""
CONTRAST = """
(() => {
  const numbers = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = color => {
    const [r, g, b] = color.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = numbers(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || element.closest("title, desc, style, .hidden")) continue;
    const style = getComputedStyle(element);
    const color = numbers(element.closest("svg") ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(color), light(behind(element))].sort((x, y) => y - x);
    found.push({ text: walker.currentNode.textContent.trim().slice(0, 40), ratio: (a + 0.05) / (b + 0.05),
                 size: parseFloat(style.fontSize) });
  }
  return found;
})()
"""
OUTSIDE = """
[...document.querySelectorAll("main *, header *, footer *")]
  .filter(e => !e.closest(".scroll, svg, .hidden") && e.getBoundingClientRect().right > innerWidth + 0.5)
  .map(e => e.tagName + "." + e.className)
"""
TITLES = (
    "What AutoAttack's parts broke",
    "Accuracy under PGD-10, L∞",
    "Effective margins, L∞",
    "Rank correlation 0.874.",
    "Clean accuracy, test images",
    "Robust accuracy, test images",
    "Loss",
    "EMR penalty",
    "Effective margin, test images",
    "over emr.weight and emr.temperature",
    "difference",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = write_everything(tmp_path_factory.mktemp("browsed"))
    return write_report([folder], folder / "report.html", references=references(), version="9.9").files[0]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    assert PROGRAM is not None, "CI=true, but there is no chromium: .ci/run must install it"
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module", params=[(1280, "light"), (1280, "dark"), (375, "light"), (375, "dark")], ids=str)
def opened(request, browser, page):
    width, scheme = request.param
    browser.open(page, width=width, scheme=scheme)
    return browser


def test_nothing_complains_and_nothing_is_fetched(opened, page):
    assert opened.complaints() == []
    assert [address for address in opened.requests() if not address.startswith("data:")] == [page.resolve().as_uri()]


def test_every_figure_is_seen(opened):
    figures = opened.run(FIGURES)
    titles = " ".join(figure["title"] for figure in figures)
    assert all(title in titles for title in TITLES)
    for figure in figures:
        assert figure["loaded"], figure
        assert figure["drawn"] > 0, figure
        assert figure["width"] > 60, figure
        assert figure["height"] > 60, figure


def test_the_page_does_not_scroll_sideways(opened):
    wide, window = opened.run("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window
    assert opened.run(OUTSIDE) == []
    assert opened.run('[...document.querySelectorAll("table")].every(t => t.closest(".scroll"))')


def test_the_text_can_be_read(opened):
    texts = opened.run(CONTRAST)
    assert len(texts) > 300
    assert [text for text in texts if text["ratio"] < 4.5] == []
    assert [text for text in texts if text["size"] < 10.5] == []


def test_dark_is_dark(opened):
    background = opened.run("getComputedStyle(document.body).backgroundColor")
    scheme = "dark" if opened.run('matchMedia("(prefers-color-scheme: dark)").matches') else "light"
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 25, 30)"}[scheme]


def test_the_links_lead_somewhere(opened):
    assert opened.run('[...document.querySelectorAll("a")].every(a => document.querySelector(a.getAttribute("href")))')


def test_a_photograph_can_be_taken(opened, tmp_path):
    opened.photograph(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000


# What the script does


@pytest.fixture
def touched(browser, page):
    browser.open(page, width=1400)
    return browser


def test_autoattack_is_on_the_screen_at_every_width(browser, page):
    for width in (1400, 375):
        browser.open(page, width=width)
        right = browser.run(
            '[...document.querySelectorAll(".ranking thead th")].find(th => th.textContent.includes("AutoAttack"))'
            ".getBoundingClientRect().right"
        )
        assert right <= width


def test_a_click_on_a_head_sorts_and_words_filter(touched):
    column = "[...document.querySelector('.ranking').tBodies[0].rows].map(row => parseFloat(row.cells[3].textContent))"
    click = "document.querySelectorAll('.ranking thead th')[3].click()"
    touched.run(click)
    down = touched.run(column)
    touched.run(click)
    assert down == sorted(down, reverse=True)
    assert touched.run(column) == sorted(down)
    assert touched.run("document.querySelectorAll('.ranking thead th')[3].getAttribute('aria-sort')") == "ascending"
    hidden = touched.run("""(() => {
      const table = [...document.querySelectorAll("table")].find(t => t.closest(".scroll").previousElementSibling
        && t.closest(".scroll").previousElementSibling.matches(".tools"));
      const field = table.closest(".scroll").previousElementSibling.querySelector("input");
      const word = table.tBodies[0].rows[0].cells[0].textContent.trim().split(/\\s+/)[0];
      field.value = word + " nothingelse";
      field.dispatchEvent(new Event("input"));
      const none = [...table.tBodies[0].rows].every(row => row.hidden);
      field.value = word;
      field.dispatchEvent(new Event("input"));
      return [none, table.tBodies[0].rows[0].hidden];
    })()""")
    assert hidden == [True, False]


def test_a_click_on_a_legend_leaves_one_alone_and_again_shows_all(touched):
    faded = '[...document.querySelectorAll("#training .faded")].length'
    press = 'document.querySelectorAll("#training .legend li")[1].click()'
    assert touched.run(faded) == 0
    touched.run(press)
    assert touched.run(faded) > 0
    assert touched.run('[...document.querySelectorAll("#training .faded")].every(e => e.dataset.of.endsWith("/at"))')
    touched.run(press)
    assert touched.run(faded) == 0


def test_values_stand_beside_the_pointer(touched):
    said = touched.run("""(() => {
      const figure = [...document.querySelectorAll("#training figure")].find(f => f.textContent.includes("Loss"));
      const box = figure.querySelector("svg.chart").getBoundingClientRect();
      const place = { clientX: box.left + box.width * 42 / 360, clientY: box.top + box.height / 2 };
      figure.querySelector("svg.chart").dispatchEvent(new PointerEvent("pointermove", place));
      const rows = [...figure.querySelectorAll(".values div")].map(d => d.textContent);
      return [figure.querySelector(".values").hidden, rows, figure.querySelector(".values b").textContent];
    })()""")
    assert said[0] is False
    assert said[2] == "1"  # the first epoch, at the left end of the axis
    loss = 2.4 * math.exp(-1 / 40) + 0.9
    assert f"cifar-resnet18/at: {loss:.4g}" in said[1]


def test_a_logarithmic_axis_and_smoothing_draw_the_lines_anew(touched):
    paths = touched.run("""(() => {
      const figure = [...document.querySelectorAll("#training figure")].find(f => f.textContent.includes("Loss"));
      const drawn = () => figure.querySelector("path.line").getAttribute("d");
      const log = [...figure.querySelectorAll("button")].find(b => b.textContent === "Log");
      const found = [drawn()];
      log.click();
      found.push(drawn());
      log.click();
      found.push(drawn());
      const slider = document.querySelector("#training input[type=range]");
      slider.value = 0.9;
      slider.dispatchEvent(new Event("input"));
      found.push(drawn());
      return found;
    })()""")
    linear, log, again, smooth = paths
    assert linear == again
    assert len({linear, log, smooth}) == 3


def test_a_chart_is_downloaded_as_a_picture_of_its_own(touched):
    text = touched.run("""(async () => {
      let saved = null;
      URL.createObjectURL = blob => { saved = blob; return "#"; };
      document.querySelector("#training figure .tools button:last-child").click();
      return await saved.text();
    })()""")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "stroke: rgb(" in text


def test_the_script_is_small_and_needs_nothing(page):
    html = page.read_text()
    script = html[html.index("<script>") : html.index("</script>")]
    assert len(script.encode()) <= 15_000
    assert "src=" not in script
    assert "http" not in script
