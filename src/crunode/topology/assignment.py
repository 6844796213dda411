"""The assignment problem: which row goes with which column, at the least total cost."""

from __future__ import annotations

import numpy as np

from crunode.errors import InputError

__all__ = ["least_assignment"]


def least_assignment(cost: np.ndarray) -> np.ndarray:
    """The permutation p that minimizes Σ_i cost[i, p(i)], by shortest augmenting paths.

    Rows are added one by one; each looks for the cheapest way to a free column by Dijkstra's method over reduced costs
    cost[i, j] − u_i − v_j ≥ 0, in O(n³) steps altogether, a row of the matrix at a time.

    Args:
        cost: A square matrix of finite numbers.

    Returns:
        For each row its column.

    Raises:
        InputError: The matrix is not square, or not finite.

    Example:
        >>> least_assignment(np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])).tolist()
        [1, 0, 2]

    References:
        Kuhn 1955; Jonker & Volgenant 1987.
    """
    cost = np.asarray(cost, dtype=np.float64)
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1] or not np.isfinite(cost).all():
        raise InputError(f"expected cost as a square matrix of finite numbers, got one of shape {cost.shape}")
    n = len(cost)
    u, v = np.zeros(n), np.zeros(n)
    row_of = np.full(n, -1)
    for start in range(n):
        least = np.full(n, np.inf)
        before = np.full(n, -1)
        seen = np.zeros(n, dtype=bool)
        row, column, far = start, -1, 0.0
        while row != -1:
            reduced = far + cost[row] - u[row] - v
            better = ~seen & (reduced < least)
            least[better], before[better] = reduced[better], column
            column = int(np.argmin(np.where(seen, np.inf, least)))
            far = least[column]
            seen[column] = True
            row = int(row_of[column])
        # All columns on the way but the last belong to rows that the search went through.
        passed = seen.copy()
        passed[column] = False
        u[start] += far
        u[row_of[passed]] += far - least[passed]
        v[passed] -= far - least[passed]
        while column != -1:
            previous = int(before[column])
            row_of[column] = start if previous == -1 else row_of[previous]
            column = previous
    found = np.empty(n, dtype=np.int64)
    found[row_of] = np.arange(n)
    return found
