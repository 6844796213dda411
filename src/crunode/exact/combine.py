"""Learning coefficients of sums, products, powers and strata, from those of the parts.

| K | λ | m |
|---|---|---|
| K1(x) + K2(y) | λ1 + λ2 | m1 + m2 − 1 |
| K1(x) · K2(y) | min | sum over the minimizing ones |
| K^s | λ / s | m |
| several strata | min | max over the minimizing ones |

Bounds and hypotheses of the parts carry over (Watanabe 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from numbers import Rational
from typing import Any

from crunode.errors import InputError
from crunode.exact.result import LearningCoefficient

__all__ = ["power", "product_of", "strata", "sum_of"]


def sum_of(*parts: LearningCoefficient) -> LearningCoefficient:
    """λ and m of K1(x) + K2(y) + …, each in variables of its own.

    Example:
        >>> crossing = LearningCoefficient.exact(Fraction(1, 2), 2, citation="Watanabe 2009")
        >>> print(sum_of(crossing, crossing))
        λ = 1, m = 3 (exact) [Watanabe 2009]
    """
    _check(parts)
    low = sum((part.bounds[0] for part in parts), Fraction(0))
    high = sum((part.bounds[1] for part in parts), Fraction(0))
    multiplicity: int | None = 1
    for part in parts:
        known = multiplicity is not None and part.multiplicity is not None
        multiplicity = multiplicity + part.multiplicity - 1 if known else None  # type: ignore[operator]
    return _built(parts, low, high, multiplicity, "sum of functions in different variables")


def product_of(*parts: LearningCoefficient) -> LearningCoefficient:
    """λ and m of K1(x) · K2(y) · …, each in variables of its own, where all of them vanish.

    Example:
        >>> square = LearningCoefficient.exact(Fraction(1, 2), 1, citation="Watanabe 2009")
        >>> print(product_of(square, square))
        λ = 1/2, m = 2 (exact) [Watanabe 2009]
    """
    return _least(parts, sum, "product of functions in different variables")


def strata(*parts: LearningCoefficient) -> LearningCoefficient:
    """λ and m of K over a set, from the local ones at points of every stratum of {K = 0}.

    Example:
        >>> deep = LearningCoefficient.exact(Fraction(3, 4), 1, citation="")
        >>> generic = LearningCoefficient.exact(1, 2, citation="")
        >>> print(strata(deep, generic))
        λ = 3/4, m = 1 (exact)
    """
    return _least(parts, max, "least over the strata")


def power(part: LearningCoefficient, exponent: Any) -> LearningCoefficient:
    """λ and m of K^s for s > 0.

    Args:
        part: λ and m of K.
        exponent: s, an integer or a fraction.

    Example:
        >>> print(power(LearningCoefficient.exact(1, 1, citation=""), 2))
        λ = 1/2, m = 1 (exact)
    """
    _check((part,))
    if isinstance(exponent, bool) or not isinstance(exponent, Rational) or exponent <= 0:
        raise InputError(f"expected a positive integer or fraction as the power, got {exponent!r}")
    scale = Fraction(exponent)
    low, high = part.bounds
    return _built((part,), low / scale, high / scale, part.multiplicity, "power of a function")


def _least(
    parts: Sequence[LearningCoefficient], count: Callable[[Sequence[int]], int], rule: str
) -> LearningCoefficient:
    _check(parts)
    low = min(part.bounds[0] for part in parts)
    high = min(part.bounds[1] for part in parts)
    # A part whose lower bound is above λ has no say in m.
    able = [part for part in parts if part.bounds[0] <= high]
    settled = all(part.bounds[0] == part.bounds[1] and part.multiplicity is not None for part in able)
    multiplicity = count([part.multiplicity or 0 for part in able]) if settled else None
    return _built(parts, low, high, multiplicity, rule)


def _built(
    parts: Sequence[LearningCoefficient], low: Fraction, high: Fraction, multiplicity: int | None, rule: str
) -> LearningCoefficient:
    hypotheses = tuple(dict.fromkeys(line for part in parts for line in part.hypotheses))
    citation = "; ".join(dict.fromkeys(line for part in parts for line in part.citation.split("; ") if line))
    details = {"route": rule, "parts": [part.to_dict() for part in parts]}
    if low == high:
        conditional = any(part.status == "conditional" for part in parts)
        return LearningCoefficient.exact(
            low, multiplicity, citation=citation, hypotheses=hypotheses, conditional=conditional, details=details
        )
    if any(part.status == "interval" for part in parts):
        return LearningCoefficient.interval(low, high, citation=citation, hypotheses=hypotheses, details=details)
    return LearningCoefficient.at_most(high, low=low, citation=citation, hypotheses=hypotheses, details=details)


def _check(parts: Sequence[LearningCoefficient]) -> None:
    if not parts:
        raise InputError("expected at least one learning coefficient, got none")
    for part in parts:
        if not isinstance(part, LearningCoefficient):
            raise InputError(f"expected learning coefficients, got {part!r}")
