"""What a search in TF32 leaves between its boundary and float32's is pushed across, inside the threat."""

from types import SimpleNamespace

import pytest
import torch
from small_networks import Counted, pictures, taught_conv
from torch import Tensor, nn

import widemargin
from widemargin.attacks.threat import Threat, make_threat
from widemargin.core.precision import TF32
from widemargin.evaluation import autoattack
from widemargin.evaluation.autoattack import break_survivors, make_reference, undisturbed
from widemargin.evaluation.tf32_search import STEPS, push_across_boundary


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
            options = {"reference": reference, "part": "fab-t", "batch_size": 200, "tf32": tf32}
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
def test_a_find_is_what_the_search_has_moved(moved_to, broken, refuted):
    """Asked again, with the other images around it, its network may say otherwise."""
    x, y = torch.full((1, 1, 4, 4), 0.5), torch.zeros(1, dtype=torch.long)
    attack = SimpleNamespace(perturb=lambda images, _: torch.full_like(images, moved_to))
    reference = SimpleNamespace(apgd=attack, apgd_targeted=None, fab=None, square=None, seed=0, model=Halves(5.0))
    options = {"reference": reference, "part": "apgd-ce", "batch_size": 4, "tf32": make_threat("linf", 0.4)}
    found = break_survivors(Halves(0.55), x, y, torch.ones(1, dtype=torch.bool), **options)
    assert (found.positions, found.refuted) == (broken, refuted)
