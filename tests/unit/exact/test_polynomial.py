"""Polynomial arithmetic, factors, real roots, algebraic numbers, Newton polyhedra."""

import random
from fractions import Fraction
from itertools import product

import pytest

from crunode.errors import InputError
from crunode.exact.algebra.algebraic import RealRoot, enclosure, refine
from crunode.exact.algebra.faces import NewtonPolyhedron
from crunode.exact.algebra.factors import common_divisor, squarefree
from crunode.exact.algebra.polynomials import Polynomial, TooLarge
from crunode.exact.algebra.program import rank
from crunode.exact.algebra.torus import crossing_without_tangency, has_common_zero, has_singular_zero, has_zero
from crunode.exact.algebra.univariate import (
    count_real_roots,
    is_negative_somewhere,
    nonzero_real_roots,
    real_roots,
    value_at,
)

X, Y, Z = Polynomial.unknowns("x", "y", "z")


def _random(source, size, terms=4, degree=2):
    names = ("x", "y", "z")[:size]
    return Polynomial(
        names, {tuple(source.randint(0, degree) for _ in names): source.randint(-4, 4) for _ in range(terms)}
    )


def test_arithmetic_agrees_with_values():
    source = random.Random(0)
    for _ in range(30):
        f, g = _random(source, 3), _random(source, 3)
        at = [Fraction(source.randint(-5, 5), source.randint(1, 4)) for _ in range(3)]
        by = [Fraction(source.randint(-5, 5), 3) for _ in range(3)]
        assert (f * g - f)(at) == f(at) * g(at) - f(at)
        assert (f**3)(at) == f(at) ** 3
        assert f.shifted(by)(at) == f([a + b for a, b in zip(at, by, strict=True)])
        assert f.composed([X * Y, Y - 2, Z * Z])(at) == f([at[0] * at[1], at[1] - 2, at[2] ** 2])


def test_what_is_too_large_is_refused():
    with pytest.raises(TooLarge):
        (X + Y + Z + 1) ** 200
    with pytest.raises(TooLarge):
        (X * 9**3000) ** 9
    with pytest.raises(InputError):
        X + Polynomial.unknowns("a")[0]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_square_free_factors_multiply_back(size):
    source = random.Random(size)
    for _ in range(12):
        written = [(f, source.randint(1, 3)) for f in (_random(source, size, 3) for _ in range(3)) if f]
        if not written:
            continue
        total = Polynomial.constant(1, written[0][0].variables)
        for f, e in written:
            total = total * f**e
        degrees = []
        for product_ in (written, [(total, 1)]):
            found = squarefree(product_, size)
            back = total.like({found.monomial: found.constant})
            for f, e in found.factors:
                back = back * f**e
            assert back == total
            for k, (f, _) in enumerate(found.factors):
                assert not common_divisor(f, f.derivative(f.used[0])).used
                assert not any(common_divisor(f, g).used for g, _ in found.factors[:k])
            degrees.append(sorted((e, sum(f.degree() for f, p in found.factors if p == e)) for _, e in found.factors))
        assert set(degrees[0]) == set(degrees[1])


def test_real_roots_are_found_and_kept_apart():
    # (t² − 2)(t − 1)²(t + 1/3) t (t² + 1)
    p = [Fraction(1)]
    for q in ([-2, 0, 1], [-1, 1], [-1, 1], [Fraction(1, 3), 1], [0, 1], [1, 0, 1]):
        step = [Fraction(0)] * (len(p) + len(q) - 1)
        for i, a in enumerate(p):
            for k, b in enumerate(q):
                step[i + k] += a * b
        p = step
    expected = [-(2**0.5), -1 / 3, 0, 1, 2**0.5]
    found = real_roots(p)
    assert count_real_roots(p) == len(found) == 5
    for (low, high), root in zip(found, expected, strict=True):
        assert float(low) - 1e-12 <= root <= float(high) + 1e-12
    assert found[1] == (Fraction(-1, 3), Fraction(-1, 3))
    assert len(nonzero_real_roots(p)) == 4
    negative = is_negative_somewhere(p)
    assert negative is not None
    assert value_at(p, negative) < 0


def test_squares_are_negative_nowhere():
    assert is_negative_somewhere([1, -4, 4]) is None
    assert is_negative_somewhere([4, 0, -4, 0, 1]) is None
    assert is_negative_somewhere([Fraction(399, 100), 0, -4, 0, 1]) is not None


def test_algebraic_numbers_in_a_tower():
    root2 = RealRoot([-2, 0, 1], (Fraction(1), Fraction(2))).number()
    nested = RealRoot([-(root2 + 1), 0, 1], (Fraction(1), Fraction(2))).number()
    assert root2 * root2 == 2
    assert (nested * nested - 1) ** 2 == 2
    assert nested > root2 > Fraction(141, 100)
    assert (1 / (nested + root2)) * (nested + root2) == 1
    assert not (nested * nested - root2 - 1)
    for _ in range(10):
        refine(nested)
    low, high = enclosure(nested)
    assert low < high < low + Fraction(1, 10**9)
    assert abs(float(low) - (1 + 2**0.5) ** 0.5) < 1e-8


def test_a_reducible_polynomial_settles_on_the_factor_with_the_root():
    root = RealRoot([6, 0, -5, 0, 1], (Fraction(1), Fraction(3, 2))).number()  # (t² − 2)(t² − 3)
    assert root * root == 2
    assert root * root != 3
    assert len(root.root.polynomial) == 3


@pytest.mark.parametrize("seed", range(4))
def test_newton_polyhedra(seed):
    source = random.Random(seed)
    for _ in range(12):
        size = source.randint(2, 4)
        points = sorted({tuple(source.randint(0, 4) for _ in range(size)) for _ in range(source.randint(1, 8))})
        polyhedron = NewtonPolyhedron(points)
        for normal, least in polyhedron.facets:
            values = [sum(a * b for a, b in zip(normal, e, strict=True)) for e in points]
            tight = [e for e, v in zip(points, values, strict=True) if v == least]
            directions = [[a - b for a, b in zip(e, tight[0], strict=True)] for e in tight]
            directions += [[int(i == j) for i in range(size)] for j in range(size) if not normal[j]]
            assert min(values) == least
            assert rank(directions) == size - 1
        faces = {face.points for face in polyhedron.compact_faces()}
        exposed = set()
        for weight in product(range(1, 5), repeat=size):
            values = [sum(a * b for a, b in zip(weight, e, strict=True)) for e in points]
            exposed.add(tuple(e for e, v in zip(points, values, strict=True) if v == min(values)))
        assert exposed <= faces
        for face in polyhedron.compact_faces():
            values = [sum(a * b for a, b in zip(face.normal, e, strict=True)) for e in points]
            assert min(face.normal) > 0
            assert tuple(e for e, v in zip(points, values, strict=True) if v == min(values)) == face.points
        assert {(v,) for v in polyhedron.vertices} <= faces


@pytest.mark.parametrize(
    ("f", "zero", "singular"),
    [
        (X * X + Y * Y, False, False),
        (X * X - Y**3, True, False),
        ((X - Y) ** 2, True, True),
        (X * X - 3 * X * Y + Y * Y, True, False),
        (X + Y + Z, True, False),
        (X * X + Y * Y - Z * Z, True, False),
        (X**4 * Y**2 + X**2 * Y**4 + Z**6 - 3 * X**2 * Y**2 * Z**2, True, None),
        (X**4 * Y**2 + X**2 * Y**4 + Z**6 - 2 * X**2 * Y**2 * Z**2, False, False),
        (X**4 + Y**4 + Z**4 - 2 * X * X * Y * Z, False, False),
        (X**2 + Y**2 + Z**2 - X * Y - Y * Z, False, False),
    ],
)
def test_zeros_off_the_axes(f, zero, singular):
    assert has_zero(f.terms) is zero
    assert has_singular_zero(f.terms) is singular


def test_common_zeros_and_crossings():
    one, two = X - Y, X + Y
    assert has_common_zero([one.terms, two.terms]) is False
    assert has_common_zero([one.terms, (X * X - Y * Y).terms]) is True
    assert crossing_without_tangency([one.terms, two.terms]) is True
    assert crossing_without_tangency([(X - Y).terms, (X - Z).terms]) is True
    assert crossing_without_tangency([(X - Y).terms, (Y - Z).terms, (X - Z).terms]) is None


def test_a_vertex_that_only_slanting_directions_expose_has_its_sign():
    """A tiny negative term outside of what positive ones span wins far out, where no small sample sees it."""
    for points in (
        [(6, 4, 2), (-4, 2, 6), (4, 2, 6), (6, -4, -2), (2, -4, 0)],
        [(-2, -2, -4), (6, 4, 6), (4, 2, 4), (0, -4, -2), (2, 4, 2)],
    ):
        p = {e: Fraction(1) for e in points} | {(0, 0, 0): Fraction(-1, 10**9)}
        assert has_zero({e: c for e, c in p.items() if c > 0}) is False
        assert has_zero(p) is True
