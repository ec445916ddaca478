"""On the CPU every path of the engine equals eager float32, and what cannot be fast still runs and says so."""

import warnings
from dataclasses import replace

import pytest
import torch
from engine_cases import HEADS, OBJECTIVES, PENALTIES, difference, gradients, run_of, state_of, trained, weights
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.exc import InductorError

from widemargin import ApproximateEMR, ExactEMR, InputError
from widemargin.attacks import PGD
from widemargin.distributed.sync_batch_norm import SharedBatchNorm, share_batch_norms
from widemargin.engine import EvalCopy, FastNetwork, Plan, cuda_graphs, forward_flops, make_plan
from widemargin.engine import plan as plan_module
from widemargin.engine.cuda_graphs import AHEAD, Pace
from widemargin.engine.fast_model import FoldedBatchNorm
from widemargin.errors import WidemarginWarning
from widemargin.objectives import Standard
from widemargin.regularizers import InputGradient
from widemargin.types import Nets, Outcome

FAST = Plan(engine="fast")
FACTORS = Plan(engine="fast", precision="bfloat16 factors")
BFLOAT16 = Plan(engine="fast", precision="bfloat16")
SEARCH = Plan(engine="fast", search="bfloat16")
CPU = torch.device("cpu")


def fast(model: nn.Module, plan: Plan = FAST) -> FastNetwork:
    network = FastNetwork(model, plan)
    network.refresh()
    return network


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("penalties", PENALTIES)
def test_a_few_steps_of_every_objective_and_penalty(objective: str, penalties: str) -> None:
    config = run_of("wide", objective, penalties)
    eager, quick = (trained(config, plan, "wide", count=2, dtype=torch.float64) for plan in (Plan(), FAST))
    assert difference(weights(quick), weights(eager)) < 1e-10
    assert quick.sums.keys() == eager.sums.keys()
    for name, value in eager.sums.items():
        assert float(quick.sums[name]) == pytest.approx(float(value), rel=1e-9), name


@pytest.mark.parametrize(
    ("model", "penalties", "head"),
    [
        *(
            (model, penalties, "linear")
            for model in ("mlp", "leaky", "swish")
            for penalties in ("approximate", "exact")
        ),
        *(("wide", "approximate", head) for head in HEADS if head != "linear"),
    ],
)
def test_more_steps_of_other_networks_and_heads(model: str, penalties: str, head: str) -> None:
    config = run_of(model, "at", penalties, head)
    eager, quick = (trained(config, plan, model, count=8, dtype=torch.float64) for plan in (Plan(), FAST))
    assert difference(weights(quick), weights(eager)) < 1e-9


# Compiled (the tracing and the flat graphs; the code generator is the GPU's business)

TRACED = Plan(engine="fast", channels_last=True, compiler="aot_eager")


class Small(nn.Module):
    """Convolution, batch norm, residual sum, pooling, linear; ``activation`` bends or does not."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.linear = nn.Linear(4, 5)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.norm(self.first(x)))
        x = self.activation(self.second(x) + x)
        return self.linear(x.mean((2, 3)))


def small(activation: nn.Module | None = None) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model, x = Small(activation or nn.ReLU()), torch.rand(5, 3, 6, 6)
    model.train()(x)
    return model, x, torch.randint(0, 5, (5,))


REGULARIZERS = {
    "exact": ExactEMR(),
    "exact in chunks": ExactEMR(classes_at_once=2),
    "approximate": ApproximateEMR(),
    "igr": InputGradient(),
    "exact, linf": ExactEMR(norm="linf"),
    "igr, L1": InputGradient(norm="linf", squared=False),
}


@pytest.mark.parametrize(("name", "activation"), [*((name, nn.ReLU()) for name in REGULARIZERS), ("exact", nn.SiLU())])
def test_traced_penalties(name: str, activation: nn.Module) -> None:
    model, x, y = small(activation)
    reference = REGULARIZERS[name](model, x, y)
    network = fast(model, TRACED)
    penalty = REGULARIZERS[name](network, x, y)
    torch.testing.assert_close(penalty, reference, rtol=1e-5, atol=1e-7)
    uneven = torch.linspace(0.5, 2, 5)
    ours, theirs = (gradients(model, (uneven * value).sum()) for value in (penalty, reference))
    assert difference(ours, theirs) < 1e-5


@pytest.mark.parametrize("pool", [nn.AvgPool2d(2), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2)])
def test_a_traced_penalty_is_one_graph_a_stage(pool: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), pool, nn.Flatten(), nn.LazyLinear(5))
    x = torch.rand(2, 3, 6, 6)
    model(x)
    torch._dynamo.reset()
    counters.clear()
    network = fast(model, TRACED)
    ApproximateEMR()(network, x).mean().backward()
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 3  # there, back to the images, there again with the tangents


def test_traced_passes_and_reduced_precision() -> None:
    model, x, y = small()
    attack = PGD(eps=0.1, step_size=0.02, steps=3)
    expected = attack(model, x, y)
    network = fast(model, TRACED)
    torch.testing.assert_close(attack(network, x, y), expected)
    reduced = fast(model, replace(TRACED, precision="bfloat16"))
    moved, wanted = attack(reduced, x, y) - x, expected - x
    assert (moved.sign() == wanted.sign()).float().mean() > 0.9
    ours = gradients(model, ApproximateEMR()(reduced, x).mean())
    theirs = gradients(model, ApproximateEMR()(model, x).mean())
    assert difference(ours, theirs) < 0.1
    assert reduced(x).dtype == torch.float32


@pytest.mark.parametrize("error", [ValueError("no code for this"), InductorError(ValueError("no C++ compiler"), None)])
def test_what_does_not_compile_runs_uncompiled_and_says_so_once(error: Exception) -> None:
    """Whether the error is the backend's or one that inductor passes on."""

    def failing(*_: object) -> object:
        raise error

    model, x, y = small()
    network = FastNetwork(model, Plan(engine="fast", compiler=failing))  # type: ignore[arg-type]
    with pytest.warns(WidemarginWarning, match="training pass does not compile") as said:
        logits = [network(x) for _ in range(3)]
    assert len([warning for warning in said if issubclass(warning.category, WidemarginWarning)]) == 1
    torch.testing.assert_close(logits[0].shape, model(x).shape)
    del y


# The network and its evaluation copy


def test_the_evaluation_copy_follows_weights_and_statistics() -> None:
    model, x, _ = small()
    eval_copy = EvalCopy(model)
    eval_copy.refresh()
    model.eval()
    torch.testing.assert_close(eval_copy(x), model(x))
    with torch.no_grad():
        model.second.weight.mul_(2)
        model.norm.weight.mul_(0.5)
    model.train()(x + 1)
    eval_copy.refresh()
    torch.testing.assert_close(eval_copy(x), model.eval()(x))
    assert not any(parameter.requires_grad for parameter in eval_copy.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_reduced_evaluation_copy_copies_only_heavy_weights() -> None:
    model, x, _ = small()
    eval_copy = EvalCopy(model, torch.bfloat16)
    eval_copy.refresh()
    assert eval_copy.model.first.weight.dtype == torch.bfloat16
    assert eval_copy.model.norm.weight.data_ptr() == model.norm.weight.data_ptr()
    assert eval_copy.model.norm.running_mean is model.norm.running_mean
    torch.testing.assert_close(eval_copy(x).float(), model.eval()(x), rtol=0.1, atol=0.05)


def test_attacks_alone_search_in_bfloat16() -> None:
    model, x, y = small()
    network = fast(model, SEARCH)
    network.train()
    assert torch.equal(network(x), model.train()(x))  # training is float32
    network.eval()
    with torch.no_grad():
        seen, exact = network(x), model.eval()(x)
    assert not torch.equal(seen, exact)
    torch.testing.assert_close(seen, exact, rtol=0.1, atol=0.05)
    parameters = dict(model.named_parameters())
    found, wanted = (
        torch.autograd.grad(ApproximateEMR()(net, x, y).sum(), parameters.values(), allow_unused=True)
        for net in (network, model)
    )
    for name, ours, theirs in zip(parameters, found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6, msg=name)  # and so are penalties


def test_a_cpu_searches_in_bfloat16_where_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Flatten()
    for products, wanted in (("bfloat16", SEARCH), ("bfloat16 factors", Plan()), ("float32", Plan())):
        monkeypatch.setattr(plan_module, "quickest_cpu_products", lambda products=products: products)
        assert make_plan("auto", model, (1, 28, 28), CPU, attacks=True) == wanted
        assert make_plan("auto", model, (1, 28, 28), CPU) == Plan()  # nothing to search
        for before in (Plan(), SEARCH):  # a run goes on as it began, whatever this processor is good at
            assert make_plan("auto", model, (1, 28, 28), CPU, attacks=True, began_as=before.describe()) == before
        assert make_plan("auto", model, (1, 28, 28), CPU, attacks=True, began_as="") == Plan()  # which did not say
    assert SEARCH.describe() == "fast, float32, attacks in bfloat16"


def synchronized(model: nn.Module) -> nn.Module:
    """The model with torch's own synchronized batch norm."""
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)


def shared(model: nn.Module) -> nn.Module:
    """The model with the batch norm of several processes."""
    share_batch_norms(model)
    return model


@pytest.mark.parametrize(("change", "kind"), [(synchronized, nn.SyncBatchNorm), (shared, SharedBatchNorm)])
def test_batch_norms_of_several_processes_are_folded_too(change, kind) -> None:  # type: ignore[no-untyped-def]
    plain, x, _ = small()
    with torch.no_grad():
        plain.norm.weight.uniform_(0.5, 2)
        plain.norm.bias.normal_()
    expected = plain.eval()(x)
    model = change(plain)
    assert type(model.norm) is kind
    eval_copy = EvalCopy(model)
    eval_copy.refresh()
    assert type(eval_copy.model.norm) is FoldedBatchNorm
    torch.testing.assert_close(model.eval()(x), expected)
    torch.testing.assert_close(eval_copy(x), expected)
    model.train()(x + 1)  # alone, which is plain batch norm: moves the statistics
    eval_copy.refresh_statistics()
    torch.testing.assert_close(eval_copy(x), model.eval()(x))
    network = fast(model)
    ours, theirs = (gradients(model, ApproximateEMR()(net, x).sum()) for net in (network, model))
    assert difference(ours, theirs) < 1e-5


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.SyncBatchNorm, SharedBatchNorm])
def test_a_batch_norm_derived_from_these_runs_as_it_is(kind: type[nn.Module]) -> None:
    class Doubled(kind):  # type: ignore[misc, valid-type]
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model, x, _ = small()
    model.norm = Doubled(4)
    eval_copy = EvalCopy(model)
    eval_copy.refresh()
    assert type(eval_copy.model.norm) is Doubled
    torch.testing.assert_close(eval_copy(x), model.eval()(x))


def test_a_penalty_sees_the_statistics_of_the_batch_before_it() -> None:
    model, x, _ = small()
    network = fast(model)
    network(x + 2)  # in training mode: moves the statistics
    torch.testing.assert_close(ApproximateEMR()(network, x), ApproximateEMR()(model, x))


def test_a_penalty_is_not_disturbed_before_its_backward() -> None:
    model, x, _ = small()
    network = fast(model)
    expected = gradients(model, ApproximateEMR()(network, x).sum())
    penalty = ApproximateEMR()(network, x).sum()
    network(x + 2)
    network.eval_copy.refresh_statistics()
    torch.testing.assert_close(gradients(model, penalty), expected)


def test_an_evaluation_pass_that_trains_uses_the_model_itself() -> None:
    model, x, _ = small()
    network = FastNetwork(model, FAST).eval()
    network(x).sum().backward()
    assert model.first.weight.grad is not None


def test_a_model_that_cannot_be_swept_is_differentiated_twice_and_says_so_once() -> None:
    class Opaque(Small):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.special.expit(x.flatten(1)[:, :5])

    torch.manual_seed(0)
    model, x = Opaque(nn.ReLU()), torch.rand(4, 3, 6, 6)
    network = fast(model)
    with pytest.warns(WidemarginWarning, match="double backward") as said:
        penalties = [ApproximateEMR()(network, x) for _ in range(2)]
    assert len(said) == 1
    torch.testing.assert_close(penalties[1], ApproximateEMR()(model, x))
    ours, theirs = (gradients(model, p.sum()) for p in (penalties[1], ApproximateEMR()(model, x)))
    assert difference(ours, theirs) < 1e-5


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize(("plan", "apart"), [(FACTORS, 0.1), (BFLOAT16, 0.2)])
def test_bfloat16_learns_what_float32_learns(model: str, plan: Plan, apart: float) -> None:
    config = run_of(model, "at", "approximate")
    eager, quick = (trained(config, chosen, model, count=5) for chosen in (Plan(), plan))
    start = weights(trained(config, Plan(), model, count=0))
    assert difference(weights(quick) - start, weights(eager) - start) < apart  # an attack's signs turn
    assert FACTORS.describe() == "fast, bfloat16 factors"
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"


# Plans


def test_plans_on_the_cpu() -> None:
    model = state_of(run_of()).nets.model
    assert make_plan("auto", model, (1, 28, 28), CPU) == make_plan("eager", model, (1, 28, 28), CPU) == Plan()
    assert make_plan("fast", model, (1, 28, 28), CPU) in (FAST, FACTORS, BFLOAT16)
    assert Plan().describe() == "eager, float32"
    with pytest.raises(InputError, match="--engine must be one of 'auto', 'eager', 'fast', got 'turbo'"):
        make_plan("turbo", model, (1, 28, 28), CPU)


def test_flops_of_a_forward_pass() -> None:
    model = state_of(run_of("mlp")).nets.model
    assert forward_flops(model, (1, 28, 28), CPU) == 2 * (784 * 24 + 24 * 24 + 24 * 10)


def test_an_objective_of_ones_own_trains_fast_too() -> None:
    class Doubled(Standard):
        def __call__(self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator=None) -> Outcome:  # type: ignore[no-untyped-def]
            outcome = super().__call__(nets, x, y, epoch=epoch, generator=generator)
            return replace(outcome, loss=2 * outcome.loss)

    config = replace(run_of("cnn"), objective=Doubled())
    with warnings.catch_warnings():
        warnings.simplefilter("error", WidemarginWarning)
        eager, quick = (trained(config, plan, "cnn", count=3) for plan in (Plan(), FAST))
    assert difference(weights(quick), weights(eager)) < 1e-6


# How far ahead of its GPU a program runs


class Queue:
    """In place of a GPU: counts the steps that were queued, and those that somebody waited for."""

    def __init__(self) -> None:
        self.queued = self.waited = 0

    def event(self, *, blocking: bool) -> "Queue.Event":
        assert blocking
        return Queue.Event(self)

    class Event:
        def __init__(self, queue: "Queue") -> None:
            self.queue = queue

        def record(self, stream: str) -> None:
            assert stream == "the stream of cuda:1"
            self.at = self.queue.queued

        def synchronize(self) -> None:
            self.queue.waited = max(self.queue.waited, self.at)


def test_a_program_is_at_most_so_many_steps_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, ahead = Queue(), []
    monkeypatch.setattr(cuda_graphs.torch.cuda, "Event", queue.event)
    monkeypatch.setattr(cuda_graphs.torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    step = Pace(torch.device("cuda:1"))
    for _ in range(10 * AHEAD):
        queue.queued += 1
        step()
        ahead.append(queue.queued - queue.waited)
    assert AHEAD < max(ahead) <= 2 * AHEAD
    assert queue.waited == 9 * AHEAD


def test_a_cpu_has_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs.torch.cuda, "Event", None)
    step = Pace(CPU)
    for _ in range(3 * AHEAD):
        step()
