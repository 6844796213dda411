"""The law of a family that is nearest to a spectrum, with errors of its parameters and the outliers beside the bulk."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crunode.core.result import Estimate, Finding, provenance
from crunode.core.rng import derived_seed
from crunode.errors import InputError
from crunode.spectra.checks import checked_number, checked_spectrum
from crunode.spectra.hessian_models import hessian_law
from crunode.spectra.laws import Law, marchenko_pastur, semicircle
from crunode.spectra.least_squares import jacobian_at, least_squares
from crunode.spectra.random_matrices import kolmogorov_distance, merged_at_atoms, random_spectrum

__all__ = ["FAMILIES", "BulkFit", "fit_bulk"]

FAMILIES: Mapping[str, tuple[tuple[str, ...], Callable[..., Law]]] = {
    "marchenko-pastur": (("ratio", "variance"), marchenko_pastur),
    "semicircle": (("sigma", "center"), semicircle),
    "linear": (("energy", "ratio", "variance"), lambda e, r, v: hessian_law(e, r, "linear", v)),
    "relu": (("energy", "ratio", "variance"), lambda e, r, v: hessian_law(e, r, "relu", v)),
}
"""Families of laws and their parameters."""

_POINTS, _ROUNDS, _REPLICAS, _REPLICA_SIZE = 200, 10, 40, 200
# The Tracy-Widom number of symmetric matrices that one in a thousand largest eigenvalues exceeds (Bejan 2005).
_BEYOND = 3.272
# How far past the largest distance of 40 replicas a spectrum has to be to be called another law.
_MISFIT = 1.5


@dataclass(frozen=True)
class BulkFit:
    """A spectrum as bulk and outliers.

    Attributes:
        family: The family of laws.
        parameters: Its parameters, as estimates: `se` is the spread over random matrices that have the fitted law,
            `systematic` the bias of finite size.
        law: The fitted law of the bulk.
        outliers: Eigenvalues that lie outside the support by more than extreme eigenvalues of the law do, once in a
            thousand.
        distance: Kolmogorov distance between bulk and law.
        usual: The largest such distance among random matrices of this size that have the law.
        findings: What was noticed.
    """

    family: str
    parameters: Mapping[str, Estimate]
    law: Law
    outliers: np.ndarray
    distance: float
    usual: float
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """True when the fit converged."""
        return all(f.severity != "error" for f in self.findings)

    def __str__(self) -> str:
        values = ", ".join(f"{name} {e.value:.4g} ± {e.error:.1g}" for name, e in self.parameters.items())
        found = f" ({', '.join(f.code for f in self.findings)})" if self.findings else ""
        return f"{self.family}: {values} | {len(self.outliers)} outliers | distance {self.distance:.2g}{found}"


def fit_bulk(
    eigenvalues: Any,
    family: str = "marchenko-pastur",
    *,
    fixed: Mapping[str, float] | None = None,
    resolution: float = 1e-9,
    seed: int = 0,
) -> BulkFit:
    """Fit a law to the bulk of a spectrum, by least squares between distribution functions, and set outliers aside.

    Outliers are found and left out in turns: what lies beyond an edge by more than 3.27 (s n)^(−2/3), with s from
    `Law.edge_slopes`, which in random matrices happens once in a thousand for each edge. Errors are those of 40 random
    matrices that have the fitted law, at most 200 × 200; as fluctuations of such sums over eigenvalues do not grow with
    n, errors of n eigenvalues are 200/n of that.

    Args:
        eigenvalues: The spectrum, one row of at least 20 numbers.
        family: One of `FAMILIES`: "marchenko-pastur" (ratio, variance), "semicircle" (sigma, center), and the Hessian
            models "linear" and "relu" (energy, ratio, variance).
        fixed: Parameters that are known.
        resolution: Eigenvalues this near to an atom, as a share of the largest, count as lying on it; about 1e-5 for a
            matrix in single precision.
        seed: Where the random matrices come from.

    Raises:
        InputError: Too few eigenvalues, or some that are not finite; no such family or parameter; nothing left to fit.

    References:
        Marchenko & Pastur 1967; Johnstone 2001; Pennington & Bahri 2017.

    Example:
        >>> values = random_spectrum(marchenko_pastur(0.5, 2.0), 300, seed=1)
        >>> fit = fit_bulk([*values, 9.0])
        >>> abs(fit.parameters["ratio"].value - 0.5) < 4 * fit.parameters["ratio"].error
        True
        >>> fit.outliers
        array([9.])
    """
    values = checked_spectrum(eigenvalues, least=20)
    checked_number(resolution, "resolution", least=0.0)
    if family not in FAMILIES:
        raise InputError(f"expected family among {', '.join(FAMILIES)}, got {family!r}")
    names, law_of = FAMILIES[family]
    known = {name: checked_number(value, name) for name, value in (fixed or {}).items()}
    if not set(known) <= set(names) or len(known) == len(names):
        raise InputError(f"expected some but not all of {', '.join(names)} as fixed, got {', '.join(known)}")
    free = [name for name in names if name not in known]
    spread = float(values.std())
    if spread == 0:
        raise InputError(f"expected a spectrum with some spread, got {len(values)} equal eigenvalues")

    def law_at(point: np.ndarray) -> Law:
        given = known | {name: _read(name, v) for name, v in zip(free, point, strict=True)}
        return law_of(*(given[name] for name in names))

    start = _start(family, values, known)
    point = np.array([_written(name, start[name]) for name in free])
    bulk, converged = values, False
    for _ in range(_ROUNDS):
        bulk = merged_at_atoms(bulk, law_at(point), resolution)
        picked, ranks = _picked(bulk)
        found = least_squares(lambda p, x=picked, y=ranks: _gaps(law_at, p, x, y), point)  # type: ignore[misc]
        point, converged = found.at, found.converged
        kept = values[~_beyond(values, law_at(point), resolution)]
        if len(kept) < 20:
            converged = False
            break
        same, bulk = len(kept) == len(bulk), kept
        if same:
            break
    law = law_at(point)
    outliers = values[_beyond(values, law, resolution)]
    size = len(values) - len(outliers)
    steps, usual = _replicas(law_at, point, size, seed)
    distance = kolmogorov_distance(values[~_beyond(values, law, resolution)], law, resolution) if size else 1.0
    findings = []
    if not converged:
        findings.append(Finding.of("SPEC1002", f"family {family}"))
    if distance > _MISFIT * usual:
        findings.append(Finding.of("SPEC1001", f"distance {distance:.3g}, random matrices at most {usual:.3g}"))
    spec = {"family": family, "fixed": known, "n": len(values), "outliers": len(outliers), "resolution": resolution}
    rest = tuple(findings), spec, seed
    parameters = {}
    for k, name in enumerate(free):
        # Positive parameters are fitted as logarithms.
        unit = 1.0 if name == "center" else _read(name, point[k])
        se, bias = unit * float(steps[:, k].std(ddof=1)), unit * abs(float(steps[:, k].mean()))
        parameters[name] = Estimate(name, _read(name, point[k]), se, bias, *rest, provenance=provenance())
    return BulkFit(family, parameters, law, outliers, distance, usual, tuple(findings))


def _written(name: str, value: float) -> float:
    return value if name == "center" else math.log(value)


def _read(name: str, value: float) -> float:
    return float(value) if name == "center" else math.exp(min(max(value, -200.0), 200.0))


def _start(family: str, values: np.ndarray, known: Mapping[str, float]) -> dict[str, float]:
    """Parameters to begin with: moments of the middle of the spectrum."""
    low, high = np.quantile(values, [0.02, 0.98])
    middle = values[(values >= low) & (values <= high)]
    mean, variance = float(middle.mean()), max(float(middle.var()), 1e-12 * float(values.var()))
    size = known.get("variance", abs(mean) + 1e-6 * math.sqrt(variance))
    ratio = known.get("ratio", min(max(variance / size**2, 0.05), 20.0))
    # What MP leaves of the variance is H1's: 2ε or εφ/2.
    rest = max(variance - size**2 * ratio, 0.05 * variance)
    if "ratio" not in known and family in ("linear", "relu"):
        ratio, rest = 0.7 * ratio, 0.3 * variance
    energy = rest / 2 if family == "linear" else 2 * rest / ratio
    return {"ratio": ratio, "variance": size, "energy": energy, "sigma": math.sqrt(variance), "center": mean}


def _picked(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Up to 200 of the eigenvalues, evenly through the spectrum, and the middles of their shares."""
    upper = np.searchsorted(values, values, side="right")
    lower = np.searchsorted(values, values, side="left")
    at = np.unique(np.linspace(0, len(values) - 1, min(_POINTS, len(values))).round().astype(int))
    return values[at], (upper + lower)[at] / (2 * len(values))


def _gaps(law_at: Callable[[np.ndarray], Law], point: np.ndarray, x: np.ndarray, shares: np.ndarray) -> np.ndarray:
    try:
        law = law_at(point)
    except InputError:
        return np.full(len(x), np.nan)
    gaps: np.ndarray = law.cdf(x) - sum(0.5 * mass * (x == place) for place, mass in law.atoms) - shares
    return gaps


def _beyond(values: np.ndarray, law: Law, resolution: float) -> np.ndarray:
    """Which eigenvalues are outside the support by more than extreme ones of the law are."""
    with np.errstate(invalid="ignore"):
        room = _BEYOND * (law.edge_slopes * len(values)) ** (-2 / 3)
    low, high = law.edges[:, 0] - room[:, 0], law.edges[:, 1] + room[:, 1]
    near = ((values[:, None] >= low) & (values[:, None] <= high)).any(1)
    tiny = resolution * np.abs(values).max()
    for at, _ in law.atoms:
        near |= np.abs(values - at) <= tiny
    # Only what is left or right of everything is an outlier; gaps inside the support are a matter of the distance.
    ends = [*law.edges.ravel(), *(at for at, _ in law.atoms)]
    found: np.ndarray = ~near & ((values < min(ends)) | (values > max(ends)))
    return found


def _replicas(law_at: Callable[[np.ndarray], Law], point: np.ndarray, size: int, seed: int) -> tuple[np.ndarray, float]:
    """How parameters move when the spectrum is that of a random matrix, one row each, and the largest distance."""
    law, small = law_at(point), max(20, min(size, _REPLICA_SIZE))
    at = np.clip((np.arange(small) + 0.5) / small, 0, 1)
    quantiles = merged_at_atoms(law.quantile(at), law)
    slope = jacobian_at(lambda p: _gaps(law_at, p, quantiles, at), point)
    # The step that takes residuals away, to first order.
    back = -np.linalg.pinv(slope)
    steps, distances = [], []
    for k in range(_REPLICAS):
        drawn = merged_at_atoms(random_spectrum(law, small, derived_seed(seed, k)), law)
        upper, lower = (np.searchsorted(drawn, drawn, side=side) for side in ("right", "left"))
        steps.append(back @ _gaps(law_at, point, drawn, (upper + lower) / (2 * small)))
        distances.append(kolmogorov_distance(drawn, law))
    # Distances grow a little more slowly than 1/n falls: as log(n)/n.
    usual = max(distances) * small / max(size, 1) * math.log(max(size, 3)) / math.log(small)
    return np.array(steps) * small / max(size, 1), usual
