"""Jobs become a small tree: what is kept, what is refused, what is replaced."""

import json

import pytest
from paper.__main__ import PAPER
from paper.collect import collect
from paper.page import circumstances
from paper.tables import kinds
from paper.tree import read_tree

from job_folders import write_job
from widemargin.cli.main import run

KEPT = {"config.toml", "metrics.jsonl", "result.json", "evaluation.json", "margins.json"}


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_kept(tmp_path):
    runs, into = tmp_path / "runs", tmp_path / "results"
    write_job(runs, "mnist-mlp/st-emr", later=("autoattack", "distance"))
    names, unfinished = collect([runs], into)
    assert (names, unfinished) == (["mnist-mlp/st-emr, seed 0"], [])
    folder = into / "rows" / "mnist-mlp-st-emr" / "seed-0"
    assert {path.name for path in folder.iterdir()} == KEPT | {"autoattack.json", "distance.json"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 60_000
    result = json.loads((folder / "result.json").read_text())
    wanted = {"device": "NVIDIA H200", "engine": "fast, float32, CUDA graphs", "training_seconds": 310.25, "workers": 4}
    assert wanted.items() <= result.items()
    assert result["versions"]["torch"] == "2.13.0"
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert evaluation["precision"] == "float32 (no TF32)"
    assert "target" not in evaluation
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 50
    assert json.loads(lines[3])["test_clean"] == pytest.approx(
        json.loads((runs / "mnist-mlp-st-emr/seed-0/run/metrics.jsonl").read_text().splitlines()[3])["test_clean"],
        rel=1e-5,
    )


def test_distances_are_at_most_a_thousand_pairs_of_four_digits(tmp_path):
    write_job(tmp_path / "runs", "mnist-mlp/st-emr", later=("distance",))
    collect([tmp_path / "runs"], tmp_path / "results")
    (job,) = read_tree(tmp_path / "results")
    assert len(job.distance.pairs) == 1000
    assert all(float(f"{value:.4g}") == value for pair in job.distance.pairs for value in pair)
    assert job.distance.correlation == 0.912346


def test_later_judgments_are_kept_without_a_line_per_image(tmp_path):
    write_job(tmp_path / "runs", "cifar-resnet18/at", clean=84.0, robust=50.0, later=("eps", "autoattack-8-255"))
    collect([tmp_path / "runs"], tmp_path / "results")
    folder = tmp_path / "results" / "rows" / "cifar-resnet18-at" / "seed-0"
    assert {path.name for path in folder.iterdir()} == KEPT | {"eps.json", "autoattack-8-255.json"}
    assert all((folder / name).stat().st_size < 5000 for name in ("eps.json", "autoattack-8-255.json"))
    assert "target" not in json.loads((folder / "eps.json").read_text())
    (job,) = read_tree(tmp_path / "results")
    assert job.over_eps.clean == 84.0
    assert [radius.written for radius, _ in job.over_eps.points] == [f"{n}/255" for n in (2, 4, 6, 8, 10, 12, 16)]
    assert job.autoattack_8_255.table("accuracy").number("autoattack") == 45.0
    assert job.numbers()["accuracy"]["autoattack"] == 46.0  # the table's own


def test_certified_radii_are_kept_with_margins_and_distances(tmp_path):
    folder = write_job(tmp_path / "runs", "mnist-mlp/st-emr", epochs=1, later=("certified",)) / "certified"
    lines = [json.loads(line) for line in (folder / "examples.jsonl").read_text().splitlines()][:4]
    lines[0] |= {"certified": 0.123456, "margin": 1.0, "distance": 2.0}
    lines[1]["certified"] = None  # beyond the first images
    lines[2]["verdicts"]["clean"] = False
    (folder / "examples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    collect([tmp_path / "runs"], tmp_path / "results")
    (job,) = read_tree(tmp_path / "results")
    first, other = job.certified.list("triples")
    assert first == [0.1235, 1.0, 2.0]
    assert other == [pytest.approx(lines[3][key], rel=1e-3) for key in ("certified", "margin", "distance")]


def test_margins_without_a_histogram_are_counted_from_the_examples(tmp_path):
    write_job(tmp_path / "runs", "cifar-resnet18/at")
    collect([tmp_path / "runs"], tmp_path / "results")
    (job,) = read_tree(tmp_path / "results")
    assert (job.margins.norm, sum(job.margins.counts)) == ("linf", 300)


def test_a_job_collected_again_is_replaced_and_others_stay(tmp_path):
    into = tmp_path / "results"
    write_job(tmp_path / "first", "mnist-mlp/st-emr", clean=90.0, later=("distance",))
    write_job(tmp_path / "first", "mnist-mlp/at-emr")
    write_job(tmp_path / "second", "mnist-mlp/st-emr", clean=95.0)
    collect([tmp_path / "first"], into)
    before = files(into / "rows" / "mnist-mlp-at-emr")
    collect([tmp_path / "second"], into)
    assert files(into / "rows" / "mnist-mlp-at-emr") == before
    _, job = read_tree(into)
    assert job.numbers()["accuracy"]["clean"] == 95.0
    assert job.distance is None


def test_a_row_that_begins_with_another_keeps_no_path_of_the_machine(tmp_path):
    row, before = "equal-passes/input-gradient", "runs/equal-passes-input-gradient-before/seed-{}/run"
    for seed in (0, 1):
        begun = json.dumps(str(tmp_path / before.format(seed)))
        config = write_job(tmp_path / "runs", row, seed) / "run" / "config.toml"
        config.write_text(f"init_from = {begun}\n" + config.read_text())
        report = config.parent.parent / "evaluation" / "report.json"
        report.write_text(json.dumps({"config": {"init_from": json.loads(begun)}, **json.loads(report.read_text())}))
        report.write_text(json.dumps({k: v for k, v in json.loads(report.read_text()).items() if k != "digest"}))
    collect([tmp_path / "runs"], tmp_path / "results")
    texts = [path.read_text() for path in (tmp_path / "results" / "rows").rglob("*.*") if path.is_file()]
    assert not [text for text in texts if str(tmp_path) in text]
    assert sum('"equal-passes-input-gradient-before/seed-1/run"' in text for text in texts) >= 1


def test_unfinished_and_crashed_jobs_are_named_and_left_out(tmp_path, capsys):
    runs = tmp_path / "runs"
    write_job(runs, "mnist-mlp/st-emr")
    write_job(runs, "mnist-mlp/at-emr", finished=False, epochs=3)
    crashed = runs / "mnist-mlp-at-wd0.01" / "seed-0"
    crashed.mkdir(parents=True)
    (crashed / "output.txt").write_text("RuntimeError: the device is on fire\n")
    assert run(["collect", str(runs), "--into", str(tmp_path / "results")], PAPER) == 0
    said = capsys.readouterr().err
    assert "collected 1 jobs" in said
    assert "left out, not finished: 2" in said
    assert "mnist-mlp-at-emr" in said
    assert "mnist-mlp-at-wd0.01" in said


class TestRefusals:
    def refused(self, capsys, *arguments):
        verb = "page" if arguments[0] == "--into" else "collect"
        assert run([verb, *map(str, arguments)], PAPER) == 2
        return capsys.readouterr().err

    def test_a_quick_run(self, tmp_path, capsys):
        write_job(tmp_path / "runs", "mnist-mlp/st-emr")
        write_job(tmp_path / "runs", "mnist-mlp/at-emr", quick=True)
        said = self.refused(capsys, tmp_path / "runs", "--into", tmp_path / "results")
        assert "is of a --quick run, whose numbers mean nothing" in said
        assert not (tmp_path / "results").exists()

    def test_a_quick_run_as_reproduce_leaves_it(self, tmp_path, capsys):
        command = ["reproduce", "table1", "--quick", "--rows", "st-wd0.1", "--device", "cpu"]
        assert run([*command, "--out", str(tmp_path / "runs")]) == 0
        assert "--quick run" in self.refused(capsys, tmp_path / "runs", "--into", tmp_path / "results")

    def test_two_folders_of_one_job(self, tmp_path, capsys):
        write_job(tmp_path / "a", "mnist-mlp/st-emr")
        write_job(tmp_path / "b", "mnist-mlp/st-emr")
        said = self.refused(capsys, tmp_path / "a", tmp_path / "b", "--into", tmp_path / "results")
        assert "are both mnist-mlp/st-emr, seed 0; give one of them" in said

    @pytest.mark.parametrize("collected", [False, True])
    def test_seeds_of_two_recipes_under_one_name(self, tmp_path, capsys, collected):
        into = tmp_path / "results"
        config = write_job(tmp_path / "old", "mnist-mlp/at-lsoftmax-wd0.01") / "run" / "config.toml"
        config.write_text(config.read_text().replace("margin = 1\n", "margin = 4\n"))
        new = write_job(tmp_path / "new", "mnist-mlp/at-lsoftmax-wd0.01", 1)
        if collected:
            collect([tmp_path / "old"], into)
        given = [new] if collected else [tmp_path / "old", new]
        said = self.refused(capsys, *given, "--into", into)
        assert "not of one recipe (head.margin=4 in the latter)" in said or "(head.margin=1 in the latter)" in said
        assert len(list(into.rglob("config.toml"))) == collected
        write_job(tmp_path / "again", "mnist-mlp/at-lsoftmax-wd0.01", 0)
        collect([tmp_path / "again", new], into)  # what was there of the other recipe is replaced
        assert len(list(into.rglob("config.toml"))) == 2

    def test_the_tree_itself(self, tmp_path, capsys):
        write_job(tmp_path / "a", "mnist-mlp/st-emr")
        into = tmp_path / "results"
        collect([tmp_path / "a"], into)
        assert "collected already" in self.refused(capsys, into / "rows", "--into", into)
        assert "holds no finished job" in self.refused(capsys, into, "--into", into)

    def test_folders_without_jobs(self, tmp_path, capsys):
        assert "is not a folder" in self.refused(capsys, tmp_path / "nowhere", "--into", tmp_path / "results")
        assert "holds no finished job" in self.refused(capsys, tmp_path, "--into", tmp_path / "results")
        assert "holds no collected job" in self.refused(capsys, "--into", tmp_path / "results")

    def test_a_damaged_job_leaves_the_tree_as_it_was(self, tmp_path, capsys):
        into = tmp_path / "results"
        write_job(tmp_path / "a", "mnist-mlp/st-emr")
        collect([tmp_path / "a"], into)
        before = files(into)
        write_job(tmp_path / "b", "mnist-mlp/st-emr", clean=1.0)
        (write_job(tmp_path / "b", "mnist-mlp/at-emr") / "run" / "metrics.jsonl").write_text('{"epoch": 1')
        assert "metrics.jsonl is cut off" in self.refused(capsys, tmp_path / "b", "--into", into)
        assert files(into) == before

    def test_a_damaged_tree(self, tmp_path, capsys):
        into = tmp_path / "results"
        write_job(tmp_path / "a", "mnist-mlp/st-emr")
        collect([tmp_path / "a"], into)
        (into / "rows" / "mnist-mlp-st-emr" / "seed-0" / "result.json").write_text("{")
        assert "is not valid JSON" in self.refused(capsys, "--into", into)


def test_the_most_jobs_that_shared_the_device_are_told(tmp_path):
    for seed, workers in ((0, 1), (1, 6), (2, 4)):
        path = write_job(tmp_path / "runs", "mnist-mlp/st-emr", seed) / "result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"workers": workers}))
    collect([tmp_path / "runs"], tmp_path / "results")
    assert "up to 6 jobs sharing the device" in circumstances(list(read_tree(tmp_path / "results")))


def changed(folder, **values):
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_the_training_of_a_run_that_two_rows_share_is_counted_once(tmp_path):
    trained = {"trained_as": "cifar-resnet18/at-emr", "training_seconds": 3600.0, "evaluation_seconds": 10.0}
    for recipe, seed in (("at-emr", 0), ("at-emr-averaged", 0), ("at-emr", 1)):
        changed(write_job(tmp_path / "runs", f"cifar-resnet18/{recipe}", seed, epochs=1), **trained)
    collect([tmp_path / "runs"], tmp_path / "results")
    said = circumstances(read_tree(tmp_path / "results"))
    assert "Time of all jobs together: 2.0 h of training, 30 s of judging" in said


def test_what_occurs_most_often_is_told_first():
    assert kinds(["b", "b", "b"]) == "b"
    assert kinds(["b", "c", "a", "c"]) == "c (2 jobs); a (1 job); b (1 job)"
    assert kinds(["a", "a", "b; c", "b; c", "b; c"]) == "b, c (3 jobs); a (2 jobs)"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(4.4, "4 s"), (119, "119 s"), (120, "2 min"), (7100, "118 min"), (7200, "2.0 h"), (36000, "10.0 h")],
)
def test_times_in_words(tmp_path, seconds, told):
    changed(write_job(tmp_path / "runs", "mnist-mlp/st-emr", epochs=1), training_seconds=seconds)
    collect([tmp_path / "runs"], tmp_path / "results")
    assert f"together: {told} of training" in circumstances(read_tree(tmp_path / "results"))


def test_margins_are_counted_in_the_bins_of_their_norm(tmp_path):
    folder = write_job(tmp_path / "runs", "cifar-resnet18/at", epochs=1)
    lines = [{"index": n, "label": 0, "prediction": 0, "margin": m} for n, m in enumerate((-0.0005, 0.0025, 0.0029))]
    (folder / "evaluation" / "examples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    collect([tmp_path / "runs"], tmp_path / "results")
    (job,) = read_tree(tmp_path / "results")
    assert (job.margins.norm, job.margins.width) == ("linf", 0.001)
    assert (job.margins.first, list(job.margins.counts)) == (-1, [1, 0, 0, 2])


def test_seeds_are_in_the_order_of_numbers(tmp_path):
    for seed in (10, 2, 1):
        write_job(tmp_path / "runs", "mnist-mlp/st-emr", seed, epochs=1)
    collect([tmp_path / "runs"], tmp_path / "results")
    assert [job.seed for job in read_tree(tmp_path / "results")] == [1, 2, 10]
