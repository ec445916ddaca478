"""Lipschitz constants of a feed-forward network, as products over its layers: the cheap lower bound of a margin.

|(z_y - z_j)(x') - (z_y - z_j)(x)| <= ||x' - x||_p sum over v of ||A_v||_q L_v, where A_v takes z_y - z_j back through
the last affine steps to the values v in front of them (the last activations), and L_v bounds how far v moves: the sum
over paths of the product of operator norms, one layer at a time. So the last layer knows of which two classes it is, as
it would not in a product over all layers.

Norms are upper bounds: of a matrix by its singular values; a convolution with padding and stride is a part of the
circular convolution on a grid larger by the kernel, whose norm is the largest singular value over all frequencies (or,
where that is smaller or cheaper, sqrt(||.||_1 ||.||_inf)). In Linf both the product of the row-sum norms and the L2
product times sqrt(D) are bounds, and the smaller one is taken.
"""

import math
from typing import Any

import torch
from torch import Tensor

from widemargin.certificates.network import AffineStep, Bend, Network, Rows
from widemargin.gradients.jacobian import in_chunks
from widemargin.gradients.sweeps.calls import ARITHMETIC
from widemargin.gradients.sweeps.layers import Affine, BatchNorm, Convolution, Sum
from widemargin.types import Norm

ROUNDED = 1 + 1e-9
"""Singular values in float64 are accurate to some 1e-13 of the largest."""
CLASSES_AT_ONCE = 64
FREQUENCIES = 2**24
"""Numbers of a kernel's transform, 256 MiB; a larger one is bounded without it."""


def pair_slopes(network: Network, y: Tensor, norm: Norm) -> Tensor:
    """(K, B): at most so fast does z_y - z_j change; 0 for the label's own class."""
    slopes = _pair_slopes(network, y, "l2")
    if norm == "l2":
        return slopes
    size = network.x[0].numel()
    return torch.minimum(slopes * math.sqrt(size), _pair_slopes(network, y, "linf")) * ROUNDED


def _pair_slopes(network: Network, y: Tensor, norm: Norm) -> Tensor:
    constants = _constants(network, norm)
    chunks = in_chunks(network.logits.shape[1], CLASSES_AT_ONCE)
    return torch.cat([_slopes_of(network, y, chunk, constants, norm) for chunk in chunks])


def _slopes_of(network: Network, y: Tensor, classes: slice, constants: dict[int, float], norm: Norm) -> Tensor:
    at = {network.output: Rows(network.differences(y, classes))}
    slopes = torch.zeros_like(at[network.output].values[..., 0])
    for step in reversed(network.steps):
        a = at.pop(step.output, None)
        if a is None:
            continue
        if isinstance(step, Bend):
            slopes = slopes + _lengths(a, norm) * constants[step.output]
            continue
        for number, shape, back in zip(step.inputs, step.input_shapes, step.back(a), strict=True):
            at[number] = at[number].plus(back, shape) if number in at else back
    if 0 in at:
        slopes = slopes + _lengths(at[0], norm)
    return slopes * ROUNDED


def _lengths(rows: Rows, norm: Norm) -> Tensor:
    """(M, B): the dual norm."""
    lengths: Tensor = torch.linalg.vector_norm(rows.values.flatten(2), ord=2 if norm == "l2" else 1, dim=2)
    return lengths


def _constants(network: Network, norm: Norm) -> dict[int, float]:
    """By value: how far it moves at most, per distance of the images."""
    found = {0: 1.0}
    for step in network.steps:
        before = [found[number] for number in step.inputs]
        if isinstance(step, Bend):
            found[step.output] = before[0] * max(1.0, abs(step.slope))
        elif isinstance(step.layer, Sum):
            found[step.output] = sum(before)
        else:
            found[step.output] = sum(before) * _norm(step, norm, len(network.x)) * ROUNDED
    return found


def _norm(step: AffineStep, norm: Norm, batch: int) -> float:
    """An upper bound of the step's operator norm."""
    layer = step.layer
    if isinstance(layer, BatchNorm):
        return float(layer.scale.abs().max())
    sums = step.push_sizes([step.offset.new_ones((batch, *shape)) for shape in step.input_shapes])
    if norm == "linf" or step.is_one_to_one:
        return float(sums.max())
    if isinstance(layer, Affine):
        return float(torch.linalg.matrix_norm(layer.weight, ord=2))
    if isinstance(layer, Convolution):
        return min(math.sqrt(float(sums.max()) * _column_sums(layer)), _circular_norm(layer))
    if step.name in ARITHMETIC:
        return float(torch.linalg.vector_norm(sums[0]))
    ones = sums.new_ones((1, batch, *step.shape))  # averages and changes of shape have no negative coefficient
    return math.sqrt(float(sums.max()) * float(sum(back.max() for back in layer.adjoint(ones))))


def _column_sums(layer: Convolution) -> float:
    kernels = layer.weight.abs().flatten(2).sum(2)
    return float(kernels.unflatten(0, (layer.geometry[3], -1)).sum(1).max())


def _circular_norm(layer: Convolution) -> float:
    """The largest singular value over the frequencies of a grid on which the kernel does not meet itself."""
    _, _, dilation, groups = layer.geometry
    reach = [step * (size - 1) for step, size in zip(dilation, layer.weight.shape[2:], strict=True)]
    grid = [size + more for size, more in zip(layer.input_shape[2:], reach, strict=True)]
    if layer.weight[:, :, 0].numel() * math.prod(grid) > FREQUENCIES:
        return math.inf
    kernel = layer.weight.new_zeros((*layer.weight.shape[:2], *(size + 1 for size in reach)))
    every: list[Any] = [..., *(slice(None, None, step) for step in dilation)]
    kernel[tuple(every)] = layer.weight
    axes = tuple(range(2, kernel.dim()))
    transform = torch.fft.rfftn(kernel, s=grid, dim=axes).flatten(2).movedim(2, 0)
    matrices = transform.unflatten(1, (groups, -1)).transpose(0, 1).flatten(0, 1)
    return float(torch.linalg.matrix_norm(matrices, ord=2).max())
