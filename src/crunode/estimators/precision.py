"""How far an estimate moves when the precision of the prior is halved or doubled.

Either from chains that were run at these precisions, or from the draws themselves, which tell the slope:
d λ̂ / d log γ = −(γ/2) Cov(nβ L_n, ‖w − w*‖²) under exp(−nβ L_n(w) − (γ/2)‖w − w*‖²).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from crunode.core.result import Draws
from crunode.sampling.diagnostics import mcse_mean

__all__ = ["moves_of_chains", "moves_of_draws"]

# The largest power of γ that draws may suggest.
_STEEPEST = 3.0


def moves_of_chains(draws: Draws, nearest: Mapping[str, float]) -> dict[str, float] | None:
    """λ̂ at half and at twice the precision, where chains were run there; None elsewhere.

    Args:
        draws: Draws with rungs at other precisions, or without.
        nearest: What was found at the level of nbeta that these rungs are at.
    """
    rungs = [r for r in draws.spec.get("checks", ()) if r["role"] in ("half-precision", "double-precision")]
    if not rungs:
        return None
    found: dict[str, float] = {"nbeta": rungs[0]["nbeta"], "se": nearest["se"]}
    found["value"] = nearest.get("at_step", nearest["value"])  # the other precisions have no rungs at half the step
    for rung in rungs:
        scaled = rung["nbeta"] * draws.at(rung["nbeta"], rung["role"])["excess"].astype(np.float64)
        found[rung["role"].removesuffix("-precision")] = float(scaled.mean())
        found["se"] = max(found["se"], mcse_mean(scaled))
    return found


def moves_of_draws(draws: Draws, nbeta: float) -> dict[str, float] | None:
    """λ̂ at half and at twice the precision, from draws at one.

    The slope is carried on as a power of γ, which λ̂ follows where the prior holds what the loss does not: γ^−k for a
    loss homogeneous of degree 2k.

    Args:
        draws: Draws around the center.
        nbeta: The level.

    Returns:
        "value", "half", "double" and the standard error "se" of the latter two; None without a Gaussian prior around
        the center, or where the loss does not rise.

    Example:
        >>> generator = np.random.default_rng(0)  # K = ‖w‖⁴ in a strong prior of precision 100
        >>> square = (generator.normal(size=(4, 5000, 3)) ** 2).sum(2) / 100
        >>> spec = {"precision": 100.0}
        >>> draws = Draws({"excess": square**2, "distance2": square}, {}, np.full(4, 1.0), spec)
        >>> found = moves_of_draws(draws, 1.0)
        >>> round(found["half"] / found["value"]), round(found["value"] / found["double"])
        (4, 4)
    """
    prior, precision = draws.prior, draws.spec.get("precision")
    if not precision or (isinstance(prior, dict) and prior.get("mean", "center") != "center"):
        return None
    arrays = draws.at(nbeta)
    scaled = nbeta * arrays["excess"].astype(np.float64)
    square = arrays["distance2"].astype(np.float64)
    product = -0.5 * precision * (scaled - scaled.mean()) * (square - square.mean())
    value, slope, error = float(scaled.mean()), float(product.mean()), mcse_mean(product)
    if not (value > 0 and math.isfinite(slope) and math.isfinite(error)):
        return None
    power = float(np.clip(slope / value, -_STEEPEST, _STEEPEST))
    half, double = value * 2**-power, value * 2**power
    return {"nbeta": nbeta, "se": math.log(2) * error, "value": value, "half": half, "double": double}
