"""The copy that attacks search on with TF32: the same network in another layout, which never judges."""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.exc import InductorError

import widemargin
from widemargin.attacks import PGD
from widemargin.core.precision import allowing_tf32, full_float32
from widemargin.data import ImageSet
from widemargin.errors import WidemarginWarning
from widemargin.evaluation import accuracy, evaluator
from widemargin.evaluation.accuracy import verdicts
from widemargin.evaluation.settings import EvaluationSettings
from widemargin.evaluation.shards import Shard
from widemargin.evaluation.tf32_search import channels_last_copy, compiled, search_model
from widemargin.models import CNNConfig, MLPConfig, ResNet18Config, build_model

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
    (SHORT | {"distance": True}, 700, 250),
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
