"""What a report holds: a column for each attack and eps, the parts that broke an example, notes, and a gallery."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_networks import Rough, pictures, taught_conv

import widemargin
from widemargin import InputError, effective_margin
from widemargin.attacks import FGSM, PGD
from widemargin.evaluation.folder import ModelInfo
from widemargin.evaluation.report import collect, notes_for, notes_on
from widemargin.evaluation.settings import EvaluationSettings
from widemargin.evaluation.shards import Store

QUICK = {"sanity": False, "margins": False}


def pgd_by_hand(model, x, y, *, eps, step, steps, norm):
    """(N,) bool: one image at a time, from the image itself."""
    correct = []
    for image, label in zip(x.split(1), y.split(1), strict=True):
        point = image.clone()
        for _ in range(steps):
            leaf = point.clone().requires_grad_(True)
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), label), leaf)
            if norm == "linf":
                moved = point + step * gradient.sign()
                moved = torch.minimum(torch.maximum(moved, image - eps), image + eps)
            else:
                change = point + step * gradient / gradient.norm() - image
                moved = image + change * min(1.0, eps / float(change.norm()))
            point = moved.clamp(0, 1).detach()
        correct.append(bool(model(point).argmax() == label))
    return correct


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.7)])
@pytest.mark.parametrize("batch_size", [250, 7])
def test_columns_equal_attacks_by_hand(norm, eps, batch_size):
    model, (x, y) = taught_conv(), pictures(10, 20, seed=5)
    report = widemargin.evaluate(
        model, (x, y), ["clean", "fgsm", "pgd1", "pgd7"], eps, norm, batch_size=batch_size, **QUICK
    )
    expected = {
        "clean": (model(x).argmax(1) == y).tolist(),
        "fgsm": pgd_by_hand(model, x, y, eps=eps, step=eps, steps=1, norm=norm),
        "pgd1": pgd_by_hand(model, x, y, eps=eps, step=eps / 4, steps=1, norm=norm),
        "pgd7": pgd_by_hand(model, x, y, eps=eps, step=eps / 4, steps=7, norm=norm),
    }
    assert {name: flags.tolist() for name, flags in report.verdicts.items()} == expected
    assert report.accuracy == {name: pytest.approx(100 * sum(flags) / 20) for name, flags in expected.items()}
    assert len({tuple(flags) for flags in expected.values()}) >= 3, "columns that cannot be told apart"


def test_an_attack_may_make_a_wrong_example_right():
    model, (x, y) = Rough(taught_conv(), 0.3, 40), pictures(10, 60, seed=7)
    x = (x + 0.4 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    report = widemargin.evaluate(model, (x, y), ["clean", "fgsm"], 0.1, **QUICK)
    verdicts = report.verdicts
    assert (verdicts["fgsm"] & ~verdicts["clean"]).any(), "FGSM attacks what is already wrong"
    assert verdicts["fgsm"].tolist() == pgd_by_hand(model, x, y, eps=0.1, step=0.1, steps=1, norm="linf")


@pytest.mark.parametrize(("given", "steps"), [(None, (0.01, 0.04)), (0.02, (0.02, 0.02))])
def test_the_step_size_follows_eps_unless_it_is_given(given, steps):
    model, (x, y) = taught_conv(), pictures(10, 20, seed=5)
    report = widemargin.evaluate(model, (x, y), ["pgd3"], [0.04, 0.16], step_size=given, **QUICK)
    for eps, step in zip((0.04, 0.16), steps, strict=True):
        expected = pgd_by_hand(model, x, y, eps=eps, step=step, steps=3, norm="linf")
        assert report.verdicts[f"pgd3@{eps}"].tolist() == expected
        alone = widemargin.evaluate(model, (x, y), ["pgd3"], eps, step_size=step, **QUICK)
        assert alone.verdicts["pgd3"].tolist() == expected
    steady, following = (pgd_by_hand(model, x, y, eps=0.16, step=step, steps=3, norm="linf") for step in (0.02, 0.04))
    assert steady != following, "step sizes that cannot be told apart"


def test_the_step_size_in_the_report():
    model, data = taught_conv(), pictures(10, 4)
    options = {"attacks": ["pgd1"], **QUICK}
    assert widemargin.evaluate(model, data, eps=0.08, **options).to_json()["step_size"] == pytest.approx(0.02)
    assert widemargin.evaluate(model, data, eps=[0.08, 0.1], **options).to_json()["step_size"] is None
    assert widemargin.evaluate(model, data, eps=[0.08, 0.1], step_size=0.03, **options).to_json()["step_size"] == 0.03
    mixed = widemargin.evaluate(model, data, eps=["0.08", 0.1], step_size={"0.08": 0.03}, **options).to_json()
    assert mixed["step_size"] is None
    assert {name: column.get("step_size") for name, column in mixed["columns"].items()} == {
        "clean": None,
        "pgd1@0.08": 0.03,
        "pgd1@0.1": None,
    }
    with pytest.raises(InputError, match=r"evaluate\.step_size: there is no eps 0\.3 here, only"):
        widemargin.evaluate(model, data, eps=0.1, step_size={0.3: 0.1}, **options)


def test_several_radii_are_in_the_names_and_make_curves(very_short):
    model, (x, y) = taught_conv(4), pictures(4, 8)
    radii = ["16/255", "2/255", "0.3"]
    report = widemargin.evaluate(model, (x, y), ["clean", "fgsm", "pgd20", "autoattack"], radii, max_steps=4, **QUICK)
    parts = ["/apgd-ce", "/apgd-t", "/fab-t", "/square", ""]
    assert list(report.verdicts) == [
        "clean",
        *(f"{name}@{eps}" for eps in radii for name in ("fgsm", "pgd20", *(f"autoattack{part}" for part in parts))),
    ]
    assert list(report.curves) == ["fgsm", "pgd20", "autoattack"]
    for name, points in report.curves.items():
        assert [point["written"] for point in points] == ["2/255", "16/255", "0.3"]
        assert [point["eps"] for point in points] == [2 / 255, 16 / 255, 0.3]
        assert [point["accuracy"] for point in points] == [
            report.accuracy[f"{name}@{eps}"] for eps in ("2/255", "16/255", "0.3")
        ]
        falling = [point["accuracy"] for point in points]
        assert falling[0] > falling[-1]
    assert report.to_json()["curves"] == report.curves
    assert report.to_json()["eps"] == [
        {"written": "16/255", "value": 16 / 255},
        {"written": "2/255", "value": 2 / 255},
        {"written": "0.3", "value": 0.3},
    ]


def test_records_name_the_first_part_that_broke_an_example_and_its_radius(very_short, tmp_path):
    model, (x, y) = taught_conv(4), pictures(4, 8)
    radii = ["0.05", "0.1", "0.3"]
    report = widemargin.evaluate(model, (x, y), ["autoattack"], radii, out=tmp_path, **QUICK)
    names = [name for name in report.verdicts if name.startswith("autoattack/")]
    rows = [json.loads(line) for line in (tmp_path / "examples.jsonl").read_text().splitlines()]
    for position, row in enumerate(rows):
        broken = [name for name in names if not report.verdicts[name][position]]
        expected = broken[0].removeprefix("autoattack/") if broken and report.verdicts["clean"][position] else None
        assert row["broken_by"] == expected
    assert len({row["broken_by"] for row in rows}) >= 2


def first_broken(verdicts, position, suffix):
    """By hand: the first part after which an example that was right is wrong."""
    names = [name for name in verdicts if name.startswith("autoattack/") and name.endswith(suffix)]
    broken = [name for name in names if not verdicts[name][position]]
    found = broken and verdicts["clean"][position]
    return broken[0].removeprefix("autoattack/").removesuffix(suffix) if found else None


@pytest.mark.parametrize("radii", [["0.3", "16/255", "0.1"], ["0.1"]])
def test_records_name_the_part_that_broke_an_example_at_each_radius(very_short, tmp_path, radii):
    model, (x, y) = taught_conv(4), pictures(4, 8)
    report = widemargin.evaluate(model, (x, y), ["autoattack", "fgsm"], radii, out=tmp_path, **QUICK)
    rows = [json.loads(line) for line in (tmp_path / "examples.jsonl").read_text().splitlines()]
    for position, row in enumerate(rows):
        assert row["broken_at"] == {
            eps: first_broken(report.verdicts, position, f"@{eps}" if len(radii) > 1 else "") for eps in radii
        }
        if len(radii) == 1:
            assert row["broken_by"] == row["broken_at"]["0.1"]
    assert len({tuple(row["broken_at"].values()) for row in rows}) >= 2
    if len(radii) > 1:
        assert any(len({*row["broken_at"].values()} - {None}) for row in rows if row["broken_at"]["16/255"] is None)


def test_without_autoattack_nothing_is_said_of_its_parts(tmp_path):
    widemargin.evaluate(taught_conv(4), pictures(4, 4), ["clean", "fgsm"], [0.1, 0.2], out=tmp_path, **QUICK)
    for line in (tmp_path / "examples.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert (row["broken_by"], row["broken_at"]) == (None, {})


def test_one_radius_among_several_is_that_radius_alone(very_short):
    model, (x, y) = taught_conv(4), pictures(4, 8)
    attacks = ["fgsm", "pgd3", "autoattack"]
    several = widemargin.evaluate(model, (x, y), attacks, [0.05, "0.2"], "l2", **QUICK)
    for eps in (0.05, 0.2):
        alone = widemargin.evaluate(model, (x, y), attacks, eps, "l2", **QUICK)
        for name, flags in alone.verdicts.items():
            assert several.verdicts[name if name == "clean" else f"{name}@{eps}"].tolist() == flags.tolist()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"eps": []}, "eps must be one radius or several different ones"),
        ({"eps": [0.1, 0.1]}, "eps must be one radius or several different ones"),
        ({"eps": ["1/2", 0.5]}, "eps must be one radius or several different ones"),
        ({"eps": [0.1, 0.1 + 1e-9]}, "eps must be one radius or several different ones"),
        ({"eps": 8}, "did you mean 8/255"),
        ({"eps": [0.1, 8]}, "did you mean 8/255"),
        ({"eps": "8/0"}, "'8/0' is not a number"),
        ({"attacks": []}, "attacks must name each attack once"),
        ({"attacks": ["fgsm", "fgsm"]}, "attacks must name each attack once"),
        ({"attacks": ["cw"]}, "unknown attack 'cw'; known are clean, fgsm, pgdN .* and autoattack"),
        ({"norm": "l1"}, "norm must be one of 'linf', 'l2', got 'l1'"),
        ({"step_size": 0, "attacks": ["pgd2"]}, "step_size must be in"),
        ({"shard_size": 0}, "shard_size must be a whole number of at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number of at least 1, got 2.5"),
        ({"limit": 0}, "limit must be a whole number of at least 1, got 0"),
    ],
)
def test_wrong_settings_are_refused(options, says):
    with pytest.raises(InputError, match=says):
        widemargin.evaluate(taught_conv(), pictures(10, 4), **({"attacks": ["clean", "fgsm"]} | options))


def test_one_attack_needs_no_list():
    model, data = taught_conv(4), pictures(4, 6)
    one, listed = (widemargin.evaluate(model, data, attacks, 0.1, sanity=False) for attacks in ("pgd2", ["pgd2"]))
    assert one.accuracy == listed.accuracy


def test_margins_of_correct_images_are_those_alone():
    model, (x, y) = taught_conv(4), pictures(4, 12)
    y = y.clone()
    y[:5] = (y[:5] + 1) % 4  # these are wrong
    report = widemargin.evaluate(model, (x, y), ["clean"], 0.1, sanity=False)
    margins, right = effective_margin(model, x, y, "linf"), model(x).argmax(1) == y
    assert 0 < int(right.sum()) <= 7
    told = report.to_json()["margins"]
    assert (told["all"]["count"], told["correct"]["count"]) == (12, int(right.sum()))
    assert told["all"]["mean"] == pytest.approx(float(margins.mean()), rel=1e-4)
    assert told["correct"]["mean"] == pytest.approx(float(margins[right].mean()), rel=1e-4)


def collected(**options):
    """What two shards make together, of two images and of one."""
    store = Store(None)
    settings = EvaluationSettings(attacks=("clean",), eps=(0.1,), **options)
    row = {"label": 1, "prediction": 1, "verdicts": {"clean": True}, "margin": 0.5}
    row |= {"distance": 0.5} if settings.distance else {}
    for number, (seconds, count) in enumerate([({"clean": 1.5, "pgd1": 2.0}, 2), ({"clean": 0.25}, 1)]):
        rows = [row | {"index": 2 * number + place} for place in range(count)]
        store.write_shard(number, {"first": 2 * number, "count": count, "seconds": seconds}, rows)
    return collect(store, range(2), settings, ModelInfo(), [], "cpu")


def test_seconds_are_those_of_all_shards():
    report = collected()
    assert report.count == 3
    assert report.to_json()["seconds"] == {"clean": 1.75, "pgd1": 2.0}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "float32 (no TF32)"),
        ({"distance": "full"}, "float32 (no TF32)"),
        ({"search": "tf32", "distance": "quick"}, "float32 (no TF32); attacks searched with TF32"),
    ],
)
def test_the_precision_names_tf32_where_something_searched_with_it(options, told):
    assert collected(**options).to_json()["precision"] == told


WITHOUT = "AutoAttack ran without its part apgd-t, whose loss needs 4 classes; this model has {}."


@pytest.mark.parametrize(("classes", "told"), [(2, True), (3, True), (4, False), (10, False)])
@pytest.mark.parametrize("attacks", [("clean", "autoattack"), ("clean", "pgd20")])
def test_a_part_left_out_is_told(classes, told, attacks):
    settings = EvaluationSettings(attacks=attacks, eps=(0.1,))
    expected = (WITHOUT.format(classes),) if told and "autoattack" in attacks else ()
    assert notes_for(settings, classes) == expected


@pytest.mark.parametrize("classes", [3, 4])
def test_the_notes_agree_with_the_parts_that_ran(very_short, tmp_path, classes):
    for _ in range(2):  # the second time nothing is judged again
        report = widemargin.evaluate(
            taught_conv(classes), pictures(classes, 6), ["clean", "autoattack"], 0.1, out=tmp_path, sanity=False
        )
        left_out = "autoattack/apgd-t" not in report.accuracy
        assert left_out == (classes == 3)
        assert report.notes == ((WITHOUT.format(3),) if left_out else ())
        assert json.loads((tmp_path / "report.json").read_text())["notes"] == list(report.notes)


@pytest.mark.parametrize(
    ("search", "distance", "told"), [("float32", "full", 0), ("tf32", None, 0), ("tf32", "full", 1)]
)
def test_distances_are_said_to_be_searched_with_tf32_where_they_are(search, distance, told):
    settings = EvaluationSettings(attacks=("clean", "pgd20"), eps=(0.1,), search=search, distance=distance)
    notes = notes_for(settings, 10, again=7)
    assert len(notes) == told
    assert all(note.startswith("Distances were searched with TF32") and note.endswith(": 7.") for note in notes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, True),
        ({"epoch": 10}, False),
        ({"config": {"epochs": 10, "stopping": {"patience": 3}}}, False),  # it may have ended early
        ({"weights": "best"}, False),
        ({"epoch": None}, False),
        ({"config": None}, False),
    ],
)
def test_the_weights_of_a_run_under_way_are_told(changes, told):
    subject = replace(ModelInfo(weights="last", epoch=5, config={"epochs": 10}), **changes)
    expected = "The run is not finished: these are its weights after 5 of 10 epochs."
    assert notes_on(subject) == ((expected,) if told else ())


@pytest.mark.parametrize(
    ("attacks", "eps", "name", "attack"),
    [
        (["clean", "fgsm", "pgd3"], 0.1, "pgd3", PGD(eps=0.1, step_size=0.025, steps=3)),
        (["pgd3", "fgsm"], 0.1, "fgsm", FGSM(eps=0.1)),
        (["clean", "autoattack"], 0.1, "pgd20", PGD(eps=0.1, step_size=0.025, steps=20)),
        (["pgd-7"], "8/255", "pgd-7", PGD(eps=8 / 255, step_size=2 / 255, steps=7)),
        (["pgd3"], ["0.2", "8/255"], "pgd3@0.2", PGD(eps=0.2, step_size=0.05, steps=3)),
    ],
)
def test_the_attack_shown_is_the_attack_named(very_short, tmp_path, attacks, eps, name, attack):
    model, (x, y) = taught_conv(4), pictures(4, 12)
    widemargin.evaluate(model, (x, y), attacks, eps, out=tmp_path, **QUICK)
    with np.load(tmp_path / "gallery.npz", allow_pickle=False) as kept:
        assert str(kept["attack"]) == name
        expected = attack(model, x[:8], y[:8])
        assert np.array_equal(kept["adversarial"], (expected * 255).round().byte().numpy())


@pytest.mark.parametrize(("channels", "shown"), [(1, True), (2, False), (3, True), (4, False)])
def test_only_what_is_gray_or_in_color_is_shown(tmp_path, channels, shown):
    shape = (channels, 8, 8)
    widemargin.evaluate(taught_conv(4, shape), pictures(4, 12, shape), ["fgsm"], 0.1, out=tmp_path, **QUICK)
    assert (tmp_path / "gallery.npz").exists() is shown


@pytest.mark.parametrize("distance", [False, True])
def test_without_an_attack_there_is_nothing_to_show(very_short, tmp_path, distance):
    widemargin.evaluate(taught_conv(4), pictures(4, 12), ["clean"], 1.0, out=tmp_path, distance=distance, **QUICK)
    assert (tmp_path / "report.json").exists()
    assert not (tmp_path / "gallery.npz").exists()


def wide_of(num_classes):
    """150 features, more than candidates are worth; a trained picture model would need as many classes of pictures."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 150), torch.nn.ReLU(), torch.nn.Linear(150, num_classes)
        )


def test_margins_of_many_classes_are_by_candidates_and_said_to_be(tmp_path):
    model, (x, _) = wide_of(300), pictures(4, 9)
    data = x, model(x).argmax(1)
    report = widemargin.evaluate(model, data, ["clean"], 1.0, "l2", out=tmp_path, **QUICK | {"margins": True})
    true = widemargin.effective_margin(model, *data)
    rows = [json.loads(line) for line in (tmp_path / "examples.jsonl").read_text().splitlines()]
    assert {row["margin_by"] for row in rows} <= {"proven", "upper bound"}
    proven = torch.tensor([row["margin_by"] == "proven" for row in rows])
    assert proven.any()
    torch.testing.assert_close(report.margin[proven], true[proven], rtol=1e-4, atol=0)
    assert (report.margin >= true * (1 - 1e-4)).all()
    record = json.loads((tmp_path / "report.json").read_text())
    assert record["margins_proven"] == 100 * float(proven.double().mean())
    assert any(f"{record['margins_proven']:.2f}% are proven" in note for note in report.notes)
    again = widemargin.evaluate(model, data, ["clean"], 1.0, "l2", out=tmp_path, **QUICK | {"margins": True})
    assert again.to_json()["margins_proven"] == record["margins_proven"]


def test_margins_of_few_classes_have_nothing_to_say(tmp_path):
    report = widemargin.evaluate(taught_conv(4), pictures(4, 9), ["clean"], 1.0, out=tmp_path, **QUICK)
    assert report.to_json()["margins_proven"] is None
    assert "margin_by" not in (tmp_path / "examples.jsonl").read_text()
