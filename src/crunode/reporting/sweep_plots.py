"""Pictures of sweeps: λ̂ over steps and precisions, and what the chains did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from crunode._extras import need
from crunode.reporting.plots import STYLE, level_colors, new_figure, plain_axes

__all__ = ["plot_sweep"]

_NAMES = {"step": "step ε", "precision": "precision γ"}
_MOST_NUMBERS = 120
_DIVERGED = {"facecolor": "#DDDDDD", "edgecolor": "#767676", "hatch": "xxx", "linewidth": 0.0}
_NOT_OK = {"facecolor": "none", "edgecolor": "#FFFFFF90", "hatch": "///", "linewidth": 0.0}


def plot_sweep(content: Mapping[str, Any]) -> Any:
    """Draw a sweep: a column of three panels for each nβ.

    Above, λ̂ over (ε, γ) as a heat map. Cells where a chain diverged have no color and a cross hatch, cells that are
    not ok a diagonal one; a star stands at the tuner's choice, a frame around the cell nearest to it. In the middle,
    the same λ̂ against γ with one line for each ε, as in figure 6 of Cullen et al. 2026, and the default estimate with
    its error as a band. Below, traces of nβ times the excess loss for each ε, at the γ nearest to the tuner's.

    Args:
        content: What `Sweep.to_dict` gives, also after JSON.

    Returns:
        A `matplotlib.figure.Figure`; save it with `figure.savefig("sweep.png")`.

    Raises:
        MissingExtra: matplotlib is not installed.

    Example:
        >>> point = {"step": 1e-4, "precision": 1.0, "nbeta": 50.0}
        >>> cell = {**point, "value": 2.0, "se": 0.1, "systematic": 0.0, "ok": True, "findings": [], "trace": []}
        >>> axes = {"steps": [1e-4], "precisions": [1.0], "nbetas": [50.0], "cells": [cell]}
        >>> estimate = {"value": 2.1, "se": 0.1, "systematic": 0.0, "ok": True}
        >>> figure = plot_sweep({**axes, "estimate": estimate, "summary": {"choice": point, "nearest": point}})
        >>> len(figure.axes)  # three panels, and the scale of colors
        4
    """
    nbetas = content["nbetas"]
    figure = new_figure(max(3.6 * len(nbetas), 5.0) + 1.2, 10.0)
    figure.suptitle(_headline(content), fontsize=9.5, color=STYLE["ink"], x=0.01, ha="left")
    panels = figure.subplots(3, len(nbetas), squeeze=False)
    shared = _norm(content["cells"])
    image = None
    for column, nbeta in enumerate(nbetas):
        cells = [cell for cell in content["cells"] if cell["nbeta"] == nbeta]
        title = f"nβ = {nbeta:.4g}"
        image = _draw_map(panels[0, column], content, cells, shared, title) or image
        _draw_lines(panels[1, column], content, cells, title)
        _draw_traces(panels[2, column], content, cells, title)
    if image is not None:
        bar = figure.colorbar(image, ax=list(panels[0]), pad=0.01)
        bar.set_label("λ̂", fontsize=9, color=STYLE["ink"])
        bar.ax.tick_params(labelsize=8, colors=STYLE["ink"])
    _draw_legend(panels[0, 0])
    return figure


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _headline(content: Mapping[str, Any]) -> str:
    choice, (value, error) = content["summary"]["choice"], _answer(content)
    verdict = "ok" if content["estimate"]["ok"] else "not ok"
    chosen = ", ".join(f"{name} {choice[name]:.3g}" for name in ("step", "precision", "nbeta"))
    return f"tuner's choice: {chosen}   default estimate: {value:.4g} ± {error:.2g} ({verdict})"


def _answer(content: Mapping[str, Any]) -> tuple[float, float]:
    """The default estimate and all its errors."""
    value, se, systematic = (_number(content["estimate"][name]) for name in ("value", "se", "systematic"))
    return value, math.hypot(se, systematic)


def _diverged(cell: Mapping[str, Any]) -> bool:
    return "MC204" in cell["findings"] or not math.isfinite(_number(cell["value"]))


def _norm(cells: Sequence[Mapping[str, Any]]) -> Any:
    """One scale of colors for all maps, logarithmic where λ̂ varies by more than a factor 10; None without values."""
    colors = need("matplotlib.colors", extra="plot")
    values = np.array([_number(cell["value"]) for cell in cells if not _diverged(cell)])
    if values.size == 0:
        return None
    low, high = float(values.min()), float(values.max())
    if low > 0 and high > 10 * low:
        return colors.LogNorm(low, high)
    if low <= 0 and max(-low, high) > 10 * np.median(np.abs(values)) > 0:
        return colors.SymLogNorm(float(np.median(np.abs(values))), vmin=low, vmax=high)
    return colors.Normalize(low, high if high > low else low + max(abs(low), 1e-12))


def _place(value: float, axis: Sequence[float]) -> float:
    """Where a value lies among the numbered values of an axis, by logarithms; at the edge when it is outside."""
    return float(np.interp(math.log(value), np.log(axis), np.arange(len(axis))))


def _draw_map(axes: Any, content: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], norm: Any, title: str) -> Any:
    patches = need("matplotlib.patches", extra="plot")
    steps, precisions, summary = content["steps"], content["precisions"], content["summary"]
    values = np.full((len(precisions), len(steps)), math.nan)
    plain_axes(axes, title, _NAMES["step"], _NAMES["precision"])
    few = len(cells) <= _MOST_NUMBERS
    for cell in cells:
        row, column = precisions.index(cell["precision"]), steps.index(cell["step"])
        corner = column - 0.5, row - 0.5
        if _diverged(cell):
            axes.add_patch(patches.Rectangle(corner, 1, 1, **_DIVERGED))
            continue
        values[row, column] = _number(cell["value"])
        if not cell["ok"]:
            axes.add_patch(patches.Rectangle(corner, 1, 1, **_NOT_OK))
        if few:
            axes.text(
                column, row, f"{values[row, column]:.3g}", ha="center", va="center", fontsize=7, **_ink(norm, cell)
            )
        if all(cell[name] == summary["nearest"][name] for name in ("step", "precision", "nbeta")):
            frame = {"facecolor": "none", "edgecolor": STYLE["answer"], "linewidth": 1.8, "zorder": 4}
            axes.add_patch(patches.Rectangle(corner, 1, 1, **frame))
    image = None
    if norm is not None and np.isfinite(values).any():
        image = axes.imshow(values, origin="lower", aspect="auto", norm=norm, cmap="viridis")
    if summary["nearest"]["nbeta"] == cells[0]["nbeta"]:
        choice = summary["choice"]
        star = {"marker": "*", "markersize": 11, "color": STYLE["answer"], "markeredgecolor": "white", "zorder": 5}
        # Above the middle of the cell, where the number is.
        axes.plot([_place(choice["step"], steps)], [_place(choice["precision"], precisions) + 0.28], **star)
    axes.set_xlim(-0.5, len(steps) - 0.5)
    axes.set_ylim(-0.5, len(precisions) - 0.5)
    axes.set_xticks(range(len(steps)), [f"{v:.2g}" for v in steps], rotation=45)
    axes.set_yticks(range(len(precisions)), [f"{v:.2g}" for v in precisions])
    return image


def _ink(norm: Any, cell: Mapping[str, Any]) -> dict[str, Any]:
    """Dark numbers on light cells, light ones on dark cells."""
    return {"color": "black" if norm(_number(cell["value"])) > 0.6 else "white", "zorder": 3}


def _draw_legend(axes: Any) -> None:
    patches, lines = need("matplotlib.patches", extra="plot"), need("matplotlib.lines", extra="plot")
    gray = {**_NOT_OK, "facecolor": "#5A7FA0"}
    star = {"marker": "*", "markersize": 9, "color": STYLE["answer"], "markeredgecolor": "white", "linestyle": "none"}
    handles = [
        patches.Patch(label="diverged", **_DIVERGED),
        patches.Patch(label="not ok", **gray),
        lines.Line2D([], [], label="tuner's choice", **star),
    ]
    where = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.1), "ncols": 3, "borderaxespad": 0.0}
    axes.legend(handles=handles, fontsize=7.5, frameon=False, **where)


def _draw_lines(axes: Any, content: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], title: str) -> None:
    """λ̂ against γ, a line for each ε; against ε where there is one γ only."""
    along, apart = ("precision", "step") if len(content["precisions"]) > 1 else ("step", "precision")
    groups = content[f"{apart}s"]
    plain_axes(axes, title, _NAMES[along], "λ̂")
    axes.set_xscale("log")
    ends = [*content[f"{along}s"], content["summary"]["choice"][along]]
    axes.set_xlim(min(ends) / 1.5, max(ends) * 1.5)
    for group, color in zip(groups, level_colors(len(groups)), strict=True):
        line = [c for c in cells if c[apart] == group and not _diverged(c)]
        x, y = [c[along] for c in line], [_number(c["value"]) for c in line]
        bars = [math.hypot(_number(c["se"]), _number(c["systematic"])) for c in line]
        style = {"color": color, "marker": "o", "markersize": 3.5, "linewidth": 1.2, "capsize": 2}
        axes.errorbar(x, y, bars, label=f"{group:.2g}", **style)
    value, error = _answer(content)
    if math.isfinite(value + error):
        axes.axhspan(value - error, value + error, color=STYLE["band"], zorder=0)
        axes.axhline(value, color=STYLE["answer"], linewidth=1, zorder=1)
    axes.axvline(content["summary"]["choice"][along], color=STYLE["answer"], linewidth=1, linestyle=":", zorder=1)
    _same_heights(axes, content)
    if len(groups) > 1:
        axes.legend(title=_NAMES[apart], fontsize=6.5, title_fontsize=7, frameon=False, ncols=2, loc="best")


def _same_heights(axes: Any, content: Mapping[str, Any]) -> None:
    """One scale for all panels, logarithmic where λ̂ varies by more than a factor 10; wild bars may leave it."""
    seen = [_number(cell["value"]) for cell in content["cells"] if not _diverged(cell)]
    seen += [value for value in _answer(content)[:1] if math.isfinite(value)]
    if seen and min(seen) > 0 and max(seen) > 10 * min(seen):
        axes.set_yscale("log")
        axes.set_ylim(0.7 * min(seen), 1.5 * max(seen))
    elif seen:
        room = 0.15 * (max(seen) - min(seen)) or max(0.15 * abs(seen[0]), 1e-12)
        axes.set_ylim(min(seen) - room, max(seen) + room)


def _draw_traces(axes: Any, content: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], title: str) -> None:
    wanted = content["summary"]["nearest"]["precision"]
    plain_axes(axes, f"{title}, γ = {wanted:.3g}", "step number (shaded: warm-up)", "nβ × (loss − loss at center)")
    steps, ends, kept = content["steps"], [], [0.0]
    for step, color in zip(steps, level_colors(len(steps)), strict=True):
        cell = next(c for c in cells if c["step"] == step and c["precision"] == wanted)
        trace = np.array(cell["trace"], dtype=np.float64).reshape(-1, 2)
        style = {"linestyle": "--" if _diverged(cell) else "-", "linewidth": 1.1, "color": color}
        axes.plot(trace[:, 0], trace[:, 1], label=f"{step:.2g}", **style)
        ends += [trace[0, 0], trace[-1, 0]] if len(trace) else []
        kept += [] if _diverged(cell) else trace[:, 1].tolist()
    if ends and min(ends) < 0:
        axes.axvspan(min(ends), 0, color=STYLE["shade"], zorder=0, linewidth=0)
    if ends and max(ends) > min(ends):
        axes.set_xlim(min(ends), max(ends))
    # A trace that diverges leaves the picture instead of flattening the others.
    low, high = min(kept), max(kept)
    room = 0.08 * (high - low) or 0.5
    axes.set_ylim(low - room, high + 3 * room)
