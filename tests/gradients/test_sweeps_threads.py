"""Several threads at once, each with a network of its own: the sweeps of one do not disturb another's."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from widemargin import ApproximateEMR


def gradients(seed: int) -> list[Tensor]:
    """Of a penalty on a network with layers that need torch's own forward derivatives."""
    generator = torch.Generator().manual_seed(seed)
    layers = [nn.Conv2d(2, 3, 3), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 4)]
    model = nn.Sequential(*layers).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    x = torch.rand(5, 2, 6, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 4, (5,), generator=generator)
    penalty = ApproximateEMR()(model, x, y)
    return list(torch.autograd.grad(penalty.sum(), list(model.parameters()), allow_unused=True))


def test_penalties_in_threads_are_those_alone():
    seeds = list(range(40))
    alone = [gradients(seed) for seed in seeds]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(gradients, seeds))
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b)
