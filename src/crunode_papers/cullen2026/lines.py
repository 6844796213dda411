"""Lines through points that have errors, and claims about the sign of a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crunode import InputError
from crunode.estimators import intercept_weights
from crunode.jobs import Row

__all__ = ["Line", "claimed_sign", "fit_line"]

_SURE = 3.0


@dataclass(frozen=True)
class Line:
    """y = intercept + slope · x.

    Attributes:
        slope: By weighted least squares.
        slope_se: Its standard error, from those of the points, or from their scatter where that is larger.
        intercept: At x = 0.
        intercept_se: Its standard error, likewise.
        r2: Part of the weighted variance of y that the line explains; nan where y does not vary.
    """

    slope: float
    slope_se: float
    intercept: float
    intercept_se: float
    r2: float


def fit_line(x: Sequence[float], y: Sequence[float], se: Sequence[float]) -> Line:
    """The weighted least squares line; errors grow with the misfit where that is more than chance (Birge ratio).

    Args:
        x: Places, two different ones or more.
        y: Heights.
        se: Their standard errors, all positive.

    Example:
        >>> line = fit_line([1, 2, 3], [3.0, 5.0, 7.0], [0.1, 0.1, 0.1])
        >>> round(line.slope, 9), round(line.intercept, 9), round(line.r2, 9)
        (2.0, 1.0, 1.0)
    """
    places, heights, errors = (np.asarray(values, dtype=np.float64) for values in (x, y, se))
    if len(set(places.tolist())) < 2 or not len(places) == len(heights) == len(errors):
        raise InputError(f"expected points at two places or more, got x = {list(x)}, y = {list(y)}, se = {list(se)}")
    if not (errors > 0).all() or not np.isfinite(heights).all():
        raise InputError(f"expected finite heights with positive errors, got {list(y)} and {list(se)}")
    covariance = np.diag(errors**2)
    a, b = intercept_weights(places, covariance)
    start, slope = float(a @ heights), float(b @ heights)
    rest = np.square((heights - start - slope * places) / errors).sum()
    mean = float((heights / errors**2).sum() / (1 / errors**2).sum())
    around = float(np.square((heights - mean) / errors).sum())
    stretch = math.sqrt(max(float(rest) / (len(places) - 2), 1.0)) if len(places) > 2 else 1.0
    slope_se, start_se = (stretch * math.sqrt(float(w @ covariance @ w)) for w in (b, a))
    return Line(slope, slope_se, start, start_se, 1 - float(rest) / around if around > 0 else math.nan)


def claimed_sign(name: str, value: float, se: float, source: str, *, above: bool, judged: bool = True) -> Row:
    """A row on the claim that a number is above 0, or below it.

    It agrees or differs where the number is three standard errors away from 0, which chance alone makes of a 0 once in
    370 times, and is only shown in between.

    Args:
        name: What was measured.
        value: The number.
        se: Its standard error.
        source: Where it is claimed.
        above: Whether it is claimed to be above 0.
        judged: False to only show it.

    Example:
        >>> [claimed_sign("slope", x, 0.1, "Fig. 1", above=True).verdict for x in (1.0, 0.2, -1.0)]
        ['agrees', 'shown', 'differs']
    """
    away = (value if above else -value) / max(se, 1e-300)
    verdict = "shown" if not judged or abs(away) < _SURE else "agrees" if away > 0 else "differs"
    side = "at least" if above else "at most"
    return Row(name, 0.0, value, se, _SURE * se, verdict, source=f"paper: {source}", side=side)
