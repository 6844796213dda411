"""A part of the examples that stands for all of them, where labels carry no noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from crunode.core.data import Examples
from crunode.core.landscape import Landscape
from crunode.core.rng import derived_seed

__all__ = ["FULL_BATCH_WORK", "THINNED_WORK", "thinned"]

# Work of a full gradient (examples × parameters) up to which exact full-batch trajectories are affordable, and that of
# a gradient on a part, which is worth more.
FULL_BATCH_WORK = 2e6
THINNED_WORK = 2e7
_FEWEST = 512


def thinned(landscape: Landscape, *, seed: int = 0) -> Landscape | None:
    """The same landscape on a part of its examples, each standing for many; None where that gains nothing or is unsafe.

    Without label noise K(w) = L(w) − L(w*) vanishes where all examples are predicted as at w*. For a model with d
    parameters that depends analytically on them, 2d + 1 values at generic inputs tell any two functions of the model
    apart, so that a part with as many output values has the same zeros. Inputs that are not generic are met by a check:
    each parameter that influences an output on some example has to do so on the part.

    Args:
        landscape: A landscape whose labels are what the model predicts at the center.
        seed: The choice of examples comes from it.

    Example:
        >>> net = torch.nn.Linear(150, 1, bias=False)
        >>> x = torch.randn(20_000, 150, generator=torch.Generator().manual_seed(0))
        >>> part = thinned(Landscape(net, (x, net(x).detach()), "gaussian"))
        >>> part.data.rows, part.n
        (512, 19968)

    References:
        Sontag 2002, J. Nonlinear Science 12 (2r + 1 experiments are enough for r parameters).
    """
    data = landscape.data
    if not data.stacked or data.copies > 1 or data.rows * landscape.dim <= FULL_BATCH_WORK:
        return None
    generator = torch.Generator().manual_seed(derived_seed(seed, 41))
    first = landscape.batch_outputs(landscape.center, next(iter(data.passes(1))))
    rows = max(_FEWEST, math.ceil((2 * landscape.dim + 1) / first.numel()))
    if rows > data.rows // 2 or rows * landscape.dim > THINNED_WORK:
        return None
    index = torch.randperm(data.rows, generator=generator)[:rows].to(landscape.device)
    part = landscape.with_data(Examples([data.take(index)], data.findings, copies=data.rows // rows))
    if bool((_influences(landscape, seed) & ~_influences(part, seed)).any()):
        return None
    return part


def _influences(land: Landscape, seed: int) -> Tensor:
    """Which parameters change an output of some example, from a random combination of all outputs."""
    generator = torch.Generator().manual_seed(derived_seed(seed, 42))
    total = torch.zeros(land.dim, dtype=torch.bool, device=land.device)
    for batch in land.passes():
        with torch.enable_grad():
            point = land.center.detach().requires_grad_()
            outputs = land.batch_outputs(point, batch)
            signs = torch.randn(outputs.shape, generator=generator).to(outputs)
            (gradient,) = torch.autograd.grad((outputs * signs).sum(), point)
        total |= gradient != 0
    return total
