"""Photograph a report for ``docs/reading-a-report.md``: ``python scripts/report_pictures.py report.html docs``.

It takes the top of the page (the leaderboard) and the section of charts, in a headless Chromium 1,200 pixels wide.
"""

import base64
import importlib
import sys
import tempfile
from pathlib import Path

SHOTS = {"report-top.png": ("body", 0, 640), "report-charts.png": ("#margins", -8, 560)}
"""By file: the element it begins at, how far from its top, and how many pixels of the page."""


def main(report: Path, folder: Path) -> None:
    """Write both pictures."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    browsers = importlib.import_module("tests.report.chromium_pipe")
    with tempfile.TemporaryDirectory() as profile:
        browser = browsers.Browser(Path(profile))
        try:
            browser.open(report, width=1200)
            for name, (element, off, height) in SHOTS.items():
                where = f"document.querySelector({element!r})"
                top = browser.run(f"{where} ? {where}.getBoundingClientRect().top + scrollY : -1")
                if not isinstance(top, int | float) or top < 0:
                    raise SystemExit(f"{report} has no {element}")
                clip = {"x": 0, "y": max(0, top + off), "width": 1200, "height": height, "scale": 1}
                shot = browser.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
                (folder / name).write_bytes(base64.b64decode(shot["data"]))
                print(folder / name)
        finally:
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
