"""Pictures of the loss over lines and planes in weight space."""

from __future__ import annotations

from typing import Any

import numpy as np

from crunode._extras import need
from crunode.errors import InputError
from crunode.reporting.plots import STYLE, new_figure, plain_axes

__all__ = ["plot_profile", "plot_surface"]

KINDS = ("filled", "contour", "3d")
_LEVELS = 24


def plot_surface(surface: Any, kind: str = "filled", color: str | None = None, log: bool = False) -> Any:
    """A surface as colored areas with contour lines, as contour lines with numbers, or in three dimensions.

    Points without a finite loss are left out. Levels end where a few high walls would take all of them.

    Args:
        surface: What `crunode.topology.surface` gives.
        kind: "filled", "contour" or "3d".
        color: Name of a probe whose values color the picture, with contour lines of the loss on it; None takes the
            loss.
        log: Whether losses are drawn as logarithms.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        InputError: There is no such kind or probe, or it is a profile.
        MissingExtra: matplotlib is not installed.

    Example:
        >>> from types import SimpleNamespace
        >>> axis = np.linspace(-1, 1, 5)
        >>> bowl = axis[:, None] ** 2 + axis**2
        >>> seen = SimpleNamespace(coordinates=(axis, axis), losses=bowl, values={}, marks={}, labels=("a", "b"))
        >>> len(plot_surface(seen).axes)
        2
    """
    if kind not in KINDS:
        raise InputError(f"expected kind among {', '.join(KINDS)}, got {kind!r}")
    if len(surface.coordinates) != 2:
        raise InputError("expected a surface over two directions, got a profile; use plot_profile")
    heights = _heights(surface.losses, log)
    values, name = _colors(surface, heights, color, log)
    return (_solid if kind == "3d" else _flat)(surface, heights, values, name, kind == "filled")


def plot_profile(surface: Any, *, color: str | None = None, log: bool = False) -> Any:
    """The loss along a line, with its marked points; the values of a probe in a second panel.

    Args:
        surface: What `crunode.topology.profile` gives.
        color: Name of the probe, drawn with its errors.
        log: Whether the loss has a logarithmic axis.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        InputError: There is no such probe, or it is a surface over two directions.

    Example:
        >>> from types import SimpleNamespace
        >>> axis = np.linspace(-1, 1, 5)
        >>> seen = SimpleNamespace(coordinates=(axis,), losses=axis**2, values={}, marks={}, labels=("a",))
        >>> len(plot_profile(seen).axes)
        1
    """
    if len(surface.coordinates) != 1:
        raise InputError("expected a profile along one direction, got a surface; use plot_surface")
    _named(surface, color)
    figure = new_figure(6.4, 3.6 if color is None else 5.4)
    panels = np.atleast_1d(figure.subplots(1 if color is None else 2, 1, sharex=True))
    (x,), losses = surface.coordinates, surface.losses
    panels[0].plot(x, losses, color=STYLE["ink"], linewidth=1.4)
    if log:
        panels[0].set_yscale("log")
    for name, where in surface.marks.items():
        at = np.asarray(where)[:, 0]
        inside = (at >= x[0]) & (at <= x[-1])
        panels[0].plot(at[inside], np.interp(at[inside], x, losses), "o", color=STYLE["answer"], markersize=5)
        for one in at[inside][:1]:
            text = {"xytext": (4, 5), "textcoords": "offset points", "fontsize": 8, "color": STYLE["answer"]}
            panels[0].annotate(name, (one, np.interp(one, x, losses)), **text)
    plain_axes(panels[0], "", "" if color else surface.labels[0], "loss")
    if color is not None:
        errors = surface.errors.get(color) if hasattr(surface, "errors") else None
        panels[1].errorbar(x, surface.values[color], errors, fmt="o-", markersize=3, capsize=2, color=STYLE["answer"])
        plain_axes(panels[1], "", surface.labels[0], color)
    return figure


def _heights(losses: np.ndarray, log: bool) -> np.ndarray:
    finite = losses[np.isfinite(losses)]
    if finite.size == 0:
        raise InputError("expected a surface with finite losses, got none; draw a smaller extent")
    if not log:
        return np.asarray(losses)
    if finite.min() <= 0:
        raise InputError(f"expected losses above 0 for a logarithmic scale, got {finite.min():.3g}; use log=False")
    return np.asarray(np.log10(losses))


def _named(surface: Any, color: str | None) -> None:
    if color is not None and color not in surface.values:
        raise InputError(f"expected color among the probes {list(surface.values)}, got {color!r}")


def _colors(surface: Any, heights: np.ndarray, color: str | None, log: bool) -> tuple[np.ndarray, str]:
    _named(surface, color)
    if color is None:
        return heights, "log₁₀ loss" if log else "loss"
    values = np.asarray(surface.values[color])
    if not np.isfinite(values).any():
        raise InputError(f"expected values of {color!r} at some points, got none")
    return values, color


def _levels(values: np.ndarray) -> np.ndarray:
    """Levels between the lowest value and nine tenths of all, spread so that the valley shows."""
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(np.quantile(finite, 0.9))
    if not high > low:
        high = float(finite.max())
    if not high > low:
        high = low + max(abs(low), 1.0) * 1e-6
    return low + (high - low) * np.linspace(0, 1, _LEVELS) ** 1.5


def _flat(surface: Any, heights: np.ndarray, values: np.ndarray, name: str, filled: bool) -> Any:
    figure = new_figure(5.8, 4.6)
    axes = figure.subplots()
    x, y = surface.coordinates
    shown = np.ma.masked_invalid(heights.T)
    if filled:
        levels = _levels(values) if values is heights else _LEVELS
        areas = axes.contourf(x, y, np.ma.masked_invalid(values.T), levels=levels, cmap="viridis", extend="max")
        figure.colorbar(areas, ax=axes, label=name)
        axes.contour(
            x, y, shown, levels=_levels(heights)[::2], colors="white", linewidths=0.5, alpha=0.7, linestyles="solid"
        )
    elif values is heights:
        lines = axes.contour(x, y, shown, levels=_levels(heights), cmap="viridis", linewidths=1.0)
        axes.clabel(lines, lines.levels[::3], fontsize=7, fmt="%.3g")
    else:
        dots = axes.pcolormesh(x, y, np.ma.masked_invalid(values.T), cmap="viridis", shading="nearest")
        figure.colorbar(dots, ax=axes, label=name)
        lines = axes.contour(
            x, y, shown, levels=_levels(heights)[::2], colors="white", linewidths=0.7, linestyles="solid"
        )
        axes.clabel(lines, lines.levels[::3], fontsize=7, fmt="%.3g")
    for label, where in surface.marks.items():
        points = np.asarray(where)
        style = "o-" if len(points) > 1 else "o"
        axes.plot(points[:, 0], points[:, 1], style, color=STYLE["answer"], markersize=4, linewidth=1)
        text = {"xytext": (5, 5), "textcoords": "offset points", "fontsize": 8, "color": STYLE["answer"]}
        axes.annotate(label, points[0], **text)
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])
    plain_axes(axes, "", *surface.labels)
    return figure


def _solid(surface: Any, heights: np.ndarray, values: np.ndarray, name: str, _filled: bool) -> Any:
    need("mpl_toolkits.mplot3d", extra="plot")
    matplotlib = need("matplotlib", extra="plot")
    colors = need("matplotlib.colors", extra="plot")
    mappable = need("matplotlib.cm", extra="plot").ScalarMappable
    figure = new_figure(6.4, 5.0)
    axes = figure.add_subplot(projection="3d")
    x, y = np.meshgrid(*surface.coordinates, indexing="ij")
    finite = values[np.isfinite(values)]
    top = _levels(heights)[-1] if values is heights else finite.max()
    scale = mappable(colors.Normalize(finite.min(), top), matplotlib.colormaps["viridis"])
    # A triangle with a corner that is missing is not drawn.
    faces = scale.to_rgba(np.ma.masked_invalid(values))
    axes.plot_surface(x, y, heights, facecolors=faces, rcount=100, ccount=100, linewidth=0, antialiased=False)
    figure.colorbar(scale, ax=axes, label=name, shrink=0.7)
    axes.set_xlabel(surface.labels[0], fontsize=8)
    axes.set_ylabel(surface.labels[1], fontsize=8)
    axes.set_zlabel("loss" if values is not heights else name, fontsize=8)
    axes.tick_params(labelsize=7)
    return figure
