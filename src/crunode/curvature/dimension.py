"""How many directions a symmetric matrix acts in (rank, effective dimension, participation), and how strongly.

References:
    MacKay 1991 (well-determined parameters); Maddox, Benton & Wilson 2020 (effective dimension); Ubaru & Saad 2016
    (ranks by quadrature); Halko, Martinsson & Tropp 2011 (ranks by sketches).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from crunode.core.result import Estimate, Finding, provenance
from crunode.curvature.lanczos import top_eigenvalues
from crunode.curvature.probing import (
    Products,
    applied,
    block_width,
    checked,
    checked_budget,
    dense_matrix,
    doubts,
    generator_of,
    mean_with_error,
    rounding,
    sampled,
    stages,
    stretch,
    working_dtype,
)
from crunode.curvature.quadrature import traced
from crunode.curvature.rank import NumericRank, numeric_rank
from crunode.curvature.recurrence import DENSE, Recurrence, runs_of
from crunode.errors import InputError

__all__ = ["effective_dimension", "matrix_rank", "participation_ratio", "sharpness"]

# A sketch has this many columns more than the rank before the rank is believed.
_SPARE = 4
# Nodes that stand for less than this part of an eigenvalue are left out of the gap test.
_FAINT = 0.05


def effective_dimension(
    matrix: Products,
    gamma: float,
    *,
    probes: int = 32,
    steps: int = 64,
    tolerance: float | None = 0.01,
    seed: int = 0,
) -> Estimate:
    """The effective dimension Σ λ_i/(λ_i + γ) of a positive semidefinite matrix.

    With λ_i the eigenvalues of the Hessian or Fisher matrix of n L_n, or of its mean over examples with γ the precision
    of the prior over n, it counts the directions that the data determines better than the prior (MacKay 1991). The
    quadratures of Gauss and Gauss-Radau enclose each zᵀA(A + γI)⁻¹z, and half their difference is the systematic error.

    Args:
        matrix: The matrix (see `Products`).
        gamma: γ > 0.
        probes: Most starts. Where probes · steps products pay for all columns of up to 2048, the value is exact.
        steps: Lanczos steps from each.
        tolerance: Stop when the standard error is at most this part of the value; None takes all of `probes`.
        seed: The starts come from it.

    Returns:
        The dimension; findings CURV811 to CURV813, and CURV815 where there are eigenvalues clearly below zero, for
        which the sum has another meaning.

    Raises:
        InputError: γ is not positive, or A + γI has an eigenvalue of zero or below; the matrix is not square, symmetric
            and real.
        EstimationError: A product is not finite.

    Example:
        >>> round(effective_dimension(torch.diag(torch.tensor([1.0, 1.0, 0.0])), 1.0).value, 6)
        1.0
    """
    if not isinstance(gamma, int | float) or not 0 < gamma < math.inf:
        raise InputError(f"expected gamma as a positive number, got {gamma!r}; it is the precision of a prior")

    def share(values: np.ndarray) -> np.ndarray:
        if float(values.min()) + gamma <= 10 * rounding(matrix) * float(np.abs(values).max()):
            raise InputError(
                f"expected A + {gamma:.4g} I to be positive definite, got an eigenvalue of A at {values.min():.4g} or "
                f"below, beside one of {np.abs(values).max():.4g}; raise gamma, or use a matrix that is positive"
            )
        return values / (values + gamma)

    return traced(matrix, "effective dimension", share, 0.0, probes, steps, tolerance, seed, {"gamma": gamma})


def participation_ratio(
    matrix: Products, *, probes: int = 256, tolerance: float | None = 0.01, seed: int = 0
) -> Estimate:
    """The participation ratio (Tr A)² / Tr A²: how many equal eigenvalues would give the same two traces.

    Tr A and Tr A² are means of zᵀAz and |Az|² over the same vectors of random signs. Bias and error of the ratio come
    from the jackknife.

    Args:
        matrix: The matrix (see `Products`).
        probes: Most products. Where there are no more columns than that, the value is exact.
        tolerance: Stop when the standard error is at most this part of the value; None spends all of `probes`.
        seed: The vectors come from it.

    Returns:
        The ratio; findings CURV811 and CURV812.

    Raises:
        InputError: The matrix is zero, or not square, symmetric and real.
        EstimationError: A product is not finite.

    Example:
        >>> participation_ratio(torch.diag(torch.tensor([2.0, 2.0, 0.0]))).value
        2.0
    """
    size = checked(matrix)
    checked_budget(tolerance, seed, probes=probes)
    spec = {"method": "jackknife", "probes": probes, "tolerance": tolerance, "size": size}
    if size <= min(probes, DENSE):
        whole = dense_matrix(matrix)
        spec["method"], seen = "exact", {"probes": 0, "products": size}
        value = _ratio(float(whole.trace()), float(whole.square().sum()))
        return Estimate("participation ratio", value, 0.0, 0.0, (), spec, seed, seen, provenance=provenance())
    firsts: list[float] = []
    seconds: list[float] = []
    value, se = math.nan, math.inf
    for vectors, outcome, looks in sampled(matrix, size, probes, seed):
        firsts += (vectors * outcome).sum(0, dtype=torch.float64).tolist()
        seconds += outcome.square().sum(0, dtype=torch.float64).tolist()
        if looks:
            value, se = _jackknife(np.array(firsts), np.array(seconds))
            if tolerance is not None and se <= tolerance * value:
                break
    reached = tolerance is None or se <= tolerance * value
    findings = doubts(len(firsts), reached, f"standard error {se:.2g} of {value:.3g}", tolerance)
    seen = {"probes": len(firsts), "products": len(firsts)}
    return Estimate("participation ratio", value, se, 0.0, findings, spec, seed, seen, provenance=provenance())


def sharpness(matrix: Products, *, steps: int = 64, tolerance: float | None = 1e-3, seed: int = 0) -> Estimate:
    """The largest eigenvalue, with its residual as systematic error (see `top_eigenvalues`).

    Args:
        matrix: The matrix, usually a Hessian (see `Products`).
        steps: Most Lanczos steps.
        tolerance: Stop when the residual is at most this part of the value; None goes on to the last step.
        seed: The start comes from it.

    Example:
        >>> sharpness(torch.diag(torch.tensor([1.0, 3.0, -5.0]))).value
        3.0
    """
    found = top_eigenvalues(matrix, 1, steps=steps, tolerance=tolerance, seed=seed)
    content = found.findings, found.spec, seed, found.diagnostics
    return Estimate("sharpness", float(found.values[0]), 0.0, float(found.errors[0]), *content, provenance=provenance())


def matrix_rank(
    matrix: Products,
    *,
    products: int = 256,
    probes: int = 8,
    steps: int = 64,
    resolution: float | None = None,
    seed: int = 0,
) -> Estimate:
    """The rank of a symmetric matrix, where a gap in its spectrum shows it (see `numeric_rank`).

    Three ways, the first that applies: from all eigenvalues, where the products pay for all columns; from the singular
    values of AΩ for a random Ω, where their number is above the rank; else as n times the weight of the nodes of
    Lanczos quadratures above the gap, with a standard error over starts.

    Args:
        matrix: The matrix (see `Products`).
        products: Most columns of the sketch.
        probes: Starts for the quadratures, should they be needed.
        steps: Lanczos steps from each.
        resolution: Relative size below which an eigenvalue may be rounding; None takes 30 times that of the dtype, and
            ten times more for a dtype of less than double precision.
        seed: All random vectors come from it.

    Returns:
        The rank; finding CURV814 where there is no clear gap: then the value is in the middle of what is possible, and
        the systematic error half of the range. `diagnostics` has "low", "high", "gap" and "decided".

    Raises:
        InputError: The matrix is not square, symmetric and real, or the settings make no sense.
        EstimationError: A product is not finite.

    Example:
        >>> x = torch.randn(400, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> found = matrix_rank(x @ x.T, products=64)
        >>> found.value, found.se, found.spec["method"]
        (7.0, 0.0, 'sketch')
    """
    size = checked(matrix)
    checked_budget(None, seed, products=products, probes=probes, steps=steps)
    if resolution is None:
        resolution = 30 * rounding(matrix) * (1 if matrix.dtype == torch.float64 else 10)
    if not 0 < resolution < 1:
        raise InputError(f"expected resolution as a number between 0 and 1, got {resolution!r}")
    spec = {"products": products, "probes": probes, "steps": steps, "resolution": resolution, "size": size}
    if size <= min(products, DENSE):
        values = torch.linalg.eigvalsh(dense_matrix(matrix)).cpu().numpy()
        return _ranked(values, "exact", size, spec, seed)
    chance, dtype = generator_of(seed, 6), working_dtype(matrix)
    images = torch.empty(size, 0, dtype=dtype, device=matrix.device)
    for count in stages(products):
        while images.shape[1] < count:
            many = min(block_width(size), count - images.shape[1])
            drawn = torch.randn(many, size, generator=chance, dtype=torch.float64).T.to(matrix.device, dtype)
            images = torch.cat([images, applied(matrix, drawn)], 1)
        values = torch.linalg.svdvals(images.double()).cpu().numpy()
        found = numeric_rank(values, size, resolution)
        if found.high <= count - _SPARE or (found.decided and found.rank <= count - _SPARE):
            return _ranked(values, "sketch", count, spec, seed)
    del images
    *_, runs = runs_of(matrix, size, probes, steps, seed)
    return _counted(runs, products, spec, seed, size)


def _ranked(values: np.ndarray, method: str, products: int, spec: dict[str, Any], seed: int) -> Estimate:
    found = numeric_rank(values, spec["size"], spec["resolution"])
    low, high = found.low, found.high
    if not found.decided:
        low, high = (
            int((np.abs(values) > end).sum()) for end in _ends(found, spec["size"], float(np.abs(values).max()))
        )
    seen = {"low": low, "high": high, "gap": found.gap, "decided": found.decided, "products": products}
    return _rank(low, high, 0.0, found.gap, (), {"method": method, **spec}, seed, seen)


def _ends(found: NumericRank, size: int, top: float) -> tuple[float, float]:
    """Above the first an eigenvalue counts, below the second it does not; both are the cut where there is a gap."""
    if found.decided:
        return found.tolerance, found.tolerance
    return 10 * found.tolerance, min(10 * size * np.finfo(np.float64).eps * top, found.tolerance / 10)


def _counted(runs: list[Recurrence], products: int, spec: dict[str, Any], seed: int, size: int) -> Estimate:
    """From the nodes of all starts above the gap, once with their errors taken off, once with these added.

    Only where both agree has the gap been seen: nodes of few steps may leave gaps where eigenvalues are.
    """
    rules = []
    for run in runs:
        nodes, weights, residuals = run.rule()
        strong = weights * size > _FAINT
        shares = weights[strong] / weights[strong].sum()
        rules.append((np.abs(nodes[strong]), shares, _node_errors(nodes[strong], residuals[strong])))
    counts, gaps, clear = [], [], True
    for side in (-1, 1):
        sizes = [np.maximum(nodes + side * errors, 0) for nodes, _, errors in rules]
        found = numeric_rank(np.concatenate(sizes), size, spec["resolution"])
        end = _ends(found, size, max(float(part.max()) for part in sizes))[0 if side < 0 else 1]
        above = [size * weights[part > end].sum() for part, (_, weights, _) in zip(sizes, rules, strict=True)]
        counts.append(np.array(above))
        gaps.append(found.gap)
        clear = clear and found.decided
    low, high = (float(part.mean()) for part in counts)
    clear = clear and high - low < 0.5
    _, se = mean_with_error((counts[0] + counts[1]) / 2)
    products += sum(len(run.diagonal) for run in runs)
    seen = {"low": low, "high": high, "gap": min(gaps), "decided": clear, "products": products}
    findings = doubts(len(runs), True, "", None)
    return _rank(low, high, se, min(gaps), findings, {"method": "quadrature", **spec}, seed, seen)


def _node_errors(nodes: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """Residuals r, or r²/δ for a node that is by δ clear of the others (Kato 1949, Temple 1933)."""
    apart = np.diff(nodes, prepend=-np.inf, append=np.inf)
    clear = np.minimum(apart[:-1], apart[1:]) - residuals
    return np.where(clear > residuals, residuals**2 / np.maximum(clear, 1e-300), residuals)


def _rank(
    low: float,
    high: float,
    se: float,
    gap: float,
    findings: tuple[Finding, ...],
    spec: dict[str, Any],
    seed: int,
    seen: dict[str, Any],
) -> Estimate:
    if not seen["decided"]:
        what = f"between {low:.4g} and {high:.4g} (widest gap a factor of {gap:.2g})"
        findings += (Finding.of("CURV814", what),)
    middle, half = (low + high) / 2, (high - low) / 2
    return Estimate("rank", float(middle), se, float(half), findings, spec, seed, seen, provenance=provenance())


def _ratio(first: float, second: float) -> float:
    if not second > 0:
        raise InputError("expected a matrix other than zero, got zero, which has no participation ratio")
    return first**2 / second


def _jackknife(firsts: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """The ratio without its first-order bias, and its standard error."""
    count = len(firsts)
    whole = _ratio(float(firsts.mean()), float(seconds.mean()))
    left = (firsts.sum() - firsts) ** 2 / ((count - 1) * np.maximum(seconds.sum() - seconds, 1e-300))
    se = math.sqrt((count - 1) ** 2 / count * left.var(ddof=1)) * stretch(count)
    return count * whole - (count - 1) * float(left.mean()), se
