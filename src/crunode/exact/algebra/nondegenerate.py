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

from crunode.exact.algebra.faces import Face, NewtonPolyhedron
from crunode.exact.algebra.factors import Factored
from crunode.exact.algebra.ideals import newton_cover
from crunode.exact.algebra.polynomials import Exponent, Polynomial, TooLarge
from crunode.exact.algebra.program import nullspace, rank
from crunode.exact.algebra.torus import crossing_without_tangency, has_common_zero, has_singular_zero, has_zero

__all__ = ["Certified", "NegativeNearby", "certify", "certify_squares"]


_MOST_SUMS = 2000


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
            words = f"the face polynomial {_shown(factors, parts, zeros.index(None))} has a real zero off the axes"
            return Certified(value, None, False, f"not decided: whether {words}", details)
        if len(vanishing) == 1:
            smooth = has_singular_zero(parts[vanishing[0]]) is False
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
    top = max(branches, default=0)
    if not top or Fraction(1, top) > value:
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
    """The Newton value of Σ g_i² at the origin, and whether it or another value is λ.

    Over the toric modification of the fan of all g_i, each is a monomial times its strict transform. Where these have
    no zeros, or cross without tangency, the ideal is a monomial one in suitable coordinates, and λ is the least of the
    linear programs there. The Newton value itself is λ if on every compact face of the common Newton polyhedron the
    face polynomials have no common zero on the real torus (Lin 2011).

    Args:
        generators: The g_i, which vanish at the origin.
        costs: The c_j of a weight ∏ |x_j|^(c_j − 1).

    Raises:
        TooLarge: The polyhedron has too many faces.

    Example:
        >>> x, y, z = Polynomial.unknowns("x", "y", "z")
        >>> found = certify_squares([x * y - z * z, x * x * y], (Fraction(1), Fraction(1), Fraction(1)))
        >>> found.value, found.multiplicity, found.exact
        (Fraction(5, 8), 1, True)
    """
    common = NewtonPolyhedron({e for g in generators for e in g.terms})
    cover = newton_cover(common.vertices, costs)
    value, multiplicity = cover.value, cover.dimension + 1
    details = {
        "newton_vertices": [[2 * entry for entry in e] for e in common.vertices][:40],
        "weights": [str(entry / 2) for entry in cover.weights],
        "newton_value": str(cover.value / 2),
        "optimal_face": [[2 * entry for entry in common.vertices[i]] for i in cover.rows][:40],
    }
    if not any(_may_vanish_together(generators, face) for face in common.compact_faces()):
        reason = "on every face the squared polynomials have no common real zero off the coordinate planes"
        return Certified(value / 2, multiplicity, True, reason, details)
    sums = {(0,) * len(costs)}
    for g in generators:
        corners = NewtonPolyhedron(g.terms).vertices
        if len(sums) * len(corners) > _MOST_SUMS:
            raise TooLarge("the generators have too many vertices for a common fan")
        sums = {tuple(map(int.__add__, one, two)) for one in sums for two in corners}
    polyhedron = NewtonPolyhedron(sums)
    for face in polyhedron.compact_faces():
        parts = [_on_face(g, face.normal) for g in generators]
        zeros = [has_zero(part) if len(part) > 1 else False for part in parts]
        vanishing = [k for k, answer in enumerate(zeros) if answer is not False]
        if not vanishing:
            continue
        words = ", ".join(str(generators[0].like(parts[k])) for k in vanishing)
        single = len(vanishing) == 1
        smooth = has_singular_zero(parts[vanishing[0]]) is False if single else None
        if None in zeros or not (smooth or crossing_without_tangency([parts[k] for k in vanishing])):
            reason = f"singular zeros off the axes, or not excluded: {words}"
            return Certified(value / 2, None, False, reason, details)
        chosen = [{k} for k in vanishing]
        if not single and has_common_zero([parts[k] for k in vanishing]) is not False:
            chosen.append(set(vanishing))
        normals = [normal for k, (normal, _) in enumerate(polyhedron.facets) if face.facets >> k & 1]
        for vanish in chosen:
            least, count = _local_program(generators, normals, costs, vanish)
            if len(vanish) > 1 and least <= value:
                return Certified(
                    value / 2, None, False, f"whether these have a common zero off the axes: {words}", details
                )
            if least < value:
                value, multiplicity = least, count
            elif least == value:
                multiplicity = max(multiplicity, count)
    reason = "over the toric modification of the Newton polyhedron the ideal is a monomial one everywhere"
    return Certified(value / 2, multiplicity, True, reason, details)


def _may_vanish_together(generators: Sequence[Polynomial], face: Face) -> bool:
    chosen = set(face.points)
    parts = [{e: c for e, c in g.terms.items() if e in chosen} for g in generators]
    return has_common_zero([part for part in parts if part]) is not False


def _local_program(
    generators: Sequence[Polynomial], normals: Sequence[Exponent], costs: Sequence[Fraction], vanish: set[int]
) -> tuple[Fraction, int]:
    """2λ and m of the monomial ideal that the generators give over the orbit of a face, where some of them vanish.

    The weights ω = Σ t_k n_k run over the cone of the face; each generator that vanishes has a coordinate of its own.
    """
    own = sorted(vanish)
    rows = []
    for index, g in enumerate(generators):
        orders = [min(sum(a * b for a, b in zip(normal, e, strict=True)) for e in g.terms) for normal in normals]
        rows.append([*orders, *(int(index == k) for k in own)])
    prices = [sum((c * n for c, n in zip(costs, normal, strict=True)), Fraction(0)) for normal in normals]
    found = newton_cover(rows, [*prices, *(Fraction(1) for _ in own)])
    width = len(normals) + len(own)
    tight = [[*(rows[i])] for i in found.rows] + [[int(i == j) for i in range(width)] for j in found.zeros]
    # Different t can stand for one ω, so the dimension is that of the image.
    images = []
    for direction in nullspace(tight, width):
        omega = [sum(t * normal[j] for t, normal in zip(direction, normals, strict=False)) for j in range(len(costs))]
        images.append([*omega, *direction[len(normals) :]])
    return found.value, 1 + (rank(images) if images else 0)


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
