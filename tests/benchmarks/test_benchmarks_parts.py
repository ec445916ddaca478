"""Cases, ceilings, turns and the paper's table."""

import pytest
import torch
from benchmarks.case import ATTACK, Case, engine_variant, find_model, naive_variant
from benchmarks.ceilings import Convolution, _convolutions, convolution_ceiling, dominant_convolutions, matrix_ceiling
from benchmarks.paper import paper_cases
from benchmarks.timing import Clock, interleaved
from torch import nn

from widemargin.engine import Plan, forward_flops
from widemargin.errors import InputError
from widemargin.jobs.cost import Passes
from widemargin.models import MODELS
from widemargin.models.wide_resnet import WideResNet

CPU = torch.device("cpu")


class CountingClock(Clock):
    """The n-th call takes n seconds."""

    def seconds(self, step, steps=1):
        step()
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        return float(self.calls)


def test_variants_take_turns_and_medians_are_theirs():
    order = []
    steps = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    times = interleaved(steps, CountingClock(CPU), 3, lambda: order.append("|"))
    assert "".join(order) == "ab|ab|ab|"
    assert (times["a"].low, times["a"].median, times["a"].high) == (1.0, 3.0, 5.0)
    assert (times["b"].low, times["b"].median, times["b"].high) == (2.0, 4.0, 6.0)


def test_the_clock_counts_steps():
    done = []
    assert Clock(CPU).seconds(lambda: done.append(1), 3) >= 0
    assert len(done) == 3
    assert Clock(CPU).steps_a_round(lambda: done.append(1)) == 1


def test_the_convolutions_of_a_network_are_its_flops():
    model = WideResNet(depth=10, widen=2)
    found = _convolutions(model, (3, 32, 32))
    linear = 2 * model.fc.weight.numel()
    assert sum(count * shape.flops for shape, count in found.items()) + linear == forward_flops(model, (3, 32, 32), CPU)
    shares = dominant_convolutions(model, (3, 32, 32))
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert Convolution((32, 32, 3, 3), (32, 32), (1, 1), (1, 1), (1, 1), 1) in shares
    assert model.training


def test_the_convolution_ceiling_weighs_by_flops_and_passes(monkeypatch):
    """Forward passes at 4 FLOPs a second and weight gradients at 1: three of one and one of the other run at 16/7."""
    shape = Convolution((1, 1, 1, 1), (1, 1), (1, 1), (0, 0), (1, 1), 1)
    assert shape.flops == 2

    class Rates(Clock):
        def median(self, step, *, rounds, steps):
            step()
            return {"forward": 0.5, "weights": 2.0}[step.__name__]

    def passes(*arguments):
        def forward():
            pass

        def weights():
            pass

        return {"forward": forward, "weights": weights}

    monkeypatch.setattr("benchmarks.ceilings._passes_of", passes)
    assert convolution_ceiling({shape: 1.0}, Passes(3, 0, 1), 1, Plan(), Rates(CPU)) == pytest.approx(16 / 7)


def test_ceilings_are_measured():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.Flatten(), nn.Linear(64, 10))
    shapes = dominant_convolutions(model, (3, 8, 8))
    assert list(shapes) == [Convolution((4, 3, 3, 3), (8, 8), (2, 2), (1, 1), (1, 1), 1)]
    rate = convolution_ceiling(shapes, Passes(1, 1, 1), 2, Plan(channels_last=True), Clock(CPU))
    assert rate is not None
    assert rate > 0
    assert matrix_ceiling(Plan(), Clock(CPU)) > 0
    assert dominant_convolutions(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (1, 2, 2)) == {}
    assert convolution_ceiling({}, Passes(1, 1, 1), 2, Plan(), Clock(CPU)) is None


def test_names_of_models():
    assert find_model("resnet-18") == "resnet18"
    assert find_model("wrn-34-10") == "wrn-34-10"
    with pytest.raises(InputError, match="did you mean 'resnet-18'"):
        find_model("resnet-19")


@pytest.mark.parametrize("model", MODELS)
def test_cases_are_runs(model):
    config = Case(model=model, emr="approximate", igr=True).config()
    assert config.objective.attack.steps == (20 if model == "mlp" else ATTACK.steps)
    assert config.emr.at == config.igr.at == "adversarial"
    assert Case(model=model, objective="st", emr="exact").config().emr.at == "clean"


def test_the_share_is_that_of_emr_else_of_igr():
    both = Case(model="mlp", emr="exact", igr=True)
    assert (both.penalty, both.label()) == ("emr", "AT + IGR + exact EMR")
    assert both.without_penalty() == Case(model="mlp", igr=True)
    assert both.without_penalty().penalty == "igr"
    assert Case(model="mlp", igr=True).without_penalty() == Case(model="mlp")
    assert Case(model="mlp").penalty is None


def test_the_papers_steps_in_its_order():
    cases = paper_cases("wrn-34-10", 128)
    assert list(cases) == ["AT", "AT+IGR", "AT+HE", "AT+EMR", "TRADES", "TRADES+IGR", "TRADES+HE", "TRADES+EMR"]
    seconds = {name: published for name, (_, published) in cases.items()}
    assert seconds["AT"] == 2.46
    assert seconds["TRADES+HE"] == 3.32
    assert cases["TRADES+HE"][0] == Case(model="wrn-34-10", objective="trades", head="he")
    assert cases["AT+EMR"][0] == Case(model="wrn-34-10", objective="at", emr="approximate")
    assert cases["AT+IGR"][0] == Case(model="wrn-34-10", objective="at", igr=True)


def test_too_little_memory_is_said(monkeypatch):
    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("benchmarks.case.make_state", full)
    case = Case(model="mlp", emr="exact", batch_size=64)
    with pytest.raises(InputError, match=r"AT \+ exact EMR of mlp at --batch-size 64 .* use a smaller --batch-size"):
        engine_variant(case, Plan(), CPU)
    assert naive_variant(case, CPU) is None


def test_variants_are_compiled_however_many_there_are(monkeypatch):
    """Where a plan compiles, torch's limit on recompiling one function is out of the way, and back afterwards."""
    from torch._dynamo import config

    seen = []
    monkeypatch.setattr("benchmarks.case._warm", lambda make, device: seen.append(config.recompile_limit))
    before = config.recompile_limit
    engine_variant(Case(model="mlp"), Plan(engine="fast", compiler="eager"), CPU)
    engine_variant(Case(model="mlp"), Plan(), CPU)
    assert seen == [128, before]
    assert config.recompile_limit == before
