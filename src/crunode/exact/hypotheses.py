"""Does a theorem apply to given weights or data? Checks of the hypotheses on quadratic networks.

Weights and inputs are nested lists, or arrays and tensors (anything with `tolist`). Whole numbers and Fractions are
decided exactly; floating point by a gap test, which may leave the answer open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crunode.errors import InputError
from crunode.exact.arguments import flag, matrix
from crunode.exact.rank import RankResult, matrix_rank

__all__ = ["HypothesisCheck", "features_independent", "features_span", "identifies_quadratics", "units_independent"]


@dataclass(frozen=True)
class HypothesisCheck:
    """Whether a hypothesis holds, with the evidence.

    Attributes:
        verdict: "holds", "fails" or "undecided".
        hypothesis: What was asked, in words.
        rank: The rank found; None where floating point leaves it open, or where counting settles the matter.
        needed: The rank for which the hypothesis holds.
        gap: Floating point only: how sharply the pivots fall at the rank.
        exact: True where exact arithmetic decided.

    Example:
        >>> check = features_independent([[1, 0], [0, 1]])
        >>> print(check)
        holds: the rank-one features w_j w_jᵀ are linearly independent (rank 2 of 2, exact)
        >>> bool(check)
        True
    """

    verdict: str
    hypothesis: str
    rank: int | None
    needed: int
    gap: float | None
    exact: bool

    def __bool__(self) -> bool:
        """True only where the hypothesis is known to hold."""
        return self.verdict == "holds"

    def __str__(self) -> str:
        rank = ("too few for rank" if self.exact else "rank open") if self.rank is None else f"rank {self.rank}"
        if self.rank is None and self.exact:
            return f"{self.verdict}: {self.hypothesis} ({rank} {self.needed})"
        how = "exact" if self.exact else f"numerical, gap {self.gap:.1e}"
        return f"{self.verdict}: {self.hypothesis} ({rank} of {self.needed}, {how})"


def features_span(weights: Any) -> HypothesisCheck:
    """Do the features w_j w_jᵀ of the hidden units span all symmetric matrices?

    Cullen 2026, theorem 4.1: then λ = p·d(d+1)/4 for p outputs.

    Args:
        weights: One row a hidden unit, one column an input, as `torch.nn.Linear` keeps them.

    Example:
        >>> features_span([[1, 0], [0, 1], [1, 1]]).verdict
        'holds'
    """
    rows = matrix(weights, "weights")
    needed = len(rows[0]) * (len(rows[0]) + 1) // 2
    return _check("the rank-one features w_j w_jᵀ span all symmetric matrices", _squares(rows), needed)


def features_independent(weights: Any) -> HypothesisCheck:
    """Are the features w_j w_jᵀ of the hidden units linearly independent?

    Cullen 2026, theorem 4.2, assumption 2.

    Args:
        weights: One row a hidden unit, one column an input.

    Example:
        >>> features_independent([[1, 2], [2, 4]]).verdict
        'fails'
    """
    rows = matrix(weights, "weights")
    return _check("the rank-one features w_j w_jᵀ are linearly independent", _squares(rows), len(rows))


def units_independent(weights: Any, output_weights: Any) -> HypothesisCheck:
    """Do distinct units not cancel to first order?

    Cullen 2026, theorem 4.2, assumptions 1 to 3 together: the derivative of (W, V) ↦ (Q_1, …, Q_p) has rank K(d+p−1),
    all that the scaling of each unit leaves. Then λ = K(d+p−1)/2.

    Args:
        weights: One row a hidden unit, one column an input (K by d).
        output_weights: One row an output, one column a hidden unit (p by K).

    Example:
        >>> units_independent([[1, 0], [0, 1]], [[1, 0], [0, 1]]).verdict
        'holds'
        >>> units_independent([[1, 0], [0, 1]], [[1, 1]]).verdict
        'fails'
    """
    rows, outer = matrix(weights, "weights"), matrix(output_weights, "output_weights")
    if len(outer[0]) != len(rows):
        raise InputError(
            f"expected output_weights with one column for each of the {len(rows)} hidden units, got {len(outer[0])}"
        )
    dim, outputs = len(rows[0]), len(outer)
    pairs = [(i, j) for i in range(dim) for j in range(i, dim)]
    derivative = []
    for unit, w in enumerate(rows):
        square = [w[i] * w[j] for i, j in pairs]
        for k in range(outputs):
            derivative.append([x if k == at else 0 for at in range(outputs) for x in square])
        for t in range(dim):
            along = [(i == t) * w[j] + (j == t) * w[i] for i, j in pairs]
            derivative.append([outer[k][unit] * x for k in range(outputs) for x in along])
    needed = len(rows) * (dim + outputs - 1)
    return _check("the units do not cancel to first order: the derivative has rank K(d+p−1)", derivative, needed)


def identifies_quadratics(inputs: Any, bias: Any = False) -> HypothesisCheck:
    """Do the inputs tell all quadratic functions apart?

    The values at the inputs determine a quadratic form (with `bias` a quadratic polynomial) if and only if the features
    x xᵀ (of (1, x)) span all symmetric matrices. One-hot pairs do not; see `quadratic_modular_addition`.

    Args:
        inputs: One row an example.
        bias: True for networks with biases.

    Example:
        >>> identifies_quadratics([[1, 0], [0, 1], [1, 1]]).verdict
        'holds'
        >>> identifies_quadratics([[1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 1]]).verdict
        'fails'
    """
    rows = matrix(inputs, "inputs")
    if flag(bias, "bias"):
        rows = [[1, *row] for row in rows]
    needed = len(rows[0]) * (len(rows[0]) + 1) // 2
    return _check("the inputs tell all quadratic functions apart", _squares(rows), needed)


def _squares(rows: list[list[Any]]) -> list[list[Any]]:
    return [[row[i] * row[j] for i in range(len(row)) for j in range(i, len(row))] for row in rows]


def _check(hypothesis: str, rows: list[list[Any]], needed: int) -> HypothesisCheck:
    if needed > min(len(rows), len(rows[0])):  # too few rows or columns: no arithmetic is needed
        return HypothesisCheck("fails", hypothesis, None, needed, None, True)
    found: RankResult = matrix_rank(rows)
    if found.rank is not None:
        verdict = "holds" if found.rank >= needed else "fails"
    else:
        verdict = "fails" if found.high < needed else "undecided"
    return HypothesisCheck(verdict, hypothesis, found.rank, needed, found.gap, found.exact)
