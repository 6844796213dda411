"""Where a polynomial is negative: a search over curves through the point, each decided exactly."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

from crunode.exact.algebra.faces import NewtonPolyhedron
from crunode.exact.algebra.factors import squarefree
from crunode.exact.algebra.parse import Formula
from crunode.exact.algebra.plane import points_near, resolve
from crunode.exact.algebra.polynomials import Polynomial, TooLarge
from crunode.exact.algebra.univariate import is_negative_somewhere

__all__ = ["negative_beside_a_branch", "negative_point"]

Curve = tuple[Sequence[Fraction], Sequence[int]]

_MOST_DEGREE = 80
_MOST_CURVES = 150


def negative_point(
    formula: Formula, point: Sequence[Fraction], local: bool = False, hint: Curve | None = None
) -> tuple[Fraction, ...] | None:
    """A rational point where K < 0, or None if none was found; that is no proof of K ≥ 0.

    On a curve x_j = p_j + s_j t^w_j, K is a polynomial in t, whose sign Sturm's theorem tells everywhere.

    Args:
        formula: K.
        point: p.
        local: Look only at arbitrarily small t.
        hint: s and w of a curve to look at first.

    Example:
        >>> from crunode.exact.algebra.parse import parse
        >>> negative_point(parse("x**2 - y**3"), (Fraction(0), Fraction(0)))
        (Fraction(0, 1), Fraction(1, 1))
    """
    try:
        shifted = formula.expanded().shifted(point)
    except TooLarge:
        return None
    if all(c > 0 and not any(entry % 2 for entry in e) for e, c in shifted.terms.items()):
        return None
    curves = _curves(shifted) if hint is None else iter([hint, *_curves(shifted)])
    for _, (signs, weights) in zip(range(_MOST_CURVES), curves, strict=False):
        found = _on_curve(shifted, signs, weights, local)
        if found is not None:
            return tuple(p + s * found**w for p, s, w in zip(point, signs, weights, strict=True))
    return None


def negative_beside_a_branch(formula: Formula, point: Sequence[Fraction]) -> tuple[Fraction, ...] | None:
    """The same for two variables, beside the real branches of odd power of the curve K = 0, however thin the region.

    Example:
        >>> from crunode.exact.algebra.parse import parse
        >>> K = parse("(y - 3*x**2)**2 - x**9")
        >>> K.expanded()(negative_beside_a_branch(K, (Fraction(0), Fraction(0)))) < 0
        True
    """
    try:
        shifted = formula.expanded().shifted(point)
        parts = squarefree([(shifted, 1)], 2)
        found = resolve([(f.terms, e) for f, e in parts.factors], (parts.monomial[0], parts.monomial[1]))
    except TooLarge:
        return None
    for branch in found.branches:
        for step in range(1, 13) if parts.factors[branch.factor][1] % 2 else ():
            for near in points_near(branch, step):
                if shifted(near) < 0:
                    return tuple(p + x for p, x in zip(point, near, strict=True))
    return None


def _on_curve(f: Polynomial, signs: Sequence[Fraction], weights: Sequence[int], local: bool) -> Fraction | None:
    terms: dict[int, Fraction] = {}
    for exponent, coefficient in f.terms.items():
        degree = 0
        for s, w, e in zip(signs, weights, exponent, strict=True):
            if e:
                coefficient *= s**e
                degree += w * e
        if coefficient:
            terms[degree] = terms.get(degree, Fraction(0)) + coefficient
    terms = {k: c for k, c in terms.items() if c}
    if not terms:
        return None
    lowest = min(terms)
    for side in (1, -1):
        if terms[lowest] * side**lowest < 0:
            t = Fraction(side)
            while sum(c * t**k for k, c in terms.items()) >= 0:
                t /= 2
            return t
    if local or max(terms) > _MOST_DEGREE:
        return None
    return is_negative_somewhere([terms.get(k, Fraction(0)) for k in range(max(terms) + 1)])


def _curves(f: Polynomial) -> Iterator[Curve]:
    """Axes and diagonals, the weights of the Newton polyhedron's faces, and random lines, in turn."""
    size = len(f.variables)
    ones = (1,) * size
    for j in range(size):
        yield [Fraction(int(i == j)) for i in range(size)], ones
    weights: list[Sequence[int]] = [ones]
    try:
        faces = NewtonPolyhedron(f.terms).compact_faces()
        weights += [face.normal for face in sorted(faces, key=lambda face: max(face.normal))[:8]]
    except TooLarge:
        pass
    weights = list(dict.fromkeys(map(tuple, weights)))
    source = random.Random(0)
    if size <= 3:
        for signs in product((1, -1), repeat=size):
            for weight in weights:
                yield [Fraction(s) for s in signs], weight
    for round_ in range(_MOST_CURVES):
        weight = weights[round_ % len(weights)]
        scale = 2 ** (round_ % 4)
        yield [Fraction(source.randint(-8, 8) or 1, source.randint(1, 8) * scale) for _ in range(size)], weight
