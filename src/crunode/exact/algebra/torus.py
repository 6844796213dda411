"""Zeros of polynomials where no coordinate is zero: is there one, is there a singular one.

Answers are True or False where they are proven, and None where no test here decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, product
from math import lcm
from typing import Any

from crunode.exact.algebra.polynomials import Exponent
from crunode.exact.algebra.program import rank
from crunode.exact.algebra.univariate import (
    derivative,
    greatest_common_divisor,
    nonzero_real_roots,
    normalized,
)

__all__ = ["crossing_without_tangency", "flattened", "has_common_zero", "has_singular_zero", "has_zero"]

Laurent = Mapping[Exponent, Fraction]

_VALUES = (Fraction(1), Fraction(2), Fraction(1, 2), Fraction(3), Fraction(1, 3), Fraction(5, 4))
_MOST_SAMPLES = 1500
_MOST_SIMPLICES = 3000


def flattened(polynomials: Sequence[Laurent]) -> list[dict[Exponent, Fraction]]:
    """The polynomials in as few torus coordinates as they need, up to monomial factors.

    A unimodular change of exponents maps the real torus onto itself, so zeros are kept.

    Example:
        >>> flattened([{(2, 0): Fraction(1), (0, 3): Fraction(-1)}])
        [{(1,): Fraction(1, 1), (0,): Fraction(-1, 1)}]
    """
    points = [[list(e) for e in p] for p in polynomials]
    moved = [[[a - b for a, b in zip(e, group[0], strict=True)] for e in group] for group in points]
    rows = [row for group in moved for row in group]
    size = len(rows[0])
    done = 0
    for row in rows:
        # Column operations of determinant ±1, done to all rows at once, clear this row beyond the first columns.
        while True:
            active = [j for j in range(done, size) if row[j]]
            if not active:
                break
            pivot = min(active, key=lambda j: abs(row[j]))
            if len(active) == 1:
                for other in rows:
                    other[done], other[pivot] = other[pivot], other[done]
                done += 1
                break
            for j in active:
                if j != pivot:
                    factor = row[j] // row[pivot]
                    for other in rows:
                        other[j] -= factor * other[pivot]
    found = []
    for group, p in zip(moved, polynomials, strict=True):
        least = [min(e[j] for e in group) for j in range(done)]
        found.append({tuple(e[j] - least[j] for j in range(done)): c for e, c in zip(group, p.values(), strict=True)})
    return found


def has_zero(p: Laurent) -> bool | None:
    """Whether p vanishes at a real point without a zero coordinate.

    Example:
        >>> has_zero({(2, 0): Fraction(1), (0, 2): Fraction(1)}), has_zero({(2, 0): Fraction(1), (0, 3): Fraction(1)})
        (False, True)
    """
    (flat,) = flattened([p])
    size = len(next(iter(flat)))
    if size == 0:
        return False
    if size == 1:
        return bool(nonzero_real_roots(_dense(flat)))
    undecided = False
    for signs in product((0, 1), repeat=size):
        signed = {e: -c if sum(a * s for a, s in zip(e, signs, strict=True)) % 2 else c for e, c in flat.items()}
        answer = _has_positive_zero(signed)
        if answer:
            return True
        undecided |= answer is None
    return None if undecided else False


def has_singular_zero(p: Laurent) -> bool | None:
    """Whether p and all its derivatives vanish at a real point without a zero coordinate.

    Example:
        >>> has_singular_zero({(2, 0): Fraction(1), (1, 1): Fraction(-2), (0, 2): Fraction(1)})
        True
    """
    (flat,) = flattened([p])
    size = len(next(iter(flat)))
    if size == 0:
        return False
    if size == 1:
        dense = normalized(_dense(flat))
        return bool(nonzero_real_roots(greatest_common_divisor(dense, derivative(dense))))
    if _has_apex([flat], 0) or has_zero(p) is False:
        return False
    return None


def crossing_without_tangency(polynomials: Sequence[Laurent]) -> bool | None:
    """Whether the differentials are independent wherever some of the polynomials vanish together on the torus.

    Proven where the product has no singular zero, or where each polynomial of two or more has a term outside the
    affine span of all other terms: a derivative along the torus then leaves that term alone.
    """
    together = flattened(polynomials)
    if all(_has_apex(together, k) for k in range(len(together))):
        return True
    total: dict[Exponent, Fraction] = {(0,) * len(next(iter(together[0]))): Fraction(1)}
    for p in together:
        step: dict[Exponent, Fraction] = {}
        for e, c in total.items():
            for other, b in p.items():
                key = tuple(map(int.__add__, e, other))
                step[key] = step.get(key, Fraction(0)) + c * b
        total = {e: c for e, c in step.items() if c}
    return True if has_singular_zero(total) is False else None


def has_common_zero(polynomials: Sequence[Laurent]) -> bool | None:
    """Whether all vanish at one real point without a zero coordinate.

    Example:
        >>> has_common_zero([{(1, 0): Fraction(1), (0, 1): Fraction(1)}, {(1, 0): Fraction(1), (0, 1): Fraction(-1)}])
        False
    """
    together = flattened([p for p in polynomials if p])
    size = len(next(iter(together[0])))
    if any(len(p) == 1 for p in together):
        return False
    if size == 1:
        common: list[Any] = []
        for p in together:
            common = greatest_common_divisor(common, _dense(p)) if common else _dense(p)
        return bool(nonzero_real_roots(common))
    answers = [has_zero(p) for p in polynomials if p]
    if False in answers:
        return False
    return answers[0] if len(answers) == 1 else None


def _dense(p: Laurent) -> list[Any]:
    found: list[Any] = [Fraction(0)] * (max(e[0] for e in p) + 1)
    for (k,), c in p.items():
        found[k] = c
    return found


def _has_apex(polynomials: Sequence[Laurent], which: int) -> bool:
    """Whether some term of one polynomial lies outside the affine span of all the others."""
    marked = [
        (k, e, [*e, *(int(i == k) for i in range(len(polynomials)))]) for k, p in enumerate(polynomials) for e in p
    ]
    full = rank([row for _, _, row in marked])
    return any(rank([row for k, other, row in marked if (k, other) != (which, e)]) < full for e in polynomials[which])


def _has_positive_zero(p: Laurent) -> bool | None:
    """Whether p vanishes at a point with all coordinates positive."""
    plus = {e: c for e, c in p.items() if c > 0}
    minus = {e: -c for e, c in p.items() if c < 0}
    if not plus or not minus:
        return False
    # Far out along an exposing direction one vertex term outweighs all others.
    corners = {p[e] > 0 for e in _extreme(list(p))}
    if len(corners) == 2:
        return True
    if corners == {False}:
        plus, minus = minus, plus
    answer = _below_means(plus, minus)
    if answer is not None:
        return answer
    return True if _sample_of_both_signs(p) else None


def _extreme(points: list[Exponent]) -> Iterator[Exponent]:
    """Some vertices of the convex hull: those that directions with small entries expose."""
    size = len(points[0])
    seen = set()
    reach = 3 if size <= 2 else (2 if size <= 3 else 1)
    directions = product(range(-reach, reach + 1), repeat=size) if size <= 5 else _axes(size)
    for direction in directions:
        values = [sum(a * b for a, b in zip(direction, e, strict=True)) for e in points]
        top = max(values)
        if values.count(top) == 1:
            seen.add(points[values.index(top)])
    return iter(seen)


def _axes(size: int) -> Iterator[tuple[int, ...]]:
    for j in range(size):
        for sign in (-1, 1):
            yield tuple(sign * 10 * int(i == j) + int(i > j) for i in range(size))


def _sample_of_both_signs(p: Laurent) -> bool:
    signs = set()
    size = len(next(iter(p)))
    for count, point in enumerate(product(_VALUES, repeat=size)):
        if count > _MOST_SAMPLES:
            break
        total = Fraction(0)
        for e, c in p.items():
            for value, entry in zip(point, e, strict=True):
                c *= value**entry
            total += c
        if not total:
            return True
        signs.add(total > 0)
        if len(signs) == 2:
            return True
    return False


def _below_means(plus: Laurent, minus: Laurent) -> bool | None:
    """Compare the negative terms with weighted means of positive ones.

    For x > 0, Σ b_k x^α_k ≥ ∏ (b_k/μ_k)^μ_k x^β if β = Σ μ_k α_k is a convex combination, with equality at some x if
    the α_k are affinely independent. So one negative term against a simplex is decided; several are shared out.
    """
    simplices: dict[Exponent, list[dict[Exponent, Fraction]]] = {}
    for target in minus:
        found = _simplices_around(target, list(plus))
        if not found:
            return None
        simplices[target] = found
    if len(minus) == 1 and len(plus) == rank([[*e, 1] for e in plus]):
        ((target, size),) = minus.items()
        (mean,) = simplices[target]
        # Terms of no share stay apart: the bound is then approached, not reached.
        order = _compare(size, {e: plus[e] for e in mean}, mean)
        return order > 0 or (order == 0 and len(mean) == len(plus))
    for choice in range(max(map(len, simplices.values()))):
        chosen = {target: found[min(choice, len(found) - 1)] for target, found in simplices.items()}
        if _shares_suffice(plus, minus, chosen):
            return False
    return None


def _shares_suffice(plus: Laurent, minus: Laurent, chosen: Mapping[Exponent, Mapping[Exponent, Fraction]]) -> bool:
    wants = dict.fromkeys(minus, 1.0)
    for _ in range(30):
        totals = {e: sum(wants[t] * float(m[e]) for t, m in chosen.items() if e in m) for e in plus}
        shares = {t: {e: plus[e] * _rational(wants[t] * float(m[e]) / totals[e]) for e in m} for t, m in chosen.items()}
        orders = {t: _compare(minus[t], shares[t], chosen[t]) for t in minus}
        # Every share is rounded down, so a tie leaves something over.
        if all(order <= 0 for order in orders.values()) and any(order < 0 for order in orders.values()):
            return True
        for t, order in orders.items():
            wants[t] *= 1.3 if order > 0 else 0.9
    return False


def _rational(share: float) -> Fraction:
    return Fraction(int(share * 2**20), 2**20)


def _compare(size: Fraction, shares: Mapping[Exponent, Fraction], mean: Mapping[Exponent, Fraction]) -> Fraction:
    """A number with the sign of size − ∏ (b/μ)^μ, exactly."""
    scale = lcm(*(m.denominator for m in mean.values()))
    left, right = size**scale, Fraction(1)
    for e, m in mean.items():
        right *= (shares[e] / m) ** int(m * scale)
    return left - right


def _simplices_around(target: Exponent, points: list[Exponent]) -> list[dict[Exponent, Fraction]]:
    """Affinely independent points that have the target strictly among them, with its weights; small ones first."""
    found: list[dict[Exponent, Fraction]] = []
    tried = 0
    for count in range(1, len(target) + 2):
        for chosen in combinations(points, count):
            tried += 1
            if tried > _MOST_SIMPLICES or len(found) >= 6:
                return found
            weights = _barycentric(target, chosen)
            if weights is not None and all(w > 0 for w in weights):
                found.append(dict(zip(chosen, weights, strict=True)))
    return found


def _barycentric(target: Exponent, points: Sequence[Exponent]) -> list[Fraction] | None:
    rows = [[Fraction(e[j]) for e in points] + [Fraction(target[j])] for j in range(len(target))]
    rows.append([Fraction(1)] * (len(points) + 1))
    place = 0
    for column in range(len(points)):
        pivot = next((i for i in range(place, len(rows)) if rows[i][column]), None)
        if pivot is None:
            return None
        rows[place], rows[pivot] = rows[pivot], rows[place]
        lead = rows[place][column]
        rows[place] = [entry / lead for entry in rows[place]]
        for i, row in enumerate(rows):
            if i != place and row[column]:
                factor = row[column]
                rows[i] = [a - factor * b for a, b in zip(row, rows[place], strict=True)]
        place += 1
    if any(row[-1] for row in rows[place:]):
        return None
    return [row[-1] for row in rows[:place]]
