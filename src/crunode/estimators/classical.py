"""AIC and BIC: criteria for regular models, beside those that hold for singular ones.

They take the loss to be a bowl around one best parameter. Where it is not, AIC and BIC count d parameters in place of
2ν or 2λ.

References:
    Akaike 1974; Schwarz 1978.
"""

from __future__ import annotations

import math

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate, provenance
from crunode.errors import InputError

__all__ = ["aic", "bic"]


def aic(land: Landscape) -> Estimate:
    """Akaike's criterion per example, L_n(w) + d/n, at the weights of a landscape, which are to be the best ones.

    Args:
        land: The landscape; its loss is −log p.

    Example:
        >>> import torch
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
        >>> import torch
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
