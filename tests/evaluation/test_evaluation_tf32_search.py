"""Attacks that search in TF32, on a copy of the network: what they find counts only if it holds in float32.

A CPU has no TF32 and is refused; these tests say that it has, and the model looks at the switch and misbehaves where it
is on, far more than TF32 would.
"""

from types import SimpleNamespace

import pytest
import torch
from functorch.compile import make_boxed_func
from small_networks import Counted, pictures, taught_conv
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.exc import InductorError

import widemargin
from widemargin.attacks import PGD
from widemargin.attacks.threat import Threat, make_threat
from widemargin.core.precision import allowing_tf32, full_float32
from widemargin.data import ImageSet
from widemargin.errors import InputError, WidemarginWarning
from widemargin.evaluation import accuracy, autoattack, evaluator
from widemargin.evaluation.accuracy import verdicts
from widemargin.evaluation.autoattack import break_survivors, make_reference, undisturbed
from widemargin.evaluation.report import notes_for
from widemargin.evaluation.settings import EvaluationSettings
from widemargin.evaluation.shards import Shard
from widemargin.evaluation.tf32_search import (
    STEPS,
    channels_last_copy,
    compiled,
    has_tf32,
    push_across_boundary,
    search_model,
)
from widemargin.models import CNNConfig, MLPConfig, ResNet18Config, build_model

pytestmark = pytest.mark.usefixtures("tf32_here")

TF32 = (True, True)
NOISE = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(0))


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
    data = (NOISE, torch.zeros(12, dtype=torch.long))
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
    data = (NOISE, torch.zeros(12, dtype=torch.long))
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
    assert "tf32, every attack and distance, pushed" in path.read_text()
    path.write_text(path.read_text().replace(", pushed", ""))
    with pytest.raises(InputError, match="search"):
        evaluated("tf32", tmp_path)


def test_mistakes():
    with pytest.raises(InputError, match="search must be one of 'float32', 'tf32', 'folded', 'bfloat16', got 'half'"):
        EvaluationSettings(attacks=("clean",), eps=(0.1,), search="half")


def test_where_there_is_no_tf32_it_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator, "has_tf32", has_tf32)
    with pytest.raises(InputError, match="'float32' on a device without TF32, got 'tf32' on cpu; leave --search"):
        evaluated("tf32", tmp_path)
    assert not (tmp_path / "tf32").exists()


def test_where_nothing_searches_it_is_refused_too():
    with pytest.raises(InputError, match="search='tf32' has no effect where nothing attacks; leave --search out"):
        widemargin.evaluate(Sensitive(), (NOISE, torch.zeros(12, dtype=torch.long)), ["clean"], 0.1, search="tf32")


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
    report = widemargin.evaluate(model, (NOISE[:6], y), ["clean"], 0.1, shard_size=2, sanity=False)
    assert report.seconds == {"clean": 3.0, "margin": 3.0}


NETWORKS = {
    "cnn": (CNNConfig(), (3, 32, 32)),
    "mlp": (MLPConfig(hidden=(8,)), (1, 6, 6)),
    "resnet18": (ResNet18Config(width=4), (3, 16, 16)),
}


def network(name: str) -> nn.Module:
    config, shape = NETWORKS[name]
    return build_model(config, image_shape=shape, num_classes=4, seed=0)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_copy_computes_the_same(name):
    model = network(name).double().eval()
    turned = channels_last_copy(model)
    x = torch.rand(3, *NETWORKS[name][1], dtype=torch.float64, requires_grad=True)
    for ours, theirs in zip(
        (turned(x), torch.autograd.grad(turned(x).logsumexp(1).sum(), x)[0]),
        (model(x), torch.autograd.grad(model(x).logsumexp(1).sum(), x)[0]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_the_model_is_left_as_it_is():
    model = network("resnet18").train()
    before = {name: (value.clone(), value.stride()) for name, value in model.state_dict().items()}
    turned = channels_last_copy(model)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not turned.training
    assert not any(parameter.requires_grad for parameter in turned.parameters())
    for name, value in model.state_dict().items():
        assert value.equal(before[name][0])
        assert value.stride() == before[name][1]
    kernels = [value for value in turned.parameters() if value.dim() == 4]
    assert len(kernels) == 20
    assert all(value.is_contiguous(memory_format=torch.channels_last) for value in kernels)


def test_only_our_own_networks_on_a_gpu_are_turned():
    model, theirs = network("cnn"), nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    assert search_model(model, tf32=True) is model  # there is no TF32 on a CPU
    assert search_model(model, tf32=False) is model
    assert search_model(theirs, tf32=True) is theirs
    assert search_model(nn.Flatten(), tf32=True) is not None


@pytest.fixture
def nothing_compiled():
    """Torch compiles a function eight times at most, and each of these tests brings its own compiler."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def counting(graphs):
    """A compiler that compiles nothing and counts."""

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    return backend


SIZES = (50, 1, 31, 32, 33, 50, 64, 48)


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("name", NETWORKS)
def test_the_compiled_copy_computes_the_same_for_any_number_of_images(name):
    graphs: list[object] = []
    model = network(name).double().eval()
    batch = torch.rand(48, *NETWORKS[name][1], dtype=torch.float64)
    quick = compiled(channels_last_copy(model), batch, counting(graphs))
    ready = len(graphs)
    assert ready >= 2, "with gradients and without"
    with allowing_tf32():
        for size in SIZES:
            x = torch.rand(size, *NETWORKS[name][1], dtype=torch.float64)
            with torch.no_grad():
                torch.testing.assert_close(quick(x), model(x), rtol=1e-10, atol=1e-12)
            assert not quick(x).requires_grad
            for z in (x.clone().requires_grad_(), x.transpose(2, 3).requires_grad_()):
                gradients = [torch.autograd.grad(f(z).logsumexp(1).sum(), z)[0] for f in (quick, model)]
                torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
    assert len(graphs) == ready, "compiled again in the midst of a search"


@pytest.mark.usefixtures("nothing_compiled")
def test_images_of_one_channel_are_compiled_for_once_whatever_their_strides():
    graphs: list[object] = []
    model = network("mlp").eval()
    x = torch.rand(40, 6, 6, 1).permute(0, 3, 1, 2)
    quick = compiled(channels_last_copy(model), x, counting(graphs))
    ready = len(graphs)
    with allowing_tf32(), torch.no_grad():
        for other in (x, x.clone(memory_format=torch.contiguous_format), torch.rand(33, 1, 6, 6).transpose(2, 3)):
            torch.testing.assert_close(quick(other), model(other), rtol=1e-4, atol=1e-5)
    assert len(graphs) == ready


@pytest.mark.usefixtures("nothing_compiled")
def test_more_kinds_of_networks_are_compiled_than_torch_allows_by_itself():
    graphs: list[object] = []
    backend = counting(graphs)
    for classes in range(2, 9):
        model = build_model(MLPConfig(hidden=(8,)), image_shape=(1, 6, 6), num_classes=classes, seed=0).eval()
        compiled(channels_last_copy(model), torch.rand(40, 1, 6, 6), backend)
        assert len(graphs) == 2 * (classes - 1)


@pytest.mark.usefixtures("nothing_compiled")
def test_two_compiled_networks_keep_their_own_weights():
    graphs: list[object] = []
    models = [build_model(CNNConfig(), image_shape=(3, 32, 32), num_classes=4, seed=seed).eval() for seed in (0, 1)]
    backend, x = counting(graphs), torch.rand(32, 3, 32, 32)
    both = [compiled(channels_last_copy(model), x, backend) for model in models]
    with allowing_tf32(), torch.no_grad():
        for quick, model in zip(both, models, strict=True):
            torch.testing.assert_close(quick(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("kind", ["backend", "inductor", "backward"])
def test_a_search_that_does_not_compile_runs_as_it_is(kind):
    """Inductor's own errors are of another family, and a backward pass is compiled when it first runs."""

    def fails(_graph, _inputs):
        error = RuntimeError("no compiler here")
        raise InductorError(error, None) if kind == "inductor" else error

    def works(graph, _inputs):
        return make_boxed_func(graph.forward)

    broken = aot_autograd(fw_compiler=works, bw_compiler=fails) if kind == "backward" else fails
    model, x = network("cnn").eval(), torch.rand(32, 3, 32, 32)
    with pytest.warns(WidemarginWarning, match="the search does not compile .*no compiler here"):
        quick = compiled(channels_last_copy(model), x, broken)
    torch.testing.assert_close(quick(x), model(x), rtol=1e-4, atol=1e-5)


class Line(nn.Module):
    """Two classes, apart by the mean of the image."""

    def __init__(self, slope: float = 10.0) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))

    def forward(self, x: Tensor) -> Tensor:
        score = self.slope * (x.flatten(1).mean(1) - 0.5)
        return torch.stack([-score, score, score - 5, score - 5], 1)


X = torch.cat([torch.full((6, 1, 4, 4), 0.45), torch.full((6, 1, 4, 4), 0.55)])

Y = torch.tensor([0] * 6 + [1] * 6)


@pytest.mark.usefixtures("tf32_here")
@pytest.mark.parametrize(("other", "left"), [(10.0, 0.0), (0.0, 100.0), (-10.0, 100.0)])
def test_attacks_search_on_the_copy_and_the_model_judges(monkeypatch, other, left):
    """A copy that sees nothing finds nothing; one that sees everything upside down leads away from the boundary."""
    copied = Line(other)
    monkeypatch.setattr(evaluator, "search_model", lambda model, tf32, many_like: copied if tf32 else model)
    options = {"max_steps": 3, "sanity": False, "distance": True, "norm": "linf", "search": "tf32"}
    report = widemargin.evaluate(Line(), (X, Y), ["clean", "pgd5", "autoattack"], 0.2, **options)
    assert report.accuracy["clean"] == 100.0
    assert report.accuracy["pgd5"] == left
    if other > 0:
        assert report.accuracy["autoattack"] == 0.0
    if other == 0:  # it takes all for class 0: what it holds to be wrong is pushed across by the model's own gradient
        assert report.accuracy["autoattack/apgd-ce"] == 50.0
    plain = widemargin.evaluate(Line(), (X, Y), ["clean"], 0.2, **(options | {"search": "float32"}))
    assert report.margin.equal(plain.margin)
    right = report.distance / plain.distance
    assert right.min() > 0.9
    assert right.max() < 1.1


LONG, SHORT = {"attacks": ("clean", "autoattack")}, {"attacks": ("clean", "pgd20")}

WHEN = [
    (LONG, 500, 250),
    (SHORT | {"distance": "full"}, 700, 250),
    (LONG | {"batch_size": 600}, 600, 600),
    (LONG, 499, None),
    (SHORT, 700, None),
    (LONG | {"max_steps": 3}, 700, None),
]


@pytest.mark.parametrize(("changes", "images", "expected"), WHEN)
def test_only_a_long_search_is_worth_compiling(changes, images, expected):
    settings = EvaluationSettings(**({"eps": (0.1,)} | changes))
    for flat in (False, True):
        shard = Shard(0, 0, torch.rand(images, 1, 4, 4), torch.zeros(images, dtype=torch.long), flat)
        like = evaluator._many_like(shard, settings)
        if expected is None:
            assert like is None
        else:
            assert like.equal(shard.images[:expected].flatten(1) if flat else shard.images[:expected])


def test_nothing_is_made_for_the_search_where_nothing_is_left_to_do(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(evaluator, "search_model", lambda model, **_: made.append(1) or model)
    options = {"max_steps": 2, "sanity": False, "shard_size": 5}
    for _ in range(2):
        widemargin.evaluate(Line(), (X, Y), ["clean", "pgd5"], 0.2, out=tmp_path, **options)
        assert made == [1]


def test_what_is_watched_is_searched_so_too(monkeypatch):
    asked = []
    monkeypatch.setattr(
        accuracy, "search_model", lambda model, tf32: asked.append(tf32) or (Line(0.0) if tf32 else model)
    )
    data, attack = ImageSet(X, Y, num_classes=2, name="line"), PGD(eps=0.2, step_size=0.1, steps=5)
    assert [verdicts(Line(), data, attack, tf32=tf32).sum().item() for tf32 in (False, True)] == [0, 12]
    assert asked == [False, True]


def test_what_is_found_with_tf32_is_judged_without(monkeypatch):
    """Twelve images, five at a time."""
    order = []
    monkeypatch.setattr(accuracy, "allowing_tf32", lambda: order.append("search") or full_float32())
    judge = accuracy.classified
    monkeypatch.setattr(accuracy, "classified", lambda *args: order.append("judge") or judge(*args))
    data, attack = ImageSet(X, Y, num_classes=2, name="line"), PGD(eps=0.03, step_size=0.02, steps=2)
    seen: list[int] = []
    found = verdicts(Line(), data, attack, batch_size=5, tf32=True, advance=seen.append)
    assert order == ["search", "judge"] * 3
    assert found.equal(verdicts(Line(), data, attack, batch_size=5))
    assert seen == [5, 5, 2]


class Halves(nn.Module):
    """Class 0 where the mean is below the edge, else 1; the two logits are far from the others."""

    def __init__(self, edge: float) -> None:
        super().__init__()
        self.edge = nn.Parameter(torch.tensor(edge))

    def forward(self, x: Tensor) -> Tensor:
        gap = self.edge - x.flatten(1).mean(1)
        return torch.stack([gap, -gap, gap - 9, gap - 9], 1)


class Shifted(nn.Module):
    """Adds to the logits."""

    def __init__(self, by: Tensor) -> None:
        super().__init__()
        self.by = nn.Parameter(by)

    def forward(self, logits: Tensor) -> Tensor:
        return logits + self.by


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_as_far_as_needed_and_no_farther(norm):
    size = 4.0 if norm == "l2" else 1.0  # in 16 pixels a move of every pixel by one is 4 long
    x = torch.full((3, 1, 4, 4), 0.5)
    x_adv = x + torch.tensor([0.049, 0.0, -0.1]).view(3, 1, 1, 1)
    y = torch.zeros(3, dtype=torch.long)
    moved = push_across_boundary(Halves(0.55), x, x_adv, y, make_threat(norm, 0.1 * size))
    steps = (moved - x_adv).flatten(1).mean(1) / 0.005  # of a twentieth of eps each
    torch.testing.assert_close(steps, torch.tensor([1.0, 10.0, 10.0]), atol=0.01, rtol=0)
    assert Halves(0.55)(moved).argmax(1).tolist() == [1, 0, 0]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_it_stays_inside_the_threat_and_the_pixels(norm):
    threat = make_threat(norm, 0.1)
    x = torch.cat([torch.full((2, 1, 4, 4), 0.5), torch.full((2, 1, 4, 4), 0.99)])
    y = torch.zeros(4, dtype=torch.long)
    moved = push_across_boundary(Halves(5.0), x, x + (0.09 if norm == "linf" else 0.02), y, threat)
    assert threat.size(moved - x)[:2].min() > 0.0999  # as far as it may go
    assert (threat.size(moved - x) <= 0.1 + 1e-6).all()
    assert moved.min() >= 0
    assert moved.max() <= 1
    assert (moved > x).all()


def test_it_climbs_towards_the_class_that_is_nearest():
    """Not away from the label, nor down its probability: here both lead nowhere."""
    plane = nn.Sequential(nn.Flatten(), nn.Linear(2, 3, bias=False))
    with torch.no_grad():
        plane[1].weight.copy_(torch.tensor([[0.0, 0.0], [-9.0, 0.0], [1.0, 1.0]]))
    x = torch.tensor([0.5, 0.5]).view(1, 2, 1, 1)
    lead = nn.Sequential(plane, Shifted(torch.tensor([1.05, 0.0, 0.0])))
    moved = push_across_boundary(lead, x, x, torch.zeros(1, dtype=torch.long), make_threat("l2", 1.0))
    torch.testing.assert_close((moved - x).flatten(), torch.full((2,), 0.05 / 2**0.5), atol=1e-5, rtol=0)


def test_nothing_to_push():
    nothing = torch.zeros(0, 1, 4, 4)
    moved = push_across_boundary(
        Halves(0.5), nothing, nothing, torch.zeros(0, dtype=torch.long), make_threat("linf", 0.1)
    )
    assert moved.shape == nothing.shape


def test_a_push_takes_two_passes_a_step():
    passes = []
    model = Halves(5.0)
    model.register_forward_hook(lambda *_: passes.append(1))
    x = torch.full((1, 1, 4, 4), 0.5)
    push_across_boundary(model, x, x, torch.zeros(1, dtype=torch.long), make_threat("linf", 0.1))
    assert len(passes) == 2 * STEPS


class Rounding(nn.Module):
    """Where TF32 is on, weights have a few bits fewer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.rounded = {name: tensor.detach().bfloat16().float() for name, tensor in network.named_parameters()}

    def forward(self, x: Tensor) -> Tensor:
        switches = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        weights = self.rounded if switches == TF32 else {}
        logits: Tensor = torch.func.functional_call(self.network, weights, (x,))
        return logits


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.5)])
def test_what_fab_finds_at_the_boundary_is_kept(norm, eps, monkeypatch):
    model, (x, y) = Rounding(taught_conv()), pictures(10, 200)
    device, threat = torch.device("cpu"), make_threat(norm, eps)
    reference = make_reference(model, eps=eps, norm=norm, seed=0, num_classes=10, device=device, max_steps=10)

    def broken(tf32: Threat | None) -> tuple[int, int]:
        with undisturbed(model):
            survivors = model(x).argmax(1) == y
            options = {"reference": reference, "part": "fab-t", "batch_size": 200, "within": tf32}
            judge, moved = Counted(model), x.clone()
            found = break_survivors(judge, x, y, survivors, **options)
        moved[survivors] = judge.seen[-1]
        assert (threat.size(moved - x)[found.positions] <= eps * (1 + 1e-5)).all()
        return len(found.positions), found.refuted

    def watched(network: nn.Module, clean: Tensor, x_adv: Tensor, labels: Tensor, within: Threat) -> Tensor:
        assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (False, False)
        assert (network(x_adv).argmax(1) == labels).all()  # what is across is left as it is
        return push_across_boundary(network, clean, x_adv, labels, within)

    monkeypatch.setattr(autoattack, "push_across_boundary", watched)
    officially, _ = broken(None)
    kept, refuted = broken(threat)
    monkeypatch.setattr(autoattack, "push_across_boundary", lambda _, __, x_adv, *___: x_adv)
    without, lost = broken(threat)
    assert without + lost == kept + refuted  # the search is the same
    assert lost > officially / 10, "nothing was there to be lost"
    assert refuted <= lost / 10
    assert kept == pytest.approx(officially, abs=0.03 * officially)


@pytest.mark.usefixtures("tf32_here")
@pytest.mark.parametrize(("norm", "eps"), [("linf", (0.05, 0.1)), ("l2", (0.3, 1.0))])
def test_the_push_is_told_the_threat_of_its_eps(norm, eps, monkeypatch):
    told = []
    monkeypatch.setattr(
        autoattack, "push_across_boundary", lambda _, __, x_adv, ___, threat: told.append(threat) or x_adv
    )
    data, options = pictures(10, 10), {"max_steps": 1, "margins": False, "sanity": False, "search": "tf32"}
    widemargin.evaluate(Rounding(taught_conv()), data, ["autoattack"], eps, norm, **options)
    assert set(told) == {make_threat(norm, radius) for radius in eps}


@pytest.mark.parametrize(("moved_to", "broken", "refuted"), [(0.549, [0], 0), (0.5, [], 0), (0.2, [], 1)])
def test_a_find_is_what_the_search_has_moved(monkeypatch, moved_to, broken, refuted):
    """Asked again, with the other images around it, its network may say otherwise."""
    x, y = torch.full((1, 1, 4, 4), 0.5), torch.zeros(1, dtype=torch.long)
    monkeypatch.setattr(autoattack, "attacked", lambda _, __, images, ___: torch.full_like(images, moved_to))
    reference = SimpleNamespace(model=Halves(5.0))
    options = {"reference": reference, "part": "apgd-ce", "batch_size": 4, "within": make_threat("linf", 0.4)}
    found = break_survivors(Halves(0.55), x, y, torch.ones(1, dtype=torch.bool), **options)
    assert (found.positions, found.refuted) == (broken, refuted)
