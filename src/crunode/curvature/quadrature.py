"""Traces of functions of a symmetric matrix by stochastic Lanczos quadrature: Σ f(λ_i), with error bars and enclosures.

For vectors z of random signs, zᵀf(A)z has mean Tr f(A), and is n times the integral of f against the measure of z in
the eigenvectors of A, which the nodes of Lanczos steps from z integrate. The spread over z is the standard error, what
the quadrature may be off the systematic one.

References:
    Golub & Meurant 2010, section 6.2 (bounds); Ubaru, Chen & Saad 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from crunode.core.result import Estimate, Finding, provenance
from crunode.curvature.probing import (
    Products,
    checked,
    checked_budget,
    dense_matrix,
    doubts,
    is_positive,
    mean_with_error,
    rounding,
)
from crunode.curvature.recurrence import DENSE, FEWER, Recurrence, negative, runs_of
from crunode.errors import InputError

__all__ = ["function_trace", "log_determinant", "traced"]


def function_trace(
    matrix: Products,
    function: Callable[[np.ndarray], np.ndarray],
    *,
    probes: int = 32,
    steps: int = 64,
    tolerance: float | None = 0.01,
    seed: int = 0,
) -> Estimate:
    """Tr f(A) = Σ f(λ_i) of a symmetric matrix by stochastic Lanczos quadrature.

    Args:
        matrix: The matrix (see `Products`).
        function: f of an array of eigenvalues; smooth where they are, since it is seen at few nodes.
        probes: Most starts. Where probes · steps products pay for all columns of up to 2048, the value is exact.
        steps: Lanczos steps from each.
        tolerance: Stop when the standard error is at most this part of Tr |f(A)|; None takes all of `probes`.
        seed: The starts come from it.

    Returns:
        The trace; the systematic error is how far it moved in the last quarter of the steps. Findings CURV811,
        CURV812, CURV813.

    Raises:
        InputError: The matrix is not square, symmetric and real, or f is not finite on its spectrum.
        EstimationError: A product is not finite.

    Example:
        >>> found = function_trace(torch.diag(torch.linspace(0, 1, 3000)), np.exp, probes=4, tolerance=None)
        >>> abs(found.value / 3000 - (np.e - 1)) < 1e-3
        True
    """
    return traced(matrix, "trace of a function", function, None, probes, steps, tolerance, seed, {})


def log_determinant(
    matrix: Products,
    shift: float = 0.0,
    *,
    probes: int = 32,
    steps: int = 64,
    tolerance: float | None = 0.01,
    seed: int = 0,
) -> Estimate:
    """The logarithm of the determinant of A + κI, Tr log(A + κI), by stochastic Lanczos quadrature.

    For a matrix that says it is positive (see `Products`) and κ > 0, Gauss quadrature is above the integral and
    Gauss-Radau quadrature with a node at zero below it; the value is in the middle, and half the difference the
    systematic error. For others it is how far the value moved in the last quarter of the steps.

    Args:
        matrix: The matrix A (see `Products`).
        shift: κ.
        probes: Most starts. Where probes · steps products pay for all columns of up to 2048, the value is exact.
        steps: Lanczos steps from each.
        tolerance: Stop when the standard error is at most this part of Tr |log(A + κI)|; None takes all of `probes`.
        seed: The starts come from it.

    Returns:
        The value; findings CURV811 to CURV813, CURV815, and CURV816 where A + κI may have an eigenvalue below zero.

    Raises:
        InputError: A + κI has an eigenvalue that is zero to rounding or below, or the matrix is not square, symmetric
            and real.
        EstimationError: A product is not finite.

    Example:
        >>> round(log_determinant(torch.diag(torch.tensor([1.0, 3.0])), 1.0).value, 6)  # log 2 + log 4
        2.079442
    """
    if not isinstance(shift, int | float) or not math.isfinite(shift):
        raise InputError(f"expected shift as a finite number, got {shift!r}")

    def logarithm(values: np.ndarray) -> np.ndarray:
        low, scale = float(values.min()), float(np.abs(values).max())
        if low + shift <= 10 * rounding(matrix) * max(scale, abs(shift)):
            raise InputError(
                f"expected a positive definite A + {shift:.4g} I, got an eigenvalue of A at {low:.4g} or below, beside "
                f"one of {scale:.4g}; raise shift"
            )
        return np.log(values + shift)

    floor = 0.0 if is_positive(matrix) and shift > 0 else None
    found = traced(matrix, "log determinant", logarithm, floor, probes, steps, tolerance, seed, {"shift": shift})
    low, doubt = found.diagnostics["lowest"], found.diagnostics["lowest_residual"]
    if floor is None and low - doubt + shift <= 0:
        what = f"lowest Ritz value {low:.4g} with residual {doubt:.2g}, shift {shift:.4g}"
        found = found.with_findings(Finding.of("CURV816", what))
    return found


def traced(
    matrix: Products,
    name: str,
    function: Callable[[np.ndarray], np.ndarray],
    floor: float | None,
    probes: int,
    steps: int,
    tolerance: float | None,
    seed: int,
    spec: Mapping[str, Any],
) -> Estimate:
    """`function_trace` for a matrix without eigenvalues below `floor`, and f whose even derivatives are negative there.

    Then Gauss and Gauss-Radau quadrature enclose the integral (Golub & Meurant 2010, section 6.2). Where eigenvalues
    below the floor are found, CURV815 says so, and the steps are compared instead.

    Example:
        >>> round(traced(torch.eye(3), "trace", lambda x: x, 0.0, 8, 8, None, 0, {}).value, 6)
        3.0
    """
    size = checked(matrix)
    checked_budget(tolerance, seed, probes=probes, steps=steps)
    spec = {"method": "lanczos", **spec, "probes": probes, "steps": steps, "tolerance": tolerance, "size": size}
    if size <= min(probes * steps, DENSE):
        values = torch.linalg.eigvalsh(dense_matrix(matrix)).cpu().numpy()
        spec["method"] = "exact"
        low, scale = float(values[0]), float(np.abs(values).max())
        findings = negative(matrix, low, scale, floor)
        value = math.fsum(_finite(function, values if findings or floor is None else np.maximum(values, floor)))
        seen = {"probes": 0, "products": size, "lowest": low, "lowest_residual": 0.0}
        return Estimate(name, value, 0.0, 0.0, findings, spec, seed, seen, provenance=provenance())
    runs: list[Recurrence] = []
    for runs in runs_of(matrix, size, probes, steps, seed):
        upper, lower, reach, shaken, low, doubt, findings = _sums(matrix, runs, function, floor)
        value, se = (size * x for x in mean_with_error((upper + lower) / 2))
        if tolerance is not None and se <= tolerance * size * reach:
            break
    systematic = size * math.hypot(abs(float((upper - lower).mean())) / 2, shaken)
    reached = tolerance is None or se <= tolerance * size * reach
    findings = (*doubts(len(runs), reached, f"standard error {se:.2g} of {value:.3g}", tolerance), *findings)
    if systematic > max((tolerance or 0.01) * size * reach, 2 * se):
        findings += (Finding.of("CURV813", f"error {systematic:.2g} of {value:.3g} from {steps} steps"),)
    products = sum(len(run.diagonal) for run in runs)
    seen = {"probes": len(runs), "products": products, "lowest": low, "lowest_residual": doubt}
    return Estimate(name, value, se, systematic, findings, spec, seed, seen, provenance=provenance())


def _sums(
    matrix: Products, runs: list[Recurrence], function: Callable[[np.ndarray], np.ndarray], floor: float | None
) -> tuple[np.ndarray, np.ndarray, float, float, float, float, tuple[Finding, ...]]:
    """Two quadratures of f for each start, the mean of |f|, its error by rounding, the lowest node, its residual."""
    rules = [run.rule() for run in runs]
    first = min(range(len(rules)), key=lambda i: float(rules[i][0][0]))
    low, doubt = float(rules[first][0][0]), float(rules[first][2][0])
    scale = max(float(np.abs(nodes).max()) for nodes, _, _ in rules)
    findings = negative(matrix, low, scale, floor)
    bracket = floor is not None and not findings

    def values(nodes: np.ndarray) -> np.ndarray:
        return _finite(function, np.maximum(nodes, floor) if bracket and floor is not None else nodes)

    upper = np.array([weights @ values(nodes) for nodes, weights, _ in rules])
    reach = float(np.mean([weights @ np.abs(values(nodes)) for nodes, weights, _ in rules]))
    nearby = 4 * rounding(matrix) * scale
    shaken = float(np.mean([weights @ np.abs(values(nodes + nearby) - values(nodes)) for nodes, weights, _ in rules]))
    if bracket and floor is not None:
        end = min(floor, low - nearby)
        others = [run.radau(end) for run in runs]
    else:
        others = [run.rule(math.ceil(FEWER * len(run.diagonal)) if run.beside[-1] else None)[:2] for run in runs]
    lower = np.array([weights @ values(nodes) for nodes, weights in others])
    if not bracket:  # all steps are better than fewer, and how far they moved it is the error
        lower, upper = upper - (lower - upper), upper + (lower - upper)
    return upper, lower, reach, shaken, low, doubt, findings


def _finite(function: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
    found = np.asarray(function(values), dtype=np.float64)
    if found.shape != values.shape or not np.isfinite(found).all():
        raise InputError("expected a function that is finite on the spectrum, entry by entry, got one that is not")
    return found
