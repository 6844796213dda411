"""From volumes V(t) of {K < t} to the exponent λ and the multiplicity m, with the error of a finite t.

Halving t multiplies the volume by p_k = V(t_k)/V(t_{k−1}), and V(t) ~ c t^λ (log 1/t)^(m−1) makes

    −log p_k = λ log 2 − (m − 1) log[(L_k + τ)/(L_{k−1} + τ)] + Σ_δ b_δ (e^{−δ L_k} − e^{−δ L_{k−1}}) + noise,

with L = log(t_0/t), a scale τ that is not known, and corrections of higher exponents λ + δ, which are not known either.
Given m, τ and the size of the b_δ, everything is linear with normal errors, so λ and the evidence of the data are in
closed form (Bayesian linear regression with b_δ ~ N(0, A²) and a flat prior on λ). The answer is the average over m, τ
and A, weighted by the evidence; weights of m are the posterior probabilities of the multiplicities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["VolumeLaw", "fit_law"]

_LOG2 = math.log(2)
# Gaps between the leading exponent and the ones after it, as singularities of low degree have them.
_GAPS = np.array([1 / 12, 1 / 8, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 3 / 4, 1, 3 / 2])
# They are of order one: boxes cut singularities off, and curves bend. Smaller ones would make a law without any too
# easy to believe, and logarithms are readily taken for slow corrections and the other way round.
_SIZES = (0.3, 1.0, 3.0)
# log of the scale T in log(T/t), beyond the median of K: from well inside the box to far outside.
_SCALES = np.exp(np.linspace(math.log(0.5), math.log(12.0), 14))
_SMOOTH, _WAVES = 9, 8


@dataclass(frozen=True)
class VolumeLaw:
    """The law that volumes follow.

    Attributes:
        value: λ, averaged over the multiplicities and over the size of the corrections.
        se: Error from the noise of the volumes.
        terms: Parts of the error from elsewhere: "corrections" of higher exponents, "multiplicity" left open.
        weights: Posterior probability of each multiplicity.
        by_multiplicity: λ for each multiplicity taken alone.
        misfit: χ² of the best law over its degrees of freedom.
        surprise: Standard deviations by which that χ² is above its expectation.
    """

    value: float
    se: float
    terms: dict[str, float]
    weights: dict[int, float]
    by_multiplicity: dict[int, float]
    misfit: float
    surprise: float

    @property
    def multiplicity(self) -> int:
        """The most probable m."""
        return max(self.weights, key=lambda m: self.weights[m])


def fit_law(shares: np.ndarray, particles: int, largest: int) -> VolumeLaw:
    """The law behind the shares of particles that survive each halving of t.

    Args:
        shares: Shares that survived, shape (level, replica), the first row being the step to the second level.
        particles: Particles per replica.
        largest: Largest multiplicity to consider.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> logs = 0.5 * math.log(2) - np.diff(np.log(np.arange(61) * math.log(2) + 3.0))  # √t (log 1/t + 3)
        >>> law = fit_law(rng.binomial(4000, np.exp(-logs)[:, None], (60, 16)) / 4000, 4000, largest=3)
        >>> law.multiplicity, abs(law.value - 0.5) < 3 * math.hypot(law.se, *law.terms.values())
        (2, True)
    """
    steps = len(shares)
    logs, noise = -np.log(shares.mean(1)), _noise(shares, particles)
    depth = np.arange(steps + 1) * _LOG2
    gaps = np.diff(np.exp(-_GAPS[:, None] * depth), axis=1)
    rows = []
    for size in _SIZES:
        spread = noise + size**2 * gaps.T @ gaps
        for m in range(1, largest + 1):
            for scale in _SCALES if m > 1 else (1.0,):
                covariance = spread
                if m > 2:
                    # A polynomial of degree m − 1 in log 1/t is a power of (L + τ) up to terms of this size.
                    bend = scale**2 * np.diff((depth + scale) ** -2.0)
                    covariance = spread + np.outer(bend, bend)
                shifted = logs + (m - 1) * np.diff(np.log(depth + scale))
                choices = len(_SCALES) if m > 1 else 1
                *found, gain = _regress(shifted, covariance, choices)
                rows.append((m, *found, math.sqrt(gain @ noise @ gain)))
    ms, evidence, values, variances, chi2, errors = map(np.array, zip(*rows, strict=True))
    probability = np.exp(evidence - np.logaddexp.reduce(evidence))
    value = float(probability @ values)
    weights = {m: float(probability[ms == m].sum()) for m in range(1, largest + 1)}
    alone = {m: float(probability[ms == m] @ values[ms == m]) / max(w, 1e-300) for m, w in weights.items()}
    between = sum(w * (alone[m] - value) ** 2 for m, w in weights.items())
    total = float(probability @ (variances + (values - value) ** 2))
    se = float(probability @ errors)
    terms = {"corrections": math.sqrt(max(total - between - se**2, 0.0)), "multiplicity": math.sqrt(between)}
    free = steps - 1
    best = float(chi2[probability.argmax()])
    return VolumeLaw(value, se, terms, weights, alone, best / free, (best - free) / math.sqrt(2 * free))


def _noise(shares: np.ndarray, particles: int) -> np.ndarray:
    """Covariance of the log of each mean share, from the differences between replicas.

    The variance of a level is smoothed over its neighbours, and is at least the binomial one. Particles that hardly
    move make many levels err alike: that shows in slow waves over the levels, each of which is given the variance that
    it has between replicas.
    """
    steps, replicas = shares.shape
    mean = shares.mean(1)
    seen = shares.var(1, ddof=1) / (replicas * mean**2)
    width = min(_SMOOTH, steps) // 2
    smooth = np.convolve(np.pad(seen, width, mode="edge"), np.full(2 * width + 1, 1 / (2 * width + 1)), "valid")
    least = np.maximum((1 - mean) / mean, 1 / particles) / (replicas * particles)
    deviation = np.sqrt(np.maximum(smooth, least))
    scaled = np.log(np.maximum(shares, 0.5 / particles)) / (deviation * math.sqrt(replicas))[:, None]
    waves = np.cos(np.pi * np.arange(_WAVES)[:, None] * (np.arange(steps) + 0.5) / steps) * math.sqrt(2 / steps)
    waves[0] /= math.sqrt(2)
    excess = np.maximum((waves @ scaled).var(1, ddof=1) - 1, 0)
    found: np.ndarray = deviation[:, None] * (np.eye(steps) + waves.T @ (excess[:, None] * waves)) * deviation
    return found


def _regress(
    shifted: np.ndarray, covariance: np.ndarray, choices: int
) -> tuple[float, float, float, float, np.ndarray]:
    """Log evidence, λ, its variance, χ² of `shifted` = λ log 2 + error, and λ as a linear function of `shifted`."""
    factor = np.linalg.cholesky(covariance)
    design = np.linalg.solve(factor, np.full(len(shifted), _LOG2))
    data = np.linalg.solve(factor, shifted)
    precision = design @ design
    value = design @ data / precision
    chi2 = data @ data - value**2 * precision
    gain = np.linalg.solve(factor.T, design) / precision
    evidence = -chi2 / 2 - np.log(np.diag(factor)).sum() - math.log(precision) / 2 - math.log(choices)
    return float(evidence), float(value), float(1 / precision), float(chi2), gain
