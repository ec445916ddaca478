"""Verdicts, percentages and margins of a data set against one image at a time."""

import pytest
import torch
from torch import nn

from widemargin import FGSM, PGD, InputError
from widemargin.core.randomness import derived
from widemargin.data import ImageSet, in_order
from widemargin.evaluation import MeasuredMargins, classified, measure_margins, percent, verdicts

EPS = 0.02


def right_one_by_one(model, images, labels):
    model.eval()
    with torch.no_grad():
        return [int(model(x[None])[0].argmax()) == int(y) for x, y in zip(images, labels, strict=True)]


def fgsm_one_by_one(model, images, labels):
    found = []
    for x, y in zip(images, labels, strict=True):
        leaf = x[None].clone().requires_grad_()
        loss = nn.functional.cross_entropy(model(leaf), y[None])
        (gradient,) = torch.autograd.grad(loss, leaf)
        found.append((x + EPS * gradient[0].sign()).clamp(0, 1))
    return torch.stack(found)


@pytest.mark.parametrize("batch_size", [1, 10, 47, 500])
def test_clean_verdicts(model, digits, batch_size):
    found = verdicts(model, digits, batch_size=batch_size)
    assert found.dtype == torch.bool
    assert found.tolist() == right_one_by_one(model, digits.floats(), digits.labels)
    assert 5 < int(found.sum()) < 45


@pytest.mark.parametrize("batch_size", [7, 500])
def test_verdicts_under_attack(model, digits, batch_size):
    expected = right_one_by_one(model, fgsm_one_by_one(model, digits.floats(), digits.labels), digits.labels)
    found = verdicts(model, digits, FGSM(eps=EPS), batch_size=batch_size)
    assert found.tolist() == expected
    assert 0 < int(found.sum()) < int(verdicts(model, digits).sum())


def test_percent():
    assert percent(torch.tensor([True, False, False, True])) == 50.0
    assert percent(torch.tensor([True] * 2 + [False])) == pytest.approx(200 / 3)
    assert percent(torch.zeros(3, dtype=torch.bool)) == 0.0


def test_the_random_numbers_of_an_attack_come_from_seed_and_batch_alone(model, digits):
    def drawn(seed):
        numbers = []

        def attack(network, x, y, *, generator):
            numbers.append(torch.rand(1, generator=generator).item())
            return x

        verdicts(model, digits, attack, seed=seed, batch_size=20)
        return numbers

    assert drawn(3) == drawn(3)
    assert len(set(drawn(3) + drawn(4))) == 6  # three batches, two seeds


def test_progress_counts_every_image_once(model, digits):
    counted = []
    verdicts(model, digits, batch_size=20, advance=counted.append)
    assert counted == [20, 20, 7]


def test_the_model_is_judged_in_evaluation_mode_and_left_as_it_was(digits):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Dropout(0.5), nn.Linear(784, 10))
    model.train()
    model[1].eval()  # a user's frozen batch norm
    before = {key: value.clone() for key, value in model.state_dict().items()}
    one, two = (verdicts(model, digits, FGSM(eps=EPS)) for _ in range(2))
    assert one.equal(two)
    assert [module.training for module in model] == [True, False, True, True]
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_classified_keeps_no_graph(model, digits):
    found = classified(model, digits.floats(), digits.labels)
    assert found.shape == (47,)
    assert not found.requires_grad


def test_a_batch_size_of_nothing_is_refused(model, digits):
    with pytest.raises(InputError, match="batch_size must be a whole number of at least 1, got 0"):
        verdicts(model, digits, batch_size=0)


def test_images_of_another_shape_are_refused(model):
    data = ImageSet(torch.zeros(2, 3, 8, 8), torch.tensor([0, 1]), num_classes=2, name="other")
    with pytest.raises(InputError, match=r"MLP expects images of shape \(B, 1, 28, 28\), got \(2, 3, 8, 8\)"):
        verdicts(model, data)


@pytest.mark.parametrize("tf32", [False, True])
def test_an_attack_may_search_in_tf32_and_verdicts_are_in_float32(digits, tf32):
    seen = []

    class Telling(torch.nn.Flatten):
        def forward(self, x):
            seen.append((x.requires_grad, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))
            return super().forward(x)

    model = torch.nn.Sequential(Telling(), torch.nn.Linear(784, 10))
    attack = PGD(eps=0.1, step_size=0.05, steps=2)
    found = verdicts(model, digits, attack, batch_size=7, tf32=tf32)
    assert {flags[1:] for flags in seen if flags[0]} == {(tf32, tf32)}
    assert {flags[1:] for flags in seen if not flags[0]} == {(False, False)}
    assert found.equal(verdicts(model, digits, attack, batch_size=7))  # the same arithmetic on a CPU


def test_an_attack_that_starts_at_random_has_numbers_of_its_own_for_every_batch(model, digits):
    states = []

    class Telling(PGD):
        def __call__(self, network, x, y, *, generator=None):
            states.append(generator.get_state())
            return super().__call__(network, x, y, generator=generator)

    attack = Telling(eps=0.1, step_size=0.05, steps=1, random_start="uniform")
    found = verdicts(model, digits, attack, batch_size=20, seed=3)
    assert [state.tolist() for state in states] == [derived(3, "evaluate", n).get_state().tolist() for n in range(3)]
    expected = []
    for number, (x, y) in enumerate(zip(digits.floats().split(20), digits.labels.split(20), strict=True)):
        x_adv = PGD(eps=0.1, step_size=0.05, steps=1, random_start="uniform")(
            model, x, y, generator=derived(3, "evaluate", number)
        )
        expected += right_one_by_one(model, x_adv, y)
    assert found.tolist() == expected


def margin_by_hand(model, x, y, order):
    found = []
    for j in range(10):
        if j != y:
            leaf = x.clone().requires_grad_()
            z = model(leaf[None])[0]
            gap = z[y] - z[j]
            (slope,) = torch.autograd.grad(gap, leaf)
            found.append((gap / torch.linalg.vector_norm(slope, ord=order)).item())
    return min(found)


@pytest.mark.parametrize(("norm", "dual"), [("l2", 2), ("linf", 1)])
def test_margins_and_verdicts_of_every_image(model, digits, norm, dual):
    measured = measure_margins(model, in_order(digits, 20), norm=norm)
    pairs = list(zip(digits.floats(), digits.labels.tolist(), strict=True))
    assert measured.margins.tolist() == pytest.approx([margin_by_hand(model, x, y, dual) for x, y in pairs], rel=1e-4)
    assert measured.correct.tolist() == [int(model(x[None]).argmax()) == y for x, y in pairs]
    assert (measured.margins > 0).equal(measured.correct)


def test_summaries_over_all_and_over_the_correct_ones(model, digits):
    measured = measure_margins(model, in_order(digits, 20))
    everything, correct = measured.over_all(), measured.over_correct()
    kept = [m for m, right in zip(measured.margins.tolist(), measured.correct.tolist(), strict=True) if right]
    assert everything.count == 47
    assert correct.count == len(kept) < 47
    assert correct.mean == pytest.approx(sum(kept) / len(kept))
    mean = sum(kept) / len(kept)
    assert correct.std == pytest.approx((sum((m - mean) ** 2 for m in kept) / len(kept)) ** 0.5)
    assert everything.mean == pytest.approx(sum(measured.margins.tolist()) / 47)
    assert correct.quantiles["0.5"] == pytest.approx(float(torch.tensor(kept).quantile(0.5)))


def test_no_correct_image_gives_no_numbers():
    summary = MeasuredMargins(torch.tensor([-1.0, -2.0]), torch.tensor([False, False])).over_correct()
    assert (summary.count, summary.mean, summary.std, summary.quantiles) == (0, None, None, {})


def test_infinite_margins_do_not_spoil_the_mean():
    measured = MeasuredMargins(torch.tensor([1.0, torch.inf, 3.0]), torch.tensor([True] * 3))
    assert measured.over_all().mean == 2.0


def test_progress_and_the_model_left_as_it_was(model, digits):
    counted = []
    model.train()
    measure_margins(model, in_order(digits, 30), advance=counted.append)
    assert counted == [30, 17]
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_no_batches_are_refused(model):
    with pytest.raises(InputError, match="measure_margins: the data is empty; give at least one batch"):
        measure_margins(model, iter(()))
