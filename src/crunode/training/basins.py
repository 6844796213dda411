"""Two regions of parameter space compared by their free energies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from crunode.core.result import Estimate, provenance
from crunode.errors import InputError

__all__ = ["BasinComparison", "free_energy_comparison"]


@dataclass(frozen=True)
class BasinComparison:
    """Free energies of two regions up to terms that are the same in both.

    Attributes:
        names: What the regions are called.
        n: Number of examples.
        accuracy: n (L_a − L_b), what the losses say; positive speaks for b.
        complexity: (λ_a − λ_b) log n, what the coefficients say, with its error.
        difference: F_a − F_b, the sum of the two.
        critical: n_c, where the difference is zero, with its error; None where one region is preferred at all n.
        favored: Name of the region with less free energy at `n`; None where the difference is within twice its error.

    Example:
        >>> print(free_energy_comparison(0.51, 10.0, 0.50, 30.0, n=1000, names=("early", "late")))
        F(early) − F(late) = -128.2 ± 0 at n = 1000: n ΔL 10, Δλ log n -138.2 | early is preferred | n_c 1.979e+04 ± 0
    """

    names: tuple[str, str]
    n: int
    accuracy: float
    complexity: Estimate
    difference: Estimate
    critical: Estimate | None
    favored: str | None

    def __str__(self) -> str:
        a, b = self.names
        parts = [
            f"F({a}) − F({b}) = {self.difference.value:.4g} ± {self.difference.error:.2g} at n = {self.n}: n ΔL "
            f"{self.accuracy:.4g}, Δλ log n {self.complexity.value:.4g}",
            "no region is preferred beyond the errors" if self.favored is None else f"{self.favored} is preferred",
            "one is preferred at all n"
            if self.critical is None
            else f"n_c {self.critical.value:.4g} ± {self.critical.error:.2g}",
        ]
        return " | ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values."""
        return {
            "names": list(self.names),
            "n": self.n,
            "accuracy": self.accuracy,
            "complexity": self.complexity.to_dict(),
            "difference": self.difference.to_dict(),
            "critical": None if self.critical is None else self.critical.to_dict(),
            "favored": self.favored,
        }


def free_energy_comparison(
    loss_a: float,
    lambda_a: Estimate | float,
    loss_b: float,
    lambda_b: Estimate | float,
    *,
    n: int,
    names: tuple[str, str] = ("a", "b"),
) -> BasinComparison:
    """Which of two regions holds more of the posterior, by F = n L_n(w*) + λ log n.

    The difference is F_a − F_b = n (L_a − L_b) + (λ_a − λ_b) log n. Where the region with more loss has the smaller
    coefficient, it is preferred up to a critical sample size n_c with n_c / log n_c = (λ_b − λ_a) / (L_a − L_b), and
    the other one beyond; below a ratio of e there is no such n.

    Args:
        loss_a: L_n in the first region, at its best point.
        lambda_a: Its learning coefficient.
        loss_b: L_n in the second region.
        lambda_b: Its learning coefficient.
        n: Number of examples.
        names: What to call the regions.

    Returns:
        The comparison. Errors come from those of the coefficients; terms of order log log n are left out.

    Raises:
        InputError: A number is not finite, an estimate is not a number, or n is below 2.

    Example:
        >>> found = free_energy_comparison(0.51, 10.0, 0.50, 30.0, n=1000)
        >>> found.favored, round(found.critical.value)
        ('a', 19785)

    References:
        Watanabe 2013 (free energy); Chen et al. 2023, "Dynamical versus Bayesian phase transitions".
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 2:
        raise InputError(f"expected n as a whole number of examples from 2 up, got {n!r}")
    found = {"the loss of a": loss_a, "the loss of b": loss_b, "λ of a": lambda_a, "λ of b": lambda_b}
    for what, value in found.items():
        if not math.isfinite(float(value)):
            raise InputError(f"expected {what} as a finite number, got {float(value)}; compare steps that did not fail")
    one, other = _as_estimate(lambda_a), _as_estimate(lambda_b)
    log, deeper, smaller = math.log(n), float(loss_a) - float(loss_b), other.value - one.value
    se, systematic = math.hypot(one.se, other.se), math.hypot(one.systematic, other.systematic)
    findings = tuple(dict.fromkeys((*one.findings, *other.findings)))
    rest: dict[str, Any] = {"findings": findings, "spec": {"n": n}, "provenance": provenance()}
    complexity = Estimate("Δλ log n", -smaller * log, se=se * log, systematic=systematic * log, **rest)
    total = n * deeper - smaller * log
    difference = Estimate(f"F({names[0]}) − F({names[1]})", total, se=se * log, systematic=systematic * log, **rest)
    critical = None
    if deeper != 0 and smaller / deeper > math.e:
        size = _size(smaller / deeper)
        # n / log n = r has dn/dr = log² n / (log n − 1).
        slope = math.log(size) ** 2 / (math.log(size) - 1) / abs(deeper)
        critical = Estimate("n_c", size, se=slope * se, systematic=slope * systematic, **rest)
    sure = abs(total) > 2 * difference.error
    return BasinComparison(
        names, n, n * deeper, complexity, difference, critical, names[0 if total < 0 else 1] if sure else None
    )


def _as_estimate(value: Estimate | float) -> Estimate:
    return value if isinstance(value, Estimate) else Estimate("llc", float(value), se=0.0)


def _size(ratio: float) -> float:
    """The larger solution n of n / log n = ratio, for ratios above e, by Newton's method in log n."""
    log = math.log(ratio) + math.log(math.log(ratio) + 1.0) + 1.0
    for _ in range(60):
        step = (log - math.log(log) - math.log(ratio)) / (1 - 1 / log)
        log -= step
        if abs(step) < 1e-14 * log:
            break
    return math.exp(log)
