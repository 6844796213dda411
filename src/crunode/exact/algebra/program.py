"""A linear program in exact rationals: the cheapest weights that cover every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

__all__ = ["Cover", "cover", "nullspace", "rank"]


@dataclass(frozen=True)
class Cover:
    """The optimum of min{c·ω : ω ≥ 0, ω·a_i ≥ 1} and the set of all optimal ω.

    Attributes:
        value: The least cost.
        weights: One optimal ω.
        dimension: Dimension of the set of all optimal ω.
        rows: Rows with ω·a_i = 1 at every optimal ω, enough of them to fix the set of optima.
        zeros: Columns with ω_j = 0 at every optimal ω.
        shares: Optimal y ≥ 0 of the dual: Σ y_i a_i ≤ c, Σ y_i = value.
    """

    value: Fraction
    weights: tuple[Fraction, ...]
    dimension: int
    rows: tuple[int, ...]
    zeros: tuple[int, ...]
    shares: tuple[Fraction, ...]


def cover(rows: Sequence[Sequence[int]], costs: Sequence[Fraction | int]) -> Cover:
    """Solve min{c·ω : ω ≥ 0, ω·a_i ≥ 1 for all i} for integer rows a_i ≥ 0, none zero, and costs c > 0.

    The dual max{Σ y_i : Σ y_i a_i ≤ c, y ≥ 0} has y = 0 as a start, so one phase of the simplex method is enough. The
    tableau holds integers over one common denominator. Columns are chosen by the largest gain, and by the smallest
    index while the objective stands still, which cannot cycle. From the optimum the method goes on within the set of
    dual optima until every variable that can be positive there has been; by strict complementarity those name the
    constraints that are tight on the whole set of optimal ω, and their rank gives its dimension. With many rows,
    those that a floating-point run names come first, and others as they turn out to be violated.

    Args:
        rows: The a_i.
        costs: The c_j.

    Returns:
        The optimum.

    Example:
        >>> found = cover([(1, 1)], (1, 1))
        >>> found.value, found.dimension
        (Fraction(1, 1), 1)
    """
    every = range(len(rows))
    active = _likely(rows, costs) if len(rows) > len(costs) else list(every)
    while True:
        small = _cover([rows[i] for i in active], costs)
        price = [sum(w * a for w, a in zip(small.weights, rows[i], strict=True) if a) for i in every]
        left_out = set(every) - set(active)
        wanting = sorted((i for i in left_out if price[i] < 1), key=lambda i: (price[i], i))[: len(costs)]
        if not wanting and small.dimension:
            # A row met with equality can make the set of optima smaller, unless it is constant there.
            units = [[int(j == k) for k in range(len(costs))] for j in small.zeros]
            lines, pivots = _echelon([*(rows[active[i]] for i in small.rows), *units])
            wanting = [i for i in sorted(left_out) if price[i] == 1 and _outside(rows[i], lines, pivots)][: len(costs)]
        if not wanting:
            break
        active = sorted([*active, *wanting])
    shares = [Fraction(0)] * len(rows)
    for i, share in zip(active, small.shares, strict=True):
        shares[i] = share
    tight = tuple(sorted(active[i] for i in small.rows))
    return Cover(small.value, small.weights, small.dimension, tight, small.zeros, tuple(shares))


def _likely(rows: Sequence[Sequence[int]], costs: Sequence[Fraction | int]) -> list[int]:
    """Rows that an approximate solution rests on: a start for the exact one, which checks every row."""
    # Rows of equal size and costs that differ a little: fewer ties, which floating point cannot tell apart.
    body = [
        [row[j] / max(row) for row in rows] + [float(cost) * (1 + 1e-5 * ((j * 0.618034) % 1))]
        for j, cost in enumerate(costs)
    ]
    body.append([-1 / max(row) for row in rows] + [0.0])
    basic = [-1] * len(costs)
    nonbasic = list(range(len(rows)))
    for _ in range(5 * (len(rows) + len(costs))):
        objective = body[-1]
        column = min(range(len(rows)), key=objective.__getitem__)
        if objective[column] > -1e-12:
            break
        limits = [(line[-1] / line[column], i) for i, line in enumerate(body[:-1]) if line[column] > 1e-9]
        if not limits:
            break
        row = min(limits)[1]
        lead = body[row][column]
        source = [entry / lead for entry in body[row]]
        source[column] = 1 / lead
        for i, line in enumerate(body):
            factor = line[column]
            if i != row and factor:
                body[i] = [a - factor * b for a, b in zip(line, source, strict=True)]
                body[i][column] = -factor / lead
        body[row] = source
        basic[row], nonbasic[column] = nonbasic[column], basic[row]
    return sorted(i for i in basic if i >= 0)


def _cover(rows: Sequence[Sequence[int]], costs: Sequence[Fraction | int]) -> Cover:
    scale = lcm(*(Fraction(cost).denominator for cost in costs))
    tableau = _Tableau(rows, [int(cost * scale) for cost in costs])
    tableau.climb()
    total = Fraction(tableau.body[-1][-1], tableau.denominator * scale)
    weights = tableau.prices()
    positive = tableau.support_of_optima()
    width = len(rows)
    tight = tuple(sorted(k for k in positive if k < width))
    zeros = tuple(sorted(k - width for k in positive if k >= width))
    kept = [j for j in range(len(costs)) if j not in set(zeros)]
    dimension = len(kept) - rank([[rows[i][j] for j in kept] for i in tight])
    shares = tuple(value / scale for value in tableau.values(width))
    return Cover(total, weights, dimension, tight, zeros, shares)


class _Tableau:
    """The dictionary x_B + T x_N = b of the dual program; T and b are integers over `denominator`.

    Columns are the nonbasic variables and the right-hand side; the last row is the objective. Variables below `width`
    are the y_i, the others the slacks.
    """

    def __init__(self, rows: Sequence[Sequence[int]], costs: Sequence[int]) -> None:
        width = len(rows)
        self.denominator = 1
        self.body = [[row[j] for row in rows] + [cost] for j, cost in enumerate(costs)]
        self.body.append([-1] * width + [0])
        self.basic = [width + j for j in range(len(costs))]
        self.nonbasic = list(range(width))
        self.width = width

    def pivot(self, row: int, column: int) -> None:
        body, old = self.body, self.denominator
        source = body[row]
        lead = source[column]
        for i, line in enumerate(body):
            if i == row:
                continue
            factor = line[column]
            if factor:
                body[i] = [(a * lead - factor * b) // old for a, b in zip(line, source, strict=True)]
                body[i][column] = -factor
            elif lead != old:
                body[i] = [a * lead // old for a in line]
        source[column] = old
        self.denominator = lead
        self.basic[row], self.nonbasic[column] = self.nonbasic[column], self.basic[row]

    def climb(self) -> None:
        """Pivot until the objective row has no negative entry."""
        still = 0
        while True:
            objective = self.body[-1]
            improving = [j for j in range(len(self.nonbasic)) if objective[j] < 0]
            if not improving:
                return
            if still <= 2 * len(self.basic):
                column = min(improving, key=lambda j: (objective[j], self.nonbasic[j]))
            else:
                column = min(improving, key=lambda j: self.nonbasic[j])
            row = self._leaving(column)
            still = still + 1 if self.body[row][-1] == 0 else 0
            self.pivot(row, column)

    def _leaving(self, column: int) -> int:
        best = -1
        for i in range(len(self.basic)):
            line = self.body[i]
            if line[column] <= 0:
                continue
            if best >= 0:
                one, other = line[-1] * self.body[best][column], self.body[best][-1] * line[column]
                if one > other or (one == other and self.basic[i] > self.basic[best]):
                    continue
            best = i
        # Every a_i has a positive entry, so the dual is bounded and some row limits the column.
        assert best >= 0
        return best

    def prices(self) -> tuple[Fraction, ...]:
        """ω: what the objective row says of the slacks."""
        found = [Fraction(0)] * len(self.basic)
        for column, variable in enumerate(self.nonbasic):
            if variable >= self.width:
                found[variable - self.width] = Fraction(self.body[-1][column], self.denominator)
        return tuple(found)

    def values(self, count: int) -> list[Fraction]:
        found = [Fraction(0)] * count
        for i, variable in enumerate(self.basic):
            if variable < count:
                found[variable] = Fraction(self.body[i][-1], self.denominator)
        return found

    def support_of_optima(self) -> set[int]:
        """All variables that are positive in some optimum; call after `climb`, once."""
        kept = [j for j in range(len(self.nonbasic)) if self.body[-1][j] == 0]
        self.body = [[line[j] for j in kept] + [line[-1]] for line in self.body]
        self.nonbasic = [self.nonbasic[j] for j in kept]
        everyone = {*self.basic, *self.nonbasic}
        positive: set[int] = set()
        while True:
            positive |= {variable for i, variable in enumerate(self.basic) if self.body[i][-1] > 0}
            idle = everyone - positive
            row = [-self.denominator if variable in idle else 0 for variable in self.nonbasic] + [0]
            for i, variable in enumerate(self.basic):
                if variable in idle:
                    row = [a + b for a, b in zip(row, self.body[i], strict=True)]
            self.body[-1] = row
            self.climb()
            if self.body[-1][-1] == 0:
                return positive


def rank(matrix: Sequence[Sequence[int | Fraction]]) -> int:
    """The rank of a matrix of rationals, exactly.

    Example:
        >>> rank([[1, 2], [2, 4]])
        1
    """
    return len(_echelon(matrix)[1])


def nullspace(matrix: Sequence[Sequence[int | Fraction]], width: int) -> list[list[int]]:
    """Integer vectors that span {v : A v = 0}.

    Example:
        >>> nullspace([[1, 1, 0]], 3)
        [[-1, 1, 0], [0, 0, 1]]
    """
    lines, pivots = _echelon(matrix)
    found = []
    for free in range(width):
        if free in pivots:
            continue
        vector = [Fraction(0)] * width
        vector[free] = Fraction(1)
        for line, pivot in zip(lines, pivots, strict=True):
            vector[pivot] = -Fraction(line[free]) / line[pivot]
        scale = lcm(*(entry.denominator for entry in vector))
        found.append([int(entry * scale) for entry in vector])
    return found


def _echelon(matrix: Sequence[Sequence[int | Fraction]]) -> tuple[list[list[int]], list[int]]:
    """The reduced row echelon form, with each row scaled to coprime integers, and the pivot columns."""
    rest = []
    for row in matrix:
        scale = lcm(*(Fraction(entry).denominator for entry in row))
        rest.append(_coprime([int(entry * scale) for entry in row]))
    done: list[list[int]] = []
    pivots: list[int] = []
    for column in range(len(rest[0]) if rest else 0):
        chosen = next((i for i, row in enumerate(rest) if row[column]), None)
        if chosen is None:
            continue
        lead = rest.pop(chosen)
        rest = [_reduced(row, lead, column) for row in rest]
        done = [_reduced(row, lead, column) for row in done]
        done.append(lead)
        pivots.append(column)
    return done, pivots


def _outside(row: Sequence[int], lines: list[list[int]], pivots: list[int]) -> bool:
    left = list(row)
    for line, pivot in zip(lines, pivots, strict=True):
        left = _reduced(left, line, pivot)
    return any(left)


def _reduced(row: list[int], lead: list[int], column: int) -> list[int]:
    if not row[column]:
        return row
    a, b = lead[column], row[column]
    return _coprime([a * x - b * y for x, y in zip(row, lead, strict=True)])


def _coprime(row: list[int]) -> list[int]:
    common = gcd(*row)
    return [entry // common for entry in row] if common > 1 else row
