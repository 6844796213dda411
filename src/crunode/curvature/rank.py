"""The rank of a matrix: exactly over a prime field, or from singular values with a gap that has to be there.

The rank of an integer matrix modulo a prime is never above its rank, and equal to it unless the prime divides every
largest non-zero minor; so it is a certain lower bound, and with a random prime-sized modulus almost always the rank.
Singular values in floating point show a rank when those that count stand clear of those that rounding made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.errors import InputError

__all__ = ["NumericRank", "clear_count", "numeric_rank", "rank_mod_prime"]

# The largest primes below 2^23: products of two residues are below 2^46, so that sums of 64 of them are exact doubles.
_PRIMES = (8388593, 8388587)
_PANEL = 48
_GAP = 100.0
# Parts of the cut, for singular values, between which there is nothing where a count of them is clear.
_EMPTY = (0.1, 0.01)
_POWER = 8


@dataclass(frozen=True)
class NumericRank:
    """The rank that singular values show.

    Attributes:
        rank: The rank; where `decided` is False, `low`.
        low: At least this many singular values are clear of rounding.
        high: At most this many are not zero to rounding.
        gap: Ratio of the smallest singular value that counts to the largest that does not.
        tolerance: What counts stands above this.
        decided: Whether there is a clear gap.
    """

    rank: int
    low: int
    high: int
    gap: float
    tolerance: float
    decided: bool


def rank_mod_prime(matrix: Any, prime: int | None = None) -> int:
    """The rank of an integer matrix over the field of `prime` elements: a lower bound of its rank, almost always equal.

    Blocked elimination: the pivots of a panel of columns are found one by one, and the other columns are updated by a
    product of matrices in doubles, which is exact for primes below 2^23.

    Args:
        matrix: Integers of any size, in rows of equal length: an array of an integer dtype or nested sequences.
        prime: A prime below 2^23; None takes two in turn and returns the larger rank.

    Raises:
        InputError: The entries are not integers, the rows are not of one length, or the modulus is no such prime.

    Example:
        >>> rank_mod_prime([[1, 2, 3], [2, 4, 6], [0, 1, 10**30]])
        2
    """
    if prime is not None:
        return _rank(_residues(matrix, _checked_prime(prime)), prime)
    found = 0
    for modulus in _PRIMES:
        residues = _residues(matrix, modulus)
        found = max(found, _rank(residues, modulus))
        if found == min(residues.shape):
            break
    return found


def numeric_rank(singular: Sequence[float] | np.ndarray, size: int, resolution: float) -> NumericRank:
    """The rank from singular values, where a gap shows it.

    A singular value above `resolution` times the largest counts, one below does not; the cut is moved to the widest
    gap within a factor of ten of that limit, and is clear when the gap is at least a factor of 100. Otherwise the rank
    is undecided between the number of those above the limit and the number of those above the rounding of doubles.

    Args:
        singular: Singular values, in any order.
        size: The larger side of the matrix, which scales the rounding error.
        resolution: Relative size below which a singular value may come from the rounding of weights and data.

    Example:
        >>> numeric_rank([3.0, 1.0, 1e-9], 3, 1e-6).rank
        2
        >>> unclear = numeric_rank([10.0 ** -k for k in range(13)], 13, 1e-6)
        >>> unclear.decided, unclear.low, unclear.high
        (False, 6, 13)
    """
    values = np.sort(np.abs(np.asarray(singular, dtype=np.float64)))[::-1]
    if not np.isfinite(values).all():
        raise InputError("expected finite singular values, got some that are not; check the matrix")
    if values.size == 0 or values[0] == 0:
        return NumericRank(0, 0, 0, float("inf"), 0.0, True)
    top = values[0]
    floor = max(size, 1) * np.finfo(np.float64).eps * top
    limit = max(resolution * top, 10 * floor)
    high = int((values > 10 * floor).sum())
    # The cut may lie wherever what is left out is at most ten times the limit, and what counts at least a tenth of it.
    padded = np.append(np.maximum(values, floor), floor)
    ratios = padded[:-1] / padded[1:]
    allowed = (padded[1:] <= 10 * limit) & (padded[:-1] >= limit / 10)
    gaps = np.where(allowed, ratios, 0.0)
    cut = int(np.argmax(gaps)) + 1
    gap = float(gaps[cut - 1])
    if gap >= _GAP:
        return NumericRank(cut, cut, cut, gap, float(np.sqrt(padded[cut - 1] * padded[cut])), True)
    low = int((values > limit).sum())
    return NumericRank(low, low, max(high, low), gap, float(limit), False)


def clear_count(gram: Tensor, cut: float, floor: float) -> int | None:
    """How many eigenvalues of a positive semidefinite matrix count, where none is near those that do not.

    By Sylvester's law of inertia the signs in a factorization LDLᵀ of A − σ are those of the eigenvalues of A less σ.
    Two such factorizations take half the time of all eigenvalues. They show that none is between (cut/10)² of the
    largest and (cut/100)² of it, or less where `floor` is so low that a wider gap of square roots could be below. What
    counts is then what counts where the widest gap is looked for (see `crunode.curvature.outputs.counted`).

    Args:
        gram: The matrix, in double precision.
        cut: Relative to the largest singular value, the square root of the largest eigenvalue.
        floor: Below this, relative to the largest, singular values are not told from zero.

    Returns:
        The number; None where it is not as clear as that.

    Example:
        >>> clear_count(torch.diag(torch.tensor([4.0, 1.0, 1e-15]).double()), 1e-3, 1e-6)
        2
        >>> clear_count(torch.diag(torch.tensor([4.0, 1.0, 1e-9]).double()), 1e-3, 1e-6) is None
        True
    """
    upper, lower = cut * _EMPTY[0], cut * _EMPTY[1]
    u, low = gram.diagonal().abs().sqrt(), 0.0
    for _ in range(_POWER):
        u = gram @ (u / u.norm().clamp(min=1e-300))
        low = float(u.norm())
    # The largest eigenvalue is between these two.
    high = float(gram.abs().sum(1).max())
    if not 0 < low < float("inf") or not floor <= lower:
        return None
    above = _above(gram, upper**2 * high)
    # Gaps below would be narrower than the one that is seen: lower / floor ≤ upper / lower.
    lower = min(lower, (upper * floor) ** 0.5)
    return above if above == len(gram) or above == _above(gram, lower**2 * low) else None


def _above(gram: Tensor, limit: float) -> int:
    """How many eigenvalues are greater than the limit."""
    shifted = gram.clone()
    shifted.diagonal().sub_(limit)
    factor, pivots, _ = torch.linalg.ldl_factor_ex(shifted)
    # Blocks of two, whose pivots are negative, have one eigenvalue of either sign.
    alone = pivots > 0
    return int((factor.diagonal()[alone] > 0).sum()) + int((~alone).sum()) // 2


def _checked_prime(prime: Any) -> int:
    whole = isinstance(prime, int) and not isinstance(prime, bool) and 2 <= prime < 1 << 23
    if not whole or any(prime % k == 0 for k in range(2, int(prime**0.5) + 1)):
        raise InputError(f"expected a prime below 2^23 = 8388608, got {prime!r}; leave it out to have one taken")
    return int(prime)


def _residues(matrix: Any, prime: int) -> np.ndarray:
    """The entries modulo `prime`, as doubles."""
    if hasattr(matrix, "detach"):
        matrix = matrix.detach().cpu().numpy()
    if isinstance(matrix, np.ndarray) and matrix.dtype.kind in "iu":
        values = matrix
    else:
        rows = [list(row) for row in matrix]
        entries = [value for row in rows for value in row]
        if any(isinstance(v, bool | np.bool_) or not isinstance(v, int | np.integer) for v in entries):
            raise InputError("expected integers, got other entries; scale rationals by their common denominator first")
        if len({len(row) for row in rows}) > 1:
            raise InputError(f"expected rows of one length, got lengths {sorted({len(row) for row in rows})}")
        values = np.array([[int(v) % prime for v in row] for row in rows], dtype=np.int64)
        values = values.reshape(len(rows), -1) if rows else values.reshape(0, 0)
    if values.ndim != 2:
        raise InputError(f"expected a matrix, got an array of {values.ndim} axes")
    return (values % prime).astype(np.float64)


def _rank(rest: np.ndarray, prime: int) -> int:
    if rest.shape[0] < rest.shape[1]:
        rest = rest.T
    rest = np.ascontiguousarray(rest)
    found = 0
    while rest.shape[0] and rest.shape[1]:
        panel, others = rest[:, :_PANEL], rest[:, _PANEL:]
        rows, columns = _pivots(panel, prime)
        found += len(rows)
        if rows and others.shape[1]:
            keep = np.ones(len(rest), dtype=bool)
            keep[rows] = False
            inverse = _inverse(panel[np.ix_(rows, columns)], prime)
            factors = _mod(panel[keep][:, columns] @ inverse, prime)
            rest = _mod(others[keep] - factors @ others[rows], prime)
        elif rows:
            break
        else:
            rest = others
    return found


def _pivots(panel: np.ndarray, prime: int) -> tuple[list[int], list[int]]:
    """Rows and columns of a largest invertible part, by plain elimination."""
    work, alive = panel.copy(), np.ones(len(panel), dtype=bool)
    rows: list[int] = []
    columns: list[int] = []
    for column in range(panel.shape[1]):
        here = np.flatnonzero(alive & (work[:, column] != 0))
        if not len(here):
            continue
        row, below = int(here[0]), here[1:]
        alive[row] = False
        rows.append(row)
        columns.append(column)
        scale = pow(int(work[row, column]), -1, prime)
        factors = _mod(work[below, column] * scale, prime)
        work[below, column:] = _mod(work[below, column:] - factors[:, None] * work[row, column:], prime)
    return rows, columns


def _inverse(square: np.ndarray, prime: int) -> np.ndarray:
    """The inverse modulo `prime` of an invertible matrix, by Gauss and Jordan."""
    size = len(square)
    work = np.hstack([square, np.eye(size)])
    for k in range(size):
        row = k + int(np.flatnonzero(work[k:, k])[0])
        work[[k, row]] = work[[row, k]]
        work[k] = _mod(work[k] * pow(int(work[k, k]), -1, prime), prime)
        factors = work[:, k].copy()
        factors[k] = 0
        work = _mod(work - factors[:, None] * work[k], prime)
    return work[:, size:]


def _mod(values: np.ndarray, prime: int) -> np.ndarray:
    """`np.mod` for whole numbers below 2^53, some times faster; overwrites `values`."""
    values -= prime * np.floor(values * (1.0 / prime))
    values[values < 0] += prime  # the rounded quotient may be one off, either way
    values[values >= prime] -= prime
    return values
