"""Slopes of E[G(n)] against 1/n, with errors over data sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from crunode import InputError

__all__ = ["Slope", "fit_slope"]


class Slope(NamedTuple):
    """A fitted slope.

    Attributes:
        value: The slope; nan where an error is not finite.
        se: Its standard error, from the scatter over data sets.
        spread: Standard deviation of the slope over data sets.
        r2: Share of variance explained by the fit to the averages; without intercept, of the squares, as for the paper.
        intercept: 0 where none was fitted.
        each: The slope of each data set number alone: their mean is the slope, so differences can be paired.
    """

    value: float
    se: float
    spread: float
    r2: float
    intercept: float
    each: npt.NDArray[np.float64]


def fit_slope(sizes: Sequence[int], errors: npt.ArrayLike, intercept: bool) -> Slope:
    r"""Least squares of the average error on 1/n, as Tables 1 and 3-5 have it.

    The fit is linear in the errors, so the slope of the averages is the average of the slopes $\hat\lambda_r$ that data
    sets with number r at all n give; these are independent, and their scatter gives the error.

    Args:
        sizes: Values of n.
        errors: G, (n, data set).
        intercept: Whether to fit one: in the nonrealizable case.

    Example:
        >>> fit = fit_slope([10, 20, 40], [[0.5, 0.7], [0.25, 0.35], [0.125, 0.175]], False)
        >>> round(fit.value, 6), round(fit.se, 6), round(fit.r2, 6)
        (6.0, 1.0, 1.0)
    """
    x = 1.0 / np.asarray(sizes, dtype=float)
    g = np.asarray(errors, dtype=float)
    if g.ndim != 2 or len(g) != len(x) or len(x) < 1 + intercept or g.shape[1] < 2:
        raise InputError(f"expected errors of at least two data sets at each of {len(x)} sizes, got shape {g.shape}")
    if not np.isfinite(g).all():
        return Slope(math.nan, math.nan, math.nan, math.nan, math.nan, np.full(g.shape[1], math.nan))
    lever = x - x.mean() if intercept else x
    each = lever @ g / (lever @ lever)
    mean = g.mean(1)
    value = float(each.mean())
    offset = float(mean.mean() - value * x.mean()) if intercept else 0.0
    total = mean - mean.mean() if intercept else mean
    rest = mean - offset - value * x
    r2 = float(1 - rest @ rest / (total @ total)) if (total @ total) > 0 else math.nan
    spread = float(each.std(ddof=1))
    return Slope(value, spread / math.sqrt(len(each)), spread, r2, offset, each)
