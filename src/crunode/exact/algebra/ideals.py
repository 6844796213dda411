"""Learning coefficients of monomial ideals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from numbers import Rational
from typing import Any

from crunode.errors import InputError
from crunode.exact.algebra.program import Cover, cover
from crunode.exact.result import LearningCoefficient

__all__ = ["minimal_exponents", "monomial_ideal", "newton_cover", "weights_of"]

_CITATION = "Howald 2001; Watanabe 2009"
_LARGEST = 10**6


def monomial_ideal(exponents: Iterable[Sequence[int]], h: Sequence[Any] | None = None) -> LearningCoefficient:
    """λ and m of K = Σ_i x^(2 α_i) with weight ∏ |x_j|^h_j, at the origin.

    λ = ½ min{Σ (h_j + 1) ω_j : ω ≥ 0, ω·α_i ≥ 1 for all i}; m − 1 is the dimension of the set of optimal ω. That is the
    same as the codimension of the face of the Newton polyhedron that the ray through (h_j + 1) meets. Any K between two
    positive multiples of this one has the same λ and m, so it is the value of the ideal ⟨x^α_i⟩.

    Args:
        exponents: The α_i, one per generator, all of one length: non-negative integers.
        h: Exponents of the weight, one per variable, each above −1; 0 when left out.

    Returns:
        An exact value. `details` has the weights ω and the generators that the optimal face rests on.

    Raises:
        InputError: No generator, lengths that differ, entries that are not non-negative integers, or a generator 1.

    Example:
        >>> print(monomial_ideal([(1, 1, 0), (0, 1, 1), (1, 0, 1)]))
        λ = 3/4, m = 1 (exact) [Howald 2001; Watanabe 2009]
        >>> monomial_ideal([(1, 1)]).multiplicity
        2

    References:
        Howald 2001, Multiplier ideals of monomial ideals. Watanabe 2009, Algebraic Geometry and Statistical Learning
        Theory.
    """
    rows = _exponent_rows(exponents)
    costs = [1 + entry for entry in weights_of(h, len(rows[0]))]
    rows = minimal_exponents(rows)
    found = newton_cover(rows, costs)
    details = {
        "route": "linear program over the exponents",
        "weights": [str(entry) for entry in found.weights],
        "generators": len(rows),
        "face": [list(rows[i]) for i in found.rows] if len(found.rows) <= 20 else f"{len(found.rows)} generators",
    }
    return LearningCoefficient.exact(found.value / 2, found.dimension + 1, citation=_CITATION, details=details)


def newton_cover(rows: Sequence[Sequence[int]], costs: Sequence[Fraction | int]) -> Cover:
    """min{c·ω : ω ≥ 0, ω·α ≥ 1}: λ of Σ |x^α| with weight ∏ |x_j|^(c_j − 1); `dimension` is m − 1.

    Example:
        >>> newton_cover([(4, 0), (0, 4)], (1, 1)).value
        Fraction(1, 2)
    """
    used = [j for j in range(len(costs)) if any(row[j] for row in rows)]
    small = cover([[row[j] for j in used] for row in rows], [costs[j] for j in used])
    weights = [Fraction(0)] * len(costs)
    for j, weight in zip(used, small.weights, strict=True):
        weights[j] = weight
    unused = [j for j in range(len(costs)) if j not in used]
    zeros = tuple(sorted([*unused, *(used[j] for j in small.zeros)]))
    return Cover(small.value, tuple(weights), small.dimension, small.rows, zeros, small.shares)


def minimal_exponents(rows: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """The exponents that no other one divides, without repeats, by total degree.

    Example:
        >>> minimal_exponents([(2, 1), (1, 1), (0, 3), (1, 1)])
        [(1, 1), (0, 3)]
    """
    kept: list[tuple[int, int, tuple[int, ...]]] = []
    for row in sorted({tuple(row) for row in rows}, key=lambda row: (sum(row), row)):
        degree = sum(row)
        absent = sum(1 << j for j, entry in enumerate(row) if not entry)
        divided = any(
            less < degree and not present & absent and all(a <= b for a, b in zip(other, row, strict=True))
            for less, present, other in kept
        )
        if not divided:
            kept.append((degree, ~absent & ((1 << len(row)) - 1), row))
    return [row for _, _, row in kept]


def weights_of(h: Sequence[Any] | None, count: int) -> tuple[Fraction, ...]:
    """The exponents of the weight ∏ |x_j|^h_j as rationals, checked.

    Example:
        >>> weights_of(None, 2)
        (Fraction(0, 1), Fraction(0, 1))
    """
    if h is None:
        return (Fraction(0),) * count
    if isinstance(h, str | bytes) or not isinstance(h, Sequence):
        raise InputError(f"expected h as a list with one number per variable, got {h!r}")
    if len(h) != count:
        raise InputError(f"expected {count} entries in h, one per variable, got {len(h)}")
    found = []
    for entry in h:
        if isinstance(entry, bool) or not isinstance(entry, Rational):
            raise InputError(f"expected integers or fractions in h, got {entry!r}")
        if not -1 < Fraction(entry) <= _LARGEST:
            raise InputError(f"expected entries of h above -1 and up to {_LARGEST}, got {entry}")
        found.append(Fraction(entry))
    return tuple(found)


def _exponent_rows(exponents: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    if isinstance(exponents, str | bytes) or not isinstance(exponents, Iterable):
        raise InputError(f"expected a list of exponent vectors such as [[1, 0], [0, 1]], got {exponents!r}")
    rows: list[tuple[int, ...]] = []
    for row in exponents:
        if isinstance(row, str | bytes) or not isinstance(row, Sequence):
            raise InputError(f"expected each generator as a list of exponents, got {row!r}")
        for entry in row:
            if isinstance(entry, bool) or not isinstance(entry, int) or not 0 <= entry <= _LARGEST:
                raise InputError(f"expected exponents as integers from 0 to {_LARGEST}, got {entry!r} in {list(row)}")
        if rows and len(row) != len(rows[0]):
            raise InputError(f"expected exponent vectors of one length, got {len(rows[0])} and {len(row)}")
        rows.append(tuple(row))
    if not rows or not rows[0]:
        raise InputError("expected at least one generator in at least one variable, got none: K would be zero")
    if any(not any(row) for row in rows):
        raise InputError("expected generators that vanish at the origin, got one with all exponents 0 (the constant 1)")
    return rows
