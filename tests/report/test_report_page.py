"""The page: every section with data is there, none without, the numbers agree in every format, nothing injects."""

import csv
import html
import html.parser
import io
import itertools
import json
import re

import numpy as np
import pytest

from report_folders import (
    ALARM,
    page_of,
    write_evaluation,
    write_everything,
    write_gallery,
    write_run,
    write_sweep,
)
from widemargin.cli.report import references
from widemargin.report import write_report

SECTIONS = [
    "leaderboard",
    "alarms",
    "results",
    "autoattack",
    "accuracy-versus-eps",
    "margins",
    "margin-versus-distance",
    "training",
    "sweeps",
    "gallery",
    "facts",
    "reproduce",
]
VOID = {"meta", "link", "img", "br"}


class Tree(html.parser.HTMLParser):
    """Sees that every element is closed where it should be, and collects what a test asks for."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.cells, self.wrong = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th", "span") and data.strip():
            self.cells.append(data.strip())

    def all(self, tag):
        return [attributes for found, attributes in self.tags if found == tag]


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    folder = write_everything(tmp_path_factory.mktemp("everything"))
    written = write_report([folder], folder / "out" / "report.html", references=references(), version="9.9")
    return {path.suffix[1:]: path.read_text(encoding="utf-8") for path in written.files} | {"folder": folder}


def commands_of(text):
    """The commands as a reader copies them."""
    found = re.findall(r"<li><code>(.*?)</code></li>", text)
    return [html.unescape(re.sub("<[^>]+>", "", command)) for command in found]


def sections(text):
    return re.findall(r'<section id="([^"]+)"', text)


def test_every_section_is_there(everything):
    assert sections(everything["html"]) == SECTIONS
    links = re.findall(r'href="#([a-z-]+)"', everything["html"])
    assert links == ["content", *SECTIONS]


def test_the_page_is_sound_html_and_needs_nothing_else(everything):
    tree = Tree(everything["html"])
    assert tree.wrong == []
    assert tree.open == []
    assert tree.all("script") == [{}]  # its own, inside the page
    addresses = [a.get("src") or a.get("href") or "" for a in tree.all("img") + tree.all("link") + tree.all("a")]
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert "http" not in everything["html"]
    assert "@import" not in everything["html"]
    assert "url(" not in everything["html"]


def test_headings_and_names_for_those_who_do_not_see(everything):
    tree = Tree(everything["html"])
    levels = [int(tag[1]) for tag, _ in tree.tags if tag in ("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert tree.all("html") == [{"lang": "en"}]
    assert all(image["alt"] for image in tree.all("img"))
    assert all(head["scope"] in ("col", "row", "colgroup") for head in tree.all("th"))
    for picture in tree.all("svg"):
        assert picture.get("aria-hidden") == "true" or (picture["role"] == "img" and picture["aria-labelledby"])
    ids = [attributes["id"] for _, attributes in tree.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(name in ids for svg in tree.all("svg") for name in svg.get("aria-labelledby", "").split())


def test_figures_are_of_what_was_measured(everything):
    titles = re.findall(r"<figcaption>([^<]+)", everything["html"])
    for title in (
        "What AutoAttack&#39;s parts broke",
        "Accuracy under PGD-10, L∞",
        "Effective margins, L∞",
        "Clean accuracy, test images",
        "Robust accuracy, held-out images",
        "Loss",
        "EMR penalty",
        "Effective margin, test images",
        "cifar-resnet18/at-emr over emr.weight and emr.temperature",
    ):
        assert title in titles
    assert "IGR penalty" not in titles
    assert everything["html"].count('class="band') == 2  # one for each run
    assert everything["html"].count("<img") == 2 * 6 * 3


def test_our_numbers_stand_beside_the_published(everything):
    report = json.loads((everything["folder"] / "evaluations" / "at" / "report.json").read_text())
    tree = Tree(everything["html"])
    ours, paper = report["accuracy"]["autoattack"], 46.9
    place = tree.cells.index(f"paper {paper:.2f}")
    assert tree.cells[place - 1] == f"{ours:.2f}"
    assert tree.cells[place + 1] == f"{ours - paper:+.2f}".replace("-", "−")  # noqa: RUF001


def rows_of(text):
    rows = csv.DictReader(io.StringIO(text))
    return [row for row in rows if "/" not in row["measure"] and not row["measure"].startswith("distance")]


@pytest.mark.parametrize("kind", ["html", "md", "tex"])
def test_every_format_has_the_numbers_of_the_csv(everything, kind):
    words = " ".join(Tree(everything["html"]).cells) if kind == "html" else everything[kind]
    rows = rows_of(everything["csv"])
    assert len(rows) >= 20
    assert any(row["paper"] for row in rows)
    for row in rows:
        places = {"linf": 4, "l2": 3}[row["norm"]] if row["measure"].startswith("margin") else 2
        assert f"{float(row['value']):.{places}f}" in words, row
        if row["paper"]:
            assert f"paper {float(row['paper']):.{places}f}" in words, row


def test_tables_agree_cell_by_cell(everything):
    """The same table in Markdown and in LaTeX has the same cells."""
    lines = [line for line in everything["md"].splitlines() if line.startswith("| cifar")]
    body = [line for line in everything["tex"].splitlines() if line.startswith("cifar")]
    assert len(lines) == len(body) > 5
    for left, right in zip(lines, body, strict=True):
        numbers = [re.findall(r"\d+\.\d+", text.replace("resnet18", "")) for text in (left, right)]
        assert numbers[0] == numbers[1]


def test_csv_has_the_parts_of_autoattack_and_distances(everything):
    rows = list(csv.DictReader(io.StringIO(everything["csv"])))
    parts = [row for row in rows if row["measure"].startswith("autoattack/")]
    assert len(parts) == 8
    assert {(row["eps"], row["eps_value"], row["norm"]) for row in parts} == {("0.031", "0.031", "linf")}
    assert {row["data"] for row in rows} == {"cifar10", "mnist"}
    assert {row["images"] for row in parts} == {"1000"}
    report = json.loads((everything["folder"] / "evaluations" / "at" / "report.json").read_text())
    found = {row["measure"]: row["value"] for row in rows if row["measure"].startswith("distance")}
    for name in ("median", "rank_correlation"):
        assert float(found[f"distance_{name}"]) == pytest.approx(report["distance"][name], rel=1e-5)


def test_seeds_are_averaged(everything):
    means = [row for row in rows_of(everything["csv"]) if row["kind"] == "mean"]
    assert means[0]["name"] == "mnist-mlp/st-emr, mean of 2 seeds"
    assert float(means[0]["value"]) == 97.5
    assert float(means[0]["spread"]) == pytest.approx(0.2 / 2**0.5, rel=1e-4)
    assert float(means[0]["difference"]) == 0


def test_alarms_come_first_and_say_what_to_do(everything):
    text = everything["html"]
    for words in ALARM.values():
        assert text.index(words) < text.index('<h2 id="results-title"')
        assert words in everything["md"]
    assert "No alarms" not in text
    assert "Not checked for alarms: mnist-mlp/st-emr · seed 0" in text
    assert "Not checked for alarms: mnist-mlp/st-emr · seed 0" in everything["md"]


def boxes_of(text):
    """The alarms as a reader sees them, each in words."""
    (shown,) = re.findall(r'<ul class="alarms">(.*?)</ul>', text, flags=re.DOTALL)
    boxes = re.findall(r"<li>(.*?)</li>", shown, flags=re.DOTALL)
    return [html.unescape(" ".join(re.sub("<[^>]+>", "", box).split())) for box in boxes]


def test_alarms_of_training_say_where_when_and_what_to_do(everything):
    evaluation, still, robust = sorted(boxes_of(everything["html"]), key=lambda box: box.split()[0])
    assert evaluation.startswith(ALARM["name"])
    assert still.startswith("emr-still training of cifar-resnet18/at-emr (epoch 31) the emr penalty was zero")
    assert "change emr.weight" in still
    assert robust.startswith(
        "robust-overfitting training of cifar-resnet18/at (epoch 93) and cifar-resnet18/at-emr (epoch 70) accuracy"
    )
    assert "set stopping.patience" in robust
    rows = [line.split(" | ") for line in everything["md"].splitlines() if re.search(r"-(still|overfitting) \|", line)]
    assert [row[:3] for row in rows] == [
        ["| cifar-resnet18/at", "93", "robust-overfitting"],
        ["| cifar-resnet18/at-emr", "31", "emr-still"],
        ["| cifar-resnet18/at-emr", "70", "robust-overfitting"],
    ]
    assert all("set stopping.patience" in row[4] for row in (rows[0], rows[2]))


def test_a_reader_learns_what_was_evaluated(everything):
    for fact in (
        "best, epoch 64",
        "highest robust accuracy on 2,000 held-out images",
        "0.031",
        "0.00784",
        "cifar10, test, 1,000 images",
        "shards of 500, batches of 250",
        "NVIDIA H200",
        "float32 (no TF32)",
        "torch 2.11.0",
        "AutoAttack 36 min 53 s",
        "Rank correlation 0.874.",
    ):
        assert fact in everything["html"], fact


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_a_run_that_has_just_begun(tmp_path, epochs):
    write_run(tmp_path / "run", epochs=epochs)
    text = page_of(tmp_path)
    assert f"{epochs} of 100" in text
    assert sections(text) == (["results"] if epochs else []) + ["training", "reproduce"]
    assert ('class="chart"' in text) is (epochs > 0)


def test_the_command_of_an_evaluation_has_all_its_numbers_depend_on(everything):
    command = next(c for c in commands_of(everything["html"]) if c.startswith("widemargin evaluate runs/at "))
    for words in (
        "--attacks clean,fgsm,pgd10,pgd100,autoattack",
        "--eps 0.031 --norm linf --step-size 0.00784 --seed 0",
        "--dataset cifar10 --limit 1000 --shard-size 500 --batch-size 250",
        "--distance",
    ):
        assert words in command
    assert len(commands_of(everything["html"])) == 2 + 1 + 4 + 1


def many_runs(folder):
    for number in range(18):
        write_run(folder / f"run-{number}", epochs=2)


def just_begun(folder):
    write_run(folder / "run", epochs=2)
    (folder / "run" / "e").mkdir()
    settings = {"attacks": ["clean"], "eps": ["0.1"], "norm": "linf", "data": "cifar10"}
    (folder / "run" / "e" / "settings.json").write_text(json.dumps(settings))


def calm_with_alarms_in_training(folder):
    write_run(folder / "run", epochs=2, alarms={2: ["robust-overfitting"]})
    write_evaluation(folder / "e", count=20)


def changed_run(*words):
    """A run whose configuration has other words."""

    def make(folder):
        path = write_run(folder / "run", epochs=3) / "config.toml"
        path.write_text(path.read_text().replace(*words))

    return make


def sweep_over_three(folder):
    path = write_sweep(folder / "s") / "sweep.json"
    record = json.loads(path.read_text())
    record["grid"]["seed"] = ["0"]
    for point in record["points"]:
        point["point"]["seed"] = "0"
    path.write_text(json.dumps(record))


def evaluated(**changes):
    """An evaluation whose report says otherwise; None is what it does not say."""

    def make(folder):
        report = write_evaluation(folder / "e", count=20, target="net.pt") | changes
        kept = {key: value for key, value in report.items() if value is not None}
        (folder / "e" / "report.json").write_text(json.dumps(kept))

    return make


def gallery(**options):
    def make(folder):
        write_evaluation(folder / "e", count=20, gallery=False)
        write_gallery(folder / "e" / "gallery.npz", count=2, **options)

    return make


def different_by(noise):
    def make(folder):
        write_evaluation(folder / "e", count=20)
        path = folder / "e" / "gallery.npz"
        with np.load(path) as arrays:
            kept = dict(arrays)
        kept["images"] = np.zeros_like(kept["images"])
        np.savez(path, **(kept | {"adversarial": kept["images"] + np.uint8(noise)}))

    return make


def at_eps(written, value):
    points = [{"eps": eps, "written": text, "accuracy": 50} for eps, text in ((value, written), (2.0, "2.0"))]
    return evaluated(eps=[{"written": written, "value": value}], curves={"pgd10": points})


def on(name, **more):
    return {"name": name, "split": "test", "count": 20} | more


NOTE = "AutoAttack ran without its part apgd-t, whose loss needs 4 classes; this model has 3."
TF32 = "float32 (no TF32); attacks searched with TF32"
GRID = "--grid emr.weight=0.1,0.3,1 --grid emr.temperature=0.1,1,40"
TIMES = "\N{MULTIPLICATION SIGN}"
IN_MEMORY = ["<code>widemargin evaluate"]
PAGES = {
    "no alarms": (evaluated(), ["No alarms in 1 evaluation.", "net.pt"], ["apgd-t, whose"]),
    "no alarms but in training": (calm_with_alarms_in_training, ['class="alarm-name"', "No alarms in 1"], []),
    "no alarms in training": (lambda f: write_run(f / "calm", epochs=2), [], ['id="alarms-title"']),
    "a note": (evaluated(notes=[NOTE]), ["No alarms in 1", f"cifar-resnet18/at: {NOTE}", '<h2 id="results-title"'], []),
    "just begun": (
        just_begun,
        [
            "1 run and 1 evaluation, 2 of them unfinished",
            "cifar-resnet18/at: no image is judged yet: as watched in training",
            "cifar10, test, 0 images",
        ],
        ["not evaluated"],
    ),
    "a line cut off": (
        write_everything,
        ["1 of them unfinished", "72 of 100", "unfinished, last line cut off"],
        [],
    ),
    "a run alone": (lambda f: write_run(f / "run"), ["Watched attack", "not evaluated: as watched in training"], []),
    "many runs": (many_runs, ["the first 16 of 18 runs", "dashed", "cifar-resnet18/at · run-17"], []),
    "no gallery": (lambda f: write_evaluation(f / "e", count=20, gallery=False), [], ['id="gallery"']),
    "a gray gallery": (gallery(channels=1), ["Attacked with AutoAttack. The difference", *["<img"] * 6], []),
    "a gallery at an eps": (gallery(attack="pgd20@8/255"), ["Attacked with PGD-20 at eps 8/255. The difference"], []),
    "a large difference": (
        different_by(255),
        ["shown around gray, as large as it is"],
        ["amplified 1 ", f"{TIMES}1<"],
    ),
    "a small difference": (
        different_by(8),
        ["amplified 15 times", f"{TIMES}15<"],
        ["amplified 1 times"],
    ),
    "a whole eps": (at_eps("1.0", 1.0), ["<td>1.0</td>"], ["= 1.0", '<span class="below">1</span>']),
    "a fraction": (at_eps("8/255", 8 / 255), ["<td>8/255 = 0.031373</td>"], ['<span class="below">1</span>']),
    "a sweep": (
        lambda f: write_sweep(f / "s"),
        ["8 of 9 points are done", '<table class="heat">', f"widemargin sweep cifar-resnet18/at-emr {GRID} --out "],
        ['id="results"', 'id="training"'],
    ),
    "a sweep over three settings": (sweep_over_three, ["Place"], ['<table class="heat">']),
    "changed settings": (
        changed_run("epochs = 100", "epochs = 3"),
        ["epochs=3</td>", "widemargin train cifar-resnet18/at --set epochs=3 --out "],
        [],
    ),
    "a run of no recipe": (changed_run("cifar-resnet18/at", "mine"), ["run/config.toml --out "], ["--set"]),
    "a model in memory": (evaluated(target="a model in memory"), ["widemargin report"], IN_MEMORY),
    "data in memory": (evaluated(data=on("tensors in memory")), ["widemargin report"], IN_MEMORY),
    "the path of the data": (
        evaluated(data=on("own.npz", source="my data/own.npz")),
        ["--dataset 'my data/own.npz'"],
        [],
    ),
    "how weights are read": (
        evaluated(head_scale=15.0, normalize="0.5,0.25", eps=[{"written": "0.0313725", "value": 8 / 255}]),
        [f"--eps {8 / 255!r} ", "--head-scale 15.0 --normalize 0.5,0.25"],
        [],
    ),
    "TF32": (evaluated(search="tf32", precision="any words"), ["--search tf32"], []),
    "float32": (evaluated(search="float32", precision="attacks searched with TF32"), [], ["--search"]),
    "an older TF32": (evaluated(search=None, precision=TF32), ["--search tf32"], []),
    "the oldest TF32": (evaluated(search=None, precision=TF32.replace("attacks", "AutoAttack")), ["--search tf32"], []),
    "an older float32": (evaluated(search=None, precision="float32 (no TF32)"), [], ["--search"]),
}


@pytest.mark.parametrize(("make", "said", "unsaid"), PAGES.values(), ids=PAGES)
def test_the_page_says_in_this_order(tmp_path, make, said, unsaid):
    make(tmp_path)
    text = page_of(tmp_path)
    plain = html.unescape(re.sub('<span class="option">(.*?)</span>', r"\1", text))
    at = 0
    for words in said:
        assert words in plain[at:], words
        at = plain.index(words, at) + len(words)
    assert [words for words in unsaid if words in plain] == []


def test_alarms_of_a_run_that_nobody_evaluated(tmp_path):
    write_run(tmp_path / "run", epochs=2, alarms={2: ["from-a-later-version"]})
    (box,) = boxes_of(page_of(tmp_path))
    assert box == "from-a-later-version training of cifar-resnet18/at (epoch 2)"


EVIL = "<script>alert(1)</script>\"'&{{ 7*7 }}"


def test_nothing_from_a_file_becomes_markup(tmp_path):
    write_run(tmp_path / "run", epochs=3, alarms={2: [EVIL, f"{EVIL}-still"]})
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('"cifar-resnet18/at"', json.dumps(EVIL)))
    report = write_evaluation(tmp_path / "e", count=20, name=EVIL, target=EVIL, alarms=({"name": EVIL},))
    for key in ("weights", "selection", "device", "precision", "norm"):
        report[key] = EVIL
    report["eps"] = [{"written": EVIL, "value": 0.031}]
    report["versions"] = {EVIL: EVIL}
    report["seconds"] = {EVIL: 1.0}
    report["accuracy"] |= {EVIL: 50.0, f"autoattack/{EVIL}": 10.0}
    report["curves"] = {EVIL: [{"eps": e, "written": EVIL, "accuracy": 50} for e in (0.1, 0.2)]}
    (tmp_path / "e" / "report.json").write_text(json.dumps(report))
    write_sweep(tmp_path / "s")
    record = (tmp_path / "s" / "sweep.json").read_text()
    (tmp_path / "s" / "sweep.json").write_text(record.replace("cifar-resnet18/at-emr", "<script>"))
    text = page_of(tmp_path, title=EVIL)
    assert text.count("<script") == 1
    assert "49" not in Tree(text).cells
    tree = Tree(text)
    assert tree.wrong == []
    assert all(not name.startswith("on") for _, attributes in tree.tags for name in attributes)
    markdown = (tmp_path.parent / f"{tmp_path.name}-out" / "report.md").read_text()
    outside = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)<script", outside)


def test_the_page_is_the_same_each_time(everything):
    folder = everything["folder"]
    again = write_report([folder], folder / "out" / "report.html", references=references(), version="9.9")
    assert again.files[0].read_text(encoding="utf-8") == everything["html"]
