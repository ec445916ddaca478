"""What a report reads: partial files work, wrong ones are refused in one line, names are unique."""

import gc
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from job_folders import write_job
from report_folders import (
    checksum_of,
    write_checkpoint,
    write_evaluation,
    write_result,
    write_run,
    write_sweep,
)
from widemargin import InputError
from widemargin.evaluation.examples import Examples
from widemargin.evaluation.folder import Evaluation, Radius
from widemargin.evaluation.gallery import read_gallery
from widemargin.report.findings import owners_of, search, unique
from widemargin.report.sections import breakdowns


def npy(array):
    """An array as a file of its own."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 cut off", b"no array at all", b"\x93NUMPY\x01", npy(np.zeros(3))]
)
def test_a_gallery_that_is_no_npz_file_is_refused_and_closed(tmp_path, content):
    path = tmp_path / "gallery.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"gallery.npz is not a readable .npz file"):
        read_gallery(path)
    gc.collect()  # a file left open would say so now


def test_nothing_to_show(tmp_path):
    with pytest.raises(InputError, match="holds no run, evaluation, sweep or result"):
        search([tmp_path])
    with pytest.raises(InputError, match="nowhere is not a folder"):
        search([tmp_path / "nowhere"])


def test_files_of_others_are_passed_over(tmp_path):
    write_run(tmp_path / "run", epochs=1)
    other = tmp_path / "other"
    other.mkdir()
    (other / "report.json").write_text('{"hello": 1}')
    (other / "result.json").write_text("[]")
    (other / "sweep.json").write_text("{}")
    (other / "settings.json").write_text("{}")
    (other / "config.toml").write_text('title = "a site"')
    found = search([tmp_path])
    assert (len(found.runs), len(found.evaluations), len(found.sweeps)) == (1, 0, 0)


def test_hidden_folders_and_the_runs_of_a_sweep_are_passed_over(tmp_path):
    write_sweep(tmp_path / "s")
    write_run(tmp_path / ".cache" / "run", epochs=1)
    assert search([tmp_path]).runs == []
    (tmp_path / "s" / "sweep.json").unlink()  # an unfinished sweep shows its runs
    assert len(search([tmp_path]).runs) == 1


def test_a_folder_given_twice_counts_once(tmp_path):
    write_run(tmp_path / "runs" / "a", epochs=1)
    assert len(search([tmp_path, tmp_path / "runs", tmp_path / "runs" / "a"]).runs) == 1


def test_metrics_without_a_configuration(tmp_path):
    folder = write_run(tmp_path / "nameless", epochs=2)
    (folder / "config.toml").unlink()
    (run,) = search([tmp_path]).runs
    assert (run.name, run.planned, run.done, run.finished) == ("nameless", None, 2, False)


def test_numbers_that_are_not_finite_leave_a_gap(tmp_path):
    path = write_run(tmp_path / "run", epochs=3) / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["loss"] = float("nan")
    path.write_text("".join(json.dumps(line | {"note": "words"}) + "\n" for line in lines))
    (run,) = search([tmp_path]).runs
    assert [epoch for epoch, _ in run.curve("loss")] == [1, 3]


def test_examples_cut_off_or_missing(tmp_path):
    write_evaluation(tmp_path / "e", count=10)
    path = tmp_path / "e" / "examples.jsonl"
    path.write_text(path.read_text()[:-30])
    assert len(search([tmp_path]).evaluations[0].examples) == 9
    path.unlink()
    assert search([tmp_path]).evaluations[0].examples is None


def unfinished(folder, count=30):
    """An evaluation as it lies on the disk after its first two shards."""
    report = write_evaluation(folder, count=count)
    settings = {"attacks": report["attacks"], "eps": [["0.031", 0.031]], "norm": "linf", "seed": 0, "data": "cifar10"}
    (folder / "settings.json").write_text(json.dumps(settings))
    lines = (folder / "examples.jsonl").read_text().splitlines()
    (folder / "shards").mkdir()
    for number in (0, 1):
        shard = ['{"shard": 0}', *lines[10 * number : 10 * number + 10]]
        (folder / "shards" / f"{number:05d}.jsonl").write_text("\n".join(shard) + "\n")
    (folder / "report.json").unlink()
    (folder / "examples.jsonl").unlink()
    return lines[:20]


def begun(folder, left):
    """The same before its first shard is finished; only what is ``left`` lies there."""
    unfinished(folder)
    for path in (folder / "shards").iterdir():
        path.unlink()
    (folder / "shards" / "00000.sha256").write_text("0" * 64)
    for path in folder.iterdir():
        if path.name not in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_an_evaluation_under_way_shows_what_it_has(tmp_path):
    write_run(tmp_path / "run", epochs=2)
    lines = [json.loads(line) for line in unfinished(tmp_path / "run" / "evaluation")]
    (evaluation,) = search([tmp_path]).evaluations
    assert not evaluation.finished
    assert evaluation.count == 20
    assert evaluation.accuracy["pgd10"] == 100 * sum(line["verdicts"]["pgd10"] for line in lines) / 20
    assert evaluation.label == evaluation.name == "cifar-resnet18/at"  # its run's
    assert evaluation.alarms is None


@pytest.mark.parametrize("left", [{"settings.json", "shards"}, {"settings.json"}])
def test_an_evaluation_just_begun_has_no_examples_yet(tmp_path, left):
    write_run(tmp_path / "run", epochs=2)
    begun(tmp_path / "e", left)
    found = search([tmp_path / "run", tmp_path / "e"])
    assert len(found.runs) == 1
    (evaluation,) = found.evaluations
    assert (evaluation.finished, evaluation.count, evaluation.examples) == (False, 0, None)
    assert evaluation.has_nothing_yet
    assert evaluation.attacks[:2] == ["clean", "fgsm"]


def test_settings_of_others_that_are_no_json_are_passed_over(tmp_path):
    write_run(tmp_path / "run", epochs=1)
    (tmp_path / "settings.json").write_bytes(b"// of an editor\n{\xff}")
    assert search([tmp_path]).evaluations == []


def test_a_moved_run_is_known_by_its_weights(tmp_path):
    for name in ("a", "b"):
        write_checkpoint(write_run(tmp_path / "moved" / name, epochs=1) / "best.safetensors", name)
    (tmp_path / "moved" / "a" / "last.safetensors").write_bytes(b"cut off")
    for name in ("b", "c"):
        write_evaluation(tmp_path / "e" / name, target=f"gone/{name}x", count=5)
        edit(tmp_path / "e" / name / "report.json", checkpoint=checksum_of(name))
    found = search([tmp_path])
    of_b, of_c = found.evaluations
    assert owners_of([of_b, of_c], found.runs) == [found.runs[1], None]
    assert of_b.label == found.runs[1].label == "cifar-resnet18/at · b"
    assert of_c.label == "cifar-resnet18/at"


def test_evaluations_in_the_folder_of_a_quick_job_are_quick(tmp_path):
    for seed, quick in ((0, True), (1, False)):
        write_job(tmp_path, "mnist-mlp/st-emr", seed, quick=quick, later=("autoattack",), epochs=1)
    write_evaluation(tmp_path / "e", count=5)
    found = {e.folder.relative_to(tmp_path): e for e in search([tmp_path]).evaluations}
    assert {path.parts[-1] for path, e in found.items() if e.quick} == {"seed-0", "evaluation", "autoattack"}
    assert all("seed-0" in path.parts for path, e in found.items() if e.quick)
    assert {path for path, e in found.items() if not e.config} == {Path("e")}


def runs_and_evaluations(folder):
    write_run(folder / "runs" / "a", epochs=1)
    write_run(folder / "runs" / "b", epochs=1)
    write_evaluation(folder / "e" / "a", target=str(folder / "runs" / "a"), count=5)
    write_evaluation(folder / "e" / "b", target="runs/b/best.safetensors", count=5)  # relative to who knows where
    write_evaluation(folder / "e" / "c", target="runs/c", count=5)


def another_of_the_name(folder):
    write_run(folder / "run", epochs=1)
    write_evaluation(folder / "e" / "b", target="gone/b", count=5)


def two_of_a_run(folder):
    write_run(folder / "run", epochs=1)
    write_evaluation(folder / "run" / "one", count=5)
    write_evaluation(folder / "run" / "two", count=5, norm="l2")


def two_seeds(folder):
    for seed in (0, 1):
        write_result(folder / f"seed-{seed}", seed=seed)


AT, ST = "cifar-resnet18/at", "mnist-mlp/st-emr"
LABELS = [
    (runs_and_evaluations, [f"{AT} · a", f"{AT} · b"], [f"{AT} · a", f"{AT} · b", AT], [0, 1, 2]),
    (another_of_the_name, [AT], [f"{AT} · b"], [1]),
    (two_of_a_run, [AT], [f"{AT} · linf", f"{AT} · l2"], [0, 0]),  # a model has one color
    (two_seeds, [], [f"{ST} · seed 0", f"{ST} · seed 1"], [0, 1]),
]


@pytest.mark.parametrize(("make", "of_runs", "of_evaluations", "colors"), LABELS)
def test_a_run_and_its_evaluation_share_a_label_and_a_color(tmp_path, make, of_runs, of_evaluations, colors):
    make(tmp_path)
    found = search([tmp_path])
    assert [run.label for run in found.runs] == of_runs
    assert [evaluation.label for evaluation in found.evaluations] == of_evaluations
    assert [found.color(evaluation.label) for evaluation in found.evaluations] == colors


def test_unique_names():
    assert unique(["a", "b"], [["x"], ["x"]]) == ["a", "b"]
    assert unique(["a", "a", "b"], [["x", "1"], ["x", "2"], ["x", "1"]]) == ["a · 1", "a · 2", "b"]
    assert unique(["a", "a"], [["x"], ["x"]]) == ["a · 1", "a · 2"]


def test_the_parts_of_autoattack_add_up_to_all_images(tmp_path):
    report = write_evaluation(tmp_path / "e", count=200)
    (evaluation,) = search([tmp_path]).evaluations
    (whole,) = breakdowns(evaluation)
    parts = dict(whole.parts)
    assert sum(parts.values()) == 200
    for name in ("apgd-ce", "apgd-t", "fab-t", "square"):
        assert parts[name] == sum(broken == name for broken in evaluation.examples.broken_by)
    accuracy = {name: value for name, value in report["accuracy"].items() if "/" not in name}
    edit(tmp_path / "e" / "report.json", accuracy=accuracy)  # then the examples tell
    (found,) = breakdowns(search([tmp_path]).evaluations[0])
    assert dict(found.parts) == {name: count for name, count in parts.items() if count}


def test_the_parts_of_autoattack_at_several_eps(tmp_path):
    report = write_evaluation(tmp_path / "e", count=100)
    sizes = ("0.01", "0.031")
    eps = [{"written": text, "value": float(text)} for text in sizes]
    attacked = {key: value for key, value in report["accuracy"].items() if key != "clean"}
    accuracy = {f"{name}@{text}": value for name, value in attacked.items() for text in sizes}
    edit(tmp_path / "e" / "report.json", accuracy={"clean": report["accuracy"]["clean"]} | accuracy, eps=eps)
    found = breakdowns(search([tmp_path]).evaluations[0])
    assert [one.label for one in found] == [f"{AT}, eps 0.01", f"{AT}, eps 0.031"]
    assert [sum(count for _, count in one.parts) for one in found] == [100, 100]

    accuracy = {"clean": 100.0, "autoattack@0.01": 98.0, "autoattack@0.031": 95.0}
    edit(tmp_path / "e" / "report.json", accuracy=accuracy)  # then the examples tell
    breakers = [("fab-t", "apgd-ce")] * 2 + [(None, "apgd-ce")] * 2 + [(None, "square")] + [(None, None)] * 95
    lines = [
        {
            "index": n,
            "label": 0,
            "prediction": 0,
            "verdicts": {"clean": True},
            "broken_at": dict(zip(sizes, at, strict=True)),
        }
        for n, at in enumerate(breakers)
    ]
    (tmp_path / "e" / "examples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    small, large = breakdowns(search([tmp_path]).evaluations[0])
    assert dict(small.parts) == {"Wrong unattacked": 0, "fab-t": 2, "Still right": 98}
    assert dict(large.parts) == {"Wrong unattacked": 0, "apgd-ce": 4, "square": 1, "Still right": 95}


def test_a_reproduced_row_keeps_its_margins_apart(tmp_path):
    write_result(tmp_path / "seed-0")
    (evaluation,) = search([tmp_path]).evaluations
    assert [(m.of, m.norm, m.mean) for m in evaluation.margins] == [("correct", "l2", 2.25), ("train", "l2", 4.4)]
    assert evaluation.norm == "linf"


def test_a_target_that_fits_two_moved_runs_is_nobodys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a" / "moved" / "at", epochs=1)
    write_evaluation(tmp_path / "e", target="moved/at", count=5)
    found = search([tmp_path])
    assert owners_of(found.evaluations, found.runs) == [found.runs[0]]
    write_run(tmp_path / "b" / "moved" / "at", epochs=1)
    found = search([tmp_path])
    assert len(found.runs) == 2
    assert owners_of(found.evaluations, found.runs) == [None]


def test_margins_beside_distances_are_those_of_correctly_classified_images_that_have_both():
    examples = Examples(
        margins=[0.1, -0.2, None, 0.3, 0.4],
        distances=[0.2, 0.05, 0.1, None, 0.5],
        correct=[True, False, True, True, True],
        broken_by=[None] * 5,
        broken_at=[{}] * 5,
    )
    assert examples.margin_and_distance() == [(0.1, 0.2), (0.4, 0.5)]


def test_the_radius_of_a_result(tmp_path):
    small, large = Radius("2/255", 2 / 255), Radius("8/255", 8 / 255)
    both = Evaluation(folder=tmp_path, file=tmp_path / "report.json", eps=[small, large])
    assert both.radius_of("pgd20@2/255") == ("pgd20", small)
    assert both.radius_of("pgd20@8/255") == ("pgd20", large)
    assert both.radius_of("pgd20@4/255") == ("pgd20", None)
    assert both.radius_of("clean") == ("clean", None)
    one = Evaluation(folder=tmp_path, file=tmp_path / "report.json", eps=[large])
    assert one.radius_of("pgd20") == ("pgd20", large)
