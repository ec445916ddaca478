"""The section on certified radii: only where there are some, every image in its place, shares of all that have one."""

import json
from pathlib import Path

import pytest

from report_folders import write_evaluation
from widemargin.report import write_report
from widemargin.report.certificates import STEPS, Radii, _share_beyond

CERTIFIED = {"count": 300, "median": 0.0123, "accuracy": {"8/255": 12.5, "2/255": 43.25}}
CURVES = {
    name: [{"eps": k / 255, "written": f"{k}/255", "accuracy": top - 4 * k} for k in (2, 8)]
    for name, top in (("pgd10", 80.0), ("pgd100", 78.0), ("autoattack", 70.0))
}


def write_certified(folder: Path, name: str, *, distances: bool = True) -> list[dict]:
    write_evaluation(folder / name, target=name, name=None, count=400, certified=CERTIFIED, curves=CURVES)
    path = folder / name / "examples.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number, row in enumerate(rows):
        radius = 0.3 * (row["distance"] or 0.0) if row["verdicts"]["clean"] else 0.0
        row["certified"] = radius if number < 300 else None
        if not distances:
            del row["distance"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


@pytest.mark.parametrize("distances", [True, False])
def test_each_evaluation_has_its_images_and_its_curves(tmp_path: Path, distances: bool) -> None:
    rows = write_certified(tmp_path / "in", "one", distances=distances)
    files = write_report(tmp_path / "in", tmp_path / "page.html").files
    page, markdown = (next(file for file in files if file.suffix == suffix).read_text() for suffix in (".html", ".md"))
    right = sum(row["verdicts"]["clean"] for row in rows[:300])
    assert f"{right:,} correctly classified images." in page
    assert "Certified are the first 300 of 400 images." in page
    assert "one: certified, AutoAttack, PGD-100" in page  # the strongest PGD, not the first
    assert ("distance 0." in page) == distances
    assert "| one | 300 | 0.0123 | 12.50 | 43.25 |" in markdown


def test_nothing_is_shown_where_nothing_is_certified(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "in" / "one", count=50)
    page = write_report(tmp_path / "in", tmp_path / "page.html").files[0].read_text()
    assert 'id="certified"' not in page


def test_an_evaluation_with_nothing_right_is_no_trouble(tmp_path: Path) -> None:
    rows = write_certified(tmp_path / "in", "one")
    for row in rows:
        row["verdicts"] = dict.fromkeys(row["verdicts"], False)
        row["certified"] = 0.0
    (tmp_path / "in" / "one" / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "None is classified right." in write_report(tmp_path / "in", tmp_path / "page.html").files[0].read_text()


def test_the_share_certified_is_of_all_images_that_were_to_be() -> None:
    radii = Radii(certified=[0.1, 0.2, 0.4], margins=[], distances=[], count=4)
    points = _share_beyond(radii, 0.4)
    assert len(points) == STEPS
    assert points[0] == (0.0, 75.0)
    assert points[-1] == (0.4, 25.0)
    for eps, share in points:
        assert share == 25.0 * sum(radius >= eps for radius in radii.certified)
