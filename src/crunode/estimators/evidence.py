"""The free energy −log Z from draws on a ladder of inverse temperatures.

With a normalised prior φ and t = nβ,

    F(t) = −log Z(t),   Z(t) = ∫ exp(−t L_n(w)) φ(w) dw,   F(0) = 0,   F'(t) = E_t[L_n].

From one level to the next the ratio of Z comes from the draws of both by Bennett's rule, which wastes none of them and
whose error is known; the integral of E_t[L_n] over t is beside it as a check. Losses are relative to that at the center
w*, so that what is estimated is F − t L_n(w*) = λ log t − (m − 1) log log t + O(1).

References:
    Bennett 1976, J. Comp. Phys. 22, 245; Shirts & Chodera 2008, J. Chem. Phys. 129, 124105 (overlap);
    Watanabe 2009, chapter 6 (the expansion).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from crunode.core.result import Draws, Estimate, Finding
from crunode.errors import InputError
from crunode.estimators.chains import chain_findings
from crunode.sampling.diagnostics import mcse_mean, split_rhat
from crunode.sampling.pareto import smoothed_log_weights

__all__ = ["free_energy"]

Array = NDArray[np.float64]

_OVERLAP, _HEAVY = 0.03, 0.7
_HALVINGS = 200


@dataclass(frozen=True)
class _Step:
    """From one level to the next: the increment of F, its error, the overlap, and the increment by quadrature."""

    change: float
    se: float
    overlap: float
    integral: float


def free_energy(draws: Draws, *, nbeta: float | None = None) -> Estimate:
    """The free energy F(t) − t L_n(w*) of a posterior with a normalised prior, at the coldest level or at `nbeta`.

    The ladder has to begin so hot that the prior hardly feels the loss: below its first level the integral is taken by
    reweighting the draws there. Neighbours have to overlap; a factor of two or three between them does for most models.

    Args:
        draws: Draws on a ladder of nbeta, with a Gaussian prior.
        nbeta: Up to which level; None for the coldest.

    Returns:
        The estimate. `diagnostics["curve"]` has F at each level, with the overlap of neighbours and the integral as a
        check.

    Raises:
        InputError: The prior is flat, or there is no such level.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> levels = [2.0**k for k in range(-6, 7)]  # L = w²/2 under N(0, 1): Z(t) = (1 + t)^(-1/2)
        >>> w = np.concatenate([rng.normal(0, (1 + t) ** -0.5, (2, 2000)) for t in levels])
        >>> spec = {"n": 64, "asked": {"seed": 0, "prior": {"precision": 1.0, "mean": "center"}}}
        >>> draws = Draws({"excess": w**2 / 2, "distance2": w**2}, {}, np.repeat(levels, 2), spec)
        >>> est = free_energy(draws)
        >>> est.ok, bool(abs(est.value - 0.5 * np.log(65)) < 4 * est.se)
        (True, True)
    """
    if not isinstance(draws, Draws):
        raise InputError(f"expected Draws on a ladder of nbeta, got {type(draws).__name__}")
    if draws.prior == "flat":
        raise InputError("expected a prior that is normalised, got a flat one; sample with prior=Gaussian(precision)")
    levels = draws.levels()
    if nbeta is not None:
        draws.at(nbeta)  # raises, saying which levels there are
        levels = [t for t in levels if t <= nbeta]
    losses = [draws.at(t)["excess"].astype(np.float64) for t in levels]
    if not all(np.isfinite(x).all() and x.size for x in losses):
        raise InputError("expected finite losses at all levels, got some that are not; look at the draws")
    start, start_se, exponent = _first(levels[0], losses[0])
    rungs = list(zip(levels, losses, strict=True))
    steps = [_between(b - a, x, y) for (a, x), (b, y) in pairwise(rungs)]
    value, variance = start, start_se**2
    curve = [{"nbeta": levels[0], "value": start, "se": start_se}]
    for t, step in zip(levels[1:], steps, strict=True):
        value, variance = value + step.change, variance + step.se**2
        curve.append(
            {"nbeta": t, "value": value, "se": math.sqrt(variance), "overlap": step.overlap, "integral": step.integral}
        )
    return Estimate(
        "free_energy",
        value,
        se=math.sqrt(variance),
        findings=(*chain_findings(draws, dict(rungs)), *_findings(levels, steps, exponent)),
        spec=draws.spec,
        seed=draws.spec["asked"]["seed"],
        diagnostics={
            "curve": curve,
            "rhat": max(split_rhat(x) for x in losses),
            "integral": start + sum(step.integral for step in steps),
            "pareto_k": exponent,
        },
        provenance=draws.provenance,
        draws=draws,
    )


def _first(t: float, losses: Array) -> tuple[float, float, float]:
    """F at the first level, its error, and the exponent of the weights exp(t L) that lead back to the prior."""
    scaled = t * losses
    _, exponent = smoothed_log_weights(scaled.reshape(-1))
    top = float(scaled.max())
    weights = np.exp(scaled - top)
    mean = float(weights.mean())
    return top + math.log(mean), mcse_mean(weights / mean), exponent


def _between(width: float, hot: Array, cold: Array) -> _Step:
    """The increment of F over `width` in t, from draws at both ends."""
    one, two = width * hot, width * cold
    low, high = float(min(one.min(), two.min())), float(max(one.max(), two.max()))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if _logistic(one - middle).mean() > _logistic(middle - two).mean():
            high = middle
        else:
            low = middle
        if high - low <= 1e-12 * max(abs(low), abs(high), 1.0):
            break
    change = 0.5 * (low + high)
    forth, back = _logistic(one - change), _logistic(change - two)
    slope = float((forth * (1 - forth)).mean() + (back * (1 - back)).mean())
    se = math.hypot(mcse_mean(forth), mcse_mean(back)) / max(slope, 1e-300)
    # The trapezium with its first correction, since the derivative of E_t[L] is −Var_t[L].
    integral = 0.5 * (one.mean() + two.mean()) + (two.var() - one.var()) / 12
    return _Step(change, se, float(forth.mean() + back.mean()), float(integral))


def _logistic(x: Array) -> Array:
    """1 / (1 + exp(x)), without overflow."""
    return 0.5 * (1 - np.tanh(0.5 * x))


def _findings(levels: Sequence[float], steps: Sequence[_Step], exponent: float) -> Iterator[Finding]:
    if steps:
        gap = min(range(len(steps)), key=lambda k: steps[k].overlap)
        if steps[gap].overlap < _OVERLAP:
            where = f"{steps[gap].overlap:.2g} between nbeta {levels[gap]:.3g} and {levels[gap + 1]:.3g}"
            yield Finding.of("CRIT703", where)
    if exponent > _HEAVY:
        yield Finding.of("CRIT704", f"k {exponent:.2f} at nbeta {levels[0]:.3g}")
