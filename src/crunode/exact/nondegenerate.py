"""Newton polyhedra that tell the whole story: certificates that make the Newton value exact.

Let K = c x^a ∏ f_i^e_i. Over the toric modification of the fan of its Newton polyhedron, K is a monomial times the
strict transforms of the f_i, and on the orbit of a compact face σ the strict transform of f_i is cut out by the face
polynomial f_i,σ. If these have no singular zeros on the real torus, and cross without tangency, K is normal crossing
there. Then λ = min(λ_N, 1/e_i over the f_i with a real torus zero on some compact face), with λ_N the value of the
linear program over the exponents (Varchenko 1976; Kouchnirenko 1976; Arnold, Gusein-Zade and Varchenko, vol. II). If
no face polynomial has a torus zero at all, K is between two multiples of the sum of its vertex terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from crunode.exact.faces import Face, NewtonPolyhedron
from crunode.exact.factors import Factored
from crunode.exact.ideals import newton_cover
from crunode.exact.polynomials import Exponent, Polynomial
from crunode.exact.torus import crossing_without_tangency, has_common_zero, has_singular_zero, has_zero

__all__ = ["Certified", "NegativeNearby", "certify", "certify_squares"]


class NegativeNearby(Exception):
    """K takes negative values as close to the point as one likes; `curve` says along which x_j = s_j t^w_j."""

    def __init__(self, reason: str, curve: tuple[Sequence[Fraction], Sequence[int]] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.curve = curve


@dataclass(frozen=True)
class Certified:
    """λ and m with the reason, or only the Newton value with the face that stands in the way.

    Attributes:
        value: λ, or the Newton value where `exact` is False.
        multiplicity: m, None where it was not settled.
        exact: Whether the value is proven.
        reason: The certificate, or what is missing for one.
        details: Vertices, weights, faces.
    """

    value: Fraction
    multiplicity: int | None
    exact: bool
    reason: str
    details: Mapping[str, Any]


def certify(product: Factored, costs: Sequence[Fraction]) -> Certified:
    """The Newton value of K at the origin, with weight ∏ |x_j|^(c_j − 1), and whether it is λ.

    Args:
        product: K, with factors that all vanish at the origin.
        costs: The c_j.

    Raises:
        NegativeNearby: A vertex term shows that K is negative near the origin.
        TooLarge: The polyhedron has too many faces.

    Example:
        >>> x, y = Polynomial.unknowns("x", "y")
        >>> found = certify(Factored(Fraction(1), (0, 0), ((x * x - y * y * y, 2),)), (Fraction(1), Fraction(1)))
        >>> found.value, found.multiplicity, found.exact
        (Fraction(5, 12), 1, True)
    """
    factors = product.factors
    radical = Polynomial.constant(1, factors[0][0].variables) if factors else None
    for factor, _ in factors:
        assert radical is not None
        radical = radical * factor
    support = list(radical.terms) if radical is not None else [(0,) * len(costs)]
    polyhedron = NewtonPolyhedron(support)
    faces = polyhedron.compact_faces()
    rows: dict[Exponent, Exponent] = {}
    for face in faces:
        if len(face.points) == 1:
            rows[face.points[0]] = _vertex(product, face)
    order = list(rows)
    cover = newton_cover([rows[point] for point in order], costs)
    details = {
        "newton_vertices": [list(rows[point]) for point in order][:40],
        "weights": [str(entry) for entry in cover.weights],
        "newton_value": str(cover.value),
        "optimal_face": [list(rows[order[i]]) for i in cover.rows][:40],
    }
    center = polyhedron.mask_of_weights((order[i] for i in cover.rows), cover.zeros)
    value, multiplicity = cover.value, cover.dimension + 1
    branches: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    reason = "every face polynomial of the Newton polyhedron is free of real zeros off the coordinate planes"
    for face in faces:
        parts = [_on_face(factor, face.normal) for factor, _ in factors]
        zeros = [has_zero(part) if len(part) > 1 else False for part in parts]
        vanishing = [k for k, answer in enumerate(zeros) if answer is not False]
        if not vanishing:
            continue
        if None in zeros:
            words = (
                f"whether the face polynomial {_shown(factors, parts, zeros.index(None))} has a real zero off the axes"
            )
            return Certified(value, None, False, f"not decided: {words}", details)
        if len(vanishing) == 1:
            (k,) = vanishing
            smooth = has_singular_zero(parts[k]) is False
        else:
            smooth = crossing_without_tangency([parts[k] for k in vanishing]) is True
        if not smooth:
            words = " and ".join(_shown(factors, parts, k) for k in vanishing)
            return Certified(value, None, False, f"singular zeros off the axes, or not excluded: {words}", details)
        for k in vanishing:
            if factors[k][1] % 2:
                raise NegativeNearby(f"the face polynomial {_shown(factors, parts, k)} changes sign")
        reason = "the face polynomials of the Newton polyhedron have no singular real zeros off the coordinate planes"
        shared = polyhedron.codimension(face.facets & center)
        for k in vanishing:
            branches.setdefault(factors[k][1], []).append((shared, tuple(vanishing)))
    if not branches:
        return Certified(value, multiplicity, True, reason, details)
    top = max(branches)
    if Fraction(1, top) > value:
        return Certified(value, multiplicity, True, reason, details)
    tie = Fraction(1, top) == value
    settled = multiplicity if tie else 1
    for shared, vanishing_there in branches[top]:
        together = sum(factors[k][1] == top for k in vanishing_there)
        if together > 1:
            # They cross normally if they meet, but no test here tells whether they do.
            return Certified(Fraction(1, top), None, True, reason, details)
        settled = max(settled, (shared if tie else 0) + 1)
    return Certified(Fraction(1, top), settled, True, reason, details)


def certify_squares(generators: Sequence[Polynomial], costs: Sequence[Fraction]) -> Certified:
    """The Newton value of Σ g_i² at the origin, and whether it is λ.

    It is if on every compact face of the common Newton polyhedron the face polynomials of the g_i have no common zero
    on the real torus (Lin 2011).

    Example:
        >>> x, y = Polynomial.unknowns("x", "y")
        >>> found = certify_squares([x * x - y, x * y], (Fraction(1), Fraction(1)))
        >>> found.value, found.exact
        (Fraction(3, 4), False)
    """
    polyhedron = NewtonPolyhedron({e for g in generators for e in g.terms})
    faces = polyhedron.compact_faces()
    cover = newton_cover(polyhedron.vertices, costs)
    details = {
        "newton_vertices": [[2 * entry for entry in e] for e in polyhedron.vertices][:40],
        "weights": [str(entry / 2) for entry in cover.weights],
        "newton_value": str(cover.value / 2),
        "optimal_face": [[2 * entry for entry in polyhedron.vertices[i]] for i in cover.rows][:40],
    }
    for face in faces:
        chosen = set(face.points)
        parts = [{e: c for e, c in g.terms.items() if e in chosen} for g in generators]
        if has_common_zero([part for part in parts if part]) is not False:
            words = ", ".join(str(generators[0].like(part)) for part in parts if part)
            return Certified(
                cover.value / 2, None, False, f"a common zero off the axes is not excluded: {words}", details
            )
    reason = "on every face the squared polynomials have no common real zero off the coordinate planes"
    return Certified(cover.value / 2, cover.dimension + 1, True, reason, details)


def _vertex(product: Factored, face: Face) -> Exponent:
    """The exponent of K at a vertex; its term has to be positive in every orthant."""
    exponent = list(product.monomial)
    positive = product.constant > 0
    for factor, power in product.factors:
        ((e, c),) = _on_face(factor, face.normal).items()
        exponent = [a + power * b for a, b in zip(exponent, e, strict=True)]
        positive ^= c < 0 and bool(power % 2)
    odd = [j for j, entry in enumerate(exponent) if entry % 2]
    if odd or not positive:
        signs = [Fraction(1)] * len(exponent)
        if odd and positive:
            signs[odd[0]] = Fraction(-1)
        raise NegativeNearby(f"the vertex term with exponents {exponent} is negative somewhere", (signs, face.normal))
    return tuple(exponent)


def _on_face(factor: Polynomial, normal: Sequence[int]) -> dict[Exponent, Fraction]:
    values = {e: sum(a * b for a, b in zip(normal, e, strict=True)) for e in factor.terms}
    least = min(values.values())
    return {e: c for e, c in factor.terms.items() if values[e] == least}


def _shown(factors: Sequence[tuple[Polynomial, int]], parts: Sequence[Mapping[Exponent, Fraction]], k: int) -> str:
    return str(factors[k][0].like(parts[k]))
