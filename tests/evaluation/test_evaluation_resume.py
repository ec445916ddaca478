"""An evaluation killed anywhere and run again ends with the same numbers, without doing finished work twice."""

import copy
import json
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch
from evaluation_child import ATTACKS, CLASSES, COUNT, OPTIONS, evaluate
from official import assert_same
from small_networks import Counted, Rough, pictures, taught_conv

import widemargin
from widemargin import InputError
from widemargin.core.files import folder_lock
from widemargin.evaluation import evaluator
from widemargin.evaluation.report import UNKNOWN
from widemargin.evaluation.shards import Store

CHILD = Path(__file__).with_name("evaluation_child.py")


def weights():
    return Rough(taught_conv(CLASSES)).state_dict()


def counted(at=None, happens=None):
    return Counted(Rough(taught_conv(CLASSES)), at, happens)


def interrupt():
    raise KeyboardInterrupt


def records(out):
    """What is left on disk, without seconds: the report, the examples, the shards and the rest."""
    report = json.loads((out / "report.json").read_text())
    del report["seconds"], report["digest"]
    shards = {}
    for path in sorted((out / "shards").glob("*.jsonl")):
        header, *rows = map(json.loads, path.read_text().splitlines())
        shards[path.name] = (header["first"], header["count"], rows)
    return {
        "report": report,
        "examples": (out / "examples.jsonl").read_bytes(),
        "gallery": (out / "gallery.npz").read_bytes(),
        "settings": (out / "settings.json").read_bytes(),
        "shards": shards,
        "files": sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()),
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted evaluation: (its records, its report, calls of the model, calls at each thing written)."""
    out = tmp_path_factory.mktemp("whole")
    model, written = counted(), []
    write, gallery = Store._write, evaluator.write_gallery

    def noted(store, name, text):
        write(store, name, text)
        written.append(model.calls)

    def gallery_noted(*args):
        gallery(*args)
        written.append(model.calls)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "_write", noted)
        patch.setattr(evaluator, "write_gallery", gallery_noted)
        report = evaluate(model, out)
    return records(out), report, model.calls, written


def test_the_evaluation_has_something_of_everything(whole):
    found, report, calls, written = whole
    assert len(found["shards"]) == 3
    assert report.count == COUNT == len(found["examples"].splitlines())
    assert {"autoattack/square", "pgd20", "clean"} <= report.verdicts.keys()
    assert calls > 200
    assert len(set(written)) > 25
    assert not [name for name in found["files"] if name.startswith("parts/")]


def test_a_folder_changes_nothing(whole):
    assert_same(evaluate(counted(), None), whole[1])


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.33, 0.5, 0.77, 0.999])
def test_killed_in_the_model_and_run_again(whole, tmp_path, share):
    expected, report, calls, written = whole
    at = 1 + int(share * calls)
    with pytest.raises(KeyboardInterrupt):
        evaluate(counted(at, interrupt), tmp_path)
    assert not (tmp_path / "report.json").exists()
    again = counted()
    assert_same(evaluate(again, tmp_path), report)
    assert records(tmp_path) == expected
    finished = max((count for count in written if count <= at - 1), default=0)
    first_look = 1 if finished else 0  # whether the model takes the images is seen in both runs
    assert again.calls == calls - finished + first_look


def test_killed_again_and_again(whole, tmp_path):
    expected, report, calls, _ = whole
    kills = 0
    for _ in range(30):
        try:
            found = evaluate(counted(calls // 6, interrupt), tmp_path)
            break
        except KeyboardInterrupt:
            kills += 1
    assert 3 < kills < 30
    assert_same(found, report)
    assert records(tmp_path) == expected


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_while_writing(whole, tmp_path, moment):
    expected, report, _, _ = whole
    write, count, kills = Store._write, 0, 0

    def dying(store, name, text):
        nonlocal count
        count += 1
        if moment == "after":
            write(store, name, text)
        if count % 7 == 1:
            raise KeyboardInterrupt
        if moment == "before":
            write(store, name, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "_write", dying)
        while not (tmp_path / "report.json").exists():
            with suppress(KeyboardInterrupt):
                evaluate(counted(), tmp_path)
                kills -= 1
            kills += 1
    assert kills >= 4
    assert_same(evaluate(counted(), tmp_path), report)
    left = records(tmp_path)
    left["files"] = [name for name in left["files"] if not name.startswith("parts/")]
    assert left == expected


def test_killed_for_good_in_a_process_of_its_own(whole, tmp_path):
    expected, report, calls, written = whole
    torch.save(weights(), tmp_path / "weights.pt")
    out, at = tmp_path / "out", int(0.6 * calls)
    child = subprocess.Popen(
        [sys.executable, CHILD, tmp_path / "weights.pt", out, str(at)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline() == "ready\n"
        second = counted()
        with pytest.raises(InputError, match=f"another process works in {out}; wait for it to end, or choose another"):
            evaluate(second, out)
        assert second.calls == 0
    finally:
        child.kill()
        child.communicate()
    assert not (out / "report.json").exists()
    again = counted()
    assert_same(evaluate(again, out), report)
    assert records(out) == expected
    assert again.calls == calls - max(count for count in written if count <= at - 1) + 1


def test_a_finished_evaluation_is_not_done_again(whole, tmp_path):
    evaluate(counted(), tmp_path)
    before = records(tmp_path)
    again = counted()
    assert_same(evaluate(again, tmp_path), whole[1])
    assert again.calls == 1
    assert records(tmp_path) == before == whole[0]


def test_shards_from_before_a_field_was_kept_go_on(whole, tmp_path):
    evaluate(counted(), tmp_path)
    path = tmp_path / "shards" / "00000.jsonl"
    header, *rows = map(json.loads, path.read_text().splitlines())
    old = [{key: value for key, value in row.items() if key != "broken_at"} for row in rows]
    del header["digest"]
    path.write_text("\n".join(map(json.dumps, [header, *old])) + "\n")
    (tmp_path / "shards" / "00002.jsonl").unlink()
    assert_same(evaluate(counted(), tmp_path), whole[1])
    assert "broken_at" not in (tmp_path / "examples.jsonl").read_text().splitlines()[0]


def test_a_step_of_a_quarter_of_eps_is_the_usual_one_said_aloud(whole, tmp_path):
    evaluate(counted(), tmp_path)
    again = counted()
    assert_same(evaluate(again, tmp_path, step_size=0.2 / 4), whole[1])
    assert again.calls == 1


# One at a time


def test_a_folder_that_is_held_is_left_as_it_is(tmp_path):
    partial = tmp_path / ".settings.json.partial"  # what the other one is writing
    partial.write_text("{")
    with folder_lock(tmp_path), pytest.raises(InputError, match="another process works in"):
        evaluate(counted(), tmp_path)
    assert list(tmp_path.iterdir()) == [partial]
    evaluate(counted(), tmp_path, limit=2)
    with folder_lock(tmp_path):  # let go of at the end
        pass


def test_two_evaluations_without_a_folder_do_not_meet(tmp_path):
    def another():
        assert evaluate(counted(), None, limit=2).count == 2

    assert evaluate(counted(3, another), None, limit=2).count == 2


# What must not be joined


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """An evaluation killed halfway."""
    out = tmp_path_factory.mktemp("half") / "out"
    with pytest.raises(KeyboardInterrupt):
        evaluate(counted(150, interrupt), out)
    return out


CHANGES = {
    "eps": {"eps": "0.3"},
    "radii": {"eps": 0.2 + 1e-9},
    "norm": {"norm": "l2"},
    "seed": {"seed": 1},
    "shard_size": {"shard_size": 5},
    "batch_size": {"batch_size": 4},
    "max_steps": {"max_steps": 3},
    "distance": {"distance": False},
    "margins": {"margins": False},
    "sanity": {"sanity": False},
    "step_size": {"step_size": 0.01},
}


def test_all_that_differs_is_told(half, tmp_path):
    out = shutil.copytree(half, tmp_path / "out")
    with pytest.raises(InputError, match=r"\(margins: False here, True there; sanity: False here, True there\)"):
        evaluate(counted(), out, margins=False, sanity=False)


@pytest.mark.parametrize("key", CHANGES)
def test_other_settings_are_refused(half, tmp_path, key):
    out = shutil.copytree(half, tmp_path / "out")
    before = sorted(path.name for path in out.rglob("*"))
    model = counted()
    with pytest.raises(
        InputError, match=rf"holds another evaluation \({key}: .* here, .* there\); choose another --out"
    ):
        evaluate(model, out, **CHANGES[key])
    assert model.calls == 0
    assert sorted(path.name for path in out.rglob("*")) == before


def test_other_attacks_are_refused(half):
    with pytest.raises(InputError, match=r"holds another evaluation \(attacks: \['clean'\] here"):
        widemargin.evaluate(counted(), pictures(CLASSES, COUNT), ["clean"], out=half, **OPTIONS)


def test_other_weights_are_refused(half):
    model = counted()
    with torch.no_grad():
        model.model.model[8].bias[0] += 1e-6
    with pytest.raises(InputError, match=r"holds another evaluation \(weights: "):
        evaluate(model, half)
    model = counted()
    model.model.model[1].running_mean += 1e-3  # statistics are weights too
    with pytest.raises(InputError, match=r"holds another evaluation \(weights: "):
        evaluate(model, half)


def test_data_of_another_name_are_refused(half):
    with pytest.raises(InputError, match=r"holds another evaluation \(data: "):
        evaluate(counted(), half, subject=widemargin.evaluation.ModelInfo(data="others"))


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({"head_scale": 10.0}, {"head_scale": 15.0}, "head_scale: 15.0 here, 10.0 there"),
        ({"normalize": "cifar10"}, {"normalize": "0.5,0.25"}, "normalize: '0.5,0.25' here, 'cifar10' there"),
        ({}, {"normalize": "cifar10"}, "normalize: 'cifar10' here, None there"),
        ({}, {"normalize": "none"}, ""),
        ({"normalize": UNKNOWN}, {"normalize": "none"}, ""),
    ],
)
def test_what_no_tensor_of_public_weights_holds(tmp_path, before, now, told):
    evaluate(counted(), tmp_path, subject=widemargin.evaluation.ModelInfo(**before), limit=2)
    with pytest.raises(InputError, match=re.escape(f"holds another evaluation ({told})")) if told else nullcontext():
        evaluate(counted(), tmp_path, subject=widemargin.evaluation.ModelInfo(**now), limit=2)


@pytest.mark.parametrize("change", ["images", "labels", "fewer"])
@pytest.mark.parametrize("finished", [False, True])
def test_other_examples_are_refused(half, tmp_path, change, finished):
    out = shutil.copytree(half, tmp_path / "out")
    if finished:
        evaluate(counted(), out)
    x, y = (part.clone() for part in pictures(CLASSES, COUNT))
    if change == "images":
        x[0, 0, 0, 0] = 1 - x[0, 0, 0, 0]
    elif change == "labels":
        y[0] = (y[0] + 1) % CLASSES
    limit = 2 if change == "fewer" else None
    with pytest.raises(InputError, match=r"on other images \(shard 0 has others.*another --limit\); give what it was"):
        widemargin.evaluate(counted(), (x, y), ATTACKS, out=out, limit=limit, **OPTIONS)


def test_more_examples_go_on(tmp_path, whole):
    first = counted()
    evaluate(first, tmp_path, limit=6)
    rest = counted()
    assert_same(evaluate(rest, tmp_path), whole[1])
    assert records(tmp_path) == whole[0]
    assert rest.calls == whole[2] - first.calls + 1


def test_the_model_of_another_copy_goes_on(half, tmp_path):
    out = shutil.copytree(half, tmp_path / "out")
    assert evaluate(copy.deepcopy(counted()), out).count == COUNT


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("a file")
    with pytest.raises(InputError, match="cannot write to the folder"):
        evaluate(counted(), tmp_path / "file" / "out")


SHARD_FAULTS = {
    "a line removed": lambda lines: lines[:-1],
    "a line twice": lambda lines: [*lines, lines[-1]],
    "a verdict changed": lambda lines: [line.replace('"fgsm": true', '"fgsm": false') for line in lines],
}


@pytest.mark.parametrize("name", SHARD_FAULTS)
def test_a_changed_shard_is_refused_by_its_name_and_judged_again(name, whole, tmp_path):
    evaluate(counted(), tmp_path)
    path = tmp_path / "shards" / "00001.jsonl"
    lines = path.read_text().splitlines()
    changed = SHARD_FAULTS[name](lines)
    assert changed != lines
    path.write_text("\n".join(changed) + "\n")
    with pytest.raises(InputError, match=r"00001.jsonl does not fit its digest.*remove it"):
        evaluate(counted(), tmp_path)
    path.unlink()
    assert_same(evaluate(counted(), tmp_path), whole[1])
    assert records(tmp_path) == whole[0]


def test_another_model_of_the_same_weights_is_refused(tmp_path):
    evaluate(counted(), tmp_path, limit=3)
    other = counted()
    other.model.height = 0.2  # an attribute, which no weight holds
    with pytest.raises(InputError, match="another model, of the same weights, which gives other answers"):
        evaluate(other, tmp_path)
