"""Learning coefficients of polynomials given as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Rational
from typing import Any

from crunode.errors import InputError
from crunode.exact.algebra.ideals import weights_of
from crunode.exact.algebra.local import of_generators, of_sum, square_roots
from crunode.exact.algebra.negative import negative_beside_a_branch, negative_point
from crunode.exact.algebra.nondegenerate import NegativeNearby
from crunode.exact.algebra.parse import Formula, read
from crunode.exact.result import LearningCoefficient

__all__ = ["ideal", "polynomial"]


def polynomial(
    K: Any,
    point: Sequence[Any] | None = None,
    h: Sequence[Any] | None = None,
    *,
    variables: Sequence[str] | None = None,
    local: bool = False,
) -> LearningCoefficient:
    """λ and m of a polynomial K ≥ 0 at a point where it vanishes: Vol{K < t} ~ c t^λ (−log t)^(m−1) near the point.

    The Newton polyhedron at the point gives an upper bound of λ. It is exact if the face polynomials have no zeros, or
    no singular ones, off the coordinate planes. In two variables the curve K = 0 is resolved, which always gives the
    exact value. In more variables, linear changes, smooth factors taken as coordinates, squares split off, sums and
    products in different variables, and reduced generators of a sum of squares are tried. Where none of these proves
    the value, the status is "upper_bound".

    Args:
        K: Text such as "(x**2 - y^3)**2", a `Polynomial`, or a sympy expression. A sum of squares is best left as one.
        point: Coordinates in the order of the variables: integers, fractions, text such as "1/2", or floats, which are
            taken as the binary fractions they are. The origin when left out.
        h: Exponents of a weight, the product of abs(x_j)^h_j in the coordinates of K, each above −1. At a point with
            x_j ≠ 0 that factor is positive and plays no role.
        variables: Names in the wanted order; by default those that occur, in alphabetical order (x2 before x10). A
            point with more coordinates than names is read with x, y, z or x1, x2, … if these fit.
        local: Accept a K that is negative elsewhere, such as a Taylor polynomial, if it is not so near the point.

    Returns:
        λ and m; `details` has the certificate.

    Raises:
        InputError: K is no such polynomial, does not vanish at the point, is zero, or is negative somewhere.

    Example:
        >>> print(polynomial("(x**2 - y**3)**2"))
        λ = 5/12, m = 1 (exact) [Varchenko 1976; Arnold, Gusein-Zade & Varchenko vol. II]
        >>> polynomial("x**2*y**4", point=[1, 0]).value
        Fraction(1, 4)

    References:
        Varchenko 1976; Kouchnirenko 1976; Arnold, Gusein-Zade & Varchenko, Singularities of Differentiable Maps,
        vol. II; Howald 2001; Watanabe 2009; Lin 2011.
    """
    formula, place = _located(K, point, variables)
    weights = _weights_at(h, place)
    _check_vanishing(formula, place)
    addends = [[(f.shifted(place), e) for f, e in product] for product in formula.addends]
    if square_roots(addends, len(place)) is None:
        found = negative_point(formula, place, local)
        if found is not None:
            raise _negative(formula, found)
    try:
        return of_sum(addends, formula.variables, weights)
    except NegativeNearby as error:
        found = negative_point(formula, place, local, error.curve)
        if found is None and len(place) == 2:
            found = negative_beside_a_branch(formula, place)
        if found is not None:
            raise _negative(formula, found) from None
        raise InputError(f"expected K ≥ 0, got a polynomial that is negative near the point: {error.reason}") from None


def ideal(
    generators: Sequence[Any],
    point: Sequence[Any] | None = None,
    h: Sequence[Any] | None = None,
    *,
    variables: Sequence[str] | None = None,
) -> LearningCoefficient:
    """λ and m of K = Σ g_i² at a common zero of the g_i; it depends on the ideal ⟨g_1, g_2, …⟩ alone.

    Args:
        generators: The g_i, each as for `polynomial`.
        point: As for `polynomial`.
        h: As for `polynomial`.
        variables: As for `polynomial`.

    Returns:
        λ and m; `details` has the reduced generators.

    Raises:
        InputError: No generators, generators that do not vanish at the point, or that all are zero.

    Example:
        >>> print(ideal(["x*y + z", "z"]))
        λ = 1, m = 2 (exact) [Howald 2001; Watanabe 2009]
    """
    if isinstance(generators, str | bytes) or not isinstance(generators, Sequence) or not generators:
        raise InputError(f"expected a list of polynomials, got {generators!r}")
    read_in = [read(g) for g in generators]
    names = variables if variables is not None else sorted({name for f in read_in for name in f.variables})
    joined = read("+".join(names) or "0", variables)
    order, place = _located(joined, point, variables)
    shifted = []
    for g in generators:
        f = read(g, order.variables).expanded()
        if f(place):
            raise InputError(f"expected generators that vanish at the point, got {f} = {f(place)} there")
        shifted.append(f.shifted(place))
    if not any(shifted):
        raise InputError("expected a generator other than 0, got none: K would be zero")
    return of_generators([f for f in shifted if f], _weights_at(h, place))


def _located(
    K: Any, point: Sequence[Any] | None, variables: Sequence[str] | None
) -> tuple[Formula, tuple[Fraction, ...]]:
    formula = read(K, variables)
    if point is None:
        return formula, (Fraction(0),) * len(formula.variables)
    if isinstance(point, str | bytes) or not isinstance(point, Sequence):
        raise InputError(f"expected the point as a list of coordinates, got {point!r}")
    place = tuple(_coordinate(entry) for entry in point)
    if len(place) > len(formula.variables) and variables is None:
        names = _usual_names(formula.variables, len(place))
        if names is None and len(set(place)) == 1:
            names = [*formula.variables, *(f"unused{k}" for k in range(len(place) - len(formula.variables)))]
        if names is not None:
            formula = read(K, names)
    if len(place) != len(formula.variables):
        names_text = ", ".join(formula.variables) or "none"
        raise InputError(
            f"expected {len(formula.variables)} coordinates, one for each variable ({names_text}), got {len(place)}; "
            "variables=[...] names others"
        )
    return formula, place


def _usual_names(found: Sequence[str], size: int) -> list[str] | None:
    """x, y, z or x1, x2, … if all names found are among them."""
    series = [list("xyz")[:size]] if size <= 3 else []
    for name in found:
        stem = name.rstrip("0123456789")
        if stem != name:
            series += [[f"{stem}{k}" for k in range(1, size + 1)], [f"{stem}{k}" for k in range(size)]]
    return next((names for names in series if len(names) == size and set(found) <= set(names)), None)


def _coordinate(entry: Any) -> Fraction:
    if isinstance(entry, float) and math.isfinite(entry):
        return Fraction(entry)
    if isinstance(entry, Rational) and not isinstance(entry, bool):
        return Fraction(entry)
    if isinstance(entry, str):
        value = read(entry).expanded()
        if not value.used:
            return value.at_origin
    raise InputError(f'expected coordinates as numbers or text such as "1/2", got {entry!r}')


def _weights_at(h: Sequence[Any] | None, place: Sequence[Fraction]) -> tuple[Fraction, ...]:
    found = weights_of(h, len(place))
    return tuple(Fraction(0) if coordinate else entry for entry, coordinate in zip(found, place, strict=True))


def _check_vanishing(formula: Formula, place: Sequence[Fraction]) -> None:
    value = sum(
        (math.prod((f(place) ** e for f, e in product), start=Fraction(1)) for product in formula.addends), Fraction(0)
    )
    where = ", ".join(f"{name} = {entry}" for name, entry in zip(formula.variables, place, strict=True)) or "the point"
    if value:
        kind = "negative" if value < 0 else "positive"
        raise InputError(
            f"expected K to vanish at the point, got a {kind} value at {where}: move the point to a zero of K"
        )
    if len(formula.addends) != 1 and not formula.expanded():
        raise InputError("expected a polynomial other than 0, got one that is 0 everywhere")


def _negative(formula: Formula, point: Sequence[Fraction]) -> InputError:
    where = ", ".join(f"{name} = {entry}" for name, entry in zip(formula.variables, point, strict=True))
    return InputError(
        f"expected K ≥ 0, got a polynomial that is negative at {where}; "
        "with local=True only values near the point are asked to be non-negative"
    )
