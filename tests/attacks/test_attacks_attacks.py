"""FGSM and PGD: inside the threat set, as strong as they should be, and clear about wrong input."""

import copy
import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles import images, labels, pgd_slowly, relu_net, seeded, troublesome_net
from widemargin import FGSM, PGD, InputError
from widemargin.attacks import attack_named
from widemargin.attacks.pgd import fgsm_rs, n_fgsm
from widemargin.attacks.threat import make_threat
from widemargin.core.schema import LiteralFloat
from widemargin.losses import cross_entropy
from widemargin.types import Norm, RandomStart

ATTACKS: list[FGSM | PGD] = [
    FGSM(eps=0.2),
    FGSM(eps=0.7, norm="l2"),
    FGSM(eps=0.2, step_size=0.25, noise=0.2),
    FGSM(eps=0.7, noise=1.4, norm="l2"),
    PGD(eps=0.2, step_size=0.1, steps=4),
    PGD(eps=0.2, step_size=0.5, steps=3, random_start="uniform"),
    PGD(eps=0.2, step_size=0.05, steps=3, random_start="gaussian"),
    PGD(eps=0.7, step_size=0.5, steps=4, norm="l2"),
    PGD(eps=0.7, step_size=2.0, steps=3, norm="l2", random_start="uniform"),
    PGD(eps=0.7, step_size=0.2, steps=3, norm="l2", random_start="gaussian"),
]


def size(delta: Tensor, norm: str) -> Tensor:
    flat = delta.flatten(1)
    return flat.abs().max(1).values if norm == "linf" else flat.square().sum(1).sqrt()


def linear(num_classes: int, size: int, seed: int = 0) -> nn.Module:
    return seeded(seed, lambda: nn.Sequential(nn.Flatten(), nn.Linear(size, num_classes)))


def no_goal(logits: Tensor, y: Tensor) -> Tensor:
    """Nothing to climb: an attack returns where it started."""
    return 0.0 * logits.sum(1)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
class TestEveryAttack:
    def test_inside_the_threat_set_and_the_pixel_range_and_detached(self, attack: FGSM | PGD) -> None:
        model, x, y = troublesome_net(), images(5, 2, 4, 5), labels(5, 5)
        x[0], x[1] = 0.0, 1.0
        x_adv = attack(model, x, y)
        assert x_adv.shape == x.shape
        assert x_adv.dtype == x.dtype
        assert not x_adv.requires_grad
        assert x_adv.data_ptr() != x.data_ptr()
        assert float(x_adv.min()) >= 0
        assert float(x_adv.max()) <= 1
        assert float(size(x_adv - x, attack.norm).max()) <= attack.eps + 1e-12
        assert (size(x_adv - x, attack.norm) > 0.01).all()

    def test_the_same_generator_gives_the_same_images(self, attack: FGSM | PGD) -> None:
        model, x, y = troublesome_net(), images(3, 2, 4, 5), labels(3, 5)
        one, two = (attack(model, x, y, generator=torch.Generator().manual_seed(3)) for _ in range(2))
        assert torch.equal(one, two)

    def test_it_raises_the_loss(self, attack: FGSM | PGD) -> None:
        model, x, y = troublesome_net().eval(), images(20, 2, 4, 5), labels(20, 5)
        x_adv = attack(model, x, y)
        assert (cross_entropy(model(x_adv), y) > cross_entropy(model(x), y)).float().mean() > 0.9

    def test_the_goal_is_what_it_climbs(self, attack: FGSM | PGD) -> None:
        model, x, y = troublesome_net().eval(), images(20, 2, 4, 5), labels(20, 5)
        x_adv = attack(model, x, y, goal=lambda z, y: -cross_entropy(z, y))
        assert (cross_entropy(model(x_adv), y) < cross_entropy(model(x), y)).float().mean() > 0.9

    def test_the_goal_sees_logits_and_labels(self, attack: FGSM | PGD) -> None:
        seen = []

        def goal(logits: Tensor, y: Tensor) -> Tensor:
            seen.append((tuple(logits.shape), y.tolist()))
            return logits[:, 0]

        attack(relu_net(), images(2, 1, 3, 5), torch.tensor([3, 1]), goal=goal)
        assert set(map(str, seen)) == {str(((2, 4), [3, 1]))}

    def test_a_start_is_used_as_it_is(self, attack: FGSM | PGD) -> None:
        x = images(2, 1, 3, 5) * 0.5 + 0.25
        start = x + 0.01
        assert torch.allclose(attack(relu_net(), x, labels(2, 4), goal=no_goal, start=start), start)

    def test_requires_grad_images_are_fine(self, attack: FGSM | PGD) -> None:
        x = images(2, 1, 3, 5).requires_grad_(True)
        assert not attack(relu_net(), x, labels(2, 4)).requires_grad
        assert x.grad is None

    @pytest.mark.parametrize(
        ("x", "message"),
        [
            (
                torch.full((2, 1, 3, 5), 1.5),
                r"images must be in \[0, 1\], got values from 1.5 to 1.5; .* inside the model",
            ),
            (torch.full((2, 1, 3, 5), -0.1), r"images must be in \[0, 1\], got values from -0.1 to -0.1"),
            (torch.full((2, 1, 3, 5), math.nan), r"images must be in \[0, 1\], got values from nan to nan"),
            (torch.zeros(2, 1, 3, 5, dtype=torch.uint8), r"floating point in \[0, 1\], got torch.uint8; divide by 255"),
            (torch.zeros(0, 1, 3, 5), r"a batch \(B, ...\) of at least one sample, got shape \(0, 1, 3, 5\)"),
        ],
    )
    def test_bad_images(self, attack: FGSM | PGD, x: Tensor, message: str) -> None:
        with pytest.raises(InputError, match=message):
            attack(relu_net().float(), x, labels(2, 4))

    @pytest.mark.parametrize(
        ("y", "message"),
        [
            (torch.tensor([0, 4]), r"labels must be in 0\.\.3, got 0\.\.4; the model has 4 outputs"),
            (torch.tensor([-1, 3]), r"labels must be in 0\.\.3, got -1\.\.3"),
            (torch.tensor([0.0, 1.0]), r"labels must be integers of shape \(2,\), got torch.float32 \(2,\)"),
            (torch.tensor([0]), r"labels must be integers of shape \(2,\), got torch.int64 \(1,\)"),
        ],
    )
    def test_bad_labels(self, attack: FGSM | PGD, y: Tensor, message: str) -> None:
        with pytest.raises(InputError, match=message):
            attack(relu_net(), images(2, 1, 3, 5), y)

    def test_a_start_of_another_shape(self, attack: FGSM | PGD) -> None:
        x = images(2, 1, 3, 5)
        with pytest.raises(
            InputError, match=r"start must have the shape of the images \(2, 1, 3, 5\), got \(1, 3, 5\)"
        ):
            attack(relu_net(), x, labels(2, 4), start=x[0])

    def test_a_model_without_gradient(self, attack: FGSM | PGD) -> None:
        class Detached(nn.Sequential):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x).detach()

        with pytest.raises(InputError, match="the goal carries no gradient to the images"):
            attack(Detached(relu_net()), images(2, 1, 3, 5), labels(2, 4))


def test_equals_one_image_at_a_time() -> None:
    model, x, y = relu_net(), images(4, 1, 3, 5), labels(4, 4)
    x_adv = PGD(eps=0.1, step_size=0.03, steps=7)(model, x, y)
    torch.testing.assert_close(x_adv, pgd_slowly(model, x, y, eps=0.1, step_size=0.03, steps=7), rtol=0, atol=1e-14)


# From a random start


def test_fgsm_rs_is_pgd_of_one_step() -> None:
    model, x, y = troublesome_net(), images(4, 2, 4, 5), labels(4, 5)
    pgd = PGD(eps=0.1, step_size=0.125, steps=1, random_start="uniform")
    one, two = (attack(model, x, y, generator=torch.Generator().manual_seed(2)) for attack in (fgsm_rs(0.1), pgd))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-15)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_n_fgsm_steps_from_its_noise_and_is_not_put_back(norm: Norm) -> None:
    model, x, y = troublesome_net().eval(), images(20, 2, 4, 5) * 0.2 + 0.4, labels(20, 5)
    x_adv = n_fgsm(0.1, norm=norm)(model, x, y, generator=torch.Generator().manual_seed(2))
    start = x + make_threat(norm, 0.2).random(x, torch.Generator().manual_seed(2))
    assert float((size(x_adv - start, norm) - 0.1).abs().max()) < 1e-12
    assert float(size(x_adv - x, norm).max()) > (0.25 if norm == "linf" else 0.15)
    clipped = FGSM(eps=0.1, noise=0.2, norm=norm)(model, x, y, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(clipped, x + make_threat(norm, 0.1).project(x_adv - x), rtol=0, atol=1e-12)


def test_on_batch_statistics_the_model_is_left_alone_in_either_mode() -> None:
    """Dropout would draw from the global state, so a network without."""
    model = nn.Sequential(*(part for part in troublesome_net() if not isinstance(part, nn.Dropout)))
    x, y = images(6, 2, 4, 5), labels(6, 5)
    attack = PGD(eps=0.1, step_size=0.03, steps=3, mode="batch")
    free = copy.deepcopy(model).train()
    for norm in free.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            norm.running_mean = norm.running_var = None
    expected = PGD(eps=0.1, step_size=0.03, steps=3)(free, x, y)
    for training in (False, True):
        before = copy.deepcopy(model.train(training).state_dict())
        assert torch.equal(attack(model, x, y), expected)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(module.training == training for module in model.modules())
    assert not torch.equal(PGD(eps=0.1, step_size=0.03, steps=3)(model, x, y), expected)


# On a linear model the best attack is known


def test_fgsm_is_the_best_attack_on_two_linear_classes() -> None:
    model, x, y = linear(2, 6), images(10, 6), labels(10, 2)
    weight = model[1].weight.detach()
    away = (weight[1 - y] - weight[y]).sign()
    expected = (x + 0.1 * away).clamp(0, 1)
    torch.testing.assert_close(FGSM(eps=0.1)(model, x, y), expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(PGD(eps=0.1, step_size=0.04, steps=5)(model, x, y), expected, rtol=0, atol=1e-15)


def test_l2_is_the_best_attack_on_two_linear_classes() -> None:
    model, x, y = linear(2, 6), images(10, 6) * 0.2 + 0.4, labels(10, 2)
    weight = model[1].weight.detach()
    away = weight[1 - y] - weight[y]
    expected = x + 0.3 * away / away.norm(dim=1, keepdim=True)
    for attack in (FGSM(eps=0.3, norm="l2"), PGD(eps=0.3, step_size=0.1, steps=5, norm="l2")):
        torch.testing.assert_close(attack(model, x, y), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_against_every_corner_of_the_box(seed: int) -> None:
    """The loss of a linear model is convex, so its maximum over the box is at a corner: try all of them."""
    eps, size = 0.15, 5
    model, x, y = linear(3, size, seed), images(6, size, seed=seed), labels(6, 3, seed=seed)
    corners = torch.tensor(list(itertools.product([-eps, eps], repeat=size)), dtype=x.dtype)
    points = (x[:, None] + corners).clamp(0, 1)
    losses = F.cross_entropy(model(points.flatten(0, 1)), y.repeat_interleave(len(corners)), reduction="none")
    best = losses.view(6, -1).max(1).values
    attack = PGD(eps=eps, step_size=0.05, steps=20)
    starts = [x, *[(x + eps * (2 * images(6, size, seed=100 + s) - 1)).clamp(0, 1) for s in range(8)]]
    found = torch.stack([cross_entropy(model(attack(model, x, y, start=start)), y) for start in starts])
    assert (found <= best + 1e-12).all()
    torch.testing.assert_close(found.max(0).values, best, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("start", [False, "uniform", "gaussian"])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 8 / 255), ("linf", 1 / 255), ("l2", 0.5)])
def test_half_precision_stays_in_the_ball(kind: torch.dtype, start: RandomStart, norm: Norm, eps: float) -> None:
    """Measured in float64: rounding, of points or of eps, carries nothing out, and most of eps is used."""
    model = linear(10, 192).to(kind)
    x, y = images(30, 3, 8, 8).to(kind), labels(30, 10)
    x_adv = PGD(eps=eps, step_size=eps / 4, steps=8, norm=norm, random_start=start)(model, x, y)
    assert x_adv.dtype == kind
    assert float(x_adv.min()) >= 0
    assert float(x_adv.max()) <= 1
    sizes = size(x_adv.double() - x.double(), norm)
    assert float(sizes.max()) <= eps * (1 + 1e-6)
    assert float(sizes.min()) >= 0.8 * eps


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_under_inference_mode_as_validation_loops_are(attack: FGSM | PGD) -> None:
    model, x, y = troublesome_net(), images(3, 2, 4, 5), labels(3, 5)
    expected = attack(model, x, y, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        found = attack(model, x.clone(), y.clone(), generator=torch.Generator().manual_seed(3))
        assert torch.is_inference_mode_enabled()
    assert torch.equal(found, expected)
    with torch.inference_mode():
        made_there = troublesome_net()
    with pytest.raises(InputError, match=r"PGD: the model was made under torch.inference_mode\(\), .*; make or load"):
        attack(made_there, x, y)


def test_images_that_the_model_does_not_take() -> None:
    attack, x, y = FGSM(eps=0.1), images(2, 1, 3, 5), labels(2, 4)
    with pytest.raises(InputError, match=r"attack: the images are torch.float64, the model's weights torch.f"):
        attack(relu_net().float(), x, y)

    with pytest.raises(InputError, match=r"attack: the model's first operator writes into its images, .* inplace=True"):
        attack(nn.Sequential(nn.ReLU(inplace=True), relu_net()), x, y)

    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(15).double(), nn.Linear(15, 4).double())
    with torch.inference_mode():
        net[1].running_mean = torch.zeros(15, dtype=torch.float64)
    with pytest.raises(
        InputError, match=r"attack: the model uses tensors made under .*inference_mode\(\) \(1.running_m"
    ):
        attack(net, x, y)

    class Converting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = relu_net().float()

        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = self.inner(x.float())
            return z

    assert attack(Converting(), x, y).dtype == torch.float64


# Random starts


def start_of(attack: PGD, x: Tensor, seed: int = 0) -> Tensor:
    model = seeded(0, lambda: nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 2)))
    generator = torch.Generator().manual_seed(seed)
    return attack(model, x, labels(len(x), 2), goal=no_goal, generator=generator)


def test_uniform_start_in_linf() -> None:
    x = torch.full((200, 1, 5, 4), 0.5, dtype=torch.float64)
    noise = start_of(PGD(eps=0.1, step_size=0.01, steps=1, random_start="uniform"), x) - x
    assert float(noise.abs().max()) <= 0.1
    levels = ((noise.flatten() / 0.1 + 1) / 2).sort().values
    expected = (torch.arange(levels.numel(), dtype=torch.float64) + 0.5) / levels.numel()
    assert float((levels - expected).abs().max()) < 1.63 / math.sqrt(levels.numel())  # Kolmogorov, 1 %


def test_uniform_start_in_l2() -> None:
    x = torch.full((2000, 1, 1, 3), 0.5, dtype=torch.float64)
    noise = (start_of(PGD(eps=0.4, step_size=0.01, steps=1, norm="l2", random_start="uniform"), x) - x).flatten(1)
    radius = noise.norm(dim=1) / 0.4
    assert float(radius.max()) <= 1 + 1e-12
    levels = radius.pow(3).sort().values  # uniform in the volume of the ball
    expected = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    assert float((levels - expected).abs().max()) < 1.63 / math.sqrt(2000)
    directions = noise / noise.norm(dim=1, keepdim=True)
    assert float(directions.mean(0).norm()) < 0.06
    torch.testing.assert_close(directions.T @ directions / 2000, torch.eye(3, dtype=x.dtype) / 3, rtol=0, atol=0.03)


def test_gaussian_start() -> None:
    x = torch.full((200, 1, 5, 4), 0.5, dtype=torch.float64)
    noise = (start_of(PGD(eps=0.1, step_size=0.01, steps=1, random_start="gaussian"), x) - x).flatten()
    assert float(noise.mean().abs()) < 4 * 0.001 / math.sqrt(noise.numel())
    assert float(noise.std()) == pytest.approx(0.001, rel=0.05)
    assert float(noise.abs().max()) > 0.003


def test_only_the_gaussian_start_may_leave_the_pixel_range_before_the_first_step() -> None:
    lowest = {}
    for kind in ("uniform", "gaussian"):
        model, seen = relu_net(), []
        model.register_forward_pre_hook(lambda _module, inputs, seen=seen: seen.append(float(inputs[0].detach().min())))
        PGD(eps=0.1, step_size=0.01, steps=2, random_start=kind)(model, torch.zeros(2, 1, 3, 5).double(), labels(2, 4))
        lowest[kind] = seen
    assert lowest["uniform"][0] == 0
    assert lowest["gaussian"][0] < 0
    assert lowest["uniform"][1] == lowest["gaussian"][1] == 0


def test_random_starts_differ_between_calls_and_seeds_and_samples() -> None:
    attack = PGD(eps=0.1, step_size=0.01, steps=1, random_start="uniform")
    model, x, y = relu_net(), torch.full((2, 1, 3, 5), 0.5).double(), labels(2, 4)
    first, second = (attack(model, x, y, goal=no_goal) for _ in range(2))
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(start_of(attack, x, seed=0), start_of(attack, x, seed=1))


def test_a_zero_gradient_moves_nothing() -> None:
    x = images(2, 1, 3, 5)
    for norm in ("linf", "l2"):
        x_adv = PGD(eps=0.1, step_size=0.1, steps=2, norm=norm)(relu_net(), x, labels(2, 4), goal=no_goal)
        assert torch.equal(x_adv, x)


@pytest.mark.parametrize("attack", [FGSM(eps=0.1, mode="train"), PGD(eps=0.1, step_size=0.05, steps=3, mode="train")])
def test_train_mode_on_request_moves_only_the_statistics(attack: FGSM | PGD) -> None:
    model, x, y = troublesome_net().eval(), images(4, 2, 4, 5), labels(4, 5)
    model[1].train()
    modes = [module.training for module in model.modules()]
    parameters = [p.detach().clone() for p in model.parameters()]
    attack(model, x, y)
    passes = getattr(attack, "steps", 1)
    assert [int(model[i].num_batches_tracked) for i in (1, 6)] == [passes, passes]
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(p, before) for p, before in zip(model.parameters(), parameters, strict=True))
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


# Settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FGSM(eps="8/255"), r"Linf.eps must be in \(0, 1\], got '8/255'"),
        (lambda: FGSM(eps=8), r"Linf.eps must be in \(0, 1\], got 8; images are in \[0, 1\], did you mean 8/255\?"),
        (lambda: PGD(eps=8.0, step_size=2.0, steps=1), r"did you mean 8/255\?"),
        (
            lambda: PGD(eps=0.1, step_size=2, steps=1),
            r"PGD.step_size must be in \(0, 1\], got 2; .* did you mean 2/255\?",
        ),
        (lambda: FGSM(eps=0), r"Linf.eps must be in \(0, 1\], got 0"),
        (lambda: FGSM(eps=math.nan), r"Linf.eps must be in \(0, 1\], got nan"),
        (lambda: FGSM(eps=-0.1, norm="l2"), r"L2.eps must be a positive number, got -0.1"),
        (lambda: FGSM(eps=math.inf, norm="l2"), r"L2.eps must be a positive number, got inf"),
        (lambda: FGSM(eps=0.1, norm="l1"), r"threat.norm must be one of 'linf', 'l2', got 'l1'"),
        (lambda: PGD(eps=0.1, step_size=0.0, steps=1), r"PGD.step_size must be in \(0, 1\], got 0.0"),
        (lambda: PGD(eps=0.1, step_size=math.nan, steps=1), r"PGD.step_size must be in \(0, 1\], got nan"),
        (lambda: PGD(eps=0.1, step_size=0.1, steps=0), r"PGD.steps must be a whole number of at least 1, got 0"),
        (lambda: PGD(eps=0.1, step_size=0.1, steps=True), r"PGD.steps must be a whole number of at least 1, got True"),
        (lambda: PGD(eps=0.1, step_size=0.1, steps=2.0), r"PGD.steps must be a whole number of at least 1, got 2.0"),
        (
            lambda: PGD(eps=0.1, step_size=0.1, steps=1, random_start=True),
            r"PGD.random_start must be one of False, 'uniform', 'gaussian', got True",
        ),
        (
            lambda: PGD(eps=0.1, step_size=0.1, steps=1, mode="test"),
            r"PGD.mode must be one of 'eval', 'train', 'batch'",
        ),
        (lambda: FGSM(eps=0.1, noise=-1.0), r"FGSM.noise must be a number >= 0, got -1.0"),
        (lambda: FGSM(eps=0.1, clip=False), r"FGSM.clip = False has no effect: noise \+ step_size is 0.1, not beyond"),
        (lambda: FGSM(eps=0.1, step_size=2.0), r"PGD.step_size must be in \(0, 1\], got 2.0"),
    ],
)
def test_bad_settings(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_eps_as_a_fraction() -> None:
    assert repr(FGSM(eps=LiteralFloat("8/255"))) == "FGSM(eps=8/255, norm='linf', mode='eval')"
    model, x, y = relu_net(), images(2, 1, 3, 5), labels(2, 4)
    assert torch.equal(FGSM(eps=LiteralFloat("8/255"))(model, x, y), FGSM(eps=8 / 255)(model, x, y))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fgsm", FGSM(eps=0.1)),
        ("pgd20", PGD(eps=0.1, step_size=0.025, steps=20)),
        ("pgd-100", PGD(eps=0.1, step_size=0.025, steps=100)),
    ],
)
def test_attacks_by_name(name: str, expected: FGSM | PGD) -> None:
    assert attack_named(name, eps=0.1) == expected


def test_a_named_attack_with_its_step_size_and_norm() -> None:
    expected = PGD(eps=0.5, step_size=0.2, steps=7, norm="l2")
    assert attack_named("pgd7", eps=0.5, step_size=0.2, norm="l2") == expected


@pytest.mark.parametrize("name", ["pgd", "pgd0", "pgd-", "PGD10", "pgd10x", "autoattack", "", "pgd1.5", "pgd\u0661"])
def test_unknown_attacks(name: str) -> None:
    with pytest.raises(InputError, match=r"unknown attack .*; known are clean, fgsm, pgdN"):
        attack_named(name, eps=0.1)
