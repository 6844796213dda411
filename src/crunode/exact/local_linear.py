"""Local learning coefficients of deep linear networks, from the ranks of the partial products of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from crunode.errors import InputError
from crunode.exact.arguments import flag, matrix, sequence, whole, wholes
from crunode.exact.intervals import excess, flag_length, intervals, jacobian_rank, lowest_steps
from crunode.exact.rank import exact_rank
from crunode.exact.result import LearningCoefficient

__all__ = ["deep_linear_local", "deep_linear_local_at", "partial_ranks"]

_CITATION = "derived from Mustaţă 2002; as Aoyagi & Watanabe 2005 for two layers"
_HYPOTHESES = (
    "squared error with an input covariance of full rank",
    "the product of the weights is the true map",
)
_DEEPEST = 64
_BAND = 1000.0
_WORK = 5 * 10**7


def deep_linear_local(widths: Sequence[int], ranks: Sequence[Sequence[int]], bias: bool = False) -> LearningCoefficient:
    """λ and m of a deep linear network near one true parameter, given by the ranks of its partial products.

    K(W) = ‖W_1 W_2 ⋯ W_L − A‖² near weights with product A, W_s of shape (widths[s−1], widths[s]). With d_0…d_L the
    widths, r_st the rank of W_{s+1} ⋯ W_t, r_ss = d_s and r = r_0L,

        2λ = r(d_0 + d_L) − r² + min Σ_s c_s (d_s − d_0 + c_1 + … + c_s)

    over whole c_s ≥ 0 with c_1 + … + c_L = d_0 − r and c_{s+1} + … + c_t ≤ d_s − r_st for all s < t. This is the
    codimension of {K = 0} at the weights. m is the largest number of minimizers c that a flag of sub-chains of the
    weights realizes (`crunode.exact.intervals`). λ is never below the global coefficient of `deep_linear`, and equal to
    it where all partial products have rank r.

    Why: let an arc of weights have product A up to order t^e. The lattices that the arc makes of V_0, with t^e V_s
    added, have dimensions u^(1) ≤ … ≤ u^(e) in their layers. Each u^(k) belongs to a sub-chain of the weights at t = 0,
    and arcs with these dimensions have codimension Σ_k codim(u^(k)), exactly. So it is e times the smallest
    codimension at least, which by Mustaţă's theorem is the log canonical threshold over the complex numbers. It bounds
    2λ from below, and half the codimension bounds λ from above. The number of families of arcs of that codimension
    grows as e^(m−1): they are the nested sequences of minimizers. All of them have real points.

    Args:
        widths: Widths from output to input, as for `deep_linear`.
        ranks: Row s has the ranks of W_{s+1}, W_{s+1} W_{s+2}, … up to W_{s+1} ⋯ W_L; the last of row 0 is the true
            rank. For two layers with factor ranks b (output) and a (input): [[b, r], [a]].
        bias: Every layer has a bias. The output bias absorbs the others, so λ grows by widths[0] / 2.

    Returns:
        An exact value. `details` has the codimension, the rank of the Jacobian (its half is a lower bound of λ) and
        how often each interval occurs in the decomposition of the weights.

    Raises:
        InputError: Widths or ranks that are no whole numbers, a table of another shape, ranks that no matrices have, or
            more than 64 layers.

    Example:
        >>> print(deep_linear_local([2, 2, 2], [[0, 0], [2]]))  # W_1 = 0, W_2 = identity; the global λ is 3/2
        λ = 2, m = 1 (exact) [derived from Mustaţă 2002; as Aoyagi & Watanabe 2005 for two layers]
        >>> found = deep_linear_local([1, 1, 1, 1], [[0, 0, 0], [1, 0], [0]])  # W_2 alone is not zero
        >>> found.value, found.multiplicity
        (Fraction(1, 2), 2)

    References:
        Mustaţă 2002, Singularities of pairs via jet schemes, J. Amer. Math. Soc. 15. Pepin Lehalleur & Rimányi 2024,
        Geometry of fibers of the multiplication map of deep linear neural networks, arXiv:2411.19920 (the global case).
        Aoyagi & Watanabe 2005, Stochastic complexities of reduced rank regression, Neural Networks 18.
    """
    sizes = wholes(widths, "widths")
    table = _table(sizes, ranks)
    length, rank = len(sizes) - 1, table[0, len(sizes) - 1]
    extra = sizes[0] if flag(bias, "bias") else 0
    steps = lowest_steps(table, length)
    fixed = extra + rank * (sizes[0] + sizes[-1]) - rank * rank
    codimension = fixed + excess(table, length, steps)
    reached, most = flag_length(table, length, steps)
    details: dict[str, Any] = {
        "codimension": codimension,
        "jacobian_rank": extra + jacobian_rank(table, length),
        "true_rank": rank,
        "intervals": {f"{s}-{t}": count for (s, t), count in intervals(table, length).items() if count},
    }
    if reached < most:
        details["multiplicity_bounds"] = [reached, most]
    return LearningCoefficient.exact(
        Fraction(codimension, 2),
        most if reached == most else None,
        citation=_CITATION,
        hypotheses=_HYPOTHESES,
        details=details,
    )


def deep_linear_local_at(weights: Sequence[Any], bias: bool = False, tolerance: float = 1e-8) -> LearningCoefficient:
    """λ and m of a deep linear network near the given weights, where their product is the true map.

    The ranks of all partial products come from `partial_ranks`; see `deep_linear_local` for the value.

    Args:
        weights: Matrices W_1…W_L in the order of the product, output side first. The layers of a torch model, listed
            from input to output, have to be reversed.
        bias: Every layer has a bias.
        tolerance: For floating-point weights: what counts as zero, relative to the sizes of the factors.

    Returns:
        As `deep_linear_local`.

    Raises:
        InputError: No matrices, shapes that do not fit together, or ranks that floating point leaves open.

    Example:
        >>> zero, one = [[0, 0], [0, 0]], [[1, 0], [0, 1]]
        >>> deep_linear_local_at([zero, one]).value
        Fraction(2, 1)
        >>> deep_linear_local_at([zero, zero]).value
        Fraction(3, 2)
    """
    factors = _factors(weights)
    widths = [len(factors[0]), *(len(factor[0]) for factor in factors)]
    return deep_linear_local(widths, partial_ranks(factors, tolerance), bias)


def partial_ranks(weights: Sequence[Any], tolerance: float = 1e-8) -> list[list[int]]:
    """Ranks of all products of neighboring weights: row s has those of W_{s+1}, W_{s+1} W_{s+2}, ….

    Whole numbers and Fractions are treated exactly. With floating-point entries, pivots of an elimination with complete
    pivoting are compared with the product of the largest entries of the factors: up to `tolerance` times that they
    count as zero, from 1000 times `tolerance` up as not zero, and in between the rank is undecided.

    Args:
        weights: Matrices in the order of the product.
        tolerance: See above.

    Raises:
        InputError: As for `deep_linear_local_at`.

    Example:
        >>> partial_ranks([[[1, 0], [0, 0]], [[0, 0], [0, 1]]])
        [[1, 0], [1]]
        >>> partial_ranks([[[0.5, 0.1], [0.5, 0.1]], [[1.0, 0.0], [0.0, 1e-6]]])
        Traceback (most recent call last):
        ...
        crunode.errors.InputError: expected a clear rank, got a pivot of 1.0e-06 relative to the factors in weights[1], between 1.0e-08 (zero) and 1.0e-05 (not zero); give another tolerance or exact ones
    """  # noqa: E501
    factors = _factors(weights)
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 < tolerance < 1e-3:
        raise InputError(f"expected a tolerance between 0 and 0.001, got {tolerance!r}")
    sizes = [len(factors[0]), *(len(factor[0]) for factor in factors)]
    work = len(factors) ** 2 * max(a * b * c for a, b, c in zip(sizes, sizes[1:], [*sizes[2:], 1], strict=False))
    if work > _WORK:
        raise InputError(
            f"expected weights that plain Python multiplies in seconds, got {len(factors)} layers of up to "
            f"{max(sizes)} units; find the ranks of the partial products elsewhere and give them to deep_linear_local"
        )
    rounded = any(isinstance(entry, float) for factor in factors for row in factor for entry in row)
    if rounded:
        factors = [_scaled(factor) for factor in factors]
    table = []
    for s, product in enumerate(factors):
        row = []
        for t in range(s, len(factors)):
            product = product if t == s else _times(product, factors[t])
            where = f"weights[{s}]" if s == t else f"the product of weights[{s}] to weights[{t}]"
            row.append(_decided(product, tolerance, where) if rounded else _proven(product))
        table.append(row)
    return table


def _scaled(rows: list[list[Any]]) -> list[list[float]]:
    largest = max(abs(float(entry)) for row in rows for entry in row) or 1.0
    return [[float(entry) / largest for entry in row] for row in rows]


def _factors(weights: Any) -> list[list[list[Any]]]:
    factors = [matrix(factor, f"weights[{s}]") for s, factor in enumerate(sequence(weights, "weights"))]
    for s, (left, right) in enumerate(pairwise(factors)):
        if len(left[0]) != len(right):
            raise InputError(
                f"expected weights[{s}] to have as many columns as weights[{s + 1}] has rows, got {len(left[0])} and "
                f"{len(right)}; list the weights in the order of the product, output side first"
            )
    return factors


def _table(sizes: Sequence[int], ranks: Any) -> dict[tuple[int, int], int]:
    """The ranks with the widths on the diagonal, checked to be those of some matrices."""
    length = len(sizes) - 1
    if not 1 <= length <= _DEEPEST:
        raise InputError(f"expected 2 to {_DEEPEST + 1} widths, got {len(sizes)}")
    rows = [wholes(row, f"ranks[{s}]", low=0) for s, row in enumerate(sequence(ranks, "ranks"))]
    if [len(row) for row in rows] != list(range(length, 0, -1)):
        shape = ", ".join(str(k) for k in range(length, 0, -1))
        raise InputError(f"expected ranks as rows of {shape} entries, got {', '.join(str(len(row)) for row in rows)}")
    table = {(s, s): size for s, size in enumerate(sizes)}
    table.update({(s, s + 1 + k): whole(rank, "rank", 0) for s, row in enumerate(rows) for k, rank in enumerate(row)})
    for (s, t), count in intervals(table, length).items():
        if count < 0:
            raise InputError(_impossible(table, length, s, t))
    return table


def _impossible(table: Mapping[tuple[int, int], int], length: int, s: int, t: int) -> str:
    def named(i: int, j: int) -> str:
        return f"widths[{i}] = {table[i, i]}" if i == j else f"ranks[{i}][{j - i - 1}] = {table[i, j]}"

    larger, smaller = [named(s, t)], []
    if s > 0:
        smaller.append(named(s - 1, t))
    if t < length:
        smaller.append(named(s, t + 1))
    if s > 0 and t < length:
        larger.append(named(s - 1, t + 1))
    return (
        f"expected ranks of partial products, which satisfy Frobenius' inequality, got {' plus '.join(smaller)} above "
        f"{' plus '.join(larger)}"
    )


def _times(left: Sequence[Sequence[Any]], right: Sequence[Sequence[Any]]) -> list[list[Any]]:
    columns = list(zip(*right, strict=True))
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left]


def _proven(rows: list[list[Any]]) -> int:
    found = exact_rank(rows)
    if found.low != found.high:
        raise InputError(
            "expected weights whose ranks exact arithmetic proves in seconds, got larger ones; give floats"
        )
    return found.low


def _decided(rows: list[list[float]], tolerance: float, where: str) -> int:
    work, rank = [list(row) for row in rows], 0
    while work:
        tops = [max(map(abs, row)) for row in work]
        at = max(range(len(work)), key=tops.__getitem__)
        if tops[at] <= tolerance:
            break
        if tops[at] < _BAND * tolerance:
            raise InputError(
                f"expected a clear rank, got a pivot of {tops[at]:.1e} relative to the factors in {where}, between "
                f"{tolerance:.1e} (zero) and {_BAND * tolerance:.1e} (not zero); give another tolerance or exact ones"
            )
        pivot = work.pop(at)
        column = max(range(len(pivot)), key=lambda j: abs(pivot[j]))
        for i, row in enumerate(work):
            factor = row[column] / pivot[column]
            work[i] = [x - factor * y for x, y in zip(row, pivot, strict=True)]
        rank += 1
    return rank
