"""The picture of a comparison of models."""

from __future__ import annotations

import math
from typing import Any

from crunode.reporting.plots import STYLE, new_figure, plain_axes

__all__ = ["plot_comparison"]


def plot_comparison(comparison: Any) -> Any:
    """Criteria of all models with the error of the data, and differences to the best with their whole error.

    Args:
        comparison: What `crunode.compare` gives.

    Returns:
        A matplotlib figure.
    """
    rows = list(reversed(comparison.rows))
    figure = new_figure(8.0, 1.2 + 0.45 * len(rows))
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(rows))
    left.errorbar(
        [row.estimate.value for row in rows],
        places,
        xerr=[row.estimate.diagnostics.get("data_se", math.nan) for row in rows],
        fmt="o",
        capsize=3,
        color=STYLE["ink"],
    )
    plain_axes(left, "models", f"{comparison.criterion} per example", "")
    left.set_yticks(list(places), [row.name for row in rows])
    right.errorbar(
        [row.difference for row in rows],
        places,
        xerr=[math.hypot(row.data_se, row.mc_se) for row in rows],
        fmt="s",
        capsize=3,
        color=STYLE["answer"],
    )
    plain_axes(right, "example by example", "worse than the best by", "")
    right.axvline(0.0, color=STYLE["soft"], linewidth=0.8)
    return figure
