"""Proofs of λ at the origin that need no other function's: crossings, curves, hyperplanes, bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from crunode.exact.algebra.factors import Factored
from crunode.exact.algebra.nondegenerate import Certified, NegativeNearby
from crunode.exact.algebra.plane import Resolution, resolve
from crunode.exact.algebra.polynomials import Polynomial
from crunode.exact.algebra.program import rank
from crunode.exact.algebra.reductions import arrangement
from crunode.exact.result import LearningCoefficient

__all__ = [
    "VARCHENKO",
    "WATANABE",
    "Weights",
    "bounded",
    "crossing",
    "curve",
    "linear_forms",
    "of_both_signs",
    "proven",
    "sharper",
    "smooth",
    "with_details",
]

WATANABE = "Watanabe 2009"
VARCHENKO = "Varchenko 1976; Arnold, Gusein-Zade & Varchenko vol. II"
MUSTATA = "Mustață 2006"

Weights = Sequence[Fraction]


def proven(value: Fraction, m: int | None, citation: str, route: str, **details: Any) -> LearningCoefficient:
    """An exact answer, with how it was found."""
    return LearningCoefficient.exact(value, m, citation=citation, details={"route": route, **details})


def with_details(found: LearningCoefficient, details: Mapping[str, Any]) -> LearningCoefficient:
    """The same answer with further details."""
    merged = {**found.details, **details}
    return LearningCoefficient(
        found.value, found.multiplicity, found.status, found.bounds, found.hypotheses, found.citation, merged
    )


def crossing(product: Factored, h: Weights) -> LearningCoefficient:
    """A monomial: min (h_j + 1) / exponent."""
    ratios = [(1 + w) / e for w, e in zip(h, product.monomial, strict=True) if e]
    value = min(ratios)
    return proven(value, ratios.count(value), WATANABE, "normal crossing: min (h_j + 1) / exponent")


def sharper(one: LearningCoefficient, two: LearningCoefficient) -> bool:
    """Whether the bounds of one are closer than those of two."""
    return one.bounds[1] - one.bounds[0] < two.bounds[1] - two.bounds[0]


def curve(product: Factored, h: Weights, depth: int) -> LearningCoefficient:
    """Two variables: resolve the curve."""
    found: Resolution = resolve(
        [(f.terms, e) for f, e in product.factors], (product.monomial[0], product.monomial[1]), h
    )
    for branch in found.branches:
        if product.factors[branch.factor][1] % 2:
            raise NegativeNearby(f"K changes sign across a real branch of {product.factors[branch.factor][0]}")
    assert found.value is not None
    divisors = [
        {"order": str(order), "jacobian": str(cost), "where": where} for order, cost, where in found.divisors[:20]
    ]
    details = {"divisors": divisors, "charts": found.charts, "real_branches": len(found.branches)}
    return proven(
        found.value, found.multiplicity, f"{WATANABE}; {VARCHENKO}", "resolution of a real plane curve", **details
    )


def linear_forms(product: Factored, h: Weights, depth: int) -> LearningCoefficient | None:
    """Hyperplanes: blow up their intersections."""
    found = arrangement(product, h)
    if found is None:
        return None
    odd = [str(f) for f, e in product.factors if e % 2]
    if odd:
        raise NegativeNearby(f"K changes sign across {odd[0]} = 0")
    return proven(*found, MUSTATA, "blow-up of the intersections of hyperplanes")


def smooth(product: Factored, h: Weights, depth: int) -> LearningCoefficient | None:
    """One smooth hypersurface and no weight: its equation is a coordinate."""
    if any(h) or any(product.monomial) or len(product.factors) != 1 or product.factors[0][0].order != 1:
        return None
    ((factor, e),) = product.factors
    if e % 2:
        raise NegativeNearby(f"K changes sign across {factor} = 0")
    return proven(Fraction(1, e), 1, WATANABE, "a power of a function with gradient ≠ 0", function=str(factor))


def of_both_signs(f: Polynomial, e: int, h: Weights) -> LearningCoefficient:
    """λ of |f|^e for an f with positive and negative values near the origin.

    Between two balls of different sign every line crosses the zero set, so λ ≤ 1/e. If the Hessian has rank r ≥ 2,
    the zero set of f on a generic r-plane is a cone over a smooth quadric; by inversion of adjunction the complex log
    canonical threshold of f is then 1, and only the zero set itself has this ratio if r ≥ 3. Real values of A/N are
    among the complex ones, so λ ≥ 1/e.
    """
    size = len(f.variables)
    hessian = [[f.derivative(i).derivative(j).at_origin for j in range(size)] for i in range(size)]
    squares = rank(hessian)
    citation = "Kollár & Mori 1998, Theorem 5.50"
    if f.order == 2 and squares >= 2 and not any(h):
        route = f"a function of both signs with a Hessian of rank {squares}"
        return proven(Fraction(1, e), 1 if squares >= 3 else None, citation, route)
    route = "a function that has both signs near the point"
    return LearningCoefficient.at_most(Fraction(1, e), citation=WATANABE, details={"route": route})


def bounded(
    product: Factored, h: Weights, bound: Certified | None, best: LearningCoefficient | None, tried: list[str]
) -> LearningCoefficient:
    """What holds without a certificate: the Newton value from above, the multiplicity of K from below."""
    order = sum(product.monomial) + sum(e * f.order for f, e in product.factors)
    # λ ≥ lct ≥ 1 / multiplicity; a weight with h ≥ 0 can only raise λ.
    low = Fraction(1, order) if min(h) >= 0 else Fraction(0)
    highs = [(len(h) + sum(h, Fraction(0))) / order]
    if bound is not None:
        highs.append(bound.value)
    if best is not None:
        low = max(low, best.bounds[0])
        highs.append(best.bounds[1])
    details = {
        "route": "Newton polyhedron, without a certificate",
        "missing": tried,
        **(bound.details if bound else {}),
    }
    high = min(highs)
    if low == high:
        return proven(low, None, VARCHENKO, "lower and upper bound agree", missing=tried)
    hypotheses: tuple[str, ...] = ()
    if product.constant < 0 or any(e % 2 for _, e in product.factors):
        hypotheses = ("K ≥ 0 near the point",)
    return LearningCoefficient.at_most(high, low=low, citation=VARCHENKO, hypotheses=hypotheses, details=details)
