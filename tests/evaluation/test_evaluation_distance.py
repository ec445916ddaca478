"""The distance to the nearest adversarial image beside the effective margin, and how well their ranks agree."""

import json
import math
import statistics
from collections import Counter

import pytest
import torch
from small_networks import Rough, pictures, taught_conv
from torch import nn

import widemargin
from widemargin.attacks import ALMA, DDN
from widemargin.evaluation import distance, evaluator
from widemargin.evaluation.autoattack import make_reference
from widemargin.evaluation.distance import rank_correlation
from widemargin.evaluation.folder import read_evaluation
from widemargin.evaluation.minimal_norm import METHODS, NearestSearch

OVERSHOOT = 1.07  # FAB steps 5% beyond the boundary it projects to
DRAWN_BACK = 1.005


def linear_model(classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(16, classes)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(classes, 16, generator=generator))
        layer.bias.copy_(-layer.weight.sum(1) / 2)  # so that boundaries meet in the middle of the cube
    return nn.Sequential(nn.Flatten(), layer)


def images_in_the_middle(count=16):
    return 0.5 + 0.12 * (torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(1)) - 0.5)


def closed_form(model, x, y, norm):
    """min over j of (z_y - z_j) / ||w_y - w_j|| in the dual norm, one class at a time."""
    weight, logits = model[1].weight.detach(), model(x).detach()
    distances = []
    for row, label in zip(logits, y.tolist(), strict=True):
        others = [j for j in range(len(row)) if j != label]
        duals = [(weight[label] - weight[j]).norm(p=1 if norm == "linf" else 2) for j in others]
        distances.append(min(float((row[label] - row[j]) / dual) for j, dual in zip(others, duals, strict=True)))
    return torch.tensor(distances)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("norm", "batch_size"), [("linf", 250), ("l2", 250), ("linf", 9)])
def test_a_linear_models_distances_are_known(norm, batch_size, method):
    model, x = linear_model(), images_in_the_middle()
    y = model(x).argmax(1)
    y[3] = (y[3] + 1) % 4
    report = widemargin.evaluate(
        model, (x, y), ["clean"], 0.1, norm, distance=method, sanity=False, batch_size=batch_size
    )
    exact = closed_form(model, x, y, norm)
    right = torch.arange(16) != 3
    assert exact[3] < 0
    assert report.distance[3] == 0
    assert report.margin.allclose(exact, rtol=1e-3, atol=1e-6)
    ratio = report.distance[right] / exact[right]
    assert ratio.min() > 0.999, "nearer than anything can be"
    exactly = method == "full" or (method, norm) == ("quick", "linf")
    assert ratio.max() < (DRAWN_BACK if exactly else 1.1 if method == "quick" else OVERSHOOT)
    measured = report.to_json()["distance"]
    assert measured["count"] == 15
    assert measured["median"] == pytest.approx(float(report.distance[right].median()))
    assert measured["rank_correlation"] > 0.97
    assert measured["method"] == method
    assert sum(measured["found_by"].values()) == 15


def test_each_image_says_which_attack_was_nearest(tmp_path):
    """The minimum is that of the attacks, one run by itself; of those the record names one that has it."""
    model, (x, y) = taught_conv(4), pictures(4, 16)
    report = widemargin.evaluate(model, (x, y), ["clean"], norm="l2", distance=True, sanity=False, out=tmp_path)
    reference = make_reference(model, eps=1.0, norm="l2", seed=0, num_classes=4, device=torch.device("cpu"))
    attacks = {"ddn": DDN(), "ddn-3z": DDN(logit_scale=3), "ddn-10z": DDN(logit_scale=10), "alma": ALMA()}
    alone, drawn_back = {}, {}
    for name, attack in attacks.items():
        x_adv = attack(model, x, y)
        alone[name] = torch.where(model(x_adv).argmax(1) == y, math.inf, (x_adv - x).flatten(1).norm(dim=1))
        nearer = NearestSearch(reference=reference, norm="l2")._drawn_back(x, y, x_adv)
        drawn_back[name] = (nearer - x).flatten(1).norm(dim=1)
    by_fab = [x_adv for _, x_adv in NearestSearch(reference=reference, norm="l2", method="fab-t").finds(x, y, None)]
    alone["fab-t"] = torch.stack(
        [torch.where(model(x_adv).argmax(1) == y, math.inf, (x_adv - x).flatten(1).norm(dim=1)) for x_adv in by_fab]
    ).amin(0)
    right = report.verdicts["clean"]
    shortest = torch.stack(list(alone.values())).amin(0)[right]
    assert (report.distance[right] <= 1.01 * shortest).all()
    assert (report.distance[right] > 0.9 * shortest).all()
    rows = [json.loads(line) for line in (tmp_path / "examples.jsonl").read_text().splitlines()]
    for row, name in zip(rows, report.distance_by, strict=True):
        assert row["distance_by"] == name
        assert (name in alone) is row["verdicts"]["clean"]
        if name in attacks:
            assert row["distance"] == pytest.approx(float(drawn_back[name][row["index"]]), rel=1e-4)
    assert len(set(report.distance_by) - {None}) > 1, "else a name says nothing"
    winners = json.loads((tmp_path / "report.json").read_text())["distance"]["found_by"]
    assert winners == dict(Counter(name for name in report.distance_by if name))
    read = read_evaluation(tmp_path).distance
    assert (read.method, dict(read.found_by)) == ("full", winners)


def boundaries(model, x, y, norm):
    """(B, K): the distance to the boundary of each class of a linear model, one after the other; infinite for y."""
    weight, logits = model[1].weight.detach(), model(x).detach()
    found = torch.full_like(logits, math.inf)
    for row, label in enumerate(y.tolist()):
        for j in range(logits.shape[1]):
            if j != label:
                dual = (weight[label] - weight[j]).norm(p=1 if norm == "linf" else 2)
                found[row, j] = (logits[row, label] - logits[row, j]) / dual
    return found


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_fab_goes_to_the_classes_of_the_shortest_finds_then_of_the_largest_logits(norm):
    model, x = linear_model(6), images_in_the_middle()
    y = model(x).argmax(1)
    reference = make_reference(model, eps=1.0, norm=norm, seed=0, num_classes=6, device=torch.device("cpu"))
    search = NearestSearch(reference=reference, norm=norm)
    exact, order = boundaries(model, x, y, norm), model(x).argsort(1, descending=True)
    assert search._nearest_classes(x, y, []).equal(exact.argsort(1)[:, :2]), "nothing found yet: by margin"
    assert search._nearest_classes(x, y, [x]).equal(order[:, 1:3]), "nothing that fools the model: by logit"
    toward = model[1].weight.detach()[order[:, -1]] - model[1].weight.detach()[y]
    found = x + (2 * toward / toward.norm(dim=1, keepdim=True)).view_as(x)
    fooled = model(found).argmax(1) == order[:, -1]
    assert fooled.sum() > 8
    assert search._nearest_classes(x, y, [found])[fooled].equal(order[fooled][:, [-1, 1]])
    nearest, farthest = search._fab_at(x, y, torch.stack([exact.argmin(1), order[:, -1]], 1))
    size = (nearest - x).flatten(1).norm(p=math.inf if norm == "linf" else 2, dim=1)
    torch.testing.assert_close(size, exact.amin(1), rtol=OVERSHOOT - 1, atol=0)
    assert not farthest.equal(nearest)


def test_a_search_over_eps_finds_what_a_short_fab_does_not():
    model, (x, y) = taught_conv(4), pictures(4, 16)
    full, fab = (
        widemargin.evaluate(model, (x, y), ["clean"], distance=method, sanity=False, max_steps=4)
        for method in ("full", "fab-t")
    )
    assert (full.distance <= fab.distance + 1e-7).all()
    assert full.to_json()["distance"]["found_by"]["apgd-t"] > 8
    right = full.verdicts["clean"]
    assert full.distance[right].median() < 0.97 * fab.distance[right].median()


def test_where_fab_finds_nothing_the_search_over_eps_begins_with_the_whole_range(monkeypatch):
    model, x = linear_model(), images_in_the_middle()
    y = model(x).argmax(1)
    monkeypatch.setattr(NearestSearch, "_fab_at_all_targets", lambda _, x, y: iter([x]))
    report = widemargin.evaluate(model, (x, y), ["clean"], distance=True, sanity=False)
    exact = closed_form(model, x, y, "linf")
    assert report.distance.isfinite().all()
    assert (report.distance / exact).min() > 0.999
    assert (report.distance - exact).max() < 0.005, "half the range, eight times, and what APGD came nearer itself"
    assert report.to_json()["distance"]["found_by"] == {"apgd-t": 16}


def test_distances_of_several_methods_stand_side_by_side(tmp_path, monkeypatch):
    model, x = linear_model(), images_in_the_middle()
    data = x, model(x).argmax(1)
    options = {"sanity": False, "max_steps": 5, "shard_size": 8, "out": tmp_path}
    methods = ("fab-t", "quick", "full")
    found = {method: widemargin.evaluate(model, data, ["clean"], 0.1, distance=method, **options) for method in methods}
    monkeypatch.setattr(NearestSearch, "finds", None)  # nothing is searched again
    for method in methods:
        again = widemargin.evaluate(model, data, ["clean"], 0.1, distance=method, **options)
        assert again.distance.equal(found[method].distance)
        assert again.distance_by == found[method].distance_by
        assert again.to_json()["distance"] == found[method].to_json()["distance"]
        assert again.to_json()["distance"]["method"] == method
        row = json.loads((tmp_path / "examples.jsonl").read_text().splitlines()[0])
        assert row["distance"] == float(found[method].distance[0])
    unasked = widemargin.evaluate(model, data, ["clean"], 0.1, **options)
    assert unasked.to_json()["distance"]["method"] == "full"


@pytest.mark.parametrize("method", ["no", "fab", ""])
def test_a_method_that_is_none_is_refused(method):
    with pytest.raises(widemargin.InputError, match=r"evaluate.distance must be True, False or one of 'full', 'quick'"):
        widemargin.evaluate(linear_model(), (images_in_the_middle(), torch.zeros(16).long()), distance=method)


@pytest.mark.usefixtures("tf32_here")
@pytest.mark.parametrize("off", [-0.03, -0.004, 0.0, 0.004, 0.03, 5.0])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_what_another_arithmetic_finds_is_adversarial_for_the_model(monkeypatch, norm, off):
    """The search sees one class higher than the model does: its boundaries are nearer, farther, or where none are."""
    model, x = linear_model(), images_in_the_middle()
    y = model(x).argmax(1)
    other = linear_model()
    with torch.no_grad():
        other[1].bias[1] += off
    monkeypatch.setattr(evaluator, "search_model", lambda _, **__: other)
    switches = []
    other.register_forward_hook(lambda *_: switches.append(torch.backends.cudnn.allow_tf32))
    seen = []
    carefully = distance._searched_in_float32
    monkeypatch.setattr(distance, "_searched_in_float32", lambda *args: seen.append(len(args[1])) or carefully(*args))
    options = {"distance": True, "sanity": False}
    report = widemargin.evaluate(model, (x, y), ["clean"], 0.1, norm, search="tf32", **options)
    again = sum(seen)
    assert switches, "the search is on the copy"
    assert all(switches), "and in TF32"
    assert report.notes == (
        "Distances were searched with TF32 and count where float32 sees the boundary within 3%; so many images were "
        f"searched again in float32: {again}.",
    )
    plain = widemargin.evaluate(model, (x, y), ["clean"], 0.1, norm, **options)
    exact = closed_form(model, x, y, norm)
    assert (report.distance / exact).min() > 0.999, "nearer than anything can be"
    assert report.distance.isfinite().all(), "whoever was not found has been searched for again"
    assert (report.distance / plain.distance).max() < (1.06 if abs(off) < 0.01 else 1.25)
    assert (again > 0) is (off != 0), "what float32 sees otherwise is searched again, and nothing else"
    assert again == 16 or abs(off) < 0.1
    assert report.to_json()["precision"] == "float32 (no TF32); attacks searched with TF32"
    assert plain.to_json()["precision"] == "float32 (no TF32)"


@pytest.mark.usefixtures("tf32_here")
def test_what_was_found_and_confirmed_counts_though_a_second_search_finds_less(monkeypatch):
    """A doubtful image is searched again; the nearer of the two perturbations is its distance."""
    model, x = linear_model(), images_in_the_middle()
    y = model(x).argmax(1)
    other = linear_model()
    with torch.no_grad():
        other[1].bias[1] += 0.004
    monkeypatch.setattr(evaluator, "search_model", lambda _, **__: other)
    quickly = distance._searched_on_copy
    monkeypatch.setattr(
        distance, "_searched_on_copy", lambda *args: (quickly(*args)[0], torch.zeros(len(x), dtype=torch.bool))
    )
    monkeypatch.setattr(
        distance,
        "_searched_in_float32",
        lambda _, images, *__: (images.new_full((len(images),), math.inf), [None] * len(images)),
    )
    report = widemargin.evaluate(model, (x, y), ["clean"], 0.1, distance=True, sanity=False, search="tf32")
    assert report.distance.isfinite().sum() > 10
    assert report.again == 16


@pytest.mark.usefixtures("tf32_here")
def test_a_continued_search_for_distances_is_the_same_search(tmp_path):
    """Folders of versions that searched distances in float32 are not gone on with."""
    model, x = linear_model(), images_in_the_middle()
    options = {"distance": True, "sanity": False, "search": "tf32", "max_steps": 2, "out": tmp_path}
    widemargin.evaluate(model, (x, model(x).argmax(1)), ["clean"], 0.1, **options)
    path = tmp_path / "settings.json"
    assert "tf32, every attack and distance" in path.read_text()
    path.write_text(path.read_text().replace("tf32, every attack and distance", "tf32, every attack"))
    with pytest.raises(widemargin.InputError, match="holds another evaluation"):
        widemargin.evaluate(model, (x, model(x).argmax(1)), ["clean"], 0.1, **options)


def test_two_classes_and_a_single_example():
    model, x = linear_model(2), images_in_the_middle(1)
    y = model(x).argmax(1)
    report = widemargin.evaluate(model, (x, y), ["clean"], 0.1, "l2", distance=True)
    assert 0.999 < float(report.distance / closed_form(model, x, y, "l2")) < OVERSHOOT
    assert report.to_json()["distance"]["rank_correlation"] is None


def test_the_distance_does_not_depend_on_eps():
    model, (x, y) = taught_conv(4), pictures(4, 6)
    small, large = (
        widemargin.evaluate(model, (x, y), ["clean"], eps, distance=True, sanity=False, max_steps=10)
        for eps in (0.001, 0.5)
    )
    assert small.distance.equal(large.distance)
    assert small.distance[small.verdicts["clean"]].gt(0).all()


class Constant(nn.Module):
    """The same logits for every image."""

    def forward(self, x):
        return 0 * x.flatten(1)[:, :3] + torch.tensor([1.0, 2.0, 0.0])


def test_where_no_move_changes_the_answer(tmp_path):
    x, y = pictures(3, 6)
    report = widemargin.evaluate(Constant(), (x, y), ["clean"], distance=True, sanity=False, max_steps=2, out=tmp_path)
    right = y == 1
    assert report.verdicts["clean"].tolist() == right.tolist()
    assert report.distance.tolist() == [math.inf if flag else 0.0 for flag in right]
    assert report.margin.tolist() == [math.inf if flag else -math.inf for flag in right]
    rows = [json.loads(line) for line in (tmp_path / "examples.jsonl").read_text().splitlines()]
    assert [row["margin"] for row in rows] == [None] * 6
    assert [row["distance"] for row in rows] == [None if flag else 0.0 for flag in right]
    assert "Infinity" not in (tmp_path / "report.json").read_text()
    assert report.to_json()["distance"] == {
        "count": 0,
        "median": None,
        "rank_correlation": None,
        "method": "full",
        "found_by": {},
    }
    assert [row["distance_by"] for row in rows] == [None] * 6


def spearman_by_hand(left, right):
    def ranks(values):
        return [
            sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
            for value in values
        ]

    a, b = ranks(left), ranks(right)
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    together = sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b, strict=True))
    apart = math.sqrt(sum((p - mean_a) ** 2 for p in a) * sum((q - mean_b) ** 2 for q in b))
    return together / apart


@pytest.mark.parametrize("seed", range(5))
def test_the_rank_correlation_with_ties(seed):
    generator = torch.Generator().manual_seed(seed)
    left = torch.randint(6, (25,), generator=generator).float()
    right = left + torch.randint(5, (25,), generator=generator)
    assert rank_correlation(left, right) == pytest.approx(spearman_by_hand(left.tolist(), right.tolist()))


def test_the_rank_correlation_of_known_orders():
    rising = torch.tensor([1.0, 2.0, 5.0, 9.0])
    assert rank_correlation(rising, rising.exp()) == pytest.approx(1.0)
    assert rank_correlation(rising, -rising) == pytest.approx(-1.0)
    assert rank_correlation(rising, torch.tensor([2.0, 1.0, 4.0, 3.0])) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("left", "right"),
    [([1.0, 2.0], [1.0, 2.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, math.inf], [1.0, 2.0, 3.0])],
)
def test_no_rank_correlation(left, right):
    assert rank_correlation(torch.tensor(left), torch.tensor(right)) is None


def test_infinities_are_left_out_of_the_rank_correlation():
    left, right = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, math.inf, 2.0, 3.0])
    assert rank_correlation(left, right) == pytest.approx(1.0)


def test_the_correlation_is_over_those_classified_right():
    model, (x, y) = Rough(taught_conv(4), 0.02, 20), pictures(4, 12)
    y = y.clone()
    y[:4] = (y[:4] + 1) % 4
    report = widemargin.evaluate(model, (x, y), ["clean"], distance=True, sanity=False, max_steps=20)
    right = report.verdicts["clean"]
    assert not right.all()
    expected = spearman_by_hand(report.margin[right].tolist(), report.distance[right].tolist())
    assert report.to_json()["distance"]["rank_correlation"] == pytest.approx(expected)


@pytest.mark.parametrize("count", [7, 8])
def test_the_median_of_an_even_number_is_between_the_two_in_the_middle(count):
    model, x = linear_model(), images_in_the_middle(count)
    report = widemargin.evaluate(model, (x, model(x).argmax(1)), ["clean"], eps=0.1, distance=True, sanity=False)
    found = report.to_json()["distance"]
    assert found["count"] == count
    assert found["median"] == pytest.approx(statistics.median(report.distance.tolist()))


class FooledBeyond(nn.Module):
    """Right as long as the one pixel is within ``reach`` of the middle."""

    def __init__(self, reach):
        super().__init__()
        self.reach = reach

    def forward(self, x):
        outside = (x - 0.5).abs().flatten(1) - self.reach
        return torch.cat([-outside, outside], dim=1)


def test_a_perturbation_made_longer_stays_an_image():
    x, x_adv = torch.full((2, 1, 1, 1), 0.5), torch.tensor([1.0, 0.0]).view(2, 1, 1, 1)
    y = torch.zeros(2, dtype=torch.int64)
    assert distance._as_long_as_needed(FooledBeyond(0.502), x, y, x_adv).equal(x_adv)
    inside = torch.tensor([0.9, 0.1]).view(2, 1, 1, 1)
    longer = distance._as_long_as_needed(FooledBeyond(0.4035), x, y, inside)
    torch.testing.assert_close(longer, 0.5 + 1.01 * (inside - 0.5))
