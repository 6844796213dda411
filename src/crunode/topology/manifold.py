"""The zero-loss manifold: its dimension from the rank of the Jacobian, and walks along it.

Weights with zero squared error solve f(w) = y: r·m equations in d unknowns, for m examples with r outputs. Where the
Jacobian J of f has the full rank r·m the solutions form a smooth manifold of dimension d − r·m around them (implicit
function theorem); for networks with smooth activations that is so for almost all data (Cooper 2021). The null space of
J is its tangent space: a walk goes a little way along it, and Gauss-Newton steps w ← w − J⁺(f(w) − y) lead back.

References:
    Cooper 2021, Global minima of overparameterized neural networks, SIAM J. Math. Data Sci. 3(2):676-691; Tanner,
    Theories of Deep Learning, lecture 9 (dimension of global minimizer submanifold).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.core.result import Estimate, Finding, provenance
from crunode.core.rng import derived_seed
from crunode.curvature.rank import NumericRank
from crunode.errors import InputError
from crunode.topology.equations import Factors, SquaredErrors, positive, solved

__all__ = ["SolutionDimension", "Walk", "solution_dimension", "walk"]

# A step along the tangent space, relative to the weights; corrections after it, and how often it may be halved.
_STRIDE = 0.02
_CORRECTIONS, _HALVINGS = 12, 20
# Corrections go on until the loss is this part of what it may be.
_SURE = 1e-2


@dataclass(frozen=True)
class SolutionDimension:
    """The dimension of the set of zero loss around a point of it.

    Attributes:
        dimension: d − rank J at the point. Where the rank is full it is the dimension of the zero-loss manifold;
            otherwise an upper bound of that of the set (finding TOPO1106). NaN where no such point was found.
        expected: d − r·m, what the theorem says.
        full_rank: Whether J has the rank r·m, so that the theorem applies.
        weights: The point, a flat vector in double precision.
        loss: Its loss.
        rank: The rank of J, and how clear it is.
        parameters: d.
        equations: r·m.
        findings: What was noticed.
    """

    dimension: Estimate
    expected: int
    full_rank: bool
    weights: Tensor = field(repr=False)
    loss: Estimate
    rank: NumericRank
    parameters: int
    equations: int
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Walk:
    """A walk along the zero-loss manifold.

    Attributes:
        path: Its points, shape (points, dim), in double precision.
        losses: The loss at each.
        largest: The largest of them.
        length: Sum of the distances between neighbors.
        distance: Distance from the first point to the last.
        dimensions: d − rank J at each.
        findings: What was noticed.
    """

    path: Tensor = field(repr=False)
    losses: np.ndarray = field(repr=False)
    largest: Estimate
    length: Estimate
    distance: Estimate
    dimensions: np.ndarray = field(repr=False)
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """True when no finding of severity "error" stands against it."""
        return all(f.severity != "error" for f in self.findings)


def solution_dimension(land: Landscape, *, steps: int = 200, tolerance: float = 1e-20) -> SolutionDimension:
    """The dimension of the zero-loss manifold at the solution nearest by, from the rank of the Jacobian there.

    From the center Levenberg-Marquardt steps w ← w − Jᵀ(JJᵀ + μ)⁻¹(f(w) − y) lead to a point of zero loss. With d
    parameters, m examples and r outputs the dimension is d − rank J, and d − r·m where the rank is full.

    Args:
        land: The landscape; its loss is one of squared errors.
        steps: Most steps to the solution.
        tolerance: Loss that counts as zero; not below the rounding of the model's dtype.

    Returns:
        The dimension. Findings: TOPO1105 no point of zero loss, with a dimension that is NaN; TOPO1106 the rank is not
        full; TOPO1107 the rank is not clear; TOPO1108 the network has kinks.

    Raises:
        InputError: The loss is not one of squared errors, or J has more than 2²⁵ entries.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
        >>> x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> found = solution_dimension(Landscape(net, (x, x.sum(1, keepdim=True)), "gaussian"))
        >>> found.parameters, found.equations, found.dimension.value
        (33, 5, 28.0)

    References:
        Cooper 2021, theorem 2.1.
    """
    _check(steps)
    fit = SquaredErrors(land)
    limit = fit.limit(tolerance)
    weights, loss, taken = solved(fit, steps, limit)
    dim, rows = fit.shape[1], fit.shape[0]
    spec = {"n": land.n, "dim": dim, "outputs": rows // land.data.rows, "loss": land.loss_name}
    spec |= {"steps": steps, "taken": taken, "tolerance": limit}
    findings = [*land.findings, *fit.findings]
    rank = fit.factors(weights).rank
    if not loss <= limit:
        findings.append(Finding.of("TOPO1105", f"loss {loss:.4g} after {taken} steps, above {limit:.2g}"))
    elif not rank.decided:
        findings.append(Finding.of("TOPO1107", f"rank between {rank.low} and {rank.high} of {rows}"))
    elif rank.rank < rows:
        findings.append(Finding.of("TOPO1106", f"rank {rank.rank} for {rows} equations"))
    made = _Maker(spec, tuple(findings))
    value = dim - (rank.low + rank.high) / 2 if loss <= limit else math.nan
    return SolutionDimension(
        made("dimension of the zero-loss manifold", value, (rank.high - rank.low) / 2),
        dim - rows,
        bool(loss <= limit and rank.decided and rank.rank == rows),
        weights,
        made("loss", loss),
        rank,
        dim,
        rows,
        made.findings,
    )


def walk(
    land: Landscape,
    steps: int = 100,
    *,
    stride: float | None = None,
    direction: Tensor | None = None,
    tolerance: float = 1e-12,
    seed: int = 0,
) -> Walk:
    """A walk along the zero-loss manifold, straight on as far as that goes.

    Each step goes along the tangent space, the null space of J, in the direction of the one before, and Gauss-Newton
    corrections w ← w − J⁺(f(w) − y) lead back to zero loss; a step that they cannot bring back is halved, up to
    19 times.

    Args:
        land: The landscape; its loss is one of squared errors. The walk begins at the point of zero loss that
            Levenberg-Marquardt steps find from the center.
        steps: How many.
        stride: Length of a step; None takes 2 % of the length of the weights at the beginning.
        direction: Where to, a flat vector of weights; None draws one. Its part in the tangent space is followed.
        tolerance: Largest loss that a point of the walk may have; not below the rounding of the model's dtype.
        seed: A drawn direction comes from it.

    Returns:
        The path, its length and the largest loss on it. Findings: TOPO1105 there is no point to begin at (the
        estimates are NaN); TOPO1109 the walk ended early; TOPO1108 the network has kinks.

    Raises:
        InputError: The loss is not one of squared errors, the direction does not fit or has no part in the tangent
            space, or settings make no sense.

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False).double()
        >>> land = Landscape(net, (torch.ones(1, 2).double(), torch.ones(1, 1).double()), "gaussian")  # w1 + w2 = 1
        >>> found = walk(land, 10, stride=0.1, direction=torch.tensor([1.0, 0.0]))
        >>> round(found.length.value, 9), found.largest.value < 1e-25
        (1.0, True)
    """
    _check(steps)
    if stride is not None and not positive(stride):
        raise InputError(f"expected stride as a positive length of a step, got {stride!r}")
    fit = SquaredErrors(land)
    limit = fit.limit(tolerance)
    ahead = _direction(land, direction, seed)
    w, loss, _ = solved(fit, 200, min(limit, fit.limit(1e-20)))
    spec: dict[str, Any] = {"n": land.n, "dim": land.dim, "loss": land.loss_name, "steps": steps, "tolerance": limit}
    findings = [*land.findings, *fit.findings]
    if not loss <= limit:
        findings.append(Finding.of("TOPO1105", f"loss {loss:.4g}, above {limit:.2g}"))
        return _walk([w], [loss], [math.nan], _Maker(spec, tuple(findings), seed))
    reach = stride if stride is not None else _STRIDE * max(float(w.norm()), 1e-3)
    factors = fit.factors(w)
    path, losses, dims = [w], [loss], [float(land.dim - factors.rank.rank)]
    ahead = factors.tangent(ahead)
    if not float(ahead.norm()) > 1e-9:
        raise InputError(
            "expected a direction with a part in the tangent space, got none; take another, or leave it out"
        )
    with Progress(steps, "walk") as bar:
        for k in range(steps):
            ahead = ahead / ahead.norm()
            found = _stepped(fit, factors, path[-1], ahead, reach, limit)
            if found is None:
                findings.append(Finding.of("TOPO1109", f"after {k} of {steps} steps"))
                break
            path.append(found[0])
            losses.append(found[1])
            factors = fit.factors(path[-1])
            dims.append(float(land.dim - factors.rank.rank))
            turned = factors.tangent(path[-1] - path[-2])
            if not float(turned.norm()) > 1e-9 * reach:
                findings.append(Finding.of("TOPO1109", f"after {k + 1} of {steps} steps, with no way ahead"))
                break
            ahead = turned
            bar.advance()
    return _walk(path, losses, dims, _Maker(spec | {"stride": float(reach)}, tuple(findings), seed))


def _walk(path: list[Tensor], losses: list[float], dims: list[float], made: _Maker) -> Walk:
    points = torch.stack(path)
    known = math.isfinite(dims[0])
    length = float((points[1:] - points[:-1]).norm(dim=1).sum()) if known else math.nan
    return Walk(
        points,
        np.array(losses),
        made("largest loss of a walk", max(losses)),
        made("length of a walk", length),
        made("distance between the ends of a walk", float((points[-1] - points[0]).norm()) if known else math.nan),
        np.array(dims),
        made.findings,
    )


def _check(steps: Any) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"expected steps as a positive whole number, got {steps!r}")


def _direction(land: Landscape, direction: Any, seed: int) -> Tensor:
    if direction is None:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InputError(f"expected seed as a whole number from 0 up, got {seed!r}")
        generator = torch.Generator().manual_seed(derived_seed(seed, 72))
        found = torch.randn(land.dim, generator=generator, dtype=torch.float64).to(land.device)
    elif isinstance(direction, Tensor) and direction.shape == land.center.shape and direction.is_floating_point():
        found = direction.detach().to(land.device, torch.float64)
    else:
        shape = tuple(direction.shape) if isinstance(direction, Tensor) else type(direction).__name__
        raise InputError(f"expected direction as a flat vector of {land.dim} numbers, got {shape}")
    size = float(found.norm())
    if not 0 < size < math.inf:
        raise InputError(f"expected a direction of finite length other than zero, got length {size}")
    return found / size


def _stepped(
    fit: SquaredErrors, factors: Factors, w: Tensor, ahead: Tensor, reach: float, limit: float
) -> tuple[Tensor, float] | None:
    """The next point of a walk and its loss; None where no step however small can be brought back."""
    for _ in range(_HALVINGS):
        point, best = w + reach * ahead, math.inf
        for _ in range(_CORRECTIONS):
            residual = fit.residual(point)
            loss = fit.loss(residual)
            if loss <= _SURE * limit:
                return point, loss
            if not loss < best:
                break
            best = loss
            point = point - factors.back(residual)
        reach /= 2
    return None


class _Maker:
    """Estimates without statistical error that share what they were made from."""

    def __init__(self, spec: Mapping[str, Any], findings: tuple[Finding, ...], seed: int | None = None) -> None:
        self.findings, self._spec, self._seed, self._origin = findings, spec, seed, provenance()

    def __call__(self, name: str, value: float, systematic: float = 0.0) -> Estimate:
        return Estimate(name, value, 0.0, systematic, self.findings, self._spec, self._seed, provenance=self._origin)
