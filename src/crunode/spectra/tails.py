"""The exponent of a heavy tail of eigenvalues, with its error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from crunode.core.result import Estimate, Finding, provenance
from crunode.core.rng import derived_seed
from crunode.errors import InputError
from crunode.spectra.checks import checked_number, checked_spectrum

__all__ = ["TailFit", "tail_exponent"]

_LEAST, _STARTS, _RESAMPLES, _FEW = 10, 100, 100, 50


@dataclass(frozen=True)
class TailFit:
    """A power law for the largest eigenvalues, density ∝ x^(−exponent).

    Attributes:
        exponent: The exponent, an estimate.
        start: Where the tail begins.
        count: Eigenvalues in it.
        distance: Kolmogorov distance between tail and power law.
        against_exponential: Vuong's statistic against an exponential tail: above 1.64 the power law is better at 5%.
    """

    exponent: Estimate
    start: float
    count: int
    distance: float
    against_exponential: float


def tail_exponent(eigenvalues: Any, start: float | None = None, seed: int = 0) -> TailFit:
    """The exponent a of a tail with density ∝ x^(−a) for x ≥ start: a = 1 + k/Σ log(x_i/start) over the k largest.

    Where `start` is not given, it is the one at which the power law is nearest to the tail, of 100 eigenvalues evenly
    through the spectrum; the error then is that of 100 resamples, each with its own start, and otherwise (a − 1)/√k.
    Both take eigenvalues for independent.

    Args:
        eigenvalues: The spectrum; only positive ones count.
        start: Where the tail begins.
        seed: Where the resamples come from.

    Raises:
        InputError: Fewer than 10 eigenvalues in the tail, some that are not finite, or a start that is not above 0.

    References:
        Hill 1975; Clauset, Shalizi & Newman 2009; Vuong 1989.

    Example:
        >>> drawn = (1 - np.random.default_rng(0).random(2000)) ** (-1 / 1.5)  # density ∝ x^(−2.5)
        >>> fit = tail_exponent(drawn)
        >>> abs(fit.exponent.value - 2.5) < 3 * fit.exponent.error
        True
    """
    values = checked_spectrum(eigenvalues, least=_LEAST)
    values = values[values > 0]
    if start is not None:
        values = values[values >= checked_number(start, "start", least=0.0, above=True)]
    if len(values) < _LEAST or values[0] == values[-1]:
        raise InputError(
            f"expected at least {_LEAST} eigenvalues of different size in the tail, got {len(values)}; lower the start"
        )
    if start is None:
        first, exponent, distance = _best(values)
        rng = np.random.default_rng(derived_seed(seed, len(values)))
        drawn = rng.choice(values, (_RESAMPLES, len(values)))
        se = float(np.std([_best(np.sort(row))[1] for row in drawn], ddof=1))
        tail = values[first:]
    else:
        tail = values
        exponent, distance = _fitted(tail, float(start))
        se = (exponent - 1) / math.sqrt(len(tail))
    low = float(tail[0]) if start is None else float(start)
    vuong = _against_exponential(tail, low, exponent)
    findings = []
    if vuong < 1.645:
        findings.append(Finding.of("SPEC1003", f"Vuong's statistic {vuong:.2f}"))
    if len(tail) < _FEW:
        findings.append(Finding.of("SPEC1004", f"{len(tail)} eigenvalues"))
    spec = {"start": start, "n": len(tail)}
    found = Estimate(
        "tail exponent", exponent, se=se, findings=tuple(findings), spec=spec, seed=seed, provenance=provenance()
    )
    return TailFit(found, low, len(tail), distance, vuong)


def _fitted(tail: np.ndarray, low: float) -> tuple[float, float]:
    logs = np.log(tail / low)
    exponent = 1 + len(tail) / logs.sum() if logs.sum() > 0 else math.inf
    law = -np.expm1(-(exponent - 1) * logs)
    steps = np.arange(len(tail) + 1) / len(tail)
    return float(exponent), float(max(np.abs(steps[1:] - law).max(), np.abs(steps[:-1] - law).max()))


def _best(values: np.ndarray) -> tuple[int, float, float]:
    """Index, exponent and distance of the start at which the distance is least."""
    last = len(values) - _LEAST
    starts = np.unique(np.linspace(0, last, _STARTS).astype(int))
    tails = [(int(k), *_fitted(values[k:], values[k])) for k in starts if values[k] < values[-1]]
    return min(tails, key=lambda found: found[2])


def _against_exponential(tail: np.ndarray, low: float, exponent: float) -> float:
    power = math.log((exponent - 1) / low) - exponent * np.log(tail / low)
    rate = 1 / (tail - low).mean()
    gaps = power - (math.log(rate) - rate * (tail - low))
    return float(gaps.sum() / (math.sqrt(len(tail)) * gaps.std())) if gaps.std() > 0 else 0.0
