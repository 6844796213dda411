"""Resolution of real plane curves: curves with known values, irrational branches, weights."""

from fractions import Fraction

import pytest

from crunode.exact.algebra.factors import squarefree
from crunode.exact.algebra.parse import parse
from crunode.exact.algebra.plane import polygon_normals, resolve


def _resolved(text, h=(0, 0)):
    formula = parse(text, ["x", "y"])
    product = formula.addends[0] if len(formula.addends) == 1 else [(formula.expanded(), 1)]
    parts = squarefree(product, 2)
    return resolve([(f.terms, e) for f, e in parts.factors], parts.monomial, h)


@pytest.mark.parametrize(
    ("text", "value", "m"),
    [
        ("x**2 + y**2", 1, 1),
        ("(x - y)**2", Fraction(1, 2), 1),
        ("(x**2 - y**3)**2", Fraction(5, 12), 1),
        ("(x*y*(x - y))**2", Fraction(1, 3), 1),
        ("(x**2 + y**2)**2", Fraction(1, 2), 1),
        ("(x - y)**4*(x + y)**2", Fraction(1, 4), 1),
        ("(y**2 - 2*x**2)**2", Fraction(1, 2), 2),
        ("x**6 + x**2*y**2 + y**6", Fraction(1, 2), 2),
        # y² − x⁵ and y² + x⁶ after y − x² is taken as a coordinate
        ("((y - x**2)**2 - x**5)**2", Fraction(7, 20), 1),
        ("(y - x**2)**2 + x**6", Fraction(2, 3), 1),
        ("(y - x**2)**2*(y - x**2 - x**3)**2", Fraction(1, 3), 1),
        # the same with shifts by series that do not end early
        ("((y - x - x**2 - x**3)**2 - x**7)**2", Fraction(1, 2) * (Fraction(1, 2) + Fraction(1, 7)), 1),
        # (y² − c x²)² + x⁵: orders 8 and 20, Jacobians 2 and 5, whose divisors meet
        ("((y**2 - x**2)**2 + x**5)**2", Fraction(1, 4), 2),
        ("((y**2 - 2*x**2)**2 + x**5)**2", Fraction(1, 4), 2),
        # no real branch at either irrational tangent, but the same divisors
        ("((y**2 - 2*x**2)**2 + x**6)**2", Fraction(1, 4), 2),
        ("((y**2 + 2*x**2)**2 + x**5)**2", Fraction(1, 4), 1),
    ],
)
def test_known_curves(text, value, m):
    found = _resolved(text)
    assert (found.value, found.multiplicity) == (value, m)


@pytest.mark.parametrize(("a", "b"), [(2, 3), (2, 101), (3, 4), (7, 11), (4, 6), (1, 9)])
def test_brieskorn_curves(a, b):
    found = _resolved(f"(x**{a} - y**{b})**2")
    assert found.value == min(Fraction(1, 2), Fraction(a + b, 2 * a * b))


def test_towers_of_irrational_roots():
    # Both levels have irrational tangents: v² = 2, then w² = v.
    rational = _resolved("(((y**2 - x**2)**2 - x**6)**2 - x**13)**2")
    irrational = _resolved("(((y**2 - 2*x**2)**2 - y*x**5)**2 - x**13)**2")
    assert rational.value == irrational.value
    assert irrational.multiplicity == rational.multiplicity


def test_only_real_branches_are_counted():
    assert len(_resolved("(x**2 + y**2)**2").branches) == 0
    assert len(_resolved("(y**2 - 2*x**2)**2").branches) == 2
    assert len(_resolved("(y**3 - 2*x**3)**2").branches) == 1
    assert len(_resolved("((y - x)**2 - x**3)**2").branches) == 1


@pytest.mark.parametrize(
    ("text", "h", "value", "m"),
    [
        ("(x - y)**2", (1, 0), Fraction(1, 2), 1),
        ("x**2*(x - y)**2", (1, 0), Fraction(1, 2), 1),
        ("x**2*(x - y)**2", (Fraction(-1, 2), 0), Fraction(1, 4), 1),
        ("(x**2 - y**3)**2", (0, 1), Fraction(1, 2), 1),
        ("(x**2 - y**3)**6", (0, 1), Fraction(1, 6), 1),
        ("(x**2 + y**2)**2", (1, 1), 1, 1),
        ("x**2*y**2", (0, 1), Fraction(1, 2), 1),
    ],
)
def test_weights(text, h, value, m):
    found = _resolved(text, h)
    assert (found.value, found.multiplicity) == (value, m)


def test_polygons():
    assert polygon_normals([(0, 0)]) == []
    assert polygon_normals([(0, 4), (1, 2), (2, 1), (5, 0), (3, 3)]) == [(2, 1), (1, 1), (1, 3)]
