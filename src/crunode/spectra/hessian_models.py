"""Random-matrix models for the Hessian H = H0 + H1 of a network with one hidden layer, at a point of given energy.

With n inputs, hidden units and outputs, m examples and L = (1/2m) Σ (ŷ − y)²: energy ε = L/n, ratio φ = 2n²/(mn) =
2n/m of parameters to data. H0 = JᵀJ/m is modelled by a Marchenko-Pastur law, H1, which holds the residuals, by a law
that depends on the kind of network, and the two as free of one another. These are the assumptions of Pennington & Bahri
(2017), not theorems about networks; the recipe `pennington2017-spectrum` shows where they hold.
"""

from __future__ import annotations

import math

from crunode.errors import InputError
from crunode.spectra.checks import checked_number
from crunode.spectra.laws import Law, marchenko_pastur, semicircle

__all__ = ["MODELS", "hessian_law", "linear_network_residual", "residual_law"]

MODELS = ("linear", "relu")
"""Kinds of networks that there is a model for."""


def hessian_law(energy: float, ratio: float, model: str = "linear", variance: float = 1.0) -> Law:
    """The modelled spectrum of H: R(z) = σ²/(1 − σ²φz) + R₁(z), the second term that of `residual_law`.

    Args:
        energy: ε.
        ratio: φ, parameters over data.
        model: "linear" or "relu".
        variance: σ², the mean eigenvalue of H0.

    Raises:
        InputError: φ ≤ 0, ε < 0, numbers that are not finite, or no such model.

    References:
        Pennington & Bahri 2017.

    Example:
        >>> law = hessian_law(0.1, 0.5)
        >>> law.edges.round(3)
        array([[-0.388,  3.077]])
        >>> hessian_law(0.1, 4.0, "relu").atoms
        ((0.0, 0.5),)
    """
    return marchenko_pastur(ratio, variance) + residual_law(energy, ratio, model)


def residual_law(energy: float, ratio: float, model: str = "linear") -> Law:
    """The modelled spectrum of H1 alone.

    - "linear": a semicircle of variance 2ε, R(z) = 2εz. That variance is a choice of the model: see
      `linear_network_residual` for what H1 of a linear network has.
    - "relu": R(z) = εφz/(2 − εφ²z²), jumps ±φ√(ε/2) at rates 1/(2φ) each. Its variance is εφ/2, and this is the law of
      H1 of a ReLU network whose residuals do not depend on its inputs.

    Args:
        energy: ε.
        ratio: φ.
        model: "linear" or "relu".

    Raises:
        InputError: φ ≤ 0, ε < 0, numbers that are not finite, or no such model.

    Example:
        >>> residual_law(0.5, 0.25).variance, residual_law(0.5, 0.25, "relu").variance
        (1.0, 0.0625)
    """
    eps, phi = _checked(energy, ratio)
    if model == "linear":
        return semicircle(math.sqrt(2 * eps))
    if model == "relu":
        jump = phi * math.sqrt(eps / 2)
        return Law(rates=(0.5 / phi, 0.5 / phi), jumps=(jump, -jump))
    raise InputError(f"expected model among {', '.join(MODELS)}, got {model!r}")


def linear_network_residual(energy: float, ratio: float) -> Law:
    """The spectrum of H1 of a linear network whose residuals do not depend on its inputs: jumps ±φ√(ε/2) at rates 1/φ.

    H1 has the blocks I ⊗ EXᵀ/m, a sum of m terms of rank two for each hidden unit. Its variance is εφ, not the 2ε of
    the model; it comes close to a semicircle for small φ.

    Args:
        energy: ε.
        ratio: φ.

    Raises:
        InputError: φ ≤ 0, ε < 0, or numbers that are not finite.

    Example:
        >>> round(linear_network_residual(0.5, 0.25).variance, 12)
        0.125
    """
    eps, phi = _checked(energy, ratio)
    jump = phi * math.sqrt(eps / 2)
    return Law(rates=(1 / phi, 1 / phi), jumps=(jump, -jump))


def _checked(energy: float, ratio: float) -> tuple[float, float]:
    eps = checked_number(energy, "energy", least=0.0, advice="it is a mean of squares")
    return eps, checked_number(ratio, "ratio", least=0.0, above=True, advice="it is the number of parameters over data")
