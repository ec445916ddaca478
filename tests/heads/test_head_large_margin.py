"""The large-margin head: plain logits for everybody, the label's angle multiplied in training, annealed by steps."""

import re

import pytest
import torch
import torch.nn.functional as F
from head_steps import X, features_of, network, step

from widemargin import PGD, InputError
from widemargin.heads import GeometricAnnealing, LargeMargin, LargeMarginHead, PowerAnnealing
from widemargin.losses import large_margin_logits
from widemargin.objectives import Trades


def head_of(margin: int = 4, annealing: PowerAnnealing | GeometricAnnealing | None = None) -> LargeMarginHead:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LargeMargin(margin=margin, annealing=annealing or PowerAnnealing())(5, 3).double()


LABELS = torch.tensor([2, 0, 1, 1])


# The schedules, by their published values


@pytest.mark.parametrize(
    ("step", "stated", "digits"), [(0, 1000, 0), (3000, 80, 0), (10000, 0.41, 2), (30000, 3e-6, 6)]
)
def test_the_original_schedule(step: int, stated: float, digits: int) -> None:
    annealing = float(PowerAnnealing()(torch.tensor(float(step), dtype=torch.float64)))
    assert round(annealing, digits) == stated
    assert annealing == pytest.approx(1000 * (1 + 2.5e-5 * step) ** -35, rel=1e-9)


@pytest.mark.parametrize(("step", "stated"), [(0, 100.0), (1, 99.0), (600, 0.24)])
def test_the_schedule_of_the_port(step: int, stated: float) -> None:
    annealing = float(GeometricAnnealing()(torch.tensor(float(step), dtype=torch.float64)))
    assert round(annealing, 2) == stated
    assert annealing == pytest.approx(100 * 0.99**step, rel=1e-9)


@pytest.mark.parametrize("annealing", [PowerAnnealing(minimum=0.5), GeometricAnnealing(minimum=0.5)])
def test_schedules_stop_at_their_minimum(annealing: PowerAnnealing | GeometricAnnealing) -> None:
    assert float(annealing(torch.tensor(1e6, dtype=torch.float64))) == 0.5
    assert float(annealing(torch.tensor(0.0, dtype=torch.float64))) > 0.5


# The head


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_prediction_is_plain_and_without_a_bias(training: bool) -> None:
    head, features = head_of().train(training), features_of()
    assert head.bias is None
    torch.testing.assert_close(head(features), features @ head.weight.T)


@pytest.mark.parametrize("margin", [1, 2, 3, 4])
@pytest.mark.parametrize(("step", "annealing"), [(0, 1000.0), (3000, 1000 * 1.075**-35)])
def test_training_uses_the_annealing_of_its_step(margin: int, step: int, annealing: float) -> None:
    head, features = head_of(margin), features_of()
    head.steps.fill_(step)
    expected = large_margin_logits(features, head.weight, LABELS, margin, annealing)
    actual = head.training_logits(features, head(features), LABELS)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    if margin > 1 and step == 3000:
        assert not torch.allclose(actual, head(features), atol=1e-2)


def test_a_margin_of_one_is_plain_softmax() -> None:
    head, features = head_of(1), features_of().requires_grad_(True)
    head.steps.fill_(30000)
    plain = features @ head.weight.T
    trained = head.training_logits(features, head(features), LABELS)
    torch.testing.assert_close(trained, plain, rtol=0, atol=1e-8)
    leaves = (features, head.weight)
    expected = torch.autograd.grad(F.cross_entropy(plain, LABELS), leaves)
    for one, other in zip(torch.autograd.grad(F.cross_entropy(trained, LABELS), leaves), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)


def test_only_steps_move_the_annealing() -> None:
    head, features = head_of(annealing=GeometricAnnealing()), features_of()
    for _ in range(3):
        head.training_logits(features, head(features), LABELS)
    assert head.steps.item() == 0
    head.after_step()
    head.after_step()
    assert head.steps.item() == 2
    expected = large_margin_logits(features, head.weight, LABELS, 4, 100 * 0.99**2)
    torch.testing.assert_close(head.training_logits(features, head(features), LABELS), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_steps_are_counted_in_any_precision(kind: torch.dtype) -> None:
    head = LargeMargin()(8, 5).to(kind)
    for _ in range(300):
        head.after_step()
    head.steps += 3000
    head.after_step()
    assert int(head.steps) == 3301


def test_the_count_is_saved_and_restored() -> None:
    head, features = head_of(annealing=GeometricAnnealing()), features_of()
    for _ in range(600):
        head.after_step()
    assert sorted(head.state_dict()) == ["steps", "weight"]
    again = head_of(annealing=GeometricAnnealing())
    assert not torch.allclose(
        again.training_logits(features, again(features), LABELS), head.training_logits(features, head(features), LABELS)
    )
    again.load_state_dict(head.state_dict())
    assert torch.equal(
        again.training_logits(features, again(features), LABELS), head.training_logits(features, head(features), LABELS)
    )


def test_one_optimizer_step_counts_once_whatever_the_number_of_forwards() -> None:
    model = network(LargeMargin(margin=2, annealing=GeometricAnnealing()))
    attack = PGD(eps=0.1, step_size=0.05, steps=3, random_start="gaussian")
    head = model.head
    assert isinstance(head, LargeMarginHead)
    for number in range(3):
        step(model, Trades(attack=attack, repeat_clean=True), number=number)
        assert head.steps.item() == number + 1
    key = next(name for name in model.state_dict() if name.endswith(".steps"))
    assert model.state_dict()[key].item() == 3
    torch.testing.assert_close(model.eval()(X), model.features(X) @ head.weight.T)


@pytest.mark.parametrize("margin", [0, 5, 1.5])
def test_bad_margins(margin: float) -> None:
    with pytest.raises(InputError, match=rf"LargeMargin.margin must be one of 1, 2, 3, 4, got {margin}"):
        LargeMargin(margin=margin)  # type: ignore[arg-type]


NAN, INF = float("nan"), float("inf")
BAD_POWER = [
    *((name, value) for name in ("base", "gamma", "power", "minimum") for value in (-1.0, NAN, INF, "1", True)),
    ("minimum", 1000.5),
]
BAD_GEOMETRIC = [
    *((name, value) for name in ("start", "factor", "minimum") for value in (-1.0, NAN, INF, "1", True)),
    ("factor", 0.0),
    ("factor", 1.01),
    ("minimum", 100.5),
]


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [(PowerAnnealing, *case) for case in BAD_POWER] + [(GeometricAnnealing, *case) for case in BAD_GEOMETRIC],
)
def test_bad_annealings(make: type, field: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"^{make.__name__}\.{field} must be .*, got {re.escape(repr(value))}; \w+"):
        make(**{field: value})


def test_a_minimum_above_the_beginning_says_what_to_change() -> None:
    with pytest.raises(InputError, match=r"minimum must be at most start = 0.5, got 1.0; .* lower minimum or raise st"):
        GeometricAnnealing(start=0.5, minimum=1.0)


@pytest.mark.parametrize(
    "annealing", [PowerAnnealing(base=0.0), PowerAnnealing(base=2, minimum=2), GeometricAnnealing(start=0.0, factor=1)]
)
def test_annealings_at_the_edge_of_what_is_allowed(annealing: PowerAnnealing | GeometricAnnealing) -> None:
    first = annealing(torch.tensor(0.0, dtype=torch.float64))
    assert torch.equal(annealing(torch.tensor(9.0, dtype=torch.float64)), first)
