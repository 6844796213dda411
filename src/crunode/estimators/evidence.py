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
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from crunode.core.result import Draws, Estimate, Finding
from crunode.errors import InputError
from crunode.estimators.chains import chain_findings
from crunode.estimators.covariance import exchanged, finite_losses
from crunode.estimators.energy_curve import Increments, gap_findings, increments
from crunode.sampling.diagnostics import mcse_mean, split_rhat
from crunode.sampling.pareto import smoothed_log_weights

__all__ = ["free_energy"]

Array = NDArray[np.float64]

_HEAVY = 0.7


def free_energy(draws: Draws, *, nbeta: float | None = None) -> Estimate:
    """The free energy F(t) − t L_n(w*) of a posterior with a normalised prior, at the coldest level or at `nbeta`.

    The ladder has to begin so hot that the prior hardly feels the loss: below its first level the integral is taken by
    reweighting the draws there. Neighbours have to overlap; a factor of two or three between them does for most models.

    Args:
        draws: Draws on a ladder of nbeta, with a Gaussian prior or a `Density` that is normalised.
        nbeta: Up to which level; None for the coldest.

    Returns:
        The estimate. `diagnostics["curve"]` has F at each level, with the overlap of neighbours and the integral as a
        check.

    Raises:
        InputError: The prior is flat or not normalised, or there is no such level.

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
    if isinstance(draws.prior, Mapping) and draws.prior.get("normalized") is False:
        raise InputError(
            f"expected a prior that is normalised, got the density {draws.prior['density']!r}, which does not say so; "
            "add its constant and give Density(..., normalized=True)"
        )
    levels = draws.levels()
    if nbeta is not None:
        draws.at(nbeta)  # raises, saying which levels there are
        levels = [t for t in levels if t <= nbeta]
    losses = finite_losses(draws.only(levels))
    start, start_se, exponent = _first(levels[0], losses[0])
    found = increments(levels, losses, joint=exchanged(draws))
    values = start + np.cumsum(found.change)
    # Neighbouring increments share a level, so that their errors add up to more than independent ones would.
    variances = [start_se**2 + float(found.covariance[:k, :k].sum()) for k in range(1, len(levels))]
    curve = [{"nbeta": levels[0], "value": start, "se": start_se}]
    for k, (t, value, variance) in enumerate(zip(levels[1:], values.tolist(), variances, strict=True)):
        beside = {"overlap": float(found.overlap[k]), "integral": float(found.integral[k])}
        curve.append({"nbeta": t, "value": value, "se": math.sqrt(variance), **beside})
    return Estimate(
        "free_energy",
        curve[-1]["value"],
        se=curve[-1]["se"],
        findings=(
            *chain_findings(draws, dict(zip(levels, losses, strict=True))),
            *_findings(found, exponent),
        ),
        spec=draws.spec,
        seed=draws.spec["asked"]["seed"],
        diagnostics={
            "curve": curve,
            "rhat": max(split_rhat(x) for x in losses),
            "integral": start + float(found.integral.sum()),
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


def _findings(found: Increments, exponent: float) -> Iterator[Finding]:
    yield from gap_findings(found.nbeta, found.overlap)
    if exponent > _HEAVY:
        yield Finding.of("CRIT704", f"k {exponent:.2f} at nbeta {found.nbeta[0]:.3g}")
