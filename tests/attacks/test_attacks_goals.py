"""What PGD climbs and from where: losses, scales, restarts, several passes, another network's gradients, dead zones."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from pyautoattack.autopgd_base import APGDAttack
from torch import Tensor, nn

from oracles import images, labels, relu_net, seeded
from widemargin import FGSM, PGD, InputError
from widemargin.attacks import StrongestPGD, attack_named, straight_through_gradients
from widemargin.attacks.names import name_of
from widemargin.config.run import kinds
from widemargin.core.schema import from_table, to_table
from widemargin.losses import carlini_wagner, cross_entropy, dlr, lead_of_another

BASE = PGD(eps=0.1, step_size=0.03, steps=6)


def margin_slowly(z: list[float], y: int) -> float:
    return max(value for k, value in enumerate(z) if k != y) - z[y]


def dlr_slowly(z: list[float], y: int) -> float:
    ordered = sorted(z, reverse=True)
    return margin_slowly(z, y) / (ordered[0] - ordered[2] + 1e-12)


@pytest.mark.parametrize(
    ("goal", "slowly"),
    [(dlr, dlr_slowly), (carlini_wagner, lambda z, y: min(margin_slowly(z, y), 0.0)), (lead_of_another, margin_slowly)],
)
def test_goals_against_their_formulas(goal, slowly) -> None:
    z, y = 3 * torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), labels(40, 6)
    expected = [slowly(row.tolist(), int(label)) for row, label in zip(z, y, strict=True)]
    assert goal(z, y).tolist() == pytest.approx(expected, abs=1e-12)
    assert len({value > 0 for value in expected if value}) >= 1


def test_dlr_is_that_of_autoattack() -> None:
    z, y = torch.randn(30, 5, generator=torch.Generator().manual_seed(1)), labels(30, 5)
    theirs = APGDAttack(nn.Flatten(), eps=0.1, norm="Linf", device="cpu").dlr_loss(z, y)
    torch.testing.assert_close(dlr(z, y), theirs)
    with pytest.raises(InputError, match="it needs 3 classes, got 2"):
        dlr(z[:, :2], y % 2)


def climbed_slowly(model: nn.Module, x: Tensor, y: Tensor, loss, start: Tensor | None = None) -> Tensor:
    """One image at a time, with a loss of one row of logits."""
    found = []
    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        point = (image if start is None else start[number]).clone()
        for _ in range(BASE.steps):
            leaf = point.clone().requires_grad_(True)
            (gradient,) = torch.autograd.grad(loss(model(leaf[None])[0], int(label)), leaf)
            moved = point + BASE.step_size * gradient.sign()
            point = torch.minimum(torch.maximum(moved, image - BASE.eps), image + BASE.eps).clamp(0, 1).detach()
        found.append(point)
    return torch.stack(found)


def others(z: Tensor, y: int) -> Tensor:
    return torch.cat([z[:y], z[y + 1 :]])


ROW_LOSSES = {
    "margin": (replace(BASE, loss="margin"), lambda z, y: others(z, y).max() - z[y]),
    "dlr": (
        replace(BASE, loss="dlr"),
        lambda z, y: (others(z, y).max() - z[y]) / (z.sort().values[-1] - z.sort().values[-3] + 1e-12),
    ),
    "cw": (replace(BASE, loss="cw"), lambda z, y: torch.minimum(others(z, y).max() - z[y], z.new_zeros(()))),
    "scaled": (replace(BASE, logit_scale=10), lambda z, y: -F.log_softmax(10 * z, dim=0)[y]),
    "usual": (BASE, lambda z, y: -F.log_softmax(z, dim=0)[y]),
}


@pytest.mark.parametrize("name", ROW_LOSSES)
def test_each_loss_one_image_at_a_time(name: str) -> None:
    attack, loss = ROW_LOSSES[name]
    model, x, y = relu_net(), images(12, 1, 3, 5), labels(12, 4)
    found = attack(model, x, y)
    torch.testing.assert_close(found, climbed_slowly(model, x, y, loss), rtol=0, atol=1e-13)
    if name != "usual":
        assert not torch.equal(found, BASE(model, x, y))


def test_an_image_stays_where_the_clamp_first_let_it_across() -> None:
    model, x, y = relu_net(), images(30, 1, 3, 5), labels(30, 4)
    wrong = model(x).argmax(1) != y
    found = replace(BASE, loss="cw")(model, x, y)
    assert wrong.any()
    assert torch.equal(found[wrong], x[wrong])
    lead = lead_of_another(model(found), y)[~wrong]
    assert (lead <= lead_of_another(model(replace(BASE, loss="margin")(model, x, y)), y)[~wrong] + 1e-12).all()


class Flattering(nn.Module):
    """Small logits, many classes: the cross-entropy pulls towards all of them, the nearest boundary is of one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, -1.0, 0.2], *[[-1.0, 1.0, -1.0]] * 8, [0.6, 0.0, 2.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return 0.05 * x.flatten(1) @ self.weight.to(x.dtype).T


def test_scaled_logits_and_the_margin_find_what_the_cross_entropy_does_not() -> None:
    x, y = torch.full((1, 1, 1, 3), 0.5, dtype=torch.float64), torch.tensor([0])
    x[0, 0, 0] = torch.tensor([0.95, 0.1, 0.35])
    attack = PGD(eps=0.2, step_size=0.05, steps=10)
    attacks = {"ce": attack, "s": replace(attack, logit_scale=100), "m": replace(attack, loss="margin")}
    model = Flattering().requires_grad_(False)
    leads = {name: float(lead_of_another(model(one(model, x, y)), y)) for name, one in attacks.items()}
    assert leads["ce"] < leads["m"]
    assert leads["s"] == pytest.approx(leads["m"])


# Restarts


def test_of_several_climbs_the_worst_stays() -> None:
    model, x, y = relu_net(seed=3), images(60, 1, 3, 5, seed=4), labels(60, 4)
    attack = replace(BASE, restarts=4, steps=2)
    found = attack(model, x, y, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(7)
    climbs = [replace(BASE, steps=2)(model, x, y)]
    climbs += [replace(BASE, steps=2, random_start="uniform")(model, x, y, generator=generator) for _ in range(3)]
    chosen = []
    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        del image
        ends = [climb[number] for climb in climbs]
        fooled = [bool(model(end[None]).argmax() != label) for end in ends]
        losses = [cross_entropy(model(end[None]), label[None]).item() for end in ends]
        chosen.append(ends[max(range(4), key=lambda n, f=fooled, v=losses: (f[n], v[n], -n))])
    assert torch.equal(found, torch.stack(chosen))
    assert len({int((found[n] == torch.stack(climbs)[:, n]).flatten(1).all(1).int().argmax()) for n in range(60)}) >= 3


def test_a_climb_that_fools_comes_before_one_of_a_higher_loss() -> None:
    class Two(nn.Module):
        """At 0.5 the loss is higher, at 0.6 the prediction is wrong."""

        def forward(self, x: Tensor) -> Tensor:
            at = x.flatten(1)[:, 0]
            before, after = torch.tensor([0.1, 0.0, 0.05]), torch.tensor([1.0, 1.1, -9.0])
            return torch.where(at[:, None] > 0.55, after, before) + 0 * x.sum()

    x, y = torch.full((1, 1, 1, 1), 0.5), torch.tensor([0])
    starts = iter([torch.full_like(x, 0.5), torch.full_like(x, 0.6)])
    attack = PGD(eps=0.2, step_size=0.1, steps=1, restarts=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PGD, "_random_point", lambda *_: next(starts))
        patch.setattr(PGD, "_first_point", lambda *_: next(starts))
        found = attack(Two(), x, y)
    losses = cross_entropy(Two()(torch.cat([x, found])), torch.tensor([0, 0]))
    assert float(losses[1]) < float(losses[0])
    assert float(found) == pytest.approx(0.6)


# Several passes, for a randomized model


class Noisy(nn.Module):
    """Its gradient is of another linear network at every pass."""

    def __init__(self, passes: list[Tensor]) -> None:
        super().__init__()
        self.passes, self.calls = passes, 0

    def forward(self, x: Tensor) -> Tensor:
        weight = self.passes[self.calls % len(self.passes)]
        self.calls += 1
        return x.flatten(1) @ weight.T


def test_the_gradient_is_the_mean_over_passes() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(3, 6, dtype=torch.float64, generator=generator) for _ in range(5)]
    x, y = images(4, 1, 2, 3), labels(4, 3)
    found = PGD(eps=0.3, step_size=0.3, steps=1, norm="l2", eot=5)(Noisy(weights), x, y)
    gradients = []
    for weight in weights:
        leaf = x.clone().requires_grad_(True)
        gradients.append(torch.autograd.grad(F.cross_entropy(leaf.flatten(1) @ weight.T, y, reduction="sum"), leaf)[0])
    mean = torch.stack(gradients).mean(0)
    expected = (x + 0.3 * mean / mean.flatten(1).norm(dim=1).view(-1, 1, 1, 1)).clamp(0, 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    model = Noisy(weights)
    PGD(eps=0.3, step_size=0.1, steps=3, eot=5)(model, x, y)
    assert model.calls == 15


# Transfer


def test_gradients_are_those_of_the_surrogate() -> None:
    model, surrogate, x, y = relu_net(seed=0), relu_net(seed=1), images(20, 1, 3, 5), labels(20, 4)
    assert torch.equal(replace(BASE, surrogate=surrogate)(model, x, y), BASE(surrogate, x, y))
    assert not torch.equal(BASE(model, x, y), BASE(surrogate, x, y))


def test_the_model_itself_chooses_among_the_restarts_of_a_transfer() -> None:
    model, surrogate, x, y = relu_net(seed=0), relu_net(seed=1), images(60, 1, 3, 5), labels(60, 4)
    attack = replace(BASE, surrogate=surrogate, restarts=3, random_start="uniform")
    found = attack(model, x, y, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(5)
    one = replace(BASE, random_start="uniform")
    climbs = torch.stack([one(surrogate, x, y, generator=generator) for _ in range(3)])
    values = torch.stack([cross_entropy(model(climb), y) for climb in climbs])
    fooled = torch.stack([model(climb).argmax(1) != y for climb in climbs])
    best = (values + 1e6 * fooled).argmax(0)
    assert torch.equal(found, climbs[best, torch.arange(60)])
    assert surrogate.training
    assert all(p.requires_grad for p in surrogate.parameters())


# Pieces without a gradient


class DeadZone(nn.Module):
    """Values near zero become zero, others the nearest of a few levels: the gradient is zero everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return (4 * torch.where(x.abs() < 0.05, torch.zeros_like(x), x)).round() / 4


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = seeded(0, lambda: nn.Linear(15, 30).double())
        self.zone = DeadZone()
        self.last = seeded(1, lambda: nn.Linear(30, 4).double())

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.last(self.zone(4 * self.first(x.flatten(1))))
        return z


@pytest.mark.parametrize("names", [("zone",), ("DeadZone",)])
def test_a_dead_zone_hides_the_gradient_and_straight_through_breaks_it(names: tuple[str, ...]) -> None:
    model, x = Masked(), images(200, 1, 3, 5)
    y = model(x).argmax(1)
    hidden, straight = PGD(eps=0.1, step_size=0.025, steps=20), replace(BASE, steps=20, straight_through=names)
    assert torch.equal(hidden(model, x, y), x)
    left = (model(straight(model, x, y)).argmax(1) == y).float().mean()
    assert left < 0.5
    assert not model.zone._forward_hooks
    wrapped = nn.Sequential(model)
    assert torch.equal(straight(wrapped, x, y), straight(model, x, y))


def test_straight_through_leaves_the_logits_and_makes_the_gradient_that_of_the_rest() -> None:
    model, x = Masked(), images(5, 1, 3, 5).requires_grad_(True)
    before = model(x)
    with straight_through_gradients(model, ["zone"]):
        after = model(x)
        (gradient,) = torch.autograd.grad(after[:, 1].sum(), x)
    assert torch.equal(before, after)
    linear = 4 * model.last.weight[1] @ model.first.weight
    torch.testing.assert_close(gradient.flatten(1), linear.expand(5, -1))
    (gradient,) = torch.autograd.grad(model(x)[:, 1].sum(), x)
    assert not gradient.any()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["zon"], "no module is named 'zon', and none is of a class 'zon'; classes: DeadZone, Linear, Masked"),
        (["first"], r"Linear does not give a tensor of the shape of its input \(\[\(5, 15\), \(5, 30\)\]\)"),
        ("zone", r"takes a list of names of modules, got 'zone'; write \['zone'\]"),
    ],
)
def test_straight_through_what_cannot_be(names, message) -> None:
    model, x = Masked(), images(5, 1, 3, 5)
    with pytest.raises(InputError, match=message), straight_through_gradients(model, names):
        model(x)


# The worst of several


NAMES = ["pgd6", "pgd6-ce-s3", "pgd6-ce-s10", "pgd6-margin", "pgd6-dlr"]


def test_the_strongest_is_the_worst_per_image() -> None:
    model, x, y = relu_net(seed=3), images(80, 1, 3, 5, seed=4), labels(80, 4)
    attack = StrongestPGD(eps=0.1, step_size=0.03, steps=6)
    variants = attack.variants(4)
    assert [name_of(variant) for variant in variants] == NAMES
    ends = torch.stack([variant(model, x, y) for variant in variants])
    lead = torch.stack([lead_of_another(model(end), y) for end in ends])
    found = attack(model, x, y)
    assert torch.equal(found, ends[lead.argmax(0), torch.arange(80)])  # a lead above zero is a wrong prediction
    assert len(set(lead.argmax(0).tolist())) >= 3
    assert [name_of(variant) for variant in attack.variants(2)] == NAMES[:4]
    StrongestPGD(eps=0.1, step_size=0.03, steps=2)(relu_net(num_classes=2), x, y % 2)


# Names and settings


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pgd20-margin", PGD(eps=0.1, step_size=0.025, steps=20, loss="margin")),
        ("pgd-20-dlr", PGD(eps=0.1, step_size=0.025, steps=20, loss="dlr")),
        ("pgd5-cw", PGD(eps=0.1, step_size=0.025, steps=5, loss="cw")),
        ("pgd20x10", PGD(eps=0.1, step_size=0.025, steps=20, restarts=10)),
        ("pgd20x10-margin", PGD(eps=0.1, step_size=0.025, steps=20, restarts=10, loss="margin")),
        ("pgd20-ce-s10", PGD(eps=0.1, step_size=0.025, steps=20, logit_scale=10)),
        ("pgd20-s2.5", PGD(eps=0.1, step_size=0.025, steps=20, logit_scale=2.5)),
        ("pgd-strongest", StrongestPGD(eps=0.1, step_size=0.025, steps=20)),
        ("pgd100-strongest", StrongestPGD(eps=0.1, step_size=0.025, steps=100)),
    ],
)
def test_names(name: str, expected: object) -> None:
    assert attack_named(name, eps=0.1) == expected


@pytest.mark.parametrize(
    "name", ["pgd20-hinge", "pgd20x", "pgd20x0-", "pgd0-margin", "pgd-margin", "pgd20--margin", "pgd20-ce-s"]
)
def test_names_of_nothing(name: str) -> None:
    with pytest.raises(InputError, match=r"unknown attack .*; known are clean, fgsm, pgdN"):
        attack_named(name, eps=0.1)


@pytest.mark.parametrize("name", ["pgd20", "pgd7-margin", "pgd20x3-dlr", "pgd20-ce-s3", "pgd20x2-ce-s2.5"])
def test_a_name_is_that_of_its_attack(name: str) -> None:
    attack = attack_named(name, eps=0.1)
    assert isinstance(attack, PGD)
    assert name_of(attack) == name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "hinge"}, "PGD.loss must be one of 'ce', 'margin', 'dlr', 'cw', got 'hinge'"),
        ({"logit_scale": 0}, "PGD.logit_scale must be a positive number, got 0; 3 and 10 are usual"),
        ({"logit_scale": math.nan}, "PGD.logit_scale must be a positive number"),
        (
            {"logit_scale": 3, "loss": "margin"},
            "PGD.logit_scale has no effect on loss='margin', whose direction",
        ),
        ({"restarts": 0}, "PGD.restarts must be a whole number of at least 1, got 0"),
        ({"eot": 0.5}, "PGD.eot must be a whole number of at least 1, got 0.5"),
        ({"surrogate": nn.Flatten(), "mode": "train"}, "PGD.mode='train' has no effect on a surrogate"),
    ],
)
def test_bad_settings(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(BASE, **changes)


@pytest.mark.parametrize("changes", [{"loss": "margin"}, {"logit_scale": 3}])
def test_a_loss_and_a_goal_are_one_too_many(changes: dict) -> None:
    with pytest.raises(InputError, match="its loss has no effect where a goal is given"):
        replace(BASE, **changes)(relu_net(), images(2, 1, 3, 5), labels(2, 4), goal=lead_of_another)
    with pytest.raises(InputError, match="StrongestPGD has goals of its own"):
        StrongestPGD(eps=0.1, step_size=0.1, steps=1)(relu_net(), images(2, 1, 3, 5), labels(2, 4), goal=dlr)


def test_tables_of_before_are_as_they_were_and_new_ones_come_back() -> None:
    usual = {
        "kind": "pgd",
        "eps": 0.1,
        "step_size": 0.03,
        "steps": 6,
        "norm": "linf",
        "random_start": False,
        "mode": "eval",
    }
    assert to_table(BASE, kinds()) == usual
    for changes in ({"loss": "margin"}, {"logit_scale": 3.0, "restarts": 2}, {"eot": 4}):
        attack = replace(BASE, **changes)
        assert to_table(attack, kinds()) == usual | changes
        assert from_table(PGD, to_table(attack, kinds()), kinds()) == attack
    for name in ("surrogate", "straight_through"):
        with pytest.raises(InputError, match=f"unknown key '{name}'"):
            from_table(PGD, usual | {name: ["a"]}, kinds())


def test_what_an_attack_is_called() -> None:
    assert repr(BASE) == "PGD(eps=0.1, step_size=0.03, steps=6, norm='linf', random_start=False, mode='eval')"
    told = repr(replace(BASE, loss="dlr", surrogate=nn.Flatten()))
    assert told.endswith("mode='eval', loss='dlr', surrogate=Flatten)")
    assert FGSM(eps=0.1).norm == "linf"
