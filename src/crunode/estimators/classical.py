"""AIC, BIC and DIC: criteria for regular models, beside those that hold for singular ones.

They take the loss to be a bowl around one best parameter. Where it is not, AIC and BIC count d parameters in place of
2ν or 2λ, and DIC takes the loss at a mean of parameters that need not be a good one itself.

References:
    Akaike 1974; Schwarz 1978; Spiegelhalter et al. 2002, J. R. Stat. Soc. B 64, 583.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.result import Draws, Estimate, provenance
from crunode.errors import InputError
from crunode.estimators.chains import chain_findings, chosen_level
from crunode.sampling.diagnostics import ess, mcse_mean, split_rhat

__all__ = ["aic", "bic", "dic"]


def aic(land: Landscape) -> Estimate:
    """Akaike's criterion per example, L_n(w) + d/n, at the weights of a landscape, which are to be the best ones.

    Args:
        land: The landscape; its loss is −log p.

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.zeros_(net.weight)
        >>> round(aic(Landscape(net, (torch.ones(50, 2), torch.ones(50, 1)), "gaussian")).value, 3)  # 1/2 + 2/50
        0.54
    """
    return _at_center("aic", land, float(land.loss()) + land.dim / land.n)


def bic(land: Landscape) -> Estimate:
    """Schwarz's criterion n L_n(w) + (d/2) log n, at the weights of a landscape, which are to be the best ones.

    Args:
        land: The landscape; its loss is −log p.

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.zeros_(net.weight)
        >>> value = bic(Landscape(net, (torch.ones(50, 2), torch.ones(50, 1)), "gaussian")).value
        >>> round(value - math.log(50), 3)
        25.0
    """
    return _at_center("bic", land, land.n * float(land.loss()) + land.dim / 2 * math.log(land.n))


def _at_center(name: str, land: Landscape, value: float) -> Estimate:
    if not math.isfinite(value):
        raise InputError(f"expected a finite loss at the weights, got one that makes {name} {value}")
    spec = {"n": land.n, "dim": land.dim}
    return Estimate(name, value, se=0.0, findings=land.findings, spec=spec, provenance=provenance())


def dic(draws: Draws, land: Landscape, *, nbeta: float | None = None) -> Estimate:
    """The deviance criterion per example, 2 E_w[L_n(w)] − L_n(E[w]).

    Args:
        draws: Draws of a posterior, sampled with keep=("positions",).
        land: The landscape they are of.
        nbeta: Which level of nbeta, where there are several.

    Example:
        >>> from crunode.sampling.metropolis import HMC
        >>> from crunode.sampling.posterior import Gaussian, Posterior
        >>> from crunode.sampling.run import sample
        >>> land = Landscape.of_function(lambda w: w.square().sum() / 2, torch.zeros(4), n=100)
        >>> draws = sample(Posterior(land, 100.0, Gaussian(0.01)), HMC(), chains=4, draws=500, keep=("positions",))
        >>> est = dic(draws, land)  # 2 · d/(2n) − 0
        >>> bool(abs(est.value - 0.04) < 4 * est.se)
        True
    """
    if not isinstance(draws, Draws) or "positions" not in draws.arrays:
        raise InputError("expected draws with their positions, got none; sample with keep=('positions',)")
    if draws.spec["asked"].get("landscape") not in (None, land.fingerprint()):
        raise InputError("expected the landscape that the draws are of, got another one")
    level = chosen_level(draws, nbeta)
    arrays = draws.at(level)
    excess = arrays["excess"].astype(np.float64)
    places = arrays["positions"].astype(np.float64)
    mean = torch.as_tensor(places.mean(axis=(0, 1))).to(land.center)
    center, there = float(land.loss()), float(land.loss(mean))
    # The mean of positions moves the loss at it by its slope there.
    slope = torch.zeros_like(land.center)
    for batch in land.passes():
        slope += land.batch_gradient(mean, batch) * (leaves(batch)[0].shape[0] / land.data.rows)
    influence = 2 * excess - (places - places.mean(axis=(0, 1))) @ slope.double().cpu().numpy()
    return Estimate(
        "dic",
        2 * (center + float(excess.mean())) - there,
        se=mcse_mean(influence),
        findings=tuple(chain_findings(draws, {level: excess})),
        spec=draws.spec,
        seed=draws.spec["asked"]["seed"],
        diagnostics={
            "rhat": split_rhat(excess),
            "ess": ess(excess),
            "parameters": land.n * (float(excess.mean()) + center - there),
        },
        provenance=draws.provenance,
        draws=draws,
    )
