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
from small_networks import Around, Counted, Rough, pictures, taught_conv

import widemargin
from widemargin import InputError
from widemargin.core.files import folder_lock
from widemargin.evaluation import evaluator
from widemargin.evaluation.folder import UNKNOWN
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
            found = evaluate(counted(calls * 2 // 9, interrupt), tmp_path)
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
    assert (tmp_path / "examples.jsonl").read_bytes() == whole[0]["examples"]  # it follows from the verdicts


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
def half(whole, tmp_path_factory):
    """An evaluation killed in its last shard."""
    out = tmp_path_factory.mktemp("half") / "out"
    with pytest.raises(KeyboardInterrupt):
        evaluate(counted(int(0.95 * whole[2]), interrupt), out)
    return out


CHANGES = {
    "norm": {"norm": "l2"},
    "seed": {"seed": 1},
    "shard_size": {"shard_size": 5},
    "batch_size": {"batch_size": 4},
    "max_steps": {"max_steps": 3},
}


def test_all_that_differs_is_told(half, tmp_path):
    out = shutil.copytree(half, tmp_path / "out")
    with pytest.raises(InputError, match=r"\(batch_size: 4 here, 2 there; seed: 1 here, 0 there\)"):
        evaluate(counted(), out, batch_size=4, seed=1)


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
    with pytest.raises(
        InputError, match=r"on other images \(shard 0 has others.*a smaller --limit\); give what it was"
    ):
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


# Damaged records


def rewritten(pattern, replacement):
    """An edit of a file's text, which changes something."""

    def edit(path, _):
        text = path.read_text()
        changed = re.sub(pattern, replacement, text, count=1)
        assert changed != text
        path.write_text(changed)

    return edit


def beside(name):
    """Another file of the same folder in its stead."""
    return lambda path, _: shutil.copyfile(path.with_name(name), path)


def of_another_seed(path, other):
    """The file of the same name of an evaluation with another seed."""
    shutil.copyfile(other / (PART if path.name == Path(PART).name else SHARD), path)


LAST_LINE = r"([^\n]*\n)\Z"
UNFIT = "does not fit its digest, so it was changed, damaged, or brought from elsewhere; remove it, and the same "
PART, SHARD = "parts/00002/fgsm@0.2.json", "shards/00001.jsonl"
RECORD_FAULTS = {
    "a part: an answer changed": (PART, rewritten("true|false", "null"), UNFIT),
    "a part: cut off": (PART, lambda path, _: path.write_text(path.read_text()[:-9]), "not valid JSON.*Remove it"),
    "a part: no table": (PART, lambda path, _: path.write_text("[1]"), "must be a table; remove it"),
    "a part: of another attack": (PART, beside("pgd20@0.2.json"), UNFIT),
    "a part: of other settings": (PART, of_another_seed, UNFIT),
    "what was seen first: changed": ("sanity.json", rewritten('"alarms"', '"alarm"'), UNFIT),
    "answers: changed": ("answers.json", rewritten(r"\[\[\d*", "[[12"), UNFIT),
    "settings: cut off": ("settings.json", rewritten("}$", ""), "not valid JSON.*Put back a copy of it"),
    "a shard: a line removed": (SHARD, rewritten(LAST_LINE, ""), UNFIT),
    "a shard: a line twice": (SHARD, rewritten(LAST_LINE, r"\1\1"), UNFIT),
    "a shard: a verdict changed": (SHARD, rewritten('"fgsm": true', '"fgsm": false'), UNFIT),
    "a shard: of other images": (SHARD, beside("00000.jsonl"), UNFIT),
    "a shard: of other settings": (SHARD, of_another_seed, UNFIT),
}


@pytest.fixture(scope="module")
def other_seed(tmp_path_factory):
    """The same with another seed."""
    out = tmp_path_factory.mktemp("other") / "out"
    with pytest.raises(KeyboardInterrupt):
        evaluate(counted(350, interrupt), out, seed=1)
    return out


@pytest.mark.parametrize("name", RECORD_FAULTS)
def test_a_changed_record_is_refused_by_its_name_and_made_again(name, whole, half, other_seed, tmp_path):
    file, damage, told = RECORD_FAULTS[name]
    out = shutil.copytree(half, tmp_path / "out")
    damage(out / file, other_seed)
    with pytest.raises(InputError, match=rf"{Path(file).name} .*{told}"):
        evaluate(counted(), out)
    if file != "settings.json":
        (out / file).unlink()
        assert_same(evaluate(counted(), out), whole[1])
        assert records(out)["shards"] == whole[0]["shards"]


def without_digests(out):
    """As the versions before wrote it: no digest anywhere, no answers; a shard is left to do."""
    for path in [*out.rglob("*.json"), *out.rglob("*.jsonl")]:
        path.write_text(re.sub(r',? *"digest": "[0-9a-f]{64}"', "", path.read_text()))
    (out / "answers.json").unlink()


def test_records_without_digests_are_taken_with_a_note(half, whole, tmp_path):
    out = shutil.copytree(half, tmp_path / "out")
    without_digests(out)
    report = evaluate(counted(), out)
    assert report.accuracy == whole[1].accuracy
    shards, answers = report.notes
    assert shards.endswith("of so many, images, labels and counts were checked, and verdicts could not be: 2.")
    assert answers.endswith("did not record the model's answers; only its weights were compared when it went on.")
    assert evaluate(counted(), out).notes == report.notes


@pytest.mark.parametrize(
    ("pattern", "replacement", "told"),
    [
        (LAST_LINE, "", "lacks lines, or has too many or other ones"),
        (LAST_LINE, r"\1\1", "lacks lines, or has too many or other ones"),
        ('"prediction": ', '"prediction": 1', "lacks lines, or has too many or other ones"),
        ('"fgsm": true', '"fgsm": 1', "lacks lines, or has too many or other ones"),
        ('"first": 3', '"first": 0', "lacks lines, or has too many or other ones"),
        ('"index"', '"place"', "holds lines that are no records of examples"),
    ],
)
def test_shards_without_digests_must_be_shards(half, tmp_path, pattern, replacement, told):
    out = shutil.copytree(half, tmp_path / "out")
    without_digests(out)
    rewritten(pattern, replacement)(out / SHARD, None)
    with pytest.raises(InputError, match=f"00001.jsonl {told}; remove it"):
        evaluate(counted(), out)


def test_a_shard_without_a_digest_of_other_labels_is_refused(half, tmp_path):
    out = shutil.copytree(half, tmp_path / "out")
    without_digests(out)
    header, *rows = map(json.loads, (out / SHARD).read_text().splitlines())
    for row in rows:
        row["label"] = (row["label"] + 1) % CLASSES
        row["verdicts"]["clean"] = row["prediction"] == row["label"]
    (out / SHARD).write_text("\n".join(map(json.dumps, [header, *rows])) + "\n")
    with pytest.raises(
        InputError, match=r"00001.jsonl does not hold the examples of its images, one line each; remove"
    ):
        evaluate(counted(), out)


# Weights are not all of a model: what it said to the first images


def ordinary(model, x):
    return model(x)


def in_float64(model, x):
    return copy.deepcopy(model).double()(x.double()).to(x.dtype)


def one_at_a_time(model, x):
    return torch.cat([model(image[None]) for image in x])


def noisy(model, x):
    return model(x) + torch.randn(len(x), CLASSES)


def with_tanh(model, x):
    for layer in model:
        x = x.tanh() if isinstance(layer, torch.nn.ReLU) else layer(x)
    return x


def ruling_one_out(model, x):
    return torch.cat([model(x)[:, :-1], x.new_full((len(x), 1), -torch.inf)], 1)


ANSWERED = {
    "the same": (ordinary, ordinary, torch.float32, True),
    "rounded otherwise": (ordinary, in_float64, torch.float32, True),
    "other batches": (ordinary, one_at_a_time, torch.float32, True),
    "bfloat16 rounded otherwise": (ordinary, in_float64, torch.bfloat16, True),
    "randomized": (noisy, noisy, torch.float32, True),
    "a class ruled out": (ruling_one_out, ruling_one_out, torch.float32, True),
    "tanh for relu": (ordinary, with_tanh, torch.float32, False),
    "tanh for relu in bfloat16": (ordinary, with_tanh, torch.bfloat16, False),
    "a mean as an attribute": (ordinary, lambda model, x: model(x - 0.4), torch.float32, False),
    "a scale as an attribute": (ordinary, lambda model, x: 1.01 * model(x), torch.float32, False),
    "other classes": (ordinary, lambda model, x: model(x)[:, :-1], torch.float32, False),
    "a class ruled out since": (ordinary, ruling_one_out, torch.float32, False),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_another_model_of_the_same_weights_is_refused_and_another_rounding_is_not(name, tmp_path):
    before, now, dtype, same = ANSWERED[name]
    x, y = pictures(CLASSES, 20)
    data = x[y < CLASSES - 1], y[y < CLASSES - 1]
    options = {"eps": 0.1, "margins": False, "sanity": False, "out": tmp_path}
    report = widemargin.evaluate(Around(taught_conv(CLASSES).to(dtype), before), data, ["clean"], **options)
    again = Around(taught_conv(CLASSES).to(dtype), now)
    if same:
        assert widemargin.evaluate(again, data, ["clean"], **options).accuracy == report.accuracy
    else:
        with pytest.raises(InputError, match="another model, of the same weights, which gives other answers"):
            widemargin.evaluate(again, data, ["clean"], **options)
