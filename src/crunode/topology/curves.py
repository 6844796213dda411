"""Curves of low mean loss: Bézier curves and polygons whose control points are trained."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from crunode.errors import InputError
from crunode.topology.descent import Adam
from crunode.topology.heights import Heights
from crunode.topology.paths import Path, evenly_between, examine_path

__all__ = ["KINDS", "basis", "trained_curve"]

KINDS = ("bezier", "polygon")
"""Bézier curves, and chains of straight pieces."""

_CORNERS, _TIMES, _STEP, _NUDGE = 33, 16, 0.05, 0.02


def basis(kind: str, controls: int, times: Tensor) -> Tensor:
    """Weights of the control points at times from 0 to 1, shape (times, controls); each row adds up to 1.

    Bernstein polynomials C(d, k) t^k (1 − t)^(d − k) for Bézier curves; hat functions for polygons.

    Example:
        >>> basis("bezier", 3, torch.tensor([0.5]))
        tensor([[0.2500, 0.5000, 0.2500]])
        >>> basis("polygon", 3, torch.tensor([0.25]))
        tensor([[0.5000, 0.5000, 0.0000]])
    """
    if kind not in KINDS:
        raise InputError(f"expected kind among {', '.join(KINDS)}, got {kind!r}")
    order = controls - 1
    index = torch.arange(controls, dtype=times.dtype, device=times.device)
    if kind == "polygon":
        return (1 - (times[:, None] * order - index).abs()).clamp_min(0)
    choose = torch.tensor([math.comb(order, k) for k in range(controls)], dtype=times.dtype, device=times.device)
    return choose * times[:, None] ** index * (1 - times[:, None]) ** (order - index)


def trained_curve(
    heights: Heights,
    a: Tensor,
    b: Tensor,
    generator: torch.Generator,
    *,
    kind: str = "bezier",
    bends: int = 3,
    steps: int = 200,
) -> Path:
    """A curve φ from a to b that minimizes ∫ L(φ(t)) dt, as a chain of straight pieces.

    The integral is over one random time in each of 16 equal parts of [0, 1], drawn anew in each step of Adam. A Bézier
    curve is looked at as the polygon through 33 of its points: it is that polygon whose loss is told.

    Args:
        heights: The loss.
        a: One end, a flat vector in double precision.
        b: The other.
        generator: Where random times come from.
        kind: "bezier" or "polygon".
        bends: Number of control points between the ends.
        steps: Steps of Adam, with a rate that falls to zero.

    Example:
        >>> from crunode.core.landscape import Landscape
        >>> circle = Landscape.of_function(lambda w: (w.square().sum() - 1) ** 2, torch.tensor([1.0, 0.0]))
        >>> a, b = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
        >>> trained_curve(Heights(circle), a, b, torch.Generator().manual_seed(0)).largest < 0.05
        True

    References:
        Garipov et al. 2018, "Loss surfaces, mode connectivity, and fast ensembling of DNNs".
    """
    line = evenly_between(a, b, bends + 2)
    noise = torch.randn(line[1:-1].shape, generator=generator, dtype=torch.float64).to(line)
    distance = float((b - a).norm())
    inner = line[1:-1] + _NUDGE * distance * noise / noise.norm(dim=1, keepdim=True).clamp_min(1e-300)
    adam = Adam(_STEP * distance / len(a) ** 0.5, steps)
    strata = torch.arange(_TIMES, dtype=torch.float64)
    for _ in range(steps):
        times = ((strata + torch.rand(_TIMES, generator=generator, dtype=torch.float64)) / _TIMES).to(a)
        weights = basis(kind, bends + 2, times)
        _, slopes = heights.slopes(weights @ torch.cat([a[None], inner, b[None]]))
        inner = inner + adam.step(weights[:, 1:-1].T @ slopes)  # the scale of a gradient is nothing to Adam
    controls = torch.cat([a[None], inner, b[None]])
    if kind == "polygon":
        return examine_path(heights, controls)
    times = torch.linspace(0, 1, _CORNERS, dtype=a.dtype, device=a.device)
    return examine_path(heights, basis(kind, bends + 2, times) @ controls)
