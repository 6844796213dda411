"""From estimates on a ladder of inverse temperatures to the learning coefficient, with the error of getting there.

At inverse temperature t = nβ the estimator λ̂(t) = t (E_t[L_n] − L_n(w*)) differs from λ by two effects.

A finite temperature lowers it. Where the multiplicity m is 1, by a power of 1/t of unknown size; where it is 2, by
1/(log t + c): the partition function is Z(t) ∝ t^−λ (log t + c) then, with c = −ψ(λ) plus a constant of order one from
the scales of prior and loss. And with noisy labels the center w* is not the minimum of L_n, which lowers λ̂ by a term
proportional to β = t/n. The two fade in opposite directions, so neither end of a ladder is right, and which law holds
is not known beforehand. So each of several laws is fitted, and the answer is their average, weighted by how well they
fit; the spread between them is the systematic error. Where a limit is known that λ cannot exceed and is likely to have,
laws that end there take part.

References:
    Watanabe 2013 (the expansion); Cullen 2026, appendix B (regression on 1/log nβ).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Extrapolation", "digamma", "extrapolate", "growth"]

# No correction, a power and a logarithm are equally likely beforehand, whatever the number of variants of each.
_PRIOR = {"none": 1 / 3, "t^-1/2": 1 / 6, "t^-1/4": 1 / 6, "log-": 1 / 9, "log": 1 / 9, "log+": 1 / 9}
# With a known limit it is twice as likely beforehand as any other end of the ladder.
_LIMITED = {"limit": 1 / 4, "limit t^-1/2": 1 / 4, "limit t^-1/4": 1 / 4, "limit log": 1 / 4}
_LIMIT_SHARE = 2 / 3
# How far the scales of prior and loss may shift c.
_SHIFT = 1.5
# Prior scale of a power's size at the hottest level, relative to the largest estimate. Without label noise a ladder
# shows the correction by itself: a Cauchy prior, as most corrections are small and some are not. With noise the two
# effects bend the ladder in opposite directions and can hardly be told apart: a normal prior, without the far tail.
_WIDTH = 0.05
_WIDTH_NOISY = 0.1


@dataclass(frozen=True)
class Extrapolation:
    """The limit of a ladder.

    Attributes:
        value: Weighted mean over the laws.
        se: Error from the errors of the levels.
        spread: Standard deviation between the laws: the systematic error.
        noise_slope: b, how fast the estimate falls with β, averaged over the laws.
        weights: Weight of each law.
    """

    value: float
    se: float
    spread: float
    noise_slope: float
    weights: dict[str, float]


def extrapolate(
    nbeta: Sequence[float],
    value: Sequence[float],
    se: Sequence[float],
    n: int,
    noisy: bool,
    *,
    limit: tuple[float, float] | None = None,
) -> Extrapolation:
    """Fit λ̂(t) = λ − a x(t) − b t/n with a, b ≥ 0 for each law x, and average.

    Args:
        nbeta: Levels t of the ladder, at least three.
        value: Estimates λ̂(t).
        se: Their standard errors.
        n: Number of examples.
        noisy: Whether labels carry noise; b = 0 otherwise.
        limit: A value that λ is likely to have, and its error; None where none is known.

    Example:
        >>> t = [100.0, 400.0, 1600.0]
        >>> e = extrapolate(t, [2.0, 2.0, 2.0], [0.01] * 3, n=1000, noisy=False)
        >>> abs(e.value - 2) < 0.1
        True
    """
    t, y = np.asarray(nbeta, float), np.asarray(value, float)
    scale = float(np.abs(y).max()) or 1.0
    # A level known too well would hide that the laws are approximations.
    sigma = np.hypot(np.asarray(se, float), 0.002 * scale)
    guess = float(y[-1])
    names, prior = _prior(limit is not None)
    # c depends on λ itself, so the fit is repeated with the value it gave.
    for _ in range(4):
        laws = _laws(t, guess, scale, noisy) + ([] if limit is None else _limited(t, *limit))
        fits = [_fit(law, t / n, y, sigma, noisy) for law in laws]
        # Levels that no law fits are worse known than they say (Birge ratio).
        stretch = min(fit.misfit for fit in fits) / max(len(y) - (2 if noisy else 1), 1)
        if stretch > 1:
            fits = [_fit(law, t / n, y, sigma * math.sqrt(stretch), noisy) for law in laws]
        # Half the evidence: the laws are approximations and the errors of the levels are estimates themselves.
        evidence = 0.5 * np.array([fit.log_evidence for fit in fits]) + np.log(prior)
        weights = np.exp(evidence - evidence.max())
        weights /= weights.sum()
        values = np.array([fit.value for fit in fits])
        guess = float(weights @ values)
    return Extrapolation(
        guess,
        math.sqrt(float(weights @ np.array([fit.variance for fit in fits]))),
        math.sqrt(float(weights @ (values - guess) ** 2)),
        float(weights @ np.array([fit.noise_slope for fit in fits])),
        dict(zip(names, weights.tolist(), strict=True)),
    )


@dataclass(frozen=True)
class _Law:
    """Corrections size × shape(t), with a grid of sizes and their log prior weights, which sum to 1; and the limit."""

    shape: np.ndarray
    sizes: np.ndarray
    log_prior: np.ndarray
    limit: tuple[float, float] | None = None


def _prior(limited: bool) -> tuple[list[str], np.ndarray]:
    if not limited:
        return list(_PRIOR), np.array(list(_PRIOR.values()))
    free, bound = np.array(list(_PRIOR.values())), np.array(list(_LIMITED.values()))
    return [*_PRIOR, *_LIMITED], np.concatenate([(1 - _LIMIT_SHARE) * free, _LIMIT_SHARE * bound])


def _limited(t: np.ndarray, value: float, error: float) -> list[_Law]:
    """Laws that end at a known limit, whatever the size of the correction."""
    one = np.ones(1)
    sizes = value * np.linspace(0, 1, 401) ** 2
    density = np.gradient(sizes) / (1 + (sizes / value / _WIDTH) ** 2)
    logarithm = 1 / np.maximum(np.log(t) - digamma(max(value, 0.02)), 1.0)
    shapes = [(t / t[0]) ** -0.5, (t / t[0]) ** -0.25, logarithm / logarithm[0]]
    tied = (value, error)
    return [
        _Law(np.zeros_like(t), one, 0 * one, tied),
        *(_Law(shape, sizes, np.log(density / density.sum()), tied) for shape in shapes),
    ]


def _laws(t: np.ndarray, coefficient: float, scale: float, noisy: bool) -> list[_Law]:
    one = np.ones(1)
    # Fine near zero, where most sizes are, and reaching far.
    sizes = scale * np.linspace(0, 1, 401) ** 2 * (0.6 if noisy else 4.0)
    ratio = sizes / scale / (_WIDTH_NOISY if noisy else _WIDTH)
    density = (np.exp(-0.5 * ratio**2) if noisy else 1 / (1 + ratio**2)) * np.gradient(sizes)
    log_prior = np.log(density / density.sum())
    powers = [_Law((t / t[0]) ** -power, sizes, log_prior) for power in (0.5, 0.25)]
    base = np.log(t) - digamma(max(coefficient, 0.02))
    logarithms = [_Law(1 / np.maximum(base + shift, 1.0), one, 0 * one) for shift in (-_SHIFT, 0.0, _SHIFT)]
    return [_Law(np.zeros_like(t), one, 0 * one), *powers, *logarithms]


def digamma(x: float) -> float:
    """ψ(x) = d log Γ(x)/dx for x > 0, by recurrence and the asymptotic series.

    Example:
        >>> round(digamma(0.5), 6)
        -1.96351
    """
    shift = 0.0
    while x < 8:
        shift -= 1 / x
        x += 1
    inverse = 1 / (x * x)
    return shift + math.log(x) - 0.5 / x - inverse * (1 / 12 - inverse * (1 / 120 - inverse / 252))


@dataclass(frozen=True)
class _Fit:
    value: float
    variance: float
    noise_slope: float
    misfit: float
    log_evidence: float


def _fit(law: _Law, beta: np.ndarray, y: np.ndarray, sigma: np.ndarray, noisy: bool) -> _Fit:
    """Posterior mean and variance of λ under one law.

    For each size on its grid the best λ and b ≥ 0 are found by weighted least squares; the grid is then summed.
    """
    level = np.ones_like(y) / sigma
    target = (y[None, :] + law.sizes[:, None] * law.shape) / sigma
    value, variance, slope = target @ level / (level @ level), 1 / (level @ level), np.zeros_like(law.sizes)
    if law.limit is not None:
        # Between the limit and what the levels say, by their errors.
        weight = variance / (variance + law.limit[1] ** 2)
        value = weight * law.limit[0] + (1 - weight) * value
        return _summed(law, target, value, weight * law.limit[1] ** 2, slope, level, beta / sigma, law.limit)
    if noisy:
        design = np.stack([level, -beta / sigma], 1)
        both = target @ np.linalg.pinv(design).T
        free = both[:, 1] > 0
        value, slope = np.where(free, both[:, 0], value), np.where(free, both[:, 1], 0.0)
        variance = np.where(free, np.linalg.inv(design.T @ design)[0, 0], variance)
    return _summed(law, target, value, variance, slope, level, beta / sigma, None)


def _summed(
    law: _Law,
    target: np.ndarray,
    value: np.ndarray,
    variance: np.ndarray | float,
    slope: np.ndarray,
    level: np.ndarray,
    beta: np.ndarray,
    limit: tuple[float, float] | None,
) -> _Fit:
    misfit = ((target - np.outer(value, level) + np.outer(slope, beta)) ** 2).sum(1)
    if limit is not None:
        misfit = misfit + ((value - limit[0]) / limit[1]) ** 2
    score = -0.5 * misfit + law.log_prior
    weight = np.exp(score - score.max())
    log_evidence = float(score.max() + math.log(weight.sum()))
    weight /= weight.sum()
    mean = float(weight @ value)
    total = float(weight @ (variance + (value - mean) ** 2))
    return _Fit(mean, total, float(weight @ slope), float(misfit.min()), log_evidence)


def growth(nbeta: Sequence[float], value: Sequence[float]) -> float:
    """Factor by which the estimate grows per doubling of nbeta, from the first to the last level.

    Example:
        >>> round(growth([100.0, 400.0], [1.0, 2.0]), 3)
        1.414
    """
    if value[0] <= 0 or value[-1] <= 0:
        return math.inf if value[-1] > 0 else 1.0
    return float(2 ** (math.log(value[-1] / value[0]) / math.log(nbeta[-1] / nbeta[0])))
