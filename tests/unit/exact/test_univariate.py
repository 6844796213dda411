"""Polynomials in one variable made from known roots and factors."""

import random
from fractions import Fraction
from itertools import pairwise

import pytest

from crunode.exact.algebra.algebraic import RealRoot
from crunode.exact.algebra.univariate import (
    count_real_roots,
    derivative,
    divided,
    greatest_common_divisor,
    is_negative_somewhere,
    nonzero_real_roots,
    normalized,
    real_roots,
    root_in,
    squarefree_parts,
    value_at,
)


def times(*factors):
    found = [Fraction(1)]
    for q in factors:
        step = [Fraction(0)] * (len(found) + len(q) - 1)
        for i, a in enumerate(found):
            for k, b in enumerate(q):
                step[i + k] += a * b
        found = step
    return found


def with_roots(*roots):
    return times(*([-r, 1] for r in roots))


def plus(p, q):
    size = max(len(p), len(q))
    found = [a + b for a, b in zip([*p, *[0] * (size - len(p))], [*q, *[0] * (size - len(q))], strict=True)]
    while found and not found[-1]:
        found.pop()
    return found


def drawn(source, degree):
    return [
        *(Fraction(source.randint(-6, 6), source.randint(1, 3)) for _ in range(degree)),
        Fraction(source.choice((-3, 2))),
    ]


@pytest.mark.parametrize("seed", range(8))
def test_quotient_and_remainder_put_a_polynomial_together(seed):
    source = random.Random(seed)
    p, q = drawn(source, source.randint(0, 6)), drawn(source, source.randint(0, 4))
    quotient, rest = divided(p, q)
    assert plus(times(quotient, q) if quotient else [], rest) == p
    assert len(rest) < len(q)
    assert divided(times(p, q), q) == (p, [])
    assert divided([int(6 * c) for c in p], q)[1] == [6 * c for c in rest]


def test_normal_forms_are_positive_multiples_with_coprime_whole_numbers():
    assert normalized([Fraction(-2, 3), 0, Fraction(4, 9), 0]) == [-3, 0, 2]
    assert normalized([4, -6]) == [2, -3]
    assert normalized([0, 0]) == []
    root = RealRoot([-2, 0, 1], (Fraction(1), Fraction(2))).number()
    assert normalized([root, 3 * root, 0]) == [Fraction(1, 3), 1]
    assert normalized([root, -root]) == [1, -1]
    assert derivative([7, 5, 3, 2]) == [5, 6, 6]
    assert derivative([7]) == []
    assert value_at([1, -2, 3], Fraction(1, 2)) == Fraction(3, 4)


@pytest.mark.parametrize("seed", range(5))
def test_common_divisors_are_the_factors_that_are_shared(seed):
    source = random.Random(seed)
    roots = source.sample(range(-9, 10), 7)
    shared, one, two = with_roots(*roots[:2]), with_roots(*roots[2:4]), with_roots(*roots[4:7])
    found = greatest_common_divisor(times([-3], shared, one), times([Fraction(1, 2)], shared, two))
    assert found == shared
    assert greatest_common_divisor(one, two) == [1]
    assert greatest_common_divisor(times([-2], one), []) == one


def test_factors_come_with_their_multiplicities():
    simple, double, fourth = [-2, 0, 1], with_roots(Fraction(1, 2), 3), with_roots(-5)
    found = squarefree_parts(times([-7], simple, double, double, *[fourth] * 4))
    assert [k for _, k in found] == [1, 2, 4]
    for (q, _), part in zip(found, (simple, double, fourth), strict=True):
        assert normalized([c / q[-1] for c in q]) == normalized(part)


def checked(p, expected):
    """Intervals of real roots: in order, apart, one root in each, which changes the sign between the ends."""
    found = real_roots(p)
    assert len(found) == count_real_roots(p) == len(expected)
    for (low, high), root in zip(found, sorted(expected), strict=True):
        if isinstance(root, Fraction | int):
            assert (low, high) == (root, root)
        else:
            assert low < root < high
            assert value_at(p, low)
            assert value_at(p, high)
    assert all(a[1] < b[0] or a[1] == b[0] for a, b in pairwise(found))
    return found


@pytest.mark.parametrize("seed", range(10))
def test_rational_roots_are_found_exactly_beside_irrational_ones(seed):
    source = random.Random(seed)
    roots = {Fraction(source.randint(-40, 40), source.randint(1, 9)) for _ in range(source.randint(1, 5))}
    square = source.choice((2, 3, 7))
    others = [square**0.5, -(square**0.5)] if seed % 2 else []
    parts = [[-square, 0, 1]] * len(others[:1])
    checked(times([source.choice((-3, 5))], with_roots(*roots, *list(roots)[:1]), [1, 0, 1], *parts), [*roots, *others])


def test_roots_of_very_different_size_and_close_to_each_other():
    checked(with_roots(1000, Fraction(1, 1000), -70), [1000, Fraction(1, 1000), -70])
    checked(
        with_roots(Fraction(1, 3), Fraction(1, 3) + Fraction(1, 10**6)),
        [Fraction(1, 3), Fraction(1, 3) + Fraction(1, 10**6)],
    )
    found = checked([-2 * 10**12, 0, 10**12 + 1], [-((2 / (1 + 1e-12)) ** 0.5), (2 / (1 + 1e-12)) ** 0.5])
    assert len(found) == 2
    assert real_roots([5]) == []
    assert real_roots([]) == []
    assert real_roots([1, 0, 1]) == []
    assert count_real_roots([0, 0, 0, 1]) == 1


def test_intervals_of_roots_off_zero_keep_off_zero():
    p = times([0, 1], [-2, 0, 10**4], [-3, 0, 1], with_roots(Fraction(1, 7)))
    found = nonzero_real_roots(p)
    expected = sorted([-(2**0.5) / 100, 2**0.5 / 100, -(3**0.5), 3**0.5, 1 / 7])
    assert len(found) == 5
    for (low, high), root in zip(found, expected, strict=True):
        assert low <= root <= high or abs(low - root) < 1e-12
        assert low > 0 or high < 0
    assert nonzero_real_roots([0, 0, 3]) == []
    # Without a root at zero, an interval may hold zero at first.
    for q in ([-1, 100, 0, 1], [1, 100, 0, 1], [-1, 0, 10**6]):
        for low, high in nonzero_real_roots(q):
            assert low > 0 or high < 0
            assert low == high or value_at(q, low) * value_at(q, high) < 0


def test_a_factor_vanishes_in_the_interval_of_its_root_only():
    p = times([-2, 0, 1], [-3, 0, 1], with_roots(5))
    intervals = real_roots(p)
    assert [root_in([-2, 0, 1], i) for i in intervals] == [False, True, True, False, False]
    assert [root_in([-3, 0, 1], i) for i in intervals] == [True, False, False, True, False]
    assert [root_in([-5, 1], i) for i in intervals] == [False] * 4 + [True]


def test_negative_values_are_found_wherever_they_are():
    for roots, sign in (((2, 3), 1), ((-3, -2), 1), ((4,), -1), ((4,), 1), ((-4,), 1), ((0, 1), -1)):
        p = times([sign], with_roots(*roots))
        x = is_negative_somewhere(p)
        assert x is not None
        assert value_at(p, x) < 0
    assert is_negative_somewhere([-1]) == 0
    assert is_negative_somewhere([-1, 0, -1]) == 0
    assert is_negative_somewhere([]) is None
    assert is_negative_somewhere(times(*[with_roots(2, 7)] * 2)) is None
    assert is_negative_somewhere([-2, 0, 1]) is not None
    # Of (t − 2)(t − 4)(t + 9) (t + 11) both gaps are negative; the nearer one to 0 is taken.
    assert 2 < is_negative_somewhere(with_roots(2, 4, -9, -11)) < 4
