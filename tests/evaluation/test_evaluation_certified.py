"""Certified radii in an evaluation: beside distances, for the first images, resumed, contradicted, refused."""

import json
from pathlib import Path

import pytest
import torch
from small_networks import flat_net, pictures, taught
from torch import nn

from widemargin import InputError, certified_margin, evaluate
from widemargin.evaluation import judge
from widemargin.evaluation.certified import VIOLATED, contradicted, wanted
from widemargin.evaluation.folder import read_evaluation
from widemargin.types import Norm

X, Y = pictures(3, 11)
X, Y = X.flatten(1), Y.clone()
Y[2] = (Y[2] + 1) % 3  # misclassified


def model() -> nn.Module:
    x, y = pictures(3, 120, seed=1)
    return taught(lambda: flat_net(3), x.flatten(1), y)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_radii_are_those_of_certified_margin_and_below_every_distance(norm: Norm, tmp_path: Path) -> None:
    eps = (0.02, 0.3) if norm == "linf" else (0.2, 2.0)
    report = evaluate(model(), (X, Y), ["clean", "pgd5"], eps, norm, out=tmp_path, distance=True, certify=True)
    assert report.certified is not None
    assert report.distance is not None
    torch.testing.assert_close(report.certified, certified_margin(model(), X, Y, norm).double(), rtol=0.005, atol=0.0)
    assert (report.certified <= report.distance).all()
    assert report.certified[2] == 0
    assert VIOLATED not in {alarm.name for alarm in report.alarms}
    found = json.loads((tmp_path / "report.json").read_text())["certified"]
    assert found["count"] == 11
    assert found["median"] == report.certified[report.verdicts["clean"]].median().item()
    shares = [100 * (report.certified >= size).double().mean().item() for size in eps]
    assert list(found["accuracy"].values()) == pytest.approx(shares)
    assert shares[0] > shares[1]
    assert all(shares[n] <= report.accuracy[f"pgd5@{size:g}"] for n, size in enumerate(eps))
    read = read_evaluation(tmp_path)
    assert read is not None
    assert read.certified is not None
    assert dict(read.certified.accuracy) == found["accuracy"]
    assert read.examples is not None
    assert list(read.examples.certified) == report.certified.tolist()


def test_the_first_images_alone_and_the_same_after_a_kill(tmp_path: Path) -> None:
    def run(folder: Path) -> list[float]:
        report = evaluate(model(), (X, Y), "clean", 0.1, out=folder, shard_size=4, certify=6)
        assert report.certified is not None
        return report.certified.tolist()

    radii = run(tmp_path / "once")
    assert [radius == radius for radius in radii] == [True] * 6 + [False] * 5
    run(tmp_path / "killed")
    (tmp_path / "killed" / "shards" / "00001.jsonl").unlink()
    assert run(tmp_path / "killed")[:6] == radii[:6]
    plain = tmp_path / "plain"
    evaluate(model(), (X, Y), "clean", 0.1, out=plain)
    assert "certify" not in json.loads((plain / "settings.json").read_text())
    assert json.loads((plain / "report.json").read_text())["certified"] is None


def test_an_attack_that_comes_closer_is_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    true = judge.certified_radii
    too_far = lambda *args, **options: [100 * radius for radius in true(*args, **options)]  # noqa: E731
    monkeypatch.setattr(judge, "certified_radii", too_far)
    report = evaluate(model(), (X, Y), ["clean", "pgd5"], 0.3, certify=True)
    alarm = next(alarm for alarm in report.alarms if alarm.name == VIOLATED)
    assert "the first is image 0" in alarm.message


def test_what_counts_as_a_contradiction() -> None:
    radii = torch.tensor([1.0, 1.0, 1.0, float("nan"), 0.0])
    distance = torch.tensor([0.99, 1.0 - 1e-6, float("inf"), 0.1, 0.0])
    assert contradicted(radii, distance, {}).tolist() == [True, False, False, False, False]
    right = torch.tensor([True, True, False, False, False])
    assert contradicted(radii, None, {"pgd": (0.5, right)}).tolist() == [False, False, True, False, False]
    assert not contradicted(radii, None, {"pgd": (1.0, right)}).any()


def test_refusals() -> None:
    smooth = nn.Sequential(nn.Linear(64, 4), nn.GELU(), nn.Linear(4, 3))
    with pytest.raises(InputError, match="no bounds for gelu"):
        evaluate(smooth, (X, Y), "clean", 0.1, certify=True)
    with pytest.raises(InputError, match="rounds by more than is certified"):
        evaluate(model().bfloat16(), (X, Y), "clean", 0.1, certify=3)
    for wrong in ("some", 0, -1, 2.5):
        with pytest.raises(InputError, match=r"evaluate\.certify must be"):
            wanted(wrong)
    assert [wanted(right) for right in (None, False, True, "all", "7", 7)] == [None, None, "all", "all", 7, 7]
