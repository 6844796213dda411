"""A series cut into stretches, each with a level or a line of its own, by least squares with known errors.

All series are rows, so that many simulated ones are treated like one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST", "Line", "Sums", "best_gains", "extra_noise", "fit_line", "null_series", "partition"]

Array = NDArray[np.float64]

LEAST = {"level": 2, "linear": 3}
"""Points that a stretch has at least. One point alone may be an outlier, and two are on a line whatever they are."""

_MEDIAN = 0.6744897501960817  # of |z| for a normal z


class Sums:
    """Sums of squares around the best level, or the best line, of any stretch of a series.

    Args:
        x: Where the points are, (point,).
        y: The series, (..., point).
        variance: Variances of the points, (..., point).
        kind: "level" or "linear".

    Example:
        >>> sums = Sums(np.arange(4.0), np.array([1.0, 1.0, 3.0, 3.0]), np.ones(4), "level")
        >>> float(sums.cost(0, 4)), float(sums.cost(0, 2) + sums.cost(2, 4))
        (4.0, 0.0)
    """

    def __init__(self, x: Array, y: Array, variance: Array, kind: str) -> None:
        self.linear = kind == "linear"
        w = 1.0 / variance
        # Around its mean, a series far from zero loses no digits in the differences of sums.
        y = y - y.mean(axis=-1, keepdims=True)
        self._w, self._y, self._yy = _running(w, w * y, w * y * y)
        if self.linear:
            x = (x - x.mean()) / max(float(np.ptp(x)), 1e-300)
            self._x, self._xx, self._xy = _running(w * x, w * x * x, w * x * y)

    def cost(self, start: Any, stop: Any) -> Array:
        """The weighted sum of squares of the points from `start` to before `stop`; or of many, both being arrays."""
        w, y, yy = (s[..., stop] - s[..., start] for s in (self._w, self._y, self._yy))
        rest = yy - y * y / w
        if self.linear:
            sx, xx, xy = (s[..., stop] - s[..., start] for s in (self._x, self._xx, self._xy))
            spread = xx - sx * sx / w
            rest = rest - np.where(spread > 0, (xy - sx * y / w) ** 2 / np.where(spread > 0, spread, 1.0), 0.0)
        return np.asarray(np.maximum(rest, 0.0), dtype=np.float64)

    def splits(self, start: int, stop: int, least: int) -> tuple[NDArray[np.int64], Array]:
        """All places to cut a stretch in two, and the cost of both parts together, (..., place)."""
        places = np.arange(start + least, stop - least + 1)
        starts, stops = np.full_like(places, start), np.full_like(places, stop)
        return places, self.cost(starts, places) + self.cost(places, stops)


class Line:
    """The best level or line of a stretch.

    Attributes:
        first: Index of its first point.
        last: Index of its last point.
        center: The weighted mean of its places, where its value is known best.
        slope: Its slope; zero for a level.
        slope_se: The slope's error.

    Example:
        >>> line = fit_line(np.arange(3.0), np.array([0.0, 2.0, 4.0]), np.ones(3), "linear", 0, 3)
        >>> value, se = line.at(1.0)
        >>> round(value, 6), round(se, 3), round(line.slope, 6)
        (2.0, 0.577, 2.0)
    """

    def __init__(self, first: int, last: int, middle: float, center: float, weight: float, slope: float, spread: float):
        self.first, self.last = first, last
        self._middle, self.center, self._weight = middle, center, weight
        self.slope = slope
        self.slope_se = 1 / float(np.sqrt(spread)) if spread > 0 else 0.0

    @property
    def points(self) -> int:
        """How many points it has."""
        return self.last - self.first + 1

    def at(self, x: float) -> tuple[float, float]:
        """Value and error at a place."""
        away = x - self.center
        return self._middle + self.slope * away, float(np.hypot(self._weight**-0.5, self.slope_se * away))


def fit_line(x: Array, y: Array, variance: Array, kind: str, start: int, stop: int) -> Line:
    """The best level or line of the points from `start` to before `stop`."""
    w = 1 / variance[start:stop]
    weight = float(w.sum())
    center, middle = float(w @ x[start:stop]) / weight, float(w @ y[start:stop]) / weight
    away = x[start:stop] - center
    spread = float(w @ away**2) if kind == "linear" else 0.0
    slope = float(w @ (away * y[start:stop])) / spread if spread > 0 else 0.0
    return Line(start, stop - 1, middle, center, weight, slope, spread)


def partition(sums: Sums, count: int, penalty: float, least: int) -> list[int]:
    """The cuts that make the sum of costs, and `penalty` for each cut, least: by dynamic programming, exactly.

    Returns:
        Indices of the first points after each cut.

    Example:
        >>> y = np.array([0.0, 0.1, 0.0, 5.0, 5.1, 5.0])
        >>> partition(Sums(np.arange(6.0), y, np.full(6, 0.01), "level"), 6, 8.0, 2)
        [3]

    References:
        Jackson et al. 2005, "An algorithm for optimal partitioning of data on an interval".
    """
    best = np.full(count + 1, np.inf)
    best[0] = -penalty
    came = np.zeros(count + 1, dtype=np.int64)
    for stop in range(least, count + 1):
        starts = np.arange(stop - least + 1)
        totals = best[starts] + sums.cost(starts, np.full_like(starts, stop)) + penalty
        came[stop] = int(totals.argmin())
        best[stop] = totals[came[stop]]
    cuts = []
    at = int(came[count])
    while at > 0:
        cuts.append(at)
        at = int(came[at])
    return cuts[::-1]


def extra_noise(x: Array, y: Array, variance: Array) -> Array:
    """The noise τ that points have beyond their stated variances, so that together they explain how neighbors differ.

    A point is held against the line between its neighbors, which neither trends nor a few jumps disturb. τ makes the
    median of these differences, each in units of its own standard deviation with τ² added to all variances, that of
    normal numbers; it is zero where the stated errors explain them.

    Args:
        x: Where the points are.
        y: Series, (..., point).
        variance: Their stated variances, (..., point).

    Returns:
        τ of each series.

    Example:
        >>> y = np.random.default_rng(0).normal(size=400)
        >>> bool(0.85 < extra_noise(np.arange(400.0), y, np.zeros(400)) < 1.15)
        True
    """
    a = (x[2:] - x[1:-1]) / (x[2:] - x[:-2])
    b = 1 - a
    away = np.abs(y[..., 1:-1] - a * y[..., :-2] - b * y[..., 2:])
    stated = variance[..., 1:-1] + a * a * variance[..., :-2] + b * b * variance[..., 2:]
    each = 1 + a * a + b * b
    low = np.zeros(y.shape[:-1])
    high = away.max(axis=-1) / _MEDIAN + 1e-300
    for _ in range(24):
        tau = (low + high) / 2
        scaled = away / np.sqrt(np.maximum(stated + each * tau[..., None] ** 2, 1e-300))
        large = np.median(scaled, axis=-1) > _MEDIAN
        low, high = np.where(large, tau, low), np.where(large, high, tau)
    return np.where(low > 0, high, 0.0)


def null_series(
    x: Array, stated: Array, tau: float, count: int, generator: np.random.Generator, floor: float
) -> tuple[Array, Array]:
    """Simulated series without change, and the variances one would take their points to have.

    The noise beyond the stated errors is estimated anew for each of them, as that of the given series was.

    Args:
        x: Where the points are.
        stated: Stated variances.
        tau: Noise beyond them.
        count: How many series.
        generator: Where they come from.
        floor: The least variance.
    """
    series = generator.normal(size=(count, len(x))) * np.sqrt(np.maximum(stated + tau**2, floor))
    beyond = extra_noise(x, series, np.broadcast_to(stated, series.shape))
    return series, np.maximum(stated + beyond[:, None] ** 2, floor)


def best_gains(x: Array, series: Array, variance: Array, kind: str) -> Array:
    """How much the best cut takes from the sum of squares of each series, ascending.

    Example:
        >>> y = np.array([[0.0, 0.0, 0.0, 2.0, 2.0, 2.0]])
        >>> best_gains(np.arange(6.0), y, np.ones((1, 6)), "level").tolist()
        [6.0]
    """
    sums = Sums(x, series, variance, kind)
    both = sums.splits(0, len(x), LEAST[kind])[1]
    return np.sort(sums.cost(0, len(x)) - both.min(axis=-1))


def _running(*terms: Array) -> list[Array]:
    """Running sums along the last axis, with a zero before."""
    return [np.concatenate([np.zeros((*t.shape[:-1], 1)), np.cumsum(t, axis=-1)], axis=-1) for t in terms]
