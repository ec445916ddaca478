"""Margins of a data set against one image and one class at a time."""

import pytest
import torch

from widemargin.data import in_order
from widemargin.errors import InputError
from widemargin.evaluation import MeasuredMargins, measure_margins


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
