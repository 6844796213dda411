"""Real roots of polynomials in one variable, counted and separated exactly by Sturm's theorem.

A polynomial is a list of coefficients, the constant one first, without trailing zeros. Coefficients are rationals or
real algebraic numbers (`crunode.exact.algebra.algebraic`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Any

__all__ = [
    "Coefficients",
    "Interval",
    "count_real_roots",
    "derivative",
    "divided",
    "greatest_common_divisor",
    "is_negative_somewhere",
    "nonzero_real_roots",
    "normalized",
    "real_roots",
    "root_in",
    "squarefree_parts",
    "value_at",
]

Coefficients = list[Any]
Interval = tuple[Fraction, Fraction]


def normalized(p: Sequence[Any]) -> Coefficients:
    """Without trailing zeros, and scaled by a positive number: coprime integers, or leading coefficient ±1."""
    found = [Fraction(c) if isinstance(c, int) else c for c in p]
    while found and not found[-1]:
        found.pop()
    if not found:
        return found
    if all(isinstance(c, Fraction) for c in found):
        scale = lcm(*(c.denominator for c in found))
        whole = [int(c * scale) for c in found]
        common = gcd(*whole)
        return [Fraction(c // common) for c in whole]
    lead = found[-1] if found[-1] > 0 else -found[-1]
    return [c / lead for c in found]


def derivative(p: Sequence[Any]) -> Coefficients:
    """p′."""
    return [k * c for k, c in enumerate(p)][1:]


def divided(p: Sequence[Any], q: Sequence[Any]) -> tuple[Coefficients, Coefficients]:
    """Quotient and remainder."""
    rest = [Fraction(c) if isinstance(c, int) else c for c in p]
    found: Coefficients = [Fraction(0)] * max(len(p) - len(q) + 1, 0)
    lead = q[-1]
    for offset in range(len(p) - len(q), -1, -1):
        factor = rest[offset + len(q) - 1] / lead
        found[offset] = factor
        if factor:
            for k, c in enumerate(q):
                rest[offset + k] = rest[offset + k] - factor * c
    rest = rest[: len(q) - 1] if len(p) >= len(q) else rest
    while rest and not rest[-1]:
        rest.pop()
    return found, rest


def greatest_common_divisor(p: Sequence[Any], q: Sequence[Any]) -> Coefficients:
    """The common divisor, normalized, with a positive leading coefficient.

    Example:
        >>> greatest_common_divisor([-1, 0, 1], [1, 2, 1])
        [Fraction(1, 1), Fraction(1, 1)]
    """
    one, two = normalized(p), normalized(q)
    while two:
        one, two = two, normalized(divided(one, two)[1])
    return one if not one or one[-1] > 0 else [-c for c in one]


def squarefree_parts(p: Sequence[Any]) -> list[tuple[Coefficients, int]]:
    """Square-free factors by multiplicity, those without a root left out.

    Example:
        >>> [(list(map(int, q)), k) for q, k in squarefree_parts([0, 0, 1, 1])]
        [([1, 1], 1), ([0, 1], 2)]
    """
    one = normalized(p)
    repeated = greatest_common_divisor(one, derivative(one))
    radical = normalized(divided(one, repeated)[0])
    found, multiplicity = [], 1
    while len(radical) > 1:
        common = greatest_common_divisor(radical, repeated)
        simple = normalized(divided(radical, common)[0])
        if len(simple) > 1:
            found.append((simple, multiplicity))
        repeated = normalized(divided(repeated, common)[0])
        radical, multiplicity = common, multiplicity + 1
    return found


def value_at(p: Sequence[Any], x: Any) -> Any:
    """p(x)."""
    total: Any = Fraction(0)
    for c in reversed(p):
        total = total * x + c
    return total


def _sign(value: Any) -> int:
    return int(value > 0) - int(value < 0)


def _chain(p: Coefficients) -> list[Coefficients]:
    chain = [p, normalized(derivative(p))]
    while len(chain[-1]) > 1:
        rest = normalized([-c for c in divided(chain[-2], chain[-1])[1]])
        if not rest:
            break
        chain.append(rest)
    return [q for q in chain if q]


def _changes(signs: Sequence[int]) -> int:
    seen = [s for s in signs if s]
    return sum(a != b for a, b in itertools.pairwise(seen))


def _changes_at(chain: list[Coefficients], x: Fraction) -> int:
    return _changes([_sign(value_at(q, x)) for q in chain])


def _changes_at_infinity(chain: list[Coefficients], side: int) -> int:
    return _changes([_sign(q[-1]) * (side if len(q) % 2 == 0 else 1) for q in chain])


def count_real_roots(p: Sequence[Any]) -> int:
    """How many different real roots p has.

    Example:
        >>> count_real_roots([-2, 0, 1]), count_real_roots([1, 0, 1]), count_real_roots([1, 2, 1])
        (2, 0, 1)
    """
    chain = _chain(normalized(p))
    return _changes_at_infinity(chain, -1) - _changes_at_infinity(chain, 1)


def real_roots(p: Sequence[Any]) -> list[Interval]:
    """The different real roots in rising order, each as an interval with rational ends that holds no other root.

    An interval (a, a) is the root a itself; inside any other one the square-free part changes sign, and its ends are
    no roots. Rational roots of polynomials with rational coefficients come as themselves.

    Example:
        >>> real_roots([0, -1, 0, 1])
        [(Fraction(-1, 1), Fraction(-1, 1)), (Fraction(0, 1), Fraction(0, 1)), (Fraction(1, 1), Fraction(1, 1))]
    """
    radical = normalized(p)
    if len(radical) < 2:
        return []
    radical = normalized(divided(radical, greatest_common_divisor(radical, derivative(radical)))[0])
    chain = _chain(radical)
    total = _changes_at_infinity(chain, -1) - _changes_at_infinity(chain, 1)
    if not total:
        return []
    bound = Fraction(2)
    while any(abs(c) > bound * abs(radical[-1]) for c in radical[:-1]):
        bound *= 2
    bound += 1
    found: list[Interval] = []
    waiting = [(-bound, bound, _changes_at(chain, -bound), _changes_at(chain, bound))]
    while waiting:
        low, high, before, after = waiting.pop()
        if before == after:
            continue
        if before - after == 1:
            found.append(_rational_or_interval(radical, low, high))
            continue
        middle = _no_root_near((low + high) / 2, high - low, radical)
        at = _changes_at(chain, middle)
        waiting.append((low, middle, before, at))
        waiting.append((middle, high, at, after))
    return sorted(found)


def _no_root_near(middle: Fraction, width: Fraction, p: Coefficients) -> Fraction:
    step = width / 8
    while not value_at(p, middle):
        middle, step = middle + step, step / 2
    return middle


def _rational_or_interval(p: Coefficients, low: Fraction, high: Fraction) -> Interval:
    """The root itself if it is rational. Its denominator divides the leading coefficient of the integer polynomial."""
    if not all(isinstance(c, int | Fraction) for c in p):
        return low, high
    lead = int(p[-1])
    below = _sign(value_at(p, low))
    while (high - low) * abs(lead) >= 1:
        middle = (low + high) / 2
        at = _sign(value_at(p, middle))
        if not at:
            return middle, middle
        low, high = (middle, high) if at == below else (low, middle)
    candidate = Fraction(-((-low * abs(lead)).__floor__()), abs(lead))
    for guess in (candidate, candidate - Fraction(1, abs(lead))):
        if low <= guess <= high and not value_at(p, guess):
            return guess, guess
    return low, high


def nonzero_real_roots(p: Sequence[Any]) -> list[Interval]:
    """The real roots other than 0, as `real_roots` gives them, with intervals that do not hold 0, nor end there.

    Example:
        >>> nonzero_real_roots([0, 0, 1])
        []
    """
    terms = normalized(p)
    while terms and not terms[0]:
        terms.pop(0)
    found = []
    radical = None
    for low, high in real_roots(terms):
        while low <= 0 <= high:
            if radical is None:
                radical = normalized(divided(terms, greatest_common_divisor(terms, derivative(terms)))[0])
            middle = Fraction(0) if low < 0 < high else (low + high) / 2
            at = _sign(value_at(radical, middle))
            if not at:
                low = high = middle
            else:
                low, high = (middle, high) if at == _sign(value_at(radical, low)) else (low, middle)
        found.append((low, high))
    return found


def root_in(p: Sequence[Any], interval: Interval) -> bool:
    """Whether a square-free p vanishes at the one root that `interval` holds of a multiple of p."""
    low, high = interval
    if low == high:
        return not value_at(p, low)
    return _sign(value_at(p, low)) * _sign(value_at(p, high)) < 0


def is_negative_somewhere(p: Sequence[Any]) -> Fraction | None:
    """A rational x with p(x) < 0, the closest to 0 of those looked at, or None if p ≥ 0 everywhere.

    Example:
        >>> is_negative_somewhere([0, 0, 1, -1])
        Fraction(2, 1)
    """
    terms = normalized(p)
    if not terms:
        return None
    roots = real_roots(terms)
    if not roots:
        return Fraction(0) if terms[0] < 0 else None
    tries = [roots[0][0] - 1, roots[-1][1] + 1]
    for (_, before), (after, _) in itertools.pairwise(roots):
        tries.append((before + after) / 2)
    for low, high in roots:
        if low != high:
            tries += [low, high]
    for x in sorted(tries, key=abs):
        if value_at(terms, x) < 0:
            return x
    return None
