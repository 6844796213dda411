"""One picture of a demonstration: a landscape, its coefficient, and how estimates compare with exact values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate
from crunode.reporting.plots import STYLE, draw_levels, new_figure, plain_axes

__all__ = ["loss_slice", "plot_overview", "steepest_direction"]

_EXAMPLES = 1000


def plot_overview(rows: Sequence[Mapping[str, Any]], landscape: Landscape, estimate: Estimate) -> Any:
    """Draw a trained landscape, its estimate over the levels of nbeta, and estimates against exact values.

    Args:
        rows: One mapping for each case, with name, value, error and exact (text, or None).
        landscape: The landscape to show.
        estimate: Its estimate.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    figure = new_figure(11.5, 3.7)
    slice_axes, level_axes, exact_axes = figure.subplots(1, 3, width_ratios=(1, 1.05, 1.1))
    _draw_slice(figure, slice_axes, landscape)
    draw_levels(level_axes, estimate)
    half = landscape.dim / 2
    title = f"Its coefficient, far below d/2 = {half:,.0f}" if estimate.value < half / 2 else "Its coefficient"
    title += "" if estimate.ok else " (not ok)"
    level_axes.set_title(title, fontsize=10, loc="left", color=STYLE["ink"])
    _draw_exact(exact_axes, [row for row in rows if row["exact"] is not None])
    return figure


def steepest_direction(landscape: Landscape, rounds: int = 12) -> Tensor:
    """Unit vector of the largest curvature of the loss at the center, by power iteration on some examples.

    Example:
        >>> land = Landscape.of_function(lambda w: w[0] ** 2 + 9 * w[1] ** 2, torch.ones(2))
        >>> [round(abs(x), 2) for x in steepest_direction(land).tolist()]
        [0.0, 1.0]
    """
    batch = next(iter(landscape.passes(_EXAMPLES)))
    v: Tensor = torch.ones_like(landscape.center) / landscape.dim**0.5
    w = landscape.center.clone().requires_grad_()
    (slope,) = torch.autograd.grad(landscape.batch_loss(w, batch), w, create_graph=True)
    for _ in range(rounds):
        (v,) = torch.autograd.grad(slope, w, v, retain_graph=True)
        v = v / v.norm()
    return v


def loss_slice(landscape: Landscape, directions: tuple[Tensor, Tensor], points: int = 25) -> np.ndarray:
    """Loss minus the loss at the center, on a grid from −1 to 1 times two directions, from some examples.

    Example:
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2))
        >>> loss_slice(land, (torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])), points=3)[0].tolist()
        [2.0, 1.0, 2.0]
    """
    batch = next(iter(landscape.passes(_EXAMPLES)))
    ticks = torch.linspace(-1, 1, points).to(landscape.center)
    grid = torch.empty(points, points, dtype=torch.float64)
    with torch.no_grad():
        base = landscape.batch_loss(landscape.center, batch)
        for i, b in enumerate(ticks):
            for j, a in enumerate(ticks):
                w = landscape.center + a * directions[0] + b * directions[1]
                grid[i, j] = landscape.batch_loss(w, batch) - base
    return grid.numpy()


def _draw_slice(figure: Any, axes: Any, landscape: Landscape) -> None:
    steep = steepest_direction(landscape)
    other = torch.randn(landscape.dim, generator=torch.Generator().manual_seed(0)).to(steep)
    other = other - (other @ steep) * steep
    directions = tuple(_scaled(landscape, v) for v in (other / other.norm(), steep))
    loss = loss_slice(landscape, (directions[0], directions[1]))
    x, y = (np.linspace(-1, 1, len(loss)) * float(v.norm()) for v in directions)
    levels = np.geomspace(max(float(loss.max()), 1e-6) / 300, max(float(loss.max()), 1e-6), 9)
    filled = axes.contourf(x, y, np.maximum(loss, 0), levels=[0, *levels], cmap="cividis_r")
    axes.contour(x, y, loss, levels=levels, colors="white", linewidths=0.5)
    axes.plot(0, 0, "o", color=STYLE["answer"], markersize=6, markeredgecolor="white")
    bar = figure.colorbar(filled, ax=axes, ticks=levels[::2], format="%.2g", pad=0.02)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)
    plain_axes(axes, "Loss around the trained weights (dot)", "a random direction", "the steepest direction")


def _scaled(landscape: Landscape, direction: Tensor, rise: float = 0.5) -> Tensor:
    """`direction` made long enough for the loss to rise by `rise`, within reason."""
    batch = next(iter(landscape.passes(_EXAMPLES)))
    length = 0.05
    with torch.no_grad():
        base = float(landscape.batch_loss(landscape.center, batch))
        while length < 50 and float(landscape.batch_loss(landscape.center + length * direction, batch)) - base < rise:
            length *= 1.25
    return length * direction


def _draw_exact(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    axes.axvline(1, color=STYLE["soft"], linewidth=1)
    furthest = 0.15
    bar = {"fmt": "D", "color": "#0072B2", "markersize": 7, "capsize": 4, "markeredgecolor": "white"}
    for place, row in enumerate(reversed(rows)):
        exact = float(Fraction(row["exact"]))
        ratio, error = row["value"] / exact, row["error"] / exact
        if not math.isfinite(ratio + error):
            continue
        furthest = max(furthest, abs(ratio - 1) + error)
        axes.errorbar(ratio, place, xerr=error, **bar)
        text = f"{row['name']}\n{row['value']:.3g} ± {row['error']:.2g}, exact {row['exact']}"
        place_text = {"textcoords": "offset points", "fontsize": 8, "ha": "center", "va": "bottom"}
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.annotate(text, (1, place), (0, 9), bbox=box, **place_text)
    axes.set_xlim(1 - 1.3 * furthest, 1 + 1.3 * furthest)
    axes.set_ylim(-0.5, len(rows) - 0.2)
    plain_axes(axes, "Estimates against exact values (bar: all errors)", "estimate / exact value", "")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
