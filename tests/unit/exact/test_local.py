"""Powers of one function, and functions that split into squares and a rest."""

from fractions import Fraction

from crunode.exact.algebra import local
from crunode.exact.algebra.local import of_sum
from crunode.exact.algebra.polynomials import Polynomial
from crunode.exact.algebra.splitting import split_quadratic


def test_the_square_of_a_function_that_splits_has_half_its_coefficient():
    """With u = x + y + x² beside x, f is u² and 16x⁴ + x²z² + z⁶ with terms beyond: λ = 1/2 + 1/2, and m = 2."""
    x, y, z = Polynomial.unknowns("x", "y", "z")
    f = (x + y + x**2) ** 2 + (x - y) ** 4 + x**2 * z**2 + z**6
    for e in (1, 2, 3):
        found = of_sum([[(f, e)]], ("x", "y", "z"), [Fraction(0)] * 3)
        assert (found.value, found.multiplicity, found.status) == (Fraction(1, e), 2, "exact")


def test_series_are_long_only_where_one_variable_is_left(monkeypatch):
    degrees = []

    def watched(f, degree):
        degrees.append(degree)
        return split_quadratic(f, degree)

    monkeypatch.setattr(local, "split_quadratic", watched)
    x, y, z = Polynomial.unknowns("x", "y", "z")
    two = (x + y**2) ** 2 + (x + z**2) ** 2 + x**3 * y + x**2 * z**2
    assert of_sum([[(two, 1)]], ("x", "y", "z"), [Fraction(0)] * 3).status != "exact"
    assert max(degrees) == 6
    u, v = x + y + z**2 + x * z, x - y + z**3 + y * z
    one = u**2 + v**2 + (u + v) ** 4 * z**2 + z**14
    found = of_sum([[(one, 1)]], ("x", "y", "z"), [Fraction(0)] * 3)
    assert (found.value, found.multiplicity) == (1 + Fraction(1, 14), 1)
    assert max(degrees) == 12
