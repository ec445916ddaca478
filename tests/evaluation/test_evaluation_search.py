"""Attacks that search with TF32: what they find counts only if it holds in float32.

A CPU has no TF32 and is refused; these tests say that it has, and the model looks at the switch and misbehaves where it
is on, far more than TF32 would.
"""

import pytest
import torch
from torch import Tensor, nn

import widemargin
from widemargin.core.precision import TF32
from widemargin.errors import InputError
from widemargin.evaluation import evaluator
from widemargin.evaluation.report import notes_for
from widemargin.evaluation.settings import EvaluationSettings
from widemargin.evaluation.tf32_search import has_tf32

pytestmark = pytest.mark.usefixtures("tf32_here")
X = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(0))


class Sensitive(nn.Module):
    """Robust in float32; with TF32 every image but the untouched ones is classified wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        switches = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        self.seen.append(switches)
        mean = x.flatten(1).mean(1, keepdim=True) * self.scale
        tilt = torch.tensor([5.0, 0.0, 0.1, 0.2]) if switches != TF32 else torch.tensor([-5.0, 0.0, 0.1, 0.2])
        return tilt + mean * torch.tensor([0.1, -0.1, 0.2, 0.0])


def evaluated(search: str, tmp_path, model=None) -> widemargin.Report:
    data = (X, torch.zeros(12, dtype=torch.long))
    options = {"max_steps": 2, "margins": False, "sanity": False, "shard_size": 7, "search": search}
    return widemargin.evaluate(
        model or Sensitive(), data, ["clean", "pgd5", "autoattack"], 0.1, out=tmp_path / search, **options
    )


def test_what_does_not_hold_in_float32_does_not_count(tmp_path):
    report = evaluated("tf32", tmp_path)
    assert report.accuracy["clean"] == report.accuracy["pgd5"] == report.accuracy["autoattack"] == 100.0
    assert report.refuted == 4 * 12  # every part found every image, and none held
    assert report.to_json()["precision"] == "float32 (no TF32); attacks searched with TF32"
    assert report.notes[-1].endswith("do not count: 48.")
    assert report.to_json()["search"] == "tf32"
    again = evaluated("tf32", tmp_path)
    assert again.refuted == 48  # from the records


def test_only_the_search_has_tf32(tmp_path):
    seen = {}
    for search in ("float32", "tf32"):
        model = Sensitive()
        evaluated(search, tmp_path, model)
        seen[search] = set(model.seen)
    assert seen["float32"] == {(False, False)}
    assert seen["tf32"] == {(False, False), TF32}


def test_pgd_searches_so_too(tmp_path):
    class Telling(Sensitive):
        def forward(self, x: Tensor) -> Tensor:
            if x.requires_grad:
                searched.append((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))
            return super().forward(x)

    searched: list[tuple[bool, bool]] = []
    data = (X, torch.zeros(12, dtype=torch.long))
    report = widemargin.evaluate(Telling(), data, ["pgd3"], 0.1, margins=False, sanity=False, search="tf32")
    assert searched.count(TF32) == 3  # a step each; what is not an attack is in float32
    assert report.accuracy["pgd3"] == 100.0
    assert report.to_json()["precision"] == "float32 (no TF32); attacks searched with TF32"


def test_float32_says_nothing_of_it(tmp_path):
    report = evaluated("float32", tmp_path)
    assert report.accuracy["autoattack"] == 100.0
    assert report.to_json()["precision"] == "float32 (no TF32)"
    assert report.to_json()["search"] == "float32"
    assert report.notes == ()


def test_a_search_of_another_kind_is_not_continued(tmp_path):
    evaluated("float32", tmp_path)
    (tmp_path / "float32").rename(tmp_path / "tf32")
    with pytest.raises(InputError):
        evaluated("tf32", tmp_path)


def test_one_from_before_finds_were_pushed_is_not_continued(tmp_path):
    evaluated("tf32", tmp_path)
    path = tmp_path / "tf32" / "settings.json"
    assert "tf32, every attack, pushed" in path.read_text()
    path.write_text(path.read_text().replace(", pushed", ""))
    with pytest.raises(InputError, match="search"):
        evaluated("tf32", tmp_path)


def test_mistakes():
    with pytest.raises(InputError, match="search must be one of 'float32', 'tf32', got 'bfloat16'"):
        EvaluationSettings(attacks=("clean",), eps=(0.1,), search="bfloat16")


def test_where_there_is_no_tf32_it_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator, "has_tf32", has_tf32)
    with pytest.raises(InputError, match="'float32' on a device without TF32, got 'tf32' on cpu; leave --search"):
        evaluated("tf32", tmp_path)
    assert not (tmp_path / "tf32").exists()


def test_where_nothing_searches_it_is_refused_too():
    with pytest.raises(InputError, match="search='tf32' has no effect where nothing attacks; leave --search out"):
        widemargin.evaluate(Sensitive(), (X, torch.zeros(12, dtype=torch.long)), ["clean"], 0.1, search="tf32")


@pytest.mark.parametrize(
    ("device", "capability", "expected"),
    [("cpu", None, False), ("cuda", (7, 5), False), ("cuda:1", (8, 0), True), ("cuda", (9, 0), True)],
)
def test_which_devices_have_tf32(monkeypatch, device, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda asked: {torch.device(device): capability}[asked])
    assert has_tf32(torch.device(device)) is expected


def test_no_note_without_autoattack():
    assert notes_for(EvaluationSettings(attacks=("clean",), eps=(0.1,), search="tf32"), 10) == ()


class Half(nn.Module):
    """Dark images are wrong with TF32 alone, bright ones after any move, in float32 too."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        mean = x.flatten(1).mean(1, keepdim=True) * self.scale
        tf32 = (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == TF32
        dark = (mean < 0.5).to(x.dtype)
        gap = dark * (-5.0 if tf32 else 5.0) + (1 - dark) * 1000 * (0.8001 - mean)
        return torch.cat([gap, 0 * gap, 0 * gap - 1, 0 * gap - 2], 1)


def test_what_held_is_not_counted_as_refuted():
    x = torch.cat([torch.full((3, 1, 4, 4), 0.2), torch.full((2, 1, 4, 4), 0.8)])
    y = torch.zeros(5, dtype=torch.long)
    options = {"max_steps": 3, "margins": False, "sanity": False, "search": "tf32"}
    report = widemargin.evaluate(Half(), (x, y), ["clean", "autoattack"], 0.05, **options)
    assert (report.accuracy["clean"], report.accuracy["autoattack"], report.refuted) == (100.0, 60.0, 12)


def test_attacks_are_cut_short_and_never_lengthened():
    settings = EvaluationSettings(attacks=("pgd20", "pgd2"), eps=(0.1,), max_steps=4)
    assert [settings.attack(name, 0.1).steps for name in settings.attacks] == [4, 2]


def test_seconds_are_summed_over_shards(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("widemargin.evaluation.judge.time.monotonic", lambda: float(next(clock)))
    model, y = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), torch.zeros(6, dtype=torch.long)
    report = widemargin.evaluate(model, (X[:6], y), ["clean"], 0.1, shard_size=2, sanity=False)
    assert report.seconds == {"clean": 3.0, "margin": 3.0}
