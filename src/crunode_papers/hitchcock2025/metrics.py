"""What a benchmark says of a method: sizes of errors, order of the estimates, coverage of the stated errors, cost.

A run that failed counts as infinitely far off, as not covered, and as out of order with all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from crunode.core import derived_seed

__all__ = ["bootstrap_interval", "covered", "order_preserved", "quantile", "summarize"]

_RESAMPLES = 2000
_NORMAL_95 = 1.96


def summarize(rows: Sequence[Mapping[str, Any]], *, seed: int = 0) -> list[dict[str, Any]]:
    """Metrics for each class and method, in the order in which these occur.

    Args:
        rows: As `estimate_row` gives them, or as they are read back from JSON, where None stands for no number.
        seed: The bootstrap draws from it.

    Returns:
        For each class and method: `runs`, `failed` (no finite value), share `ok`; median, 95th percentile and worst of
        the absolute relative errors; share of pairs in order; share within the stated 95 % interval; medians of
        gradients, examples and seconds. Median and coverage have 95 % bootstrap intervals over problems. Infinite
        values are None.

    Example:
        >>> row = {"class": "1K", "method": "sgld", "local": "2", "target": "local", "value": 2.2, "ok": True,
        ...        "relative_error": 0.1, "errors_off": 1.0, "gradients": 10, "example_gradients": 10, "seconds": 1.0}
        >>> found = summarize([row, {**row, "local": "4", "value": 3.6, "relative_error": -0.1}])[0]
        >>> found["median_relative_error"], found["order_preserved"], found["coverage"]
        (0.1, 1.0, 1.0)
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["class"], row["method"]), []).append(row)
    return [_summary(kind, method, part, seed) for (kind, method), part in groups.items()]


def _summary(kind: str, method: str, rows: list[Mapping[str, Any]], seed: int) -> dict[str, Any]:
    sizes = np.array([_size(row["relative_error"]) for row in rows])
    within = np.array([covered(row["errors_off"]) for row in rows], dtype=float)
    failed = [not _is_finite(row["value"]) for row in rows]
    low, high = bootstrap_interval(sizes, lambda part: quantile(part, 0.5), seed=seed)
    found: dict[str, Any] = {
        "class": kind,
        "method": method,
        "runs": len(rows),
        "failed": sum(failed),
        "ok": sum(bool(row["ok"]) for row in rows) / len(rows),
        "median_relative_error": quantile(sizes, 0.5),
        "median_interval": [low, high],
        "95th_percentile": quantile(sizes, 0.95),
        "worst_relative_error": float(sizes.max()),
        "order_preserved": order_preserved([_truth(row) for row in rows], [_number(row["value"]) for row in rows]),
        "coverage": float(within.mean()),
        "coverage_interval": list(bootstrap_interval(within, lambda part: float(part.mean()), seed=seed)),
    }
    for name in ("gradients", "example_gradients", "seconds"):
        known = [float(row[name]) for row in rows if row[name] is not None]
        found[f"median_{name}"] = float(np.median(known)) if known else None
    return {name: _bounded(value) for name, value in found.items()}


def covered(errors_off: float | None) -> bool:
    """Whether the truth lies in the stated 95 % interval: at most 1.96 stated errors off.

    Example:
        >>> covered(-1.9), covered(2.0), covered(None)
        (True, False, False)
    """
    return errors_off is not None and abs(errors_off) <= _NORMAL_95


def quantile(sizes: Any, share: float) -> float:
    """The smallest of `sizes` that at least the given share of them does not exceed; the usual median for 1/2.

    Example:
        >>> quantile([1.0, 2.0, 4.0, 9.0], 0.5), quantile([1.0, 2.0, 4.0, 9.0], 0.95)
        (3.0, 9.0)
    """
    ordered = np.sort(np.asarray(sizes, dtype=float))
    last = ordered[max(math.ceil(share * len(ordered)) - 1, 0)]
    if share == 0.5 and len(ordered) % 2 == 0 and math.isfinite(last):
        return float((last + ordered[len(ordered) // 2]) / 2)
    return float(last)


def order_preserved(truths: Sequence[Fraction | float], values: Sequence[float]) -> float | None:
    """Share of pairs whose values are in the order of their truths; pairs with equal truths are left out.

    Args:
        truths: Exact values.
        values: Estimates; NaN is in order with none.

    Returns:
        The share, or None where no two truths differ.

    Example:
        >>> order_preserved([1, 2, 2, 3], [0.9, 2.1, 1.9, 2.0])
        0.8
    """
    exact, found = np.array([float(t) for t in truths]), np.array(values, dtype=float)
    upper = np.triu_indices(len(exact), 1)
    gaps = np.sign(exact[:, None] - exact[None])[upper]
    with np.errstate(invalid="ignore"):
        signs = np.sign(found[:, None] - found[None])[upper]
    return float((signs == gaps)[gaps != 0].mean()) if gaps.any() else None


def bootstrap_interval(
    values: Any, statistic: Callable[[np.ndarray], float], *, seed: int = 0, resamples: int = _RESAMPLES
) -> tuple[float, float]:
    """95 % interval of a statistic over problems: percentiles over samples of them with replacement.

    Example:
        >>> bootstrap_interval([1.0, 1.0, 1.0], np.mean)
        (1.0, 1.0)
    """
    held = np.asarray(values, dtype=float)
    generator = np.random.default_rng(derived_seed(seed, 51))
    found = np.sort([statistic(held[generator.integers(len(held), size=len(held))]) for _ in range(resamples)])
    return float(found[int(0.025 * resamples)]), float(found[int(0.975 * resamples)])


def _truth(row: Mapping[str, Any]) -> Fraction:
    value = row["local"] if row["target"] == "local" else row["global"]
    return Fraction(value) if value is not None else Fraction(0)


def _number(value: float | None) -> float:
    return float(value) if _is_finite(value) else math.nan  # type: ignore[arg-type]


def _size(value: float | None) -> float:
    return abs(value) if value is not None and math.isfinite(value) else math.inf


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _bounded(value: Any) -> Any:
    """`value` with None for infinities, which JSON does not have."""
    if isinstance(value, list):
        return [_bounded(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
