"""How many directions lead off the set of minima near a point: its codimension, found by walking on it.

Where the outputs stay those at w*, the loss stays at its minimum. Points of that set W0 close to w* are found by
Gauss-Newton steps from random points around it. At such a point w, W0 lies inside a smooth manifold with tangent space
ker J(w); when a random step along ker J(w) has to be corrected only to second order to be in W0 again, W0 is all of
that manifold, its codimension there is rank J(w), and so is twice the learning coefficient at w. The learning
coefficient at w* is the least of those at the points of W0 around it, so half the codimension bounds it from above if
w is near enough.

A random start leads to one of the pieces of W0 that meet at w*, so several starts are made and the least codimension is
kept: the true one may be less still.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.rng import derived_seed, preserved_rng
from crunode.curvature.jacobian import Evaluation, NoOutputs, jacobian_rows
from crunode.curvature.rank import numeric_rank
from crunode.errors import InputError

__all__ = ["Stratum", "nearby_minima"]

_ENTRIES = 1 << 22
_STARTS, _STEPS = 6, 60
# Relative to the weights: how far around w* to start, and how far to step along the kernel.
_AROUND, _ALONG = 1e-2, 1e-5
# Outputs on three times as many rows as there are parameters decide a step; the others are checked at its end.
_ROWS_PER_PARAMETER = 3
_CLOSED = 1e-11
_CURVED = 0.05


@dataclass(frozen=True)
class Stratum:
    """A smooth piece of the set of minima.

    Attributes:
        codimension: Directions that lead off it.
        distance: How far from the center the point on it is, relative to the size of the weights.
    """

    codimension: int
    distance: float


def nearby_minima(land: Landscape, *, seed: int = 0) -> Stratum | None:
    """The smooth piece of least codimension among those met near the center; None where none was found.

    Args:
        land: A landscape with visible outputs and at most some million entries of the Jacobian.
        seed: Starting points and steps come from it.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
        >>> for p in net.parameters():
        ...     _ = nn.init.zeros_(p)
        >>> x = torch.randn(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> nearby_minima(Landscape(net, (x, 0 * x), "gaussian")).codimension  # both factors of rank 1
        3
    """
    seen = Evaluation(land)
    if seen.dtype != torch.float64:
        return None
    scale = max(float(seen.center.square().mean().sqrt()), 0.1)
    best: Stratum | None = None
    with preserved_rng():
        try:
            if land.data.rows * seen.outputs_per_example() * land.dim > _ENTRIES:
                return None
            for start in range(_STARTS):
                found = _stratum(seen, land, scale, derived_seed(seed, 65, start))
                if found is not None and (best is None or found.codimension < best.codimension):
                    best = found
        except (NoOutputs, InputError, RuntimeError):
            return best
    return best


def _stratum(seen: Evaluation, land: Landscape, scale: float, seed: int) -> Stratum | None:
    generator = torch.Generator().manual_seed(seed)

    def random(size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(land.device)

    everything = torch.arange(land.data.rows)
    few = -(-_ROWS_PER_PARAMETER * land.dim // seen.outputs_per_example())
    part = torch.randperm(land.data.rows, generator=generator)[:few].sort().values
    point = _closed(seen, part, seen.center + _AROUND * scale * random(land.dim))
    if point is None:
        return None
    away = float((point - seen.center).norm()) / (scale * land.dim**0.5)
    if away > 10 * _AROUND:
        return None
    jacobian, residual = _stacked(seen, everything, point)
    values, axes = _singular(jacobian)
    rank = numeric_rank(values.cpu().numpy(), max(jacobian.shape), 1e-9)
    if not rank.decided or not _is_closed(seen, jacobian, residual, point, 100 * _CLOSED):
        return None
    kernel = axes[rank.rank :]
    if len(kernel):
        along = kernel.T @ random(len(kernel))
        along *= _ALONG * scale * land.dim**0.5 / along.norm()
        again = _closed(seen, part, point + along)
        if again is None or float((again - point - along).norm()) > _CURVED * float(along.norm()):
            return None
        if not _is_closed(seen, *_stacked(seen, everything, again), again, 100 * _CLOSED):
            return None
    return Stratum(rank.rank, away)


def _singular(jacobian: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values, and all right singular vectors as rows."""
    if jacobian.shape[0] > jacobian.shape[1]:
        jacobian = torch.linalg.qr(jacobian, mode="r").R
    _, values, axes = torch.linalg.svd(jacobian, full_matrices=True)
    return values, axes


def _stacked(seen: Evaluation, examples: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    blocks = list(jacobian_rows(seen, examples, point, reference=seen.center))
    return torch.cat([b.jacobian for b in blocks]), torch.cat([b.residual for b in blocks if b.residual is not None])


def _is_closed(seen: Evaluation, jacobian: Tensor, residual: Tensor, point: Tensor, limit: float) -> bool:
    """Whether the outputs are those at the center, next to how far they could have moved."""
    return float(residual.norm()) <= limit * float(jacobian.norm()) * float((point - seen.center).norm())


def _closed(seen: Evaluation, examples: Tensor, point: Tensor) -> Tensor | None:
    """The point of W0 that Gauss-Newton steps lead to; None when they do not arrive."""
    last = float("inf")
    for _ in range(_STEPS):
        jacobian, residual = _stacked(seen, examples, point)
        size = float(residual.norm())
        stalled = size >= 0.5 * last
        if _is_closed(seen, jacobian, residual, point, _CLOSED if stalled else _CLOSED * 1e-2):
            return point
        if not size < 10 * last:
            return None
        last = size
        point = point - torch.linalg.pinv(jacobian, rtol=1e-7) @ residual
    return None
