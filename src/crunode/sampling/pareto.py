"""Importance weights with a smoothed tail, and the exponent k that says whether their averages exist.

The largest M of S importance ratios are replaced by the expected order statistics of a generalised Pareto distribution
fitted to them. Its exponent k tells how heavy the tail is: averages have a finite variance for k < 1/2, converge at a
usable rate up to about 0.7, and do not exist above 1.

References:
    Vehtari, Simpson, Gelman, Yao & Gabry 2024, JMLR 25(72); Zhang & Stephens 2009, Technometrics 51, 316 (the fit).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from crunode.errors import InputError

__all__ = ["fit_pareto", "smoothed_log_weights"]

Array = NDArray[np.float64]

# Draws in the tail below which nothing can be fitted, and the weight of the prior k = 1/2 in draws.
_FEWEST, _PRIOR, _PRIOR_K = 5, 10.0, 0.5
_GRID = 30


def smoothed_log_weights(log_ratios: Array, *, efficiency: float = 1.0) -> tuple[Array, float]:
    """Logarithms of normalised weights with a Pareto-smoothed tail, and the exponent k.

    The tail has M = min(S/5, 3 √(S/r)) of the S draws, r being their relative efficiency.

    Args:
        log_ratios: Logarithms of importance ratios, up to a constant, shape (S,).
        efficiency: Effective draws divided by draws.

    Returns:
        Log weights that sum to one, and k: infinity where the tail is too short to be fitted, −infinity where all
        ratios of the tail are the same.

    Example:
        >>> ratios = np.random.default_rng(0).standard_exponential(4000) ** 0.3
        >>> weights, k = smoothed_log_weights(np.log(ratios))
        >>> round(float(np.exp(weights).sum()), 6), k < 0.5
        (1.0, True)
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise InputError("expected finite logarithms of ratios as a vector, got none or some that are not finite")
    logs = values - values.max()
    size = values.size
    tail = math.ceil(min(size / 5, 3 * math.sqrt(size / max(efficiency, 1e-12))))
    k = math.inf
    if tail >= _FEWEST:
        order = np.argsort(logs, kind="stable")
        top = order[-tail:]
        cut = max(float(logs[order[-tail - 1]]), math.log(np.finfo(np.float64).tiny))
        excess = np.exp(logs[top]) - math.exp(cut)
        if excess[-1] <= np.finfo(np.float64).eps:
            k = -math.inf
        else:
            k, scale = fit_pareto(excess)
            if math.isfinite(k):
                levels = (np.arange(tail) + 0.5) / tail
                quantiles = -scale * np.log1p(-levels) if k == 0 else scale * np.expm1(-k * np.log1p(-levels)) / k
                logs = logs.copy()
                # No weight may exceed the largest raw one.
                logs[top] = np.minimum(np.log(quantiles + math.exp(cut)), 0.0)
    return logs - _logsumexp(logs), k


def fit_pareto(excess: Array) -> tuple[float, float]:
    """Exponent k and scale σ of a generalised Pareto distribution, P(x > t) = (1 + k t/σ)^(−1/k).

    A posterior mean over a grid of b = −k/σ, with a weak prior that draws k to 1/2.

    Args:
        excess: Positive values in ascending order.

    Example:
        >>> uniform = (np.arange(1000) + 0.5) / 1000
        >>> k, scale = fit_pareto(np.expm1(-0.4 * np.log1p(-uniform)) / 0.4)  # quantiles for k = 0.4, σ = 1
        >>> round(k, 1), round(scale, 1)
        (0.4, 1.0)
    """
    x = np.asarray(excess, dtype=np.float64)
    n = x.size
    points = _GRID + math.isqrt(n)
    quarter = x[max(int(n / 4 + 0.5) - 1, 0)]
    if not quarter > 0:
        return math.inf, math.nan
    grid = 1 - np.sqrt(points / (np.arange(points) + 0.5))
    b = grid / (3 * quarter) + 1 / x[-1]
    shapes = np.log1p(-b[:, None] * x).mean(axis=1)
    fit = n * (np.log(-b / shapes) - shapes)
    likely = fit > _logsumexp(fit) + math.log(10 * np.finfo(np.float64).eps)
    best = float(np.average(b[likely], weights=np.exp(fit[likely] - fit.max())))
    k = float(np.log1p(-best * x).mean())
    scale = -k / best
    return (n * k + _PRIOR * _PRIOR_K) / (n + _PRIOR), scale


def _logsumexp(values: Array) -> float:
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))
