"""Student's t: tail probabilities, tests over seeds, and trends with errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crunode import InputError

__all__ = [
    "TTest",
    "incomplete_beta",
    "mean_test",
    "paired_test",
    "student_quantile",
    "student_tail",
    "trend_test",
    "welch_test",
]

_TINY, _TERMS = 1e-300, 10_000


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by its continued fraction.

    Args:
        a: Positive.
        b: Positive.
        x: From 0 to 1.

    Example:
        >>> round(incomplete_beta(2.0, 3.0, 0.5), 6)  # the chance of two or more heads in four throws: 11/16
        0.6875

    References:
        Abramowitz & Stegun 26.5.8; Lentz 1976 for the way to evaluate it.
    """
    if not (a > 0 and b > 0 and 0 <= x <= 1):
        raise InputError(f"expected a > 0, b > 0 and x from 0 to 1, got {a}, {b}, {x}")
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            c, d = _away(1 + term / c), 1 / _away(1 + term * d)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) * value / a


def _away(x: float) -> float:
    return x if abs(x) > _TINY else _TINY


def student_tail(t: float, dof: float) -> float:
    """The probability P(T > t) of Student's distribution.

    Example:
        >>> round(student_tail(2.353, 3), 4), round(student_tail(-2.353, 3), 4)
        (0.05, 0.95)
    """
    if not dof > 0:
        raise InputError(f"expected a positive number of degrees of freedom, got {dof}")
    if math.isnan(t):
        raise InputError("expected t as a number, got nan")
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    half = 0.5 * incomplete_beta(dof / 2, 0.5, dof / (dof + t * t))
    return half if t >= 0 else 1 - half


def student_quantile(tail: float, dof: float) -> float:
    """The t that is exceeded with probability `tail`.

    Example:
        >>> round(student_quantile(0.01, 3), 3), round(student_quantile(0.025, 10), 3)
        (4.541, 2.228)
    """
    if not 0 < tail < 1:
        raise InputError(f"expected tail between 0 and 1, got {tail}")
    if tail > 0.5:
        return -student_quantile(1 - tail, dof)
    low, high = 0.0, 1.0
    while student_tail(high, dof) > tail:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, dof) > tail else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class TTest:
    """A difference, or a slope, with its error.

    Attributes:
        value: The mean.
        se: Its standard error; nan where one value alone gives none.
        dof: Degrees of freedom; 0 where there is no error.
        count: Number of values, pairs of values, or slopes.

    Example:
        >>> test = TTest(value=3.0, se=1.0, dof=9, count=10)
        >>> test.t, round(test.above, 4), round(test.both, 4)
        (3.0, 0.0075, 0.015)
    """

    value: float
    se: float
    dof: float
    count: int

    @property
    def t(self) -> float:
        """The value over its error; nan without one."""
        if not self.dof > 0:
            return math.nan
        if self.se == 0:
            return math.copysign(math.inf, self.value) if self.value else 0.0
        return self.value / self.se

    @property
    def above(self) -> float:
        """One-sided: how probable so high a value is if the true one is 0; nan without an error."""
        return student_tail(self.t, self.dof) if self.dof > 0 else math.nan

    @property
    def below(self) -> float:
        """One-sided: how probable so low a value is if the true one is 0."""
        return student_tail(-self.t, self.dof) if self.dof > 0 else math.nan

    @property
    def both(self) -> float:
        """Two-sided: how probable a value so far from 0 is."""
        return min(1.0, 2 * min(self.above, self.below)) if self.dof > 0 else math.nan

    def margin(self, tail: float) -> float:
        """How far from 0 the value has to be for a one-sided probability of `tail`; nan without an error."""
        return student_quantile(tail, self.dof) * self.se if self.dof > 0 else math.nan


def mean_test(values: Sequence[float]) -> TTest:
    """Is the mean of independent values 0?

    Example:
        >>> test = mean_test([1.0, 2.0, 3.0])
        >>> test.value, round(test.t, 3), test.dof
        (2.0, 3.464, 2)
    """
    x = _finite(values)
    if len(x) == 1:
        return TTest(float(x[0]), math.nan, 0, 1)
    return TTest(float(x.mean()), float(x.std(ddof=1)) / math.sqrt(len(x)), len(x) - 1, len(x))


def paired_test(first: Sequence[float], second: Sequence[float]) -> TTest:
    """Is `first` − `second` 0 on average, where the two of a pair share their seed?

    Example:
        >>> round(paired_test([5.0, 7.0, 6.0], [4.0, 5.0, 6.0]).t, 3)
        1.732
    """
    if len(first) != len(second):
        raise InputError(f"expected pairs, got {len(first)} and {len(second)} values")
    return mean_test(_finite(first) - _finite(second))


def welch_test(first: Sequence[float], second: Sequence[float]) -> TTest:
    """Have two independent groups, of variances of their own, the same mean?

    Degrees of freedom by Welch & Satterthwaite.

    Example:
        >>> test = welch_test([1.0, 2.0, 3.0, 4.0], [6.0, 8.0, 10.0])
        >>> round(test.t, 3), round(test.dof, 2)
        (-4.158, 3.23)

    References:
        Welch 1947.
    """
    a, b = _finite(first), _finite(second)
    value, count = float(a.mean() - b.mean()), len(a) + len(b)
    if min(len(a), len(b)) < 2:
        return TTest(value, math.nan, 0, count)
    parts = [float(x.var(ddof=1)) / len(x) for x in (a, b)]
    squares = sum(p**2 / (len(x) - 1) for p, x in zip(parts, (a, b), strict=True))
    dof = sum(parts) ** 2 / squares if squares > 0 else count - 2
    return TTest(value, math.sqrt(sum(parts)), dof, count)


def trend_test(x: Sequence[float], series: Sequence[Sequence[float]]) -> TTest:
    """Is the slope of y in x 0? A straight line is fitted to each series, and slopes are compared over series.

    Values of one series share their seed and are not independent; slopes of different series are.

    Args:
        x: Where all series were measured.
        series: The values of each, one for each x.

    Example:
        >>> test = trend_test([0.0, 1.0, 2.0], [[0.0, 1.1, 2.0], [0.0, 0.9, 2.2]])
        >>> round(test.value, 3), test.dof
        (1.05, 1)
    """
    places = _finite(x)
    if len(places) < 2 or np.ptp(places) == 0:
        raise InputError(f"expected two different places at least, got {list(x)}")
    away = places - places.mean()
    return mean_test([float(away @ _finite(y) / (away @ away)) for y in series])


def _finite(values: Sequence[float]) -> np.ndarray:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) == 0 or not np.isfinite(x).all():
        raise InputError(f"expected one or more finite values, got {values}")
    return x
