"""From estimates on a ladder of inverse temperatures to the learning coefficient, with the error of getting there.

At inverse temperature t = nβ the estimator λ̂(t) = t (E_t[L_n] − L_n(w*)) differs from λ by two effects. A finite
temperature lowers it: by (m−1)/(log t + c) where the multiplicity m exceeds 1, by a power of 1/t otherwise. And with
noisy labels the center w* is not the minimum of L_n, which lowers it by a term proportional to β = t/n. Both vanish in
opposite directions, so neither end of a ladder is right, and no single law of the first effect is known beforehand.
So each of several laws is fitted, and the answer is their average, weighted by how well they fit; the spread between
them is the systematic error.

References:
    Watanabe 2013 (the expansion); Cullen 2026, appendix B (regression on 1/log nβ).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["LAWS", "Extrapolation", "extrapolate", "growth"]

LAWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda t: np.zeros_like(t),
    "t^-1/2": lambda t: t**-0.5,
    "t^-1/4": lambda t: t**-0.25,
    "1/log t": lambda t: 1 / np.log(t),
    "1/(log t + 3)": lambda t: 1 / (np.log(t) + 3),
    "1/(log t + 8)": lambda t: 1 / (np.log(t) + 8),
}

# Prior weights: no correction, a power and a logarithm are equally likely, whatever the number of variants of each.
_PRIOR = {
    "none": 1 / 3,
    "t^-1/2": 1 / 6,
    "t^-1/4": 1 / 6,
    "1/log t": 1 / 9,
    "1/(log t + 3)": 1 / 9,
    "1/(log t + 8)": 1 / 9,
}

# Prior width of the finite-temperature correction at the hottest level, relative to the largest estimate. Without label
# noise a ladder shows the correction by itself, and the prior only keeps a coarse one from extrapolating wildly. With
# noise the two effects bend the ladder in opposite directions and can hardly be told apart: the prior is then narrower.
_WIDTH = 0.5
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
    nbeta: Sequence[float], value: Sequence[float], se: Sequence[float], n: int, noisy: bool
) -> Extrapolation:
    """Fit λ̂(t) = λ − a x(t) − b t/n with a, b ≥ 0 for each law x, and average.

    Args:
        nbeta: Levels t of the ladder, at least three.
        value: Estimates λ̂(t).
        se: Their standard errors.
        n: Number of examples.
        noisy: Whether labels carry noise; b = 0 otherwise.

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
    fits = [_fit(law(t), t / n, y, sigma, scale, noisy) for law in LAWS.values()]
    # Levels that no law fits are worse known than they say (Birge ratio).
    freedom = max(len(y) - (2 if noisy else 1), 1)
    stretch = max(1.0, min(fit.misfit for fit in fits) / freedom)
    if stretch > 1:
        fits = [_fit(law(t), t / n, y, sigma * math.sqrt(stretch), scale, noisy) for law in LAWS.values()]
    evidence = np.array([fit.log_evidence + math.log(_PRIOR[law]) for law, fit in zip(LAWS, fits, strict=True)])
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    values = np.array([fit.value for fit in fits])
    mean = float(weights @ values)
    return Extrapolation(
        mean,
        math.sqrt(float(weights @ np.array([fit.variance for fit in fits]))),
        math.sqrt(float(weights @ (values - mean) ** 2)),
        float(weights @ np.array([fit.noise_slope for fit in fits])),
        dict(zip(LAWS, weights.tolist(), strict=True)),
    )


@dataclass(frozen=True)
class _Fit:
    value: float
    variance: float
    noise_slope: float
    misfit: float
    log_evidence: float


def _fit(law: np.ndarray, beta: np.ndarray, y: np.ndarray, sigma: np.ndarray, scale: float, noisy: bool) -> _Fit:
    """Posterior mean and variance of λ under one law, with a half-normal prior on the size of its correction.

    For each size a on a grid the best λ and b ≥ 0 are found by weighted least squares; the grid is then summed.
    """
    shape = law / law[0] if law.any() else law
    width = (_WIDTH_NOISY if noisy else _WIDTH) * scale
    sizes = np.linspace(0, 6 * width, 241) if law.any() else np.zeros(1)
    level = np.ones_like(y) / sigma
    target = (y[None, :] + sizes[:, None] * shape) / sigma
    value, variance, slope = target @ level / (level @ level), 1 / (level @ level), np.zeros_like(sizes)
    if noisy:
        design = np.stack([level, -beta / sigma], 1)
        both = target @ np.linalg.pinv(design).T
        free = both[:, 1] > 0
        value, slope = np.where(free, both[:, 0], value), np.where(free, both[:, 1], 0.0)
        variance = np.where(free, np.linalg.inv(design.T @ design)[0, 0], variance)
    misfit = ((target - np.outer(value, level) + np.outer(slope, beta / sigma)) ** 2).sum(1)
    score = -0.5 * misfit - 0.5 * (sizes / width) ** 2
    weight = np.exp(score - score.max())
    log_evidence = float(score.max() + math.log(weight.mean()) if law.any() else score.max())
    if law.any():
        log_evidence += math.log(6 * width / (width * math.sqrt(math.pi / 2)))
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
