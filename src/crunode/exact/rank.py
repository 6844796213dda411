"""Ranks of matrices: modulo a prime, exactly over the rationals, and in floating point with a gap test."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from crunode.errors import InputError
from crunode.exact.arguments import matrix

__all__ = ["MERSENNE", "RankResult", "exact_rank", "matrix_rank", "modular_rank", "numerical_rank"]

# Exponents k of primes 2^k − 1. Modulo such a prime a whole row, packed into one integer, is reduced by masks and
# shifts, so that elimination needs one product of integers a row instead of one of numbers an entry.
MERSENNE = (13, 17, 19, 31, 61, 89, 107, 127, 521, 607, 1279, 2203, 2281, 3217, 4253, 4423, 9689, 9941, 11213, 19937)

# Bits that one elimination may go through: about three seconds.
_BUDGET = 1.4e10


@dataclass(frozen=True)
class RankResult:
    """A rank and how it was found.

    Attributes:
        rank: The rank; None where floating point leaves it open.
        exact: True for exact arithmetic, False for floating point.
        gap: Floating point only: the smallest pivot counted as not zero over the largest counted as zero.
        low: The rank is at least this; proven for exact arithmetic.
        high: The rank is at most this; proven for exact arithmetic.

    Example:
        >>> exact_rank([[1, 2], [2, 4]])
        RankResult(rank=1, exact=True, gap=None, low=1, high=1)
    """

    rank: int | None
    exact: bool
    gap: float | None
    low: int
    high: int


def modular_rank(rows: Sequence[Sequence[int]], exponent: int = 61) -> int:
    """Rank of a matrix of whole numbers modulo the prime 2^exponent − 1.

    It is never above the rank over the rationals, so that a rank reached here is proven there.

    Args:
        rows: Whole numbers, equally many in each row.
        exponent: One out of `MERSENNE`.

    Example:
        >>> modular_rank([[1, 2, 3], [2, 4, 6], [0, 1, 1]])
        2
    """
    if exponent not in MERSENNE:
        raise InputError(f"expected the exponent of a Mersenne prime out of {MERSENNE}, got {exponent!r}")
    if not rows or not rows[0]:
        return 0
    prime, columns = (1 << exponent) - 1, len(rows[0])
    if len(rows) < columns:  # fewer columns make shorter integers
        rows, columns = list(zip(*rows, strict=True)), len(rows)
    size = -(-2 * exponent // 8)  # bytes of a field: room for the square of the prime
    width = 8 * size
    field = (1 << width) - 1
    low = int.from_bytes(b"".join(prime.to_bytes(size, "little") for _ in range(columns)), "little")
    left = [int.from_bytes(b"".join((x % prime).to_bytes(size, "little") for x in row), "little") for row in rows]
    rank = 0
    for _ in range(columns):
        left = [row for row in left if row]
        low >>= width
        at = next((i for i, row in enumerate(left) if (row & field) % prime), None)
        if at is None:
            left = [row >> width for row in left]
            continue
        pivot = left[at]
        left[at] = left[-1]
        left.pop()
        rank += 1
        inverse, pivot = pow(pivot & field, -1, prime), pivot >> width
        for i, row in enumerate(left):
            factor, row = (row & field) * -inverse % prime, row >> width
            if factor:
                # Fields stay below the prime's square plus the prime, and two folds bring them back to at most it.
                row += factor * pivot
                row = (row & low) + ((row >> exponent) & low)
                row = (row & low) + ((row >> exponent) & low)
            left[i] = row
    return rank


def exact_rank(rows: Any) -> RankResult:
    """Rank over the rationals of a matrix of whole numbers and Fractions.

    The rank modulo 2^61 − 1 is a lower bound. Where it is not full, the rank is taken modulo a prime above Hadamard's
    bound on every minor: no minor that is not zero vanishes there, so the rank is that over the rationals. Where that
    prime is too large for seconds, the greatest rank modulo three primes is returned: it is the rank unless every
    larger minor is divisible by all three, and `high` is then the smaller side of the matrix instead of the rank.

    Args:
        rows: Rows of whole numbers or Fractions.

    Raises:
        InputError: Other numbers, or a matrix for which this takes more than seconds.

    Example:
        >>> exact_rank([[1, 2], [Fraction(1, 2), 1]]).rank
        1
    """
    found = [[_integral(x) for x in row] for row in matrix(rows, "rows")]
    whole = []
    for row in found:
        scale = math.lcm(*(x.denominator for x in row if isinstance(x, Fraction)))
        whole.append([int(x * scale) for x in row])
    distinct = {tuple(row) for row in whole if any(row)}
    columns = {column for column in zip(*sorted(distinct), strict=True) if any(column)}
    if not columns:
        return RankResult(0, True, None, 0, 0)
    whole = [list(row) for row in zip(*sorted(columns), strict=True)]
    if len(whole) > len(whole[0]):
        whole = [list(column) for column in zip(*whole, strict=True)]
    small, large = len(whole), len(whole[0])
    if _cost(small, large, 61) > _BUDGET:
        raise InputError(_too_large(small, large))
    rank = modular_rank(whole, 61)
    if rank < small:
        # Hadamard: a minor is at most the product of the lengths of its rows, of which the longest count.
        lengths = sorted((sum(x * x for x in row) for row in whole), reverse=True)
        bits = 1 + sum(length.bit_length() for length in lengths[: rank + 1]) // 2
        exponent = next((k for k in MERSENNE if k > bits and k >= 61), None)
        if exponent is None or _cost(small, large, exponent) > _BUDGET:
            rank = max(rank, *(modular_rank(whole, k) for k in (89, 107)))
            return RankResult(rank, True, None, rank, small)
        rank = modular_rank(whole, exponent)
    return RankResult(rank, True, None, rank, rank)


def numerical_rank(rows: Any, gap: float = 1e4, noise: float = 1e-6) -> RankResult:
    """Rank of a matrix of floating-point numbers, by elimination with complete pivoting and a gap test.

    Pivots fall slowly as long as the rank lasts and drop to the noise of the entries after it. It is decided where
    there is one drop by `gap` or more, down to `noise`, or none at all and the last pivot is well above rounding;
    otherwise it is left open.

    Args:
        rows: Rows of numbers.
        gap: The least ratio of consecutive pivots that decides.
        noise: Relative error of the entries; the default suits single precision. What is smaller counts as nothing.

    Raises:
        InputError: No matrix of finite numbers, or one for which this takes more than seconds.

    Example:
        >>> found = numerical_rank([[0.1, 0.2], [0.2, 0.4]])
        >>> found.rank, found.exact
        (1, False)
    """
    work = [[float(x) for x in row] for row in matrix(rows, "rows")]
    small, large = sorted((len(work), len(work[0])))
    if small * small * large > 3 * 10**7:
        raise InputError(_too_large(small, large))
    for row in work:  # a row's scale carries no rank
        top = max(map(abs, row))
        if top:
            row[:] = [x / top for x in row]
    pivots: list[float] = []
    while work and len(pivots) < small:
        tops = [max(map(abs, row)) for row in work]
        at = max(range(len(work)), key=tops.__getitem__)
        if not tops[at]:
            break
        pivot = work.pop(at)
        column = max(range(len(pivot)), key=lambda j: abs(pivot[j]))
        head = pivot[column]
        pivots.append(abs(head))
        for i, row in enumerate(work):
            factor = row[column] / head
            if factor:
                work[i] = [x - factor * y for x, y in zip(row, pivot, strict=True)]
            work[i][column] = 0.0
    if not pivots:
        return RankResult(0, False, math.inf, 0, 0)
    rounding = 2.0**-48 * pivots[0] * large
    pivots += [0.0] * (small - len(pivots))
    # Pivots below rounding say nothing of one another.
    ratios = [a / max(b, rounding) for a, b in itertools.pairwise(pivots)]
    drops = [i + 1 for i, ratio in enumerate(ratios) if ratio >= gap]
    if not drops and pivots[-1] > gap * rounding:
        return RankResult(small, False, pivots[-1] / rounding, small, small)
    if len(drops) == 1 and pivots[drops[0]] <= noise * pivots[0]:
        return RankResult(drops[0], False, ratios[drops[0] - 1], drops[0], drops[0])
    low = drops[0] if drops else sum(pivot > gap * rounding for pivot in pivots)
    return RankResult(None, False, max(ratios, default=1.0), low, small)


def matrix_rank(rows: Any) -> RankResult:
    """Rank of a matrix: exact for whole numbers and Fractions, with a gap test where any entry is a float.

    Example:
        >>> matrix_rank([[1, 2], [2, 4]])
        RankResult(rank=1, exact=True, gap=None, low=1, high=1)
    """
    found = matrix(rows, "rows")
    if any(isinstance(x, float) for row in found for x in row):
        return numerical_rank(found)
    return exact_rank(found)


def _integral(x: Any) -> Any:
    if isinstance(x, float):
        raise InputError(f"expected whole numbers and Fractions, got {x!r}; numerical_rank takes floating point")
    return x if isinstance(x, Fraction) else x.__index__()


def _cost(small: int, large: int, exponent: int) -> float:
    # Products of long integers cost more than their length; the power fits what was measured.
    return small * small * large * exponent * max(1.0, math.pow(exponent / 61, 0.6))


def _too_large(small: int, large: int) -> str:
    return (
        f"expected a matrix whose rank plain Python finds in seconds, got {small} by {large}; give fewer rows or "
        "columns, or use a numerical rank such as numpy.linalg.matrix_rank"
    )
