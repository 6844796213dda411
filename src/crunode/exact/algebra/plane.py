"""Learning coefficients in two variables, by resolving the curve K = 0 over the reals.

K = x^a y^b ∏ f_i^e_i with square-free coprime f_i is made normal crossing by the Newton process: a toric modification
along the edges of the Newton polygons, then a shift to every real point of the new exceptional curves where the strict
transform is not yet smooth and transverse, and so on. Over a real divisor E let N be the order of K and A − 1 that of
the Jacobian times the weight. Then λ = min A / N over the divisors that have real points over the origin, and m = 2 if
two minimizing ones meet in a real point there, else 1 (Watanabe 2009; for the process: Arnold, Gusein-Zade and
Varchenko, vol. II). Only real branches count, which Sturm's theorem finds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import comb, gcd
from typing import Any

from crunode.exact.algebra.algebraic import AlgebraicNumber, RealRoot, enclosure, refine
from crunode.exact.algebra.polynomials import TooLarge
from crunode.exact.algebra.univariate import (
    Interval,
    greatest_common_divisor,
    nonzero_real_roots,
    root_in,
    squarefree_parts,
)

__all__ = ["Crossing", "Resolution", "points_near", "polygon_normals", "resolve"]

Planar = Mapping[Any, Any]
Chart = tuple[tuple[int, int], tuple[int, int], Any]

MOST_CHARTS = 300
MOST_DEGREE = 400


@dataclass(frozen=True)
class Crossing:
    """A smooth real branch of a factor, seen in its chart.

    Attributes:
        factor: Index of the factor.
        charts: Substitutions that lead to the chart, outermost first.
        interval: Where the branch meets the exceptional curve.
    """

    factor: int
    charts: tuple[Chart, ...]
    interval: Interval


@dataclass
class Resolution:
    """What the resolution found.

    Attributes:
        value: λ.
        multiplicity: m.
        divisors: (N, A) of each divisor met, in the order they were made, with the words for where it comes from.
        branches: Real branches of the factors.
        charts: How many charts were visited.
    """

    value: Fraction | None = None
    multiplicity: int = 0
    divisors: list[tuple[Fraction, Fraction, str]] = field(default_factory=list)
    branches: list[Crossing] = field(default_factory=list)
    charts: int = 0

    def consider(self, ratio: Fraction | None, count: int) -> None:
        """Take note of `count` divisors with this ratio that meet."""
        if ratio is None:
            return
        if self.value is None or ratio < self.value:
            self.value, self.multiplicity = ratio, count
        elif ratio == self.value:
            self.multiplicity = max(self.multiplicity, count)


def resolve(
    factors: Sequence[tuple[Planar, int]], orders: tuple[int, int] = (0, 0), h: Sequence[Fraction | int] = (0, 0)
) -> Resolution:
    """Resolve |x|^a |y|^b ∏ |f_i|^e_i with weight |x|^h_1 |y|^h_2 at the origin.

    Args:
        factors: The f_i as coefficients by exponents, with the e_i; square-free and without common factors.
        orders: a and b.
        h: Exponents of the weight.

    Returns:
        The resolution; its `value` is None if the function does not vanish at the origin.

    Raises:
        TooLarge: The process would need too many charts.

    Example:
        >>> cusp = {(2, 0): Fraction(1), (0, 3): Fraction(-1)}
        >>> found = resolve([(cusp, 2)])
        >>> found.value, found.multiplicity
        (Fraction(5, 12), 1)
    """
    found = Resolution()
    axes = [(Fraction(order), 1 + Fraction(weight)) for order, weight in zip(orders, h, strict=True)]
    _visit(found, [(dict(f), e, i) for i, (f, e) in enumerate(factors)], axes, ())
    return found


def polygon_normals(support: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Inner normals of the compact edges of a Newton polygon, in the order of rising first exponent.

    Example:
        >>> polygon_normals([(4, 0), (2, 1), (0, 3)])
        [(1, 1), (1, 2)]
    """
    corners: list[tuple[int, int]] = []
    for point in sorted(support):
        if corners and point[1] >= corners[-1][1]:
            continue
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (x1 - x0) * (point[1] - y0) - (point[0] - x0) * (y1 - y0) > 0:
                break
            corners.pop()
        corners.append(point)
    found = []
    for (x0, y0), (x1, y1) in itertools.pairwise(corners):
        across, down = x1 - x0, y0 - y1
        step = gcd(across, down)
        found.append((down // step, across // step))
    return found


def _visit(
    found: Resolution,
    factors: list[tuple[dict[tuple[int, int], Any], int, int]],
    axes: list[tuple[Fraction, Fraction]],
    charts: tuple[Chart, ...],
) -> None:
    found.charts += 1
    if found.charts > MOST_CHARTS:
        raise TooLarge(f"the curve needs more than {MOST_CHARTS} charts")
    orders = [axes[0][0], axes[1][0]]
    curves = []
    for f, power, index in factors:
        least = min(i for i, _ in f), min(j for _, j in f)
        orders = [orders[0] + power * least[0], orders[1] + power * least[1]]
        if least[1] and charts:
            # The branch is the axis of the chart itself.
            found.branches.append(Crossing(index, charts, (Fraction(0), Fraction(0))))
        rest = {(i - least[0], j - least[1]): c for (i, j), c in f.items()}
        if (0, 0) not in rest:
            curves.append((rest, power, index))
    costs = [axes[0][1], axes[1][1]]

    def order_along(normal: tuple[int, int]) -> Fraction:
        lowest = (power * min(normal[0] * i + normal[1] * j for i, j in f) for f, power, _ in curves)
        return normal[0] * orders[0] + normal[1] * orders[1] + sum(lowest)

    def ratio(normal: tuple[int, int]) -> Fraction | None:
        order = order_along(normal)
        return (normal[0] * costs[0] + normal[1] * costs[1]) / order if order else None

    normals = {normal for f, _, _ in curves for normal in polygon_normals(list(f))}
    rays = [(0, 1), *sorted(normals, key=lambda w: Fraction(w[0], w[1])), (1, 0)]
    ratios = [ratio(ray) for ray in rays]
    for ray, value in zip(rays, ratios, strict=True):
        found.consider(value, 1)
        if value is not None and (ray in normals or not charts or ray == (0, 1)):
            where = f"weight {ray}" if not charts else f"weight {ray} in chart {found.charts}"
            found.divisors.append((order_along(ray), ray[0] * costs[0] + ray[1] * costs[1], where))
    for one, two in itertools.pairwise(ratios):
        if one == two:
            found.consider(one, 2)
    for normal in rays[1:-1]:
        own = (order_along(normal), normal[0] * costs[0] + normal[1] * costs[1])
        _edge(found, curves, normal, own, charts)


def _edge(
    found: Resolution,
    curves: list[tuple[dict[tuple[int, int], Any], int, int]],
    normal: tuple[int, int],
    own: tuple[Fraction, Fraction],
    charts: tuple[Chart, ...],
) -> None:
    """The points of the exceptional curve of one edge where branches meet it."""
    along = _complement(normal)
    polynomials = [_edge_polynomial(f, normal, along) for f, _, _ in curves]
    product: list[Any] = [Fraction(1)]
    for p in polynomials:
        product = _times(product, p)
    for part, multiplicity in squarefree_parts(product):
        roots = nonzero_real_roots(part)
        if not roots:
            continue
        if multiplicity == 1:
            for (_, power, index), p in zip(curves, polynomials, strict=True):
                common = greatest_common_divisor(part, p)
                for interval in roots:
                    if len(common) > 1 and root_in(common, interval):
                        branch = Fraction(1, power)
                        found.branches.append(Crossing(index, (*charts, (normal, along, Fraction(0))), interval))
                        found.consider(branch, 2 if branch == own[1] / own[0] else 1)
            continue
        for interval in roots:
            root = _number(part, interval, charts)
            moved = [(_moved(f, normal, along, root), power, index) for f, power, index in curves]
            _visit(found, moved, [own, (Fraction(0), Fraction(1))], (*charts, (normal, along, root)))


def _number(p: list[Any], interval: Interval, charts: tuple[Chart, ...]) -> Any:
    if interval[0] == interval[1]:
        return interval[0]
    if len(p) == 2:
        return -p[0] / p[1]
    above = [shift.root.depth for _, _, shift in charts if isinstance(shift, AlgebraicNumber)]
    return RealRoot(p, interval, max(above, default=0)).number()


def _complement(normal: tuple[int, int]) -> tuple[int, int]:
    """(c, d) with normal·(d, −c) = 1, as small as there is: x = u^p v^c, y = u^q v^d is a chart."""
    p, q = normal
    # Both weights are positive on an edge.
    d = pow(p, -1, q) if q > 1 else 1
    c = (p * d - 1) // q
    return min([(c, d), (c - p, d - q)], key=lambda pair: abs(pair[0]) + abs(pair[1]))


def _edge_polynomial(f: Planar, normal: tuple[int, int], along: tuple[int, int]) -> list[Any]:
    lowest = min(normal[0] * i + normal[1] * j for i, j in f)
    on_edge = {along[0] * i + along[1] * j: c for (i, j), c in f.items() if normal[0] * i + normal[1] * j == lowest}
    first = min(on_edge)
    found: list[Any] = [Fraction(0)] * (max(on_edge) - first + 1)
    for place, c in on_edge.items():
        found[place - first] = c
    return found


def _times(one: list[Any], two: list[Any]) -> list[Any]:
    found: list[Any] = [Fraction(0)] * (len(one) + len(two) - 1)
    for i, a in enumerate(one):
        if a:
            for k, b in enumerate(two):
                found[i + k] = found[i + k] + a * b
    return found


def _moved(f: Planar, normal: tuple[int, int], along: tuple[int, int], root: Any) -> dict[tuple[int, int], Any]:
    """f(u^p (root + v)^c, u^q (root + v)^d), divided by its power of u and a power of (root + v)."""
    lowest = min(normal[0] * i + normal[1] * j for i, j in f)
    first = min(along[0] * i + along[1] * j for i, j in f)
    by_power: dict[int, dict[int, Any]] = {}
    for (i, j), c in f.items():
        by_power.setdefault(along[0] * i + along[1] * j - first, {})[normal[0] * i + normal[1] * j - lowest] = c
    if max(by_power) > MOST_DEGREE:
        raise TooLarge(f"a chart of the curve has degree above {MOST_DEGREE}")
    powers = [Fraction(1)]
    while len(powers) <= max(by_power):
        powers.append(powers[-1] * root)
    found: dict[tuple[int, int], Any] = {}
    for power, coefficients in by_power.items():
        for k in range(power + 1):
            factor = comb(power, k) * powers[power - k]
            for place, c in coefficients.items():
                found[place, k] = found.get((place, k), Fraction(0)) + factor * c
    return {key: c for key, c in found.items() if c}


def points_near(branch: Crossing, step: int) -> list[tuple[Fraction, Fraction]]:
    """Rational points on both sides of a branch, the closer to the origin the larger `step`.

    Example:
        >>> line = resolve([({(1, 0): Fraction(1), (0, 1): Fraction(-1)}, 1)]).branches[0]
        >>> sorted(points_near(line, 1))[0]
        (Fraction(-1, 2), Fraction(-3, 4))
    """
    *before, last = branch.charts
    low, high = branch.interval
    small = Fraction(1, 2**step)
    starts = [low, high] if low != high else [low - small, low + small]
    found = []
    for start in starts:
        for first in (small, -small):
            point = (first, start)
            shifts = [*(chart[2] for chart in before), last[2]]
            for (normal, along, _), shift in zip(reversed(branch.charts), reversed(shifts), strict=True):
                v = point[1] + _near(shift, Fraction(1, 2 ** (8 * step)))
                if not v:
                    break
                point = (point[0] ** normal[0] * v ** along[0], point[0] ** normal[1] * v ** along[1])
            else:
                found.append(point)
    return found


def _near(value: Any, error: Fraction) -> Fraction:
    while True:
        low, high = enclosure(value)
        if high - low <= error:
            return (low + high) / 2
        refine(value)
