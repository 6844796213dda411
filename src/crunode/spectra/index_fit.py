"""Critical energy and exponent from measured pairs of energy and index."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from crunode.core.result import Estimate, Finding, provenance
from crunode.errors import InputError
from crunode.spectra.checks import checked_number
from crunode.spectra.least_squares import Minimum, least_squares

__all__ = ["IndexFit", "fit_index"]

_LEAST = 6


@dataclass(frozen=True)
class IndexFit:
    """α = prefactor · (ε/ε_c − 1)^exponent above ε_c.

    Attributes:
        critical_energy: ε_c.
        exponent: The power; 3/2 in the model of Pennington & Bahri, as ε → ε_c. Without error where it was given.
        prefactor: α0.
    """

    critical_energy: Estimate
    exponent: Estimate
    prefactor: Estimate


def fit_index(energy: Any, index: Any, se: Any = None, exponent: float | None = None) -> IndexFit:
    """Fit α = α0 (ε/ε_c − 1)^p to measured indices, by weighted least squares.

    The law is asymptotic at ε_c, and a fit over a range has the range in it. To first order that bias is twice the
    change of a parameter when the farther half of the range is left out; three times the change is stated as
    systematic error.

    Args:
        energy: Energies, at least 6.
        index: The index at each of them; the fit is 0 below ε_c.
        se: Standard error of each index; None takes equal ones, from the scatter about the fit.
        exponent: p, where it is known, such as 1.5.

    Raises:
        InputError: Fewer than 6 pairs with an index above 0, numbers that are not finite, energies below 0, indices
            outside 0 to 1, or errors that are not above 0.

    References:
        Pennington & Bahri 2017, Figure 6.

    Example:
        >>> energy = np.linspace(0.21, 0.3, 10)
        >>> fit = fit_index(energy, 0.1 * (energy / 0.2 - 1) ** 1.5)
        >>> round(fit.critical_energy.value, 6), round(fit.exponent.value, 6), round(fit.prefactor.value, 6)
        (0.2, 1.5, 0.1)
    """
    x, y = (np.asarray(v, dtype=np.float64) for v in (energy, index))
    errors = np.ones_like(y) if se is None else np.asarray(se, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or x.shape != errors.shape:
        raise InputError(f"expected rows of equal length, got shapes {x.shape}, {y.shape} and {errors.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all() and np.isfinite(errors).all()):
        raise InputError("expected finite energies, indices and errors, got some that are not")
    if (x < 0).any() or (y < 0).any() or (y > 1).any() or (errors <= 0).any():
        raise InputError("expected energies from 0 up, indices from 0 to 1 and errors above 0, got some outside")
    above = np.unique(x[y > 0])
    if len(above) < _LEAST:
        raise InputError(f"expected at least {_LEAST} different energies with an index above 0, got {len(above)}")
    power = None if exponent is None else checked_number(exponent, "exponent", least=0.0, above=True)
    full = _fitted(x, y, errors, power)
    values = _named(full.at, power)
    middle = 0.5 * (values["critical energy"] + x.max())
    near = x <= max(middle, above[_LEAST - 1])
    half = _fitted(x[near], y[near], errors[near], power)
    scale = 1.0
    if se is None:
        scale = float(full.residuals @ full.residuals) / max(1, len(x) - len(full.at))
    spreads = dict(zip(values, np.sqrt(scale * np.diag(full.covariance)), strict=False))
    # ε_c and α0 are fitted as logarithms.
    units = {"critical energy": values["critical energy"], "prefactor": values["prefactor"], "exponent": 1.0}
    systematic = {name: 3 * abs(values[name] - other) for name, other in _named(half.at, power).items()}
    findings: list[Finding] = []
    if not full.converged:
        findings.append(Finding.of("SPEC1002", "power law of the index"))
    if systematic["exponent"] > 3 * spreads.get("exponent", math.inf):
        findings.append(Finding.of("SPEC1005", f"by {systematic['exponent'] / 3:.2g} from {values['exponent']:.3f}"))
    made = {
        name: Estimate(
            name,
            values[name],
            se=float(spreads.get(name, 0.0) * units[name]),
            systematic=systematic[name],
            findings=tuple(findings),
            spec={"pairs": len(x), "exponent": power},
            provenance=provenance(),
        )
        for name in values
    }
    return IndexFit(made["critical energy"], made["exponent"], made["prefactor"])


def _named(point: np.ndarray, power: float | None) -> dict[str, float]:
    critical, prefactor = math.exp(point[0]), math.exp(point[1])
    return {"critical energy": critical, "prefactor": prefactor, "exponent": power or float(point[2])}


def _fitted(x: np.ndarray, y: np.ndarray, errors: np.ndarray, power: float | None) -> Minimum:
    """The best of several starts."""

    def gaps(point: np.ndarray) -> np.ndarray:
        p = power or point[2]
        if p <= 0:
            return np.full(len(x), np.nan)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is no minimum
            gap: np.ndarray = (np.exp(point[1]) * np.clip(x / np.exp(point[0]) - 1, 0, None) ** p - y) / errors
        return gap

    found, seen = [], x[y > 0]
    for critical in (0.5 * seen.min(), 0.9 * seen.min(), 0.999 * seen.min(), *np.quantile(seen, [0.1, 0.3])):
        above = seen / critical > 1
        size = float(np.median(y[y > 0][above] / (seen[above] / critical - 1) ** (power or 1.5)))
        start = [math.log(critical), math.log(size), *([] if power else [1.5])]
        found.append(least_squares(gaps, np.array(start)))
    return min(found, key=lambda m: float(m.residuals @ m.residuals))
