"""Axes of charts: linear and logarithmic scales, and round numbers along them."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["SCALES", "inverse", "tick_text", "ticks", "transform"]

SCALES = ("linear", "log", "log1p")
"""How the horizontal axis runs; log1p has a place for zero."""


def transform(scale: str) -> Callable[[float], float]:
    """What is linear in the place along an axis.

    Example:
        >>> transform("log")(100.0)
        2.0
    """
    scales: dict[str, Callable[[float], float]] = {
        "linear": float,
        "log": math.log10,
        "log1p": lambda x: math.log1p(max(x, 0.0)),
    }
    return scales[scale]


def inverse(scale: str) -> Callable[[float], float]:
    """Inverse of `transform`.

    Example:
        >>> inverse("log")(2.0)
        100.0
    """
    scales: dict[str, Callable[[float], float]] = {"linear": float, "log": lambda u: 10.0**u, "log1p": math.expm1}
    return scales[scale]


def ticks(low: float, high: float, scale: str = "linear", most: int = 5) -> list[float]:
    """Round numbers between `low` and `high`.

    Example:
        >>> ticks(0.0, 10.0), ticks(1.0, 1000.0, "log"), ticks(0, 500, "log1p")
        ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 10.0, 100.0, 1000.0], [0.0, 1.0, 10.0, 100.0])
    """
    if scale != "linear":
        first = math.floor(math.log10(low)) if low > 0 else 0
        last = math.floor(math.log10(high)) if high > 0 else 0
        stride = -(-max(last - first + 1, 1) // 6)
        parts = (1, 2, 5) if last - first < 2 else (1,)
        found = [m * 10.0**k for k in range(first, last + 1, stride) for m in parts if low <= m * 10.0**k <= high]
        found = [0.0, *found] if scale == "log1p" and low <= 0 else found
        if len(found) > 1:
            return found
    span = high - low
    if not 1e-300 < span < math.inf:
        return [low]
    unit = 10.0 ** math.floor(math.log10(span / most))
    step = next(unit * m for m in (1, 2, 5, 10) if span / (unit * m) <= most + 1e-9)
    start = math.ceil(low / step - 1e-9)
    return [
        round(k * step, 12 - math.floor(math.log10(step)))
        for k in range(start, start + most + 2)
        if k * step <= high + 1e-9 * span
    ]


def tick_text(value: float) -> str:
    """A number along an axis.

    Example:
        >>> [tick_text(v) for v in (0.5, 10000.0, 1e7, 4e28, 1e-6)]
        ['0.5', '10000', '1e7', '4e28', '1e-6']
    """
    if 1e4 <= abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.4g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
