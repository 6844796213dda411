"""Singular values of the Jacobian on the data, or eigenvalues of the Hessian where there are no outputs; their rank."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.core.rng import derived_seed, preserved_rng
from crunode.curvature.jacobian import Evaluation, NoOutputs, hessian_sketch, jacobian_rows, jacobian_sketch
from crunode.curvature.rank import NumericRank, numeric_rank, rank_mod_prime

__all__ = ["Spectrum", "spectrum"]

# Multiplications for the factorisation, numbers of J held at once, and entries of J kept for an exact rank.
_WORK = 2e10
_MEMORY = 1 << 25
_KEPT = 1 << 22


@dataclass(frozen=True)
class Spectrum:
    """What the derivatives at a point show.

    Attributes:
        method: "jacobian", "jacobian sketch", "hessian" or "hessian sketch".
        curvatures: Eigenvalues of the Gauss-Newton matrix JᵀJ per example (or of the Hessian), descending.
        rank: The rank and how clear it is.
        exact: Whether it was also found over a prime field, from integers.
        rows: Rows of J that were used.
        of: Rows there are.
        seen: How many of the used rows the loss sees: cross-entropy sees one output less than there are.
        examples: Examples that were used.
        slope: How far the data is from realised, as in `Rows`; with a Hessian, the largest derivative of the loss over
            the largest curvature times the size of the weights.
        unused: Which columns of J vanish; None where J was not held.
        reason: Why there is no Jacobian, where there is none.
    """

    method: str
    curvatures: np.ndarray
    rank: NumericRank
    exact: bool
    rows: int
    of: int
    seen: int
    examples: int
    slope: float
    unused: np.ndarray | None = field(repr=False, default=None)
    reason: str = ""

    @property
    def complete(self) -> bool:
        """Whether all rows were used."""
        return self.rows == self.of


def spectrum(
    land: Landscape,
    *,
    rows: int | None = None,
    seed: int = 0,
    at: Tensor | None = None,
    resolution: float | None = None,
    outputs_only: bool = False,
) -> Spectrum:
    """Singular values and rank of the Jacobian of a landscape, from as many rows as the work allows.

    Any choice of rows has at most the rank of all of them, so half the rank found is always a valid lower bound.
    Singular values are those of the rows themselves (by orthogonal factorisation, not by products of J with itself,
    which would square the rounding error); a model too large for that is seen through J Ω with a random Ω.

    Args:
        land: The landscape.
        rows: Most rows to use; None for as many as a moderate amount of work allows.
        seed: Chosen examples and random directions come from it.
        at: The point; None is the center.
        resolution: See `numeric_rank`; None takes the rounding of the landscape's weights.
        outputs_only: Raise `NoOutputs` instead of going over to the Hessian.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
        >>> x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
        >>> found = spectrum(Landscape(net, (x, net(x).detach()), "gaussian"))
        >>> found.rank.rank, found.rank.decided, found.rows  # 2·3 numbers of a 2 × 3 map: all of it
        (6, True, 40)
    """
    seen = Evaluation(land)
    eps = torch.finfo(land.center.dtype).eps
    if seen.dtype != torch.float64:
        eps *= 10
    resolution = 30 * eps if resolution is None else resolution
    with preserved_rng():
        try:
            return _from_outputs(land, seen, rows, seed, at, resolution)
        except NoOutputs as error:
            if outputs_only:
                raise
            return _from_hessian(land, seen, rows, seed, resolution, str(error))


def _from_outputs(
    land: Landscape, seen: Evaluation, rows: int | None, seed: int, at: Tensor | None, resolution: float
) -> Spectrum:
    width, dim = seen.outputs_per_example(), seen.dim
    count, of = land.data.rows, land.data.rows * width
    limit = min(of, _affordable(dim, of) if rows is None else rows)
    chosen = count if limit >= of else max(1, min(count, limit // width))
    examples = _examples(count, chosen, seed)
    used = chosen * width
    if min(used, 2 * dim) * dim > _MEMORY:
        small = jacobian_sketch(seen, examples, min(dim, used + 8), seed=derived_seed(seed, 61), at=at)
        values = torch.linalg.svdvals(small.double()).cpu().numpy()
        rank = numeric_rank(values, max(small.shape), resolution)
        return Spectrum("jacobian sketch", values**2 / chosen, rank, False, used, of, used, chosen, float("nan"))
    factor = torch.zeros(0, dim, dtype=torch.float64, device=land.device)
    touched = torch.zeros(dim, dtype=torch.bool, device=land.device)
    kept: list[Tensor] | None = [] if used * dim <= _KEPT and at is None and _is_whole(land) else None
    slope, weighted = 0.0, 0
    with Progress(used, "rows of the Jacobian") as bar:
        for block in jacobian_rows(seen, examples, at):
            slope, weighted = max(slope, block.slope), weighted + len(block.jacobian)
            touched |= (block.jacobian != 0).any(0)
            if kept is not None and len(block.jacobian):
                whole = torch.equal(block.jacobian, block.jacobian.round()) and block.jacobian.abs().max() < 2**53
                kept = [*kept, block.jacobian] if whole else None
            factor = torch.cat([factor, block.jacobian])
            if len(factor) > 2 * dim:
                factor = torch.linalg.qr(factor, mode="r").R
            bar.advance(len(block.jacobian))
    values = torch.linalg.svdvals(factor).cpu().numpy()
    rank = numeric_rank(values, max(used, dim), resolution)
    if kept:
        certain = rank_mod_prime(torch.cat(kept).round().to(torch.int64))
        rank = NumericRank(certain, certain, certain, rank.gap, rank.tolerance, True)
    unused = (~touched).cpu().numpy()
    return Spectrum("jacobian", values**2 / chosen, rank, bool(kept), used, of, weighted, chosen, slope, unused)


def _from_hessian(
    land: Landscape, seen: Evaluation, rows: int | None, seed: int, resolution: float, reason: str
) -> Spectrum:
    dim = seen.dim
    limit = min(dim, _affordable(dim, dim), max(1, _MEMORY // dim)) if rows is None else min(dim, rows)
    matrix = hessian_sketch(seen, None if limit >= dim else limit, seed=derived_seed(seed, 62))
    values = torch.linalg.eigvalsh(matrix).cpu().numpy()[::-1]
    rank = numeric_rank(np.maximum(values, 0), dim, resolution)
    steep = torch.zeros_like(land.center)
    for batch in land.passes():
        steep += land.batch_gradient(land.center, batch) * (leaves(batch)[0].shape[0] / land.data.rows)
    name = "hessian" if limit >= dim else "hessian sketch"
    size = float(values[0]) * max(float(land.center.double().square().mean().sqrt()), 0.1)
    slope = float(steep.abs().max()) / max(size, 1e-300)
    return Spectrum(name, values.copy(), rank, False, limit, dim, limit, land.data.rows, slope, reason=reason)


def _affordable(dim: int, rows: int) -> int:
    """The most rows whose factorisation stays below the work that is meant to be spent."""
    if rows * min(rows, dim) * dim <= _WORK:
        return rows
    tall = int(_WORK / dim**2)
    return tall if tall >= dim else max(1, int((_WORK / dim) ** 0.5))


def _examples(count: int, chosen: int, seed: int) -> Tensor:
    if chosen >= count:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(derived_seed(seed, 63))
    return torch.randperm(count, generator=generator)[:chosen].sort().values


def _is_whole(land: Landscape) -> bool:
    """Whether weights and data are whole numbers, so that derivatives of polynomials come out exactly."""
    tensors = [land.center, *land.fixed.values(), *land.data.tensors()]
    return all(not t.is_floating_point() or torch.equal(t, t.round()) for t in tensors)
