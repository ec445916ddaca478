"""The page: a golden one for a tiny tree, and each thing it must say."""

import json
from pathlib import Path

import numpy as np
import pytest
from paper.__main__ import PAPER
from paper.collect import collect
from paper.commands import paper_tables
from paper.page import by_recipe, generate
from paper.plans import CURVES, GROUPS
from paper.rows import PaperTable
from paper.tables import cell_text, is_far
from paper.tree import read_tree

from job_folders import write_job
from widemargin.cli.main import run
from widemargin.recipes import all_recipes
from widemargin.recipes.tables import all_tables
from widemargin.report.compare import Cell

GOLDEN = Path(__file__).with_name("golden_results.md")


def some_tables():
    """Four rows of Table 1, and a table nobody has begun."""
    one, two = (table for table in paper_tables() if table.name in ("table1", "table4"))
    wanted = ("st-wd0.001", "st-emr", "at-wd0.001", "at-emr")
    return [PaperTable(one.name, one.title, one.columns, [row for row in one.rows if row.short in wanted]), two]


@pytest.fixture
def into(tmp_path):
    """A row with three seeds, one with one seed, one that crashed, one never begun."""
    runs, into = tmp_path / "runs", tmp_path / "results"
    for seed, clean in enumerate((97.0, 97.5, 98.0)):
        later = ("autoattack", "distance") if seed == 0 else ()
        write_job(runs, "mnist-mlp/st-emr", seed, clean=clean, robust=84.0 + seed, margin=2.25, later=later)
    write_job(runs, "mnist-mlp/at-emr", clean=98.68, robust=94.79, margin=2.5)
    write_job(runs, "mnist-mlp/at-wd0.001", finished=False, epochs=2)
    collect([runs], into)
    (into / "notes").mkdir()
    note = "ST+EMR falls short of the paper by *three points* ([why](../../docs/why.md), [tried](../tried/it.md)).\n"
    (into / "notes" / "table1.md").write_text(note)
    return into


def test_the_golden_page(into):
    generate(into, some_tables())
    assert (into / "README.md").read_text() == GOLDEN.read_text()


def test_the_same_tree_makes_the_same_bytes(into, tmp_path):
    written = generate(into, some_tables())
    before = {path: path.read_bytes() for path in written}
    assert generate(into, some_tables()) == written
    assert {path: path.read_bytes() for path in written} == before


def test_pictures_for_which_nothing_is_left_go_and_others_stay(into):
    generate(into, some_tables())
    assert (into / "figures" / "distance-mnist-mlp.png").is_file()
    (into / "figures" / "by-hand.png").write_bytes(b"mine")
    (into / "rows" / "mnist-mlp-st-emr" / "seed-0" / "distance.json").unlink()
    generate(into, some_tables())
    names = {path.name for path in (into / "figures").iterdir()}
    assert "distance-mnist-mlp.png" not in names
    assert {"by-hand.png", "figure1-margins.png", "accuracy-mnist-mlp.png", "histogram-mnist-mlp.png"} <= names
    assert {"figure1-margins.pdf", "figure1-margins.svg"} <= names  # for a paper
    assert not {"distance-mnist-mlp.pdf", "distance-mnist-mlp.svg"} & names
    assert "distance-mnist-mlp" not in (into / "README.md").read_text()


def test_the_command_has_every_table_of_the_paper(into, capsys):
    assert run(["page", "--into", str(into)], PAPER) == 0
    page = (into / "README.md").read_text()
    not_run = page.split("## Not run yet\n")[1].split("\n## ")[0]
    for table in all_tables().values():
        begun = table.name in ("table1", "approximation")
        assert (f"## {table.title}\n" in page) is begun
        assert (f"- {table.title}: all {len(table.rows)} rows\n" in not_run) is not begun
    assert "ST+EMR falls short of the paper by *three points* ([why](../docs/why.md), [tried](tried/it.md))." in page
    assert str(into / "README.md") in capsys.readouterr().out


@pytest.mark.parametrize(("images", "said"), [(2000, "60 of 1,960"), (1960, "21 of 1,921"), (1958, ""), (300, "")])
def test_margins_that_no_mean_has_are_counted(into, images, said):
    """98% of the images are right, 1,900 have a margin; what is a percent or less is not said."""
    path = into / "rows" / "mnist-mlp-st-emr" / "seed-2" / "evaluation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data": {"name": "mnist", "count": images}}))
    generate(into, some_tables())
    lines = [line for line in (into / "README.md").read_text().splitlines() if "have no boundary" in line]
    start = f"- st-emr, seed 2: {said} correctly classified test images have no boundary"
    assert lines == [line for line in lines if line.startswith(start)]
    assert len(lines) == bool(said)


def test_what_a_reader_must_know_is_said(into):
    folder = into / "rows" / "mnist-mlp-at-emr" / "seed-0"
    (folder / "config.toml").write_text((folder / "config.toml").read_text().replace("epochs = 50", "epochs = 5"))
    evaluation = json.loads((folder / "evaluation.json").read_text())
    evaluation["alarms"] = [{"name": "black-box-wins", "message": "Square broke 12 images.", "suggestion": "Look."}]
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    generate(into, some_tables())
    page = (into / "README.md").read_text()
    assert "- at-emr: changed from the recipe: epochs=5\n" in page
    assert "- at-emr, seed 0: alarm black-box-wins: Square broke 12 images.\n" in page


def remarks(into, alarms):
    """The lines of the page on st-emr, whose seeds raised these alarms: for each seed (name, message) pairs."""
    for seed, raised in enumerate(alarms):
        path = into / "rows" / "mnist-mlp-st-emr" / f"seed-{seed}" / "evaluation.json"
        told = [{"name": name, "message": message, "suggestion": "Look."} for name, message in raised]
        path.write_text(json.dumps(json.loads(path.read_text()) | {"alarms": told}))
    generate(into, some_tables())
    return [line for line in (into / "README.md").read_text().splitlines() if line.startswith("- st-emr, seed")]


@pytest.mark.parametrize(
    ("alarms", "lines"),
    [
        (
            [["37% have none"], ["35% have none"], ["35% have none"]],
            ["seeds 0, 1, 2: alarm a: 37%, 35%, 35% have none"],
        ),
        ([["37% have none"], [], ["37% have none"]], ["seeds 0, 2: alarm a: 37% have none"]),
        ([["1 of 2,000 go"], ["3 of 2,400 go"], []], ["seeds 0, 1: alarm a: 1 of 2,000; 3 of 2,400 go"]),
        ([["1 of 2,000 go"], ["1 of 2,400 go"], []], ["seeds 0, 1: alarm a: 1 of 2,000, 2,400 go"]),
        ([["5% go"], ["5% stay"], ["6% go"]], ["seeds 0, 2: alarm a: 5%, 6% go", "seed 1: alarm a: 5% stay"]),
        ([["1 go", "2 go"], ["3 go"], []], ["seeds 0, 1: alarm a: 1, 3 go", "seed 0: alarm a: 2 go"]),
    ],
)
def test_alarms_of_several_seeds_that_differ_in_numbers_alone_are_one_line(into, alarms, lines):
    raised = [[("a", message) for message in messages] for messages in alarms]
    assert remarks(into, raised) == [f"- st-emr, {line}" for line in lines]


def test_alarms_of_different_names_stay_apart(into):
    lines = remarks(into, [[("a", "5% go")], [("b", "5% go")], []])
    assert lines == ["- st-emr, seed 0: alarm a: 5% go", "- st-emr, seed 1: alarm b: 5% go"]


class TestAutoAttackAt8:
    """A small table below the paper's."""

    def page(self, tmp_path):
        generate(tmp_path / "results", [table for table in paper_tables() if table.name in ("table1", "resnet18")])
        return (tmp_path / "results" / "README.md").read_text()

    @pytest.fixture
    def at_8(self, tmp_path):
        """Two seeds of a row, one of another, a row without."""
        runs = tmp_path / "runs"
        for seed in (0, 1):
            write_job(runs, "cifar-resnet18/at", seed, clean=84.0, robust=50.0 + seed, later=("autoattack-8-255",))
        write_job(runs, "cifar-resnet18/at-emr", clean=83.0, robust=52.0, later=("autoattack-8-255",))
        write_job(runs, "cifar-resnet18/trades")
        write_job(runs, "mnist-mlp/st-emr")
        collect([runs], tmp_path / "results")
        return tmp_path

    def test_it_has_the_rows_that_were_judged(self, at_8):
        page = self.page(at_8)
        assert page.count("### AutoAttack at 8/255 (first 1,000)\n") == 1
        small = page.partition("### AutoAttack at 8/255 (first 1,000)\n")[2].partition("## Figures")[0]
        assert "Judged in: float32 (no TF32); AutoAttack searched with TF32." in small
        assert [line for line in small.splitlines() if line.startswith("|")] == [
            "| row | seeds | Clean | AutoAttack |",
            "| :-- | --: | --: | --: |",
            "| at | 2 | 84.50 ± 0.00 | 45.50 ± 0.71 |",
            "| at-emr | 1 | 83.50 | 47.00 |",
        ]

    def test_the_table_above_has_the_papers_eps(self, at_8):
        (line,) = [line for line in self.page(at_8).splitlines() if line.startswith("| at-emr | 1 | 83.00")]
        assert "| 48.00 / " in line

    def test_its_own_alarms_say_so_and_others_are_said_once(self, at_8):
        folder = at_8 / "results" / "rows" / "cifar-resnet18-at-emr" / "seed-0"
        model = {"name": "vanishing-gradients", "message": "12% have none.", "suggestion": "Look."}
        own = {"name": "black-box-wins", "message": "Square broke 3.", "suggestion": "Look."}
        for file, alarms in (("evaluation.json", [model]), ("autoattack-8-255.json", [model, own])):
            report = json.loads((folder / file).read_text())
            (folder / file).write_text(json.dumps(report | {"alarms": alarms}))
        page = self.page(at_8)
        assert page.count("alarm vanishing-gradients") == 1
        assert "- at-emr, seed 0: alarm vanishing-gradients: 12% have none.\n" in page
        assert "- at-emr, seed 0: alarm black-box-wins (AutoAttack at 8/255 (first 1,000)): Square broke 3.\n" in page


def small_table(tmp_path, title):
    """The cells below this title, and the sentences between, of Table 1."""
    collect([tmp_path / "runs"], tmp_path / "results")
    generate(tmp_path / "results", [table for table in paper_tables() if table.name == "table1"])
    page = (tmp_path / "results" / "README.md").read_text()
    lines = page.partition(f"### {title}\n")[2].partition("\n#")[0].splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("|")], "\n".join(lines)


def test_by_how_much_pgd_flatters(tmp_path):
    both = ("strongest", "autoattack-1000")
    for seed in (0, 1):
        write_job(tmp_path / "runs", "mnist-mlp/st-emr", seed, robust=80.0 + seed, epochs=1, later=both)
    write_job(tmp_path / "runs", "mnist-mlp/st-wd0.01", robust=40.0, epochs=1, later=("strongest",))
    write_job(tmp_path / "runs", "mnist-mlp/at-emr", epochs=1)
    rows, said = small_table(tmp_path, "By how much PGD flatters")
    heads = "row | seeds | PGD | strongest | PGD (1,000) | strongest (1,000) | AutoAttack (1,000) | PGD - AutoAttack"
    assert rows[0] == heads.split(" | ")
    assert rows[2:] == [
        ["st-wd0.01", "1", "40.00", "38.00", "-", "-", "-", "-"],
        ["st-emr", "2", *(f"{mean} ± 0.71" for mean in ("80.50", "78.50", "80.50", "78.50", "78.00")), "2.50 ± 0.00"],
    ]
    assert "Judged in: NVIDIA H200, float32 (no TF32)." in said


def test_certified_radii_beside_margins_and_distances(tmp_path):
    for recipe, margin in (("mnist-mlp/st-emr", 2.0), ("mnist-mlp/st-wd0.01", 1.0)):
        write_job(tmp_path / "runs", recipe, margin=margin, epochs=1, later=("certified",))
    write_job(tmp_path / "runs", "mnist-mlp/at-emr", epochs=1, later=("distance",))
    rows, _ = small_table(tmp_path, "Certified, margin, distance (first 100)")
    assert rows[0][2:] == ["images", "certified (L2)", "margin (L2)", "distance (L2)", "certified / distance"]
    assert [(row[0], row[1], row[-1]) for row in rows[2:]] == [("st-wd0.01", "1", "0.20"), ("st-emr", "1", "0.20")]
    record = json.loads((tmp_path / "results/rows/mnist-mlp-st-emr/seed-0/certified.json").read_text())
    medians = np.median(np.array(record["triples"]), axis=0)
    assert [float(cell) for cell in rows[3][3:6]] == pytest.approx(medians, abs=5e-4)


@pytest.mark.parametrize(
    ("column", "ours", "paper", "text"),
    [
        ("clean", 97.0, 95.0, "97.00 / 95.00 (+2.00)"),
        ("clean", 97.01, 95.0, "97.01 / 95.00 (**+2.01** ▲)"),
        ("pgd10", 92.9, 95.0, "92.90 / 95.00 (**-2.10** ▼)"),
        ("margin_test", 1.15, 1.0, "1.15 / 1.00 (+0.15)"),
        ("margin_test", 1.35, 1.2, "1.35 / 1.20 (+0.15)"),
        ("margin_test", 0.84, 1.0, "0.84 / 1.00 (**-0.16** ▼)"),
        ("clean", 94.999, 95.0, "95.00 / 95.00 (+0.00)"),
        ("clean", None, 95.0, "- / 95.00"),
        ("clean", 95.0, None, "95.00"),
    ],
)
def test_marks(column, ours, paper, text):
    cell = Cell(ours=ours, spread=None, paper=paper)
    assert cell_text(column, cell) == text
    assert is_far(column, cell) == ("**" in text)


def test_pictures_name_recipes_that_exist():
    lines = [line for plan in (*CURVES, *GROUPS) for panel in plan.panels for line in panel.lines]
    assert {line.recipe for line in lines} <= all_recipes().keys()


def test_jobs_are_in_order_of_seed(into):
    jobs = by_recipe(read_tree(into))
    assert [job.seed for job in jobs["mnist-mlp/st-emr"]] == [0, 1, 2]


class TestMarginsAndDistances:
    """Below a table, of the rows whose distances were measured."""

    def small(self, tmp_path) -> str:
        collect([tmp_path / "runs"], tmp_path / "results")
        generate(tmp_path / "results", [table for table in paper_tables() if table.name in ("table1", "table2")])
        page = (tmp_path / "results" / "README.md").read_text()
        return page.partition("### Margins and distances (first 1,000)\n")[2].partition("## Table 2")[0]

    def test_medians_by_hand_and_their_order_across_the_rows(self, tmp_path):
        margins = {"mnist-mlp/st-emr": 2.0, "mnist-mlp/at-emr": 3.0, "mnist-mlp/st-wd0.01": 1.0}
        for recipe, margin in margins.items():
            write_job(tmp_path / "runs", recipe, margin=margin, later=("distance",))
        write_job(tmp_path / "runs", "mnist-mlp/st-emr", 1, later=("distance",))
        write_job(tmp_path / "runs", "mnist-mlp/at-wd0.01")
        rows = [line.strip("| ").split(" | ") for line in self.small(tmp_path).splitlines() if line.startswith("|")]
        assert [row[:3] for row in rows[2:]] == [
            ["st-wd0.01", "1", "1000"],
            ["st-emr", "2", "1000"],
            ["at-emr", "1", "1000"],
        ]
        assert {row[-1] for row in rows[2:]} == {"0.912"}
        for recipe, row in zip(("st-wd0.01", "st-emr", "at-emr"), rows[2:], strict=True):
            pairs = [
                json.loads(path.read_text())["pairs"]
                for path in sorted((tmp_path / "results" / "rows" / f"mnist-mlp-{recipe}").glob("*/distance.json"))
            ]
            medians = np.median(np.array(pairs), axis=1).mean(axis=0)
            assert [float(cell) for cell in row[3:5]] == pytest.approx(medians, abs=5e-4)
        assert "Across these 3 rows, the medians have the rank correlation 1.00." in self.small(tmp_path)

    def test_of_two_rows_nothing_is_said_across_them(self, tmp_path):
        for recipe in ("mnist-mlp/st-emr", "mnist-mlp/at-emr"):
            write_job(tmp_path / "runs", recipe, later=("distance",))
        assert "the rank correlation of the two" in self.small(tmp_path)
        assert "Across these" not in self.small(tmp_path)

    def test_it_names_the_attacks_that_looked(self, tmp_path):
        for recipe in ("mnist-mlp/st-emr", "mnist-mlp/at-emr"):
            write_job(tmp_path / "runs", recipe, later=("distance",))
        assert "perturbation that FAB found, in the same norm" in self.small(tmp_path), "of an earlier version"
        path = tmp_path / "results" / "rows" / "mnist-mlp-st-emr" / "seed-0" / "distance.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"distance": record["distance"] | {"method": "full"}}))
        generate(tmp_path / "results", [table for table in paper_tables() if table.name == "table1"])
        page = (tmp_path / "results" / "README.md").read_text()
        assert "perturbation that DDN, ALMA or FAB (1 job); FAB (1 job) found, in the same norm" in page

    def test_without_distances_there_is_no_such_table(self, tmp_path):
        write_job(tmp_path / "runs", "mnist-mlp/st-emr")
        assert self.small(tmp_path) == ""


def test_the_overview_counts_what_is_far_from_the_paper(tmp_path):
    published = all_recipes()["mnist-mlp/st-emr"].published.results
    assert published["margin_train"][0] - published["margin_test"][0] > 1, "one of the two is far"
    numbers = {"clean": published["clean"], "robust": published["pgd20"] - 1.0, "margin": published["margin_test"][0]}
    write_job(tmp_path / "runs", "mnist-mlp/st-emr", epochs=1, **numbers)
    collect([tmp_path / "runs"], tmp_path / "results")
    generate(tmp_path / "results", some_tables())
    page = (tmp_path / "results" / "README.md").read_text()
    assert "| Table 1: MLP on MNIST | 1 of 4 | 1 | 4 | 1 |\n" in page


def test_nothing_is_said_across_rows_of_two_networks(tmp_path):
    recipes = [f"{net}/{row}" for net in ("mnist-mlp", "cifar-cnn") for row in ("st-emr", "at-emr")]
    for margin, recipe in enumerate(recipes, start=1):
        write_job(tmp_path / "runs", recipe, margin=float(margin), epochs=1, later=("distance",))
    collect([tmp_path / "runs"], tmp_path / "results")
    generate(tmp_path / "results", [table for table in paper_tables() if table.name == "approximation"])
    page = (tmp_path / "results" / "README.md").read_text()
    assert "### Margins and distances (first 1,000)\n" in page
    assert "Across these" not in page
