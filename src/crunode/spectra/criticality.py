"""The index α of critical points, the share of negative eigenvalues, over their energy (Pennington & Bahri 2017).

Below a critical energy ε_c the model has no negative eigenvalues; above, α ≈ α0 ((ε − ε_c)/ε_c)^(3/2) at first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from crunode.errors import InputError
from crunode.spectra.checks import checked_number
from crunode.spectra.hessian_models import MODELS, hessian_law
from crunode.spectra.laws import Law

__all__ = ["critical_energy", "edge_energy", "index", "index_limit", "index_near_critical", "index_prefactor"]


def index(energy: Any, ratio: float, model: str = "linear", variance: float = 1.0) -> np.ndarray:
    """α(ε, φ): the share of negative eigenvalues, from the closed form of the distribution function.

    Args:
        energy: ε, one or several.
        ratio: φ, parameters over data.
        model: "linear" or "relu".
        variance: σ², the mean eigenvalue of H0.

    Returns:
        α at each energy. An atom at 0 does not count.

    Raises:
        InputError: φ ≤ 0, ε < 0, numbers that are not finite, or no such model.

    References:
        Pennington & Bahri 2017.

    Example:
        >>> index([0.01, 0.1, 1.0], 0.5).round(4)
        array([0.    , 0.1136, 0.3047])
    """
    energies = np.asarray(energy, dtype=np.float64)
    laws = [hessian_law(float(one), ratio, model, variance) for one in energies.reshape(-1)]
    found = [float(law.cdf(0.0)) - sum(mass for at, mass in law.atoms if at == 0) for law in laws]
    return np.array(found).reshape(energies.shape)


def critical_energy(ratio: float, model: str = "linear", variance: float = 1.0) -> float:
    """ε_c(φ): the energy above which there are negative eigenvalues, for φ < 1.

    With s = √(1 + 8φ) ("linear") or s = √(1 + 16φ − 8φ²) ("relu"),

        ε_c = σ⁴ · 4 (1 − φ)³ (1 + s)/(3 + s)³,      ε_c = σ⁴ · 16 (1 − φ)³ (1 + s)/(φ (3 + s)³).

    These are (1 − 20φ − 8φ² + (1 + 8φ)^(3/2))/16 and (27 − 18ξ − ξ² + 8ξ^(3/2))/(32φ(1 − φ)³) with ξ = s², of which the
    numerators are (3 − s)³(1 + s); written as here nothing cancels as φ → 1.

    Args:
        ratio: φ.
        model: "linear" or "relu".
        variance: σ², the mean eigenvalue of H0.

    Raises:
        InputError: φ ≥ 1, where there is no such energy: H0 has directions without curvature, and any ε > 0 makes some
            of them negative (see `index_limit`); or φ ≤ 0, or no such model.

    References:
        Pennington & Bahri 2017.

    Example:
        >>> critical_energy(0.25), round(critical_energy(0.25, "relu"), 6)
        (0.04350952641916451, 0.627417)
    """
    phi = checked_number(ratio, "ratio", least=0.0, above=True, advice="it is the number of parameters over data")
    scale = checked_number(variance, "variance", least=0.0, above=True) ** 2
    if phi >= 1:
        raise InputError(
            f"expected a ratio below 1, got {phi:g}, where there is no critical energy: H0 has a null space, and any "
            "energy above 0 gives negative eigenvalues; index_limit has their share as the energy goes to 0"
        )
    if model == "linear":
        s = math.sqrt(1 + 8 * phi)
        return scale * 4 * (1 - phi) ** 3 * (1 + s) / (3 + s) ** 3
    if model == "relu":
        s = math.sqrt(1 + 16 * phi - 8 * phi * phi)
        return scale * 16 * (1 - phi) ** 3 * (1 + s) / (phi * (3 + s) ** 3)
    raise InputError(f"expected model among {', '.join(MODELS)}, got {model!r}")


def edge_energy(law_at: Callable[[float], Law], low: float, high: float) -> float:
    """The energy at which the lowest edge of a family of laws crosses 0, from the edges themselves.

    Args:
        law_at: The law at an energy; its lowest edge has to fall as the energy grows.
        low: An energy at which the edge is above 0.
        high: One at which it is below.

    Raises:
        InputError: The edge does not change its sign between the two.

    Example:
        >>> found = edge_energy(lambda e: hessian_law(e, 0.25), 1e-3, 1.0)
        >>> abs(found - critical_energy(0.25)) < 1e-12
        True
    """

    def edge(energy: float) -> float:
        law = law_at(energy)
        return float(min([*law.edges[:, 0], *(at for at, _ in law.atoms)]))

    a, b = checked_number(low, "low"), checked_number(high, "high")
    at_low, at_high = edge(a), edge(b)
    if not (at_low > 0 > at_high and a < b):
        raise InputError(
            f"expected an edge above 0 at {a:g} and below at {b:g}, got {at_low:g} and {at_high:g}; widen the range, "
            "and for a ratio of 1 or more there is no such energy"
        )
    while True:
        middle = 0.5 * (a + b)
        if not a < middle < b:
            return b
        a, b = (middle, b) if edge(middle) > 0 else (a, middle)


def index_prefactor(ratio: float, model: str = "linear") -> float:
    """α0(φ) of the 3/2 law: α0 = (2/3π) √(2/abs(z''(G_c))) (abs(∂z/∂ε) ε_c)^(3/2), z(G) = R(G) + 1/G at the edge.

    It does not depend on the variance.

    Raises:
        InputError: φ ≥ 1 or φ ≤ 0, or no such model.

    Example:
        >>> round(index_prefactor(0.5), 4)
        0.0335
    """
    critical = critical_energy(ratio, model)
    law = hessian_law(critical, ratio, model)
    w = float(law.turns[0])
    # ∂z/∂ε at fixed G = 1/w.
    motion = 2 / w if model == "linear" else 0.5 * ratio * w**3 / (w * w - 0.5 * critical * ratio * ratio) ** 2
    return float(2 / (3 * math.pi) * float(law.edge_slopes[0, 0]) * (abs(motion) * critical) ** 1.5)


def index_near_critical(energy: Any, ratio: float, model: str = "linear", variance: float = 1.0) -> np.ndarray:
    """α0 ((ε − ε_c)/ε_c)^(3/2), and 0 below ε_c: the leading term of `index` as ε falls to ε_c.

    It is asymptotic only, and not an approximation to be used far from ε_c: at ε = 2ε_c it gives about twice the
    index. The fit of a power over a range of energies finds an exponent below 3/2 accordingly.

    Args:
        energy: ε, one or several.
        ratio: φ.
        model: "linear" or "relu".
        variance: σ².

    Raises:
        InputError: φ ≥ 1 or φ ≤ 0, ε < 0, or no such model.

    References:
        Pennington & Bahri 2017.

    Example:
        >>> near, far = 1.0001 * critical_energy(0.5), 2 * critical_energy(0.5)
        >>> (index([near, far], 0.5) / index_near_critical([near, far], 0.5)).round(2)
        array([1.  , 0.59])
    """
    critical = critical_energy(ratio, model, variance)
    energies = np.asarray(energy, dtype=np.float64)
    if not np.isfinite(energies).all() or (energies < 0).any():
        raise InputError("expected finite energies from 0 up, got some that are not")
    return index_prefactor(ratio, model) * np.clip(energies / critical - 1, 0, None) ** 1.5


def index_limit(ratio: float, model: str = "linear") -> float:
    """The limit of α as ε → 0 from above: 0 for φ ≤ 1; for φ > 1 half of the null space of H0 that H1 reaches.

    That null space has a share 1 − 1/φ of all directions. A semicircle reaches all of it: α → (1 − 1/φ)/2. H1 of the
    ReLU model has rank 1/φ, so that beyond φ = 2 the limit is 1/(2φ).

    Raises:
        InputError: φ ≤ 0, or no such model.

    Example:
        >>> index_limit(4.0), index_limit(4.0, "relu"), index_limit(0.5)
        (0.375, 0.125, 0.0)
    """
    phi = checked_number(ratio, "ratio", least=0.0, above=True, advice="it is the number of parameters over data")
    if model not in MODELS:
        raise InputError(f"expected model among {', '.join(MODELS)}, got {model!r}")
    null = max(0.0, 1 - 1 / phi)
    return 0.5 * (null if model == "linear" else min(null, 1 / phi))
