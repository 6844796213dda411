"""Largest eigenvalues with intervals that are certain, and the density of all, by Lanczos steps.

For a unit vector y there is an eigenvalue λ of A with |θ − λ| ≤ ‖Ay − θy‖; for y = Vs from an eigenpair (θ, s) of the
tridiagonal T = VᵀAV of m steps, that residual is β_m |s_m|. The density is the mean over random starts of the measures
that the nodes and weights of `recurrence` stand for.

References:
    Parlett 1998, theorem 4.5.1 (residual bound); Golub & Underwood 1977 (block steps); Ubaru, Chen & Saad 2017 and
    Ghorbani, Krishnan & Xiao 2019 (density); Papyan 2020 (its width).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.core.result import Estimate, Finding, provenance
from crunode.curvature.block_lanczos import ritz_vectors
from crunode.curvature.linalg import VectorEstimate
from crunode.curvature.probing import (
    Products,
    applied,
    checked,
    checked_budget,
    dense_matrix,
    doubts,
    mean_with_error,
    rounding,
    stretch,
    working_dtype,
)
from crunode.curvature.quadrature import function_trace, log_determinant
from crunode.curvature.recurrence import DENSE, FEWER, Recurrence, as_rows, negative, runs_of, tridiagonalize
from crunode.errors import InputError

__all__ = [
    "Eigenvalues",
    "Recurrence",
    "SpectralDensity",
    "function_trace",
    "log_determinant",
    "spectral_density",
    "top_eigenvalues",
    "tridiagonalize",
]


@dataclass(frozen=True)
class Eigenvalues(VectorEstimate):
    """Largest eigenvalues, descending, with residuals as errors: each interval has an eigenvalue in it.

    Attributes:
        vectors: Unit vectors y with ‖Ay − θy‖ ≤ error, as columns.
    """

    vectors: Tensor = field(default_factory=lambda: torch.empty(0), repr=False, compare=False)

    @property
    def intervals(self) -> np.ndarray:
        """θ ± residual, one row for each."""
        return np.stack([self.values - self.errors, self.values + self.errors], 1)


def top_eigenvalues(
    matrix: Products, k: int = 1, *, steps: int = 64, tolerance: float | None = 1e-3, seed: int = 0
) -> Eigenvalues:
    """The k largest eigenvalues of a symmetric matrix, with intervals that certainly have an eigenvalue in them.

    Block Lanczos steps from k random vectors, so that eigenvalues of multiplicity up to k are found as often as they
    are there. Each unit vector y with θ = yᵀAy has an eigenvalue λ with |θ − λ| ≤ ‖Ay − θy‖, which is computed
    afresh at the end. The i-th value is never above the i-th largest eigenvalue (Cauchy), up to rounding.

    Args:
        matrix: The matrix (see `Products`).
        k: How many.
        steps: Most steps, each of k products. Where k · steps products pay for all columns of up to 2048, the values
            are exact to rounding.
        tolerance: Stop when residuals are at most this part of the largest value; None goes on to the last step.
        seed: The starts come from it.

    Returns:
        Values, residuals and vectors; finding CURV813 where residuals are above the tolerance, CURV815 where the
        largest eigenvalue of a matrix said to be positive is negative.

    Raises:
        InputError: The matrix is not square, symmetric and real, or has fewer than k rows.
        EstimationError: A product is not finite.

    Example:
        >>> found = top_eigenvalues(torch.diag(torch.arange(3000.0)), 2, steps=100, tolerance=1e-2)
        >>> low, high = found.intervals[0]
        >>> bool(low <= 2999 <= high)
        True
    """
    size = checked(matrix)
    checked_budget(tolerance, seed, steps=steps)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= size:
        raise InputError(f"expected k as a whole number between 1 and the {size} rows of the matrix, got {k!r}")
    spec = {"method": "block lanczos", "k": k, "steps": steps, "tolerance": tolerance, "size": size}
    if size <= min(k * steps, DENSE):
        values, axes = torch.linalg.eigh(dense_matrix(matrix))
        values, axes, taken, spec["method"] = values.flip(0)[:k], axes.flip(1)[:, :k], size, "exact"
        errors = torch.full_like(values, 10 * rounding(matrix) * float(values.abs().max()))
        axes = axes.to(working_dtype(matrix))
    else:
        axes, taken = ritz_vectors(matrix, size, k, steps, tolerance, seed)
        axes = axes / axes.norm(dim=0)
        images = applied(matrix, axes).double()
        values = (axes.double() * images).sum(0)
        errors = (images - values * axes.double()).norm(dim=0) + 10 * rounding(matrix) * values.abs().max()
        order = values.argsort(descending=True)
        values, errors, axes, taken = values[order], errors[order], axes[:, order], taken + k
    findings: tuple[Finding, ...] = ()
    largest, worst = float(values.abs().max()), float(errors.max())
    if tolerance is not None and worst > max(tolerance, 20 * rounding(matrix)) * largest:
        what = f"residual {worst:.2g} beside the largest value {largest:.3g} after {taken} products"
        findings = (Finding.of("CURV813", what),)
    findings += negative(matrix, float(values[0] + errors[0]), largest)
    numbers = values.cpu().numpy(), errors.cpu().numpy()
    seen = {"products": taken}
    return Eigenvalues("eigenvalues", *numbers, findings, spec, seed, seen, provenance(), axes)


@dataclass(frozen=True)
class SpectralDensity:
    """The density (1/n) Σ δ(λ − λ_i) of eigenvalues, with errors over random starts.

    Attributes:
        grid: Where the density is given.
        density: The density, each eigenvalue widened to a normal bump of standard deviation `width`.
        se: Its standard errors.
        nodes: Nodes of the quadratures, one row for each start; shorter ones are filled with weights of zero.
        weights: Their weights; each row sums to 1.
        residuals: An eigenvalue is within this distance of the node.
        size: Number n of eigenvalues.
        width: Standard deviation of the bumps.
        systematic: How far the density moved in the last quarter of the steps: the integral of the difference.
        findings: What was noticed.
        spec: Resolved settings.
        seed: The seed all randomness came from.
        diagnostics: What was seen on the way.
        provenance: Versions and source state.

    Example:
        >>> print(spectral_density(torch.diag(torch.tensor([1.0, 3.0]))))
        density of 2 eigenvalues from 1 to 3, mean 2 ± 0 | ok
    """

    grid: np.ndarray = field(repr=False)
    density: np.ndarray = field(repr=False)
    se: np.ndarray = field(repr=False)
    nodes: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    residuals: np.ndarray = field(repr=False)
    size: int
    width: float
    systematic: float = 0.0
    findings: tuple[Finding, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when the density is finite and no finding of severity "error" stands against it."""
        return bool(np.isfinite(self.density).all()) and all(f.severity != "error" for f in self.findings)

    def __str__(self) -> str:
        seen, mean = self.nodes[self.weights > 0], self.moment(1)
        codes = ", ".join(f.code for f in self.findings if f.severity != "info")
        verdict = ("ok" if self.ok else "not ok") + f" ({codes})" * bool(codes)
        ends = f"from {seen.min():.4g} to {seen.max():.4g}"
        return f"density of {self.size} eigenvalues {ends}, mean {mean.value:.4g} ± {mean.se:.2g} | {verdict}"

    def moment(self, power: int) -> Estimate:
        """The mean of λ^power over eigenvalues, Tr A^power / n. Exact for each start for powers below twice the steps.

        Example:
            >>> spectral_density(torch.diag(torch.tensor([1.0, 3.0]))).moment(2).value
            5.0
        """
        if isinstance(power, bool) or not isinstance(power, int) or power < 0:
            raise InputError(f"expected power as a whole number of 0 or more, got {power!r}")
        return self._estimate(f"moment {power}", (self.weights * self.nodes**power).sum(1), 0.0)

    def mass(self, low: float, high: float) -> Estimate:
        """The share of eigenvalues between two numbers.

        A node that has not converged stands for eigenvalues on both sides: its weight is spread as far as its residual
        reaches, but not further than half-way to its neighbors. The smaller part of a weight that is cut through is
        the systematic error.

        Example:
            >>> spectral_density(torch.diag(torch.tensor([1.0, 3.0]))).mass(2, 4).value
            0.5
        """
        if not low < high:
            raise InputError(f"expected low < high, got {low!r} and {high!r}")
        above, doubt_above = self._below(high)
        below, doubt_below = self._below(low)
        return self._estimate(
            f"mass in [{low:.4g}, {high:.4g}]", above - below, float((doubt_above + doubt_below).mean())
        )

    def _below(self, end: float) -> tuple[np.ndarray, np.ndarray]:
        half = np.diff(self.nodes, axis=1) / 2
        edge = np.full((len(self.nodes), 1), np.inf)
        low = self.nodes - np.minimum(self.residuals, np.hstack([edge, half]))
        high = self.nodes + np.minimum(self.residuals, np.hstack([half, edge]))
        share = np.clip((end - low) / np.maximum(high - low, 1e-300), 0, 1)
        return (self.weights * share).sum(1), (self.weights * np.minimum(share, 1 - share)).sum(1)

    def _estimate(self, name: str, samples: np.ndarray, systematic: float) -> Estimate:
        value, se = mean_with_error(samples) if len(samples) > 1 else (float(samples[0]), 0.0)
        content = dict(self.spec), self.seed, {"probes": len(samples)}
        return Estimate(name, value, se, systematic, self.findings, *content, provenance=dict(self.provenance))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values that share nothing with this object."""
        content = {key: copy.deepcopy(value) for key, value in self.__dict__.items() if key != "findings"}
        lists = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in content.items()}
        return {**lists, "findings": [asdict(f) for f in self.findings], "ok": self.ok}


def spectral_density(
    matrix: Products,
    *,
    probes: int = 8,
    steps: int = 64,
    points: int = 512,
    width: float | None = None,
    tolerance: float | None = 0.05,
    seed: int = 0,
) -> SpectralDensity:
    """The density of eigenvalues of a symmetric matrix by stochastic Lanczos quadrature.

    Args:
        matrix: The matrix (see `Products`).
        probes: Most starts, vectors of random signs. Where probes · steps products pay for all columns of up to 2048,
            all eigenvalues are computed.
        steps: Lanczos steps from each.
        points: Points of the grid.
        width: Standard deviation of the bumps; None takes the spread of the spectrum over
            3 (steps − 1), about that of Papyan 2020, and at least two points of the grid.
        tolerance: Stop when the integral of the standard error is at most this; None takes all of `probes`.
        seed: The starts come from it.

    Returns:
        The density with errors; findings CURV811 and CURV812 about the errors, CURV813 where it moved by more than
        the tolerance (or 5 %) in the last quarter of the steps, and by more than twice its error, CURV815.

    Raises:
        InputError: The matrix is not square, symmetric and real, or the settings make no sense.
        EstimationError: A product is not finite.

    Example:
        >>> found = spectral_density(torch.diag(torch.linspace(0, 1, 3000)), probes=4, steps=20, tolerance=None)
        >>> abs(found.mass(0, 0.25).value - 0.25) < 0.03
        True
    """
    size = checked(matrix)
    checked_budget(tolerance, seed, probes=probes, steps=steps, points=points)
    if width is not None and not 0 < width < math.inf:
        raise InputError(f"expected width as a positive number or None, got {width!r}")
    spec = {"method": "lanczos", "probes": probes, "steps": steps, "tolerance": tolerance, "size": size}
    if size <= min(probes * steps, DENSE):
        return _all_eigenvalues(matrix, points, width, steps, {**spec, "method": "exact"}, seed)
    runs: list[Recurrence] = []
    for runs in runs_of(matrix, size, probes, steps, seed):
        nodes, weights, residuals = as_rows([run.rule() for run in runs])
        shown = _Shown.of(nodes, points, width, steps)
        each = shown.density(nodes, weights)
        se = each.std(0, ddof=1) / math.sqrt(len(runs)) * stretch(len(runs))
        noise = shown.integral(se)
        if tolerance is not None and noise <= tolerance:
            break
    fewer = as_rows([run.rule(math.ceil(FEWER * len(run.diagonal)) if run.beside[-1] else None) for run in runs])
    moved = shown.integral(np.abs(shown.density(*fewer[:2]).mean(0) - each.mean(0)))
    findings = doubts(len(runs), noise <= (tolerance or math.inf), f"integrated standard error {noise:.2g}", tolerance)
    if moved > max(tolerance or 0.05, 2 * noise):
        findings += (Finding.of("CURV813", f"the density moved by {moved:.2g} in the last quarter of {steps} steps"),)
    findings += negative(matrix, float(nodes.min()), float(np.abs(nodes).max()))
    products = sum(len(run.diagonal) for run in runs)
    seen = {"probes": len(runs), "products": products, "integrated_se": noise}
    rest = moved, findings, spec, seed, seen, provenance()
    return SpectralDensity(shown.grid, each.mean(0), se, nodes, weights, residuals, size, shown.width, *rest)


def _all_eigenvalues(
    matrix: Products, points: int, width: float | None, steps: int, spec: Mapping[str, Any], seed: int
) -> SpectralDensity:
    """The density of a matrix whose columns are paid for: nothing of it is estimated."""
    values = torch.linalg.eigvalsh(dense_matrix(matrix)).cpu().numpy()
    size = len(values)
    shown = _Shown.of(values[None], points, width, steps)
    weights, exact = np.full((1, size), 1 / size), np.zeros((1, size))
    density = shown.density(values[None], weights)[0]
    findings = negative(matrix, float(values[0]), float(np.abs(values).max()))
    rest = 0.0, findings, spec, seed, {"probes": 0, "products": size}, provenance()
    flat = np.zeros_like(density)
    return SpectralDensity(shown.grid, density, flat, values[None], weights, exact, size, shown.width, *rest)


@dataclass(frozen=True)
class _Shown:
    """A grid over the spectrum, and bumps on it."""

    grid: np.ndarray
    width: float

    @classmethod
    def of(cls, nodes: np.ndarray, points: int, width: float | None, steps: int) -> _Shown:
        low, high = float(nodes.min()), float(nodes.max())
        spread = (high - low) or max(abs(high), 1.0) * 0.1
        width = max(spread / (3 * (steps - 1)), 2 * spread / points) if width is None else width
        return cls(np.linspace(low - 5 * width, high + 5 * width, points), width)

    def density(self, nodes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """One row for each row of nodes."""
        rows = [
            weight @ np.exp(-0.5 * ((self.grid - node[:, None]) / self.width) ** 2)
            for node, weight in zip(nodes, weights, strict=True)
        ]
        return np.stack(rows) / (self.width * math.sqrt(2 * math.pi))

    def integral(self, values: np.ndarray) -> float:
        return float(values.sum() * (self.grid[1] - self.grid[0]))
