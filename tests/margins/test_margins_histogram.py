"""Margins as counts, beside numpy's histogram."""

import numpy as np
import pytest
import torch

from widemargin.margins import FARTHEST, count_margins


@pytest.mark.parametrize("width", [0.05, 0.25])
def test_the_counts_are_those_of_numpy(width):
    values = torch.randn(5000, generator=torch.Generator().manual_seed(0)).double()
    found = count_margins(values, width=width)
    edges = width * np.arange(found.first, found.first + len(found.counts) + 1)
    assert list(found.counts) == np.histogram(values.numpy(), bins=edges)[0].tolist()
    assert sum(found.counts) == 5000
    assert found.counts[0] > 0
    assert found.counts[-1] > 0


def test_zero_is_an_edge():
    found = count_margins(torch.tensor([-1e-6, 0.0, 1e-6]), width=0.05)
    assert (found.first, found.counts) == (-1, (1, 2))


def test_what_is_not_finite_is_left_out_and_what_is_far_is_in_the_last_bin():
    found = count_margins(torch.tensor([torch.inf, torch.nan, -torch.inf, 1e9, -1e9]), width=0.05)
    assert found.first == -FARTHEST
    assert len(found.counts) == 2 * FARTHEST
    assert (found.counts[0], found.counts[-1], sum(found.counts)) == (1, 1, 2)
    assert count_margins(torch.tensor([torch.inf]), width=0.05).counts == ()
