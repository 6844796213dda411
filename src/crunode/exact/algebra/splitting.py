"""The splitting lemma: squares of the Hessian split off, and what is left of a polynomial in the other variables."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from crunode.exact.algebra.nondegenerate import NegativeNearby
from crunode.exact.algebra.polynomials import Exponent, Polynomial

__all__ = ["Split", "split_quadratic"]


@dataclass(frozen=True)
class Split:
    """K = Σ d_i y_i² + K'(z) in suitable analytic coordinates.

    Attributes:
        rank: How many squares.
        rest: K' in the other variables, up to `known` where that is not None.
        known: Degree up to which K' is right; None if it is exact.
    """

    rank: int
    rest: Polynomial
    known: int | None


def split_quadratic(f: Polynomial, degree: int = 4) -> Split | None:
    """Split the nondegenerate part of the Hessian off (the splitting lemma), for f ≥ 0 with f(0) = 0.

    Along the critical points y = φ(z) of y ↦ f(y, z), K'(z) = f(φ(z), z); the series φ is found by iteration, and if it
    is a polynomial that fulfils the equations, K' is exact. Otherwise φ is taken up to `degree`, and K' is
    right up to 2·degree + 1.

    Raises:
        NegativeNearby: The quadratic part is indefinite, or f has a linear part.

    Example:
        >>> x, y = Polynomial.unknowns("x", "y")
        >>> found = split_quadratic((x - y * y) ** 2 + y**6)
        >>> found.rank, str(found.rest), found.known
        (1, 'y**6', None)
    """
    size = len(f.variables)
    if f.order % 2:
        raise NegativeNearby("the terms of lowest degree change sign")
    if f.order > 2:
        return None
    images, diagonal = _diagonalized(f)
    squares = [j for j in range(size) if diagonal[j]]
    if any(diagonal[j] < 0 for j in squares):
        raise NegativeNearby("the quadratic part is negative in some direction")
    others = [j for j in range(size) if not diagonal[j]]
    g = f.composed(images)
    unknowns = Polynomial.unknowns(*f.variables)
    slopes = {j: g.derivative(j) for j in squares}
    path = list(unknowns)
    for j in squares:
        path[j] = g.like({})

    def near(e: Exponent) -> bool:
        return sum(e) <= degree

    for _ in range(degree):
        step = {j: slopes[j].composed(path, near) for j in squares}
        if not any(step.values()):
            break
        for j in squares:
            path[j] = path[j] - step[j] * (1 / (2 * diagonal[j]))
    exact = _vanish_along(list(slopes.values()), path)
    known = None if exact else 2 * degree + 1
    rest = g.composed(path, None if exact else lambda e: sum(e) <= 2 * degree + 1)
    return Split(len(squares), rest.restricted(others), known)


def _vanish_along(slopes: list[Polynomial], path: list[Polynomial]) -> bool:
    """Whether the slopes are zero as polynomials along the path; a few points rule most cases out."""
    size = len(path)
    for k in range(1, 4):
        point = [Fraction(k + j, 2 + j * k) for j in range(size)]
        along = [image(point) for image in path]
        if any(slope(along) for slope in slopes):
            return False
    return not any(slope.composed(path) for slope in slopes)


def _diagonalized(f: Polynomial) -> tuple[list[Polynomial], list[Fraction]]:
    """A linear change of determinant ±1 after which the quadratic part is Σ d_j x_j²."""
    size = len(f.variables)
    unknowns = Polynomial.unknowns(*f.variables)
    images = list(unknowns)
    quadratic = f.like({e: c for e, c in f.terms.items() if sum(e) == 2})
    diagonal = [Fraction(0)] * size
    while quadratic:
        j = next((j for j in range(size) if tuple(2 * int(i == j) for i in range(size)) in quadratic.terms), None)
        if j is None:
            # Only mixed terms: an indefinite form.
            raise NegativeNearby("the quadratic part is negative in some direction")
        lead = quadratic.terms[tuple(2 * int(i == j) for i in range(size))]
        slope = quadratic.derivative(j) * (1 / (2 * lead)) - unknowns[j]
        change = list(unknowns)
        change[j] = unknowns[j] - slope
        images = [image.composed(change) for image in images]
        diagonal[j] = lead
        quadratic = quadratic.composed(change)
        quadratic = quadratic.like({e: c for e, c in quadratic.terms.items() if not e[j]})
    return images, diagonal
