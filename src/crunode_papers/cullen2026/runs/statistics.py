"""How two curves go together, when a curve falls, how a value decays, and where a boundary is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crunode import InputError
from crunode_papers.claims.statistics import TTest, mean_test

__all__ = ["Boundary", "Decay", "fall_time", "fit_boundary", "fit_decay", "jackknife", "rank_correlation"]

_STEPS = 200


def rank_correlation(x: Any, y: Any) -> float | None:
    """Spearman's correlation, with mean ranks for ties; None for fewer than three points or where one is constant.

    Example:
        >>> rank_correlation([1, 2, 3, 4], [1, 4, 9, 16])
        1.0
    """
    a, b = (_ranks(np.asarray(values, dtype=np.float64)) for values in (x, y))
    if len(a) != len(b):
        raise InputError(f"expected columns of one length, got {len(a)} and {len(b)}")
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    return (ends - (counts - 1) / 2)[inverse]


def fall_time(epochs: Any, values: Any, share: float = 0.5) -> float | None:
    """When a curve, after its maximum, has come down by a share of the way to its last value, for the first time.

    Between epochs the curve is a straight line in log epoch. None where the last value is the largest.

    Args:
        epochs: Positive, ascending.
        values: The curve.
        share: Of the way from the maximum to the last value.

    Example:
        >>> round(fall_time([1, 10, 100, 1000], [0.0, 8.0, 4.0, 0.0]), 6)
        100.0
    """
    when, curve = np.log(np.asarray(epochs, dtype=np.float64)), np.asarray(values, dtype=np.float64)
    if not np.isfinite(when).all() or not np.isfinite(curve).all() or len(when) != len(curve):
        raise InputError("expected positive epochs and as many finite values, got others")
    top = int(np.argmax(curve))
    if curve[top] <= curve[-1]:
        return None
    level = curve[top] - share * (curve[top] - curve[-1])
    after = int(np.flatnonzero(curve[top:] <= level)[0]) + top
    part = (curve[after - 1] - level) / (curve[after - 1] - curve[after])
    return float(np.exp(when[after - 1] + part * (when[after] - when[after - 1])))


@dataclass(frozen=True)
class Decay:
    """Fits of y = A x^exponent and of y = A e^{rate x}, one for each series; errors are over series.

    Attributes:
        exponent: Of the power law.
        rate: Of the exponential.
        power_r2: Part of the variance of log y, over all series, that power laws explain.
        exponential_r2: The same of exponentials.
        left_out: How many values were not positive.
    """

    exponent: TTest
    rate: TTest
    power_r2: float
    exponential_r2: float
    left_out: int


def fit_decay(x: Sequence[float], series: Sequence[Sequence[float]]) -> Decay | None:
    """Least squares lines of log y against log x and against x; None where no series has three positive values.

    Values of one series share their seed and are not independent; fits of different series are.

    Args:
        x: Positive, where all series were measured.
        series: The values of each, one for each x.

    Example:
        >>> found = fit_decay([1.0, 2.0, 4.0, 8.0], [[8.0, 4.0, 2.0, 1.0], [4.0, 2.0, 1.0, 0.5]])
        >>> round(found.exponent.value, 9), round(found.power_r2, 9), found.exponential_r2 < 0.95
        (-1.0, 1.0, True)
    """
    places = np.asarray(x, dtype=np.float64)
    if not (places > 0).all():
        raise InputError(f"expected positive places, got {list(x)}")
    slopes: dict[str, list[float]] = {"power": [], "exponential": []}
    rest, total, left_out = {"power": 0.0, "exponential": 0.0}, 0.0, 0
    for values in series:
        y = np.asarray(values, dtype=np.float64)
        kept = np.isfinite(y) & (y > 0)
        left_out += int((~kept).sum())
        if kept.sum() < 3:
            continue
        target = np.log(y[kept])
        total += float(np.square(target - target.mean()).sum())
        for name, at in (("power", np.log(places)), ("exponential", places)):
            slope, offset = np.polyfit(at[kept], target, 1)
            slopes[name].append(float(slope))
            rest[name] += float(np.square(target - offset - slope * at[kept]).sum())
    if not slopes["power"]:
        return None
    r2 = {name: 1 - rest[name] / total if total > 0 else math.nan for name in rest}
    return Decay(mean_test(slopes["power"]), mean_test(slopes["exponential"]), r2["power"], r2["exponential"], left_out)


@dataclass(frozen=True)
class Boundary:
    """A logistic curve y = 1 / (1 + exp(−(log x − log middle) / width)).

    Attributes:
        middle: Where y is one half.
        se: Its error, from the scatter around the curve.
        width: Of the step, in log x.
    """

    middle: float
    se: float
    width: float


def fit_boundary(x: Sequence[float], y: Sequence[float]) -> Boundary | None:
    """Least squares fit of a logistic step in log x, between 0 and 1; None where y does not pass one half.

    Args:
        x: Positive.
        y: Between 0 and 1.

    Example:
        >>> x = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0]
        >>> found = fit_boundary(x, [1 / (1 + (2.7 / a) ** 8) for a in x])
        >>> round(found.middle, 6), round(found.width, 6)
        (2.7, 0.125)
    """
    at, values = np.log(np.asarray(x, dtype=np.float64)), np.asarray(y, dtype=np.float64)
    if len(at) != len(values) or not np.isfinite(at).all() or not ((values >= 0) & (values <= 1)).all():
        raise InputError("expected positive x and as many y between 0 and 1, got others")
    low, high = at[values < 0.5], at[values >= 0.5]
    if len(np.unique(at)) < 3 or not len(low) or not len(high):
        return None
    # A step that no point lies on has a middle and no width: the width stays above a tenth of the mean distance.
    least = 0.1 * float(np.ptp(at)) / (len(np.unique(at)) - 1)
    starts = [(low.max() + high.min()) / 2, *np.quantile(at, (0.25, 0.5, 0.75))]
    best = min((_descended(at, values, float(m), w, least) for m in starts for w in (least, 0.3)), key=_loss)
    _, middle, width, slope = best
    spread = float(np.square(_logistic(at, middle, width) - values).sum()) / max(len(at) - 2, 1)
    information = float(slope @ slope)
    # Where the step is sharper than the grid, the middle is known to the distance of the points beside it.
    below, above = at[at <= middle], at[at > middle]
    gap = float(above.min() - below.max()) / math.sqrt(12) if len(below) and len(above) else math.inf
    error = min(math.sqrt(spread / information), gap) if width > 1.01 * least and information > 0 else gap
    return Boundary(math.exp(middle), math.exp(middle) * error, width)


def _logistic(at: np.ndarray, middle: float, width: float) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip((at - middle) / width, -50, 50)))


def _loss(found: tuple[Any, ...]) -> float:
    return float(found[0])


def _descended(
    at: np.ndarray, values: np.ndarray, middle: float, width: float, least: float
) -> tuple[float, float, float, np.ndarray]:
    """Levenberg's steps; the loss, the parameters and the derivative by the middle where they end."""
    point, damping = np.array([middle, math.log(width)]), 1e-3
    loss, jacobian, gap = _linearized(at, values, point)
    for _ in range(_STEPS):
        matrix = jacobian.T @ jacobian
        step = np.linalg.solve(matrix + damping * (np.diag(np.diag(matrix)) + 1e-12 * np.eye(2)), jacobian.T @ gap)
        moved = point - np.clip(step, -0.5, 0.5)
        moved[1] = max(moved[1], math.log(least))
        tried = _linearized(at, values, moved)
        if tried[0] < loss:
            done = loss - tried[0] < 1e-14 * (loss + 1e-12)
            point, (loss, jacobian, gap), damping = moved, tried, damping / 5
            if done:
                break
        else:
            damping *= 5
            if damping > 1e12:
                break
    return loss, float(point[0]), math.exp(point[1]), jacobian[:, 0]


def _linearized(at: np.ndarray, values: np.ndarray, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    width = math.exp(point[1])
    fit = _logistic(at, point[0], width)
    bell = fit * (1 - fit)
    gap = fit - values
    return float(gap @ gap), np.stack([-bell / width, -bell * (at - point[0]) / width], 1), gap


def jackknife(values: Sequence[float]) -> float:
    """Standard error from values with one group left out at a time: √((g − 1)/g Σ (v_i − v̄)²).

    Example:
        >>> groups = [1.0, 2.0, 4.0, 5.0]
        >>> left = [(sum(groups) - one) / 3 for one in groups]
        >>> round(jackknife(left), 6) == round(float(np.std(groups, ddof=1)) / 2, 6)
        True
    """
    v = np.asarray(values, dtype=np.float64)
    if len(v) < 2 or not np.isfinite(v).all():
        raise InputError(f"expected two finite values at least, got {values}")
    return float(math.sqrt((len(v) - 1) / len(v) * np.square(v - v.mean()).sum()))
