"""Pictures of the recipes: curves along trainings, values against the learning rate, and the boundary."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crunode.core import need
from crunode.jobs import Result
from crunode_papers.cullen2026.runs.statistics import Boundary

__all__ = ["draw_boundary", "draw_rates", "draw_trajectories"]


def draw_trajectories(result: Result, folder: Path) -> Path:
    """Losses, accuracies and λ̂ of all trainings of a cell, by epoch."""
    pyplot = need("matplotlib.pyplot", extra="plot")
    trainings = result["trainings"]
    names = [key for key in trainings[0]["points"] if key != "epochs"]
    figure, axes = pyplot.subplots(2 + len(names), 1, figsize=(6, 2 * (2 + len(names))), sharex=True)
    for one in trainings:
        epochs = one["epochs"][1:]
        for axis, what in zip(axes[:2], ("loss", "accuracy"), strict=True):
            for part, color in (("training", "tab:blue"), ("validation", "tab:orange")):
                values = np.array(one[f"{part}_{what}"][1:], dtype=np.float64)
                axis.plot(epochs, values, color=color, lw=0.8, label=part if one is trainings[0] else None)
            axis.set_ylabel(what)
        for axis, name in zip(axes[2:], names, strict=True):
            points = [(e, v) for e, v in zip(one["points"]["epochs"], one["points"][name], strict=True) if e > 0]
            kept = [(e, v["value"], v["se"] or 0.0) for e, v in points if v["value"] is not None]
            if kept:
                axis.errorbar(*(list(column) for column in zip(*((a, b, c) for a, b, c in kept), strict=True)), lw=0.8)
            axis.set_ylabel(f"λ̂, {name}")
    axes[0].set_yscale("log")
    axes[0].legend(fontsize=7)
    axes[0].set_title(result.cell.name)
    axes[-1].set(xscale="log", xlabel="epoch")
    return _saved(pyplot, figure, folder / f"{re.sub(r'[^a-z0-9]+', '-', result.cell.name.lower()).strip('-')}.png")


def draw_rates(tables: Mapping[float, tuple[Sequence[float], Mapping[str, np.ndarray]]], path: Path) -> Path:
    """Severity and maxima of λ̂ against the learning rate, by weight decay."""
    pyplot = need("matplotlib.pyplot", extra="plot")
    names = [name for name in next(iter(tables.values()))[1] if name not in ("done", "delay")]
    figure, axes = pyplot.subplots(len(names), 1, figsize=(6, 2.6 * len(names)), sharex=True, squeeze=False)
    for axis, name in zip(axes[:, 0], names, strict=True):
        for decay, (rates, table) in tables.items():
            means, errors = zip(*(_mean(column) for column in table[name].T), strict=True)
            axis.errorbar(rates, means, yerr=errors, marker="o", ms=3, lw=1, label=f"weight decay {decay:g}")
        axis.set(xscale="log", yscale="log", ylabel="GSM" if name == "gsm" else f"max λ̂, {name}")
    axes[0, 0].legend(fontsize=7)
    axes[-1, 0].set_xlabel("learning rate")
    return _saved(pyplot, figure, path)


def _mean(values: np.ndarray) -> tuple[float, float]:
    kept = values[np.isfinite(values)]
    if not len(kept):
        return np.nan, np.nan
    return float(kept.mean()), float(kept.std(ddof=1) / np.sqrt(len(kept))) if len(kept) > 1 else 0.0


def draw_boundary(columns: Mapping[int, tuple[Sequence[float], ...]], fit: Boundary | None, path: Path) -> Path:
    """Validation accuracy against N/(M log M), by M."""
    pyplot = need("matplotlib.pyplot", extra="plot")
    figure, axis = pyplot.subplots(figsize=(6, 4))
    for m, (x, y) in columns.items():
        axis.plot(x, y, "o", ms=4, label=f"M = {m}")
    if fit is not None:
        grid = np.geomspace(min(min(x) for x, _ in columns.values()), max(max(x) for x, _ in columns.values()), 200)
        axis.plot(grid, 1 / (1 + (fit.middle / grid) ** (1 / fit.width)), "k-", lw=1)
    axis.set(xscale="log", xlabel="N / (M log M)", ylabel="validation accuracy")
    low, high = axis.get_xlim()
    axis.set_xticks([tick for tick in (0.5, 1, 2, 3, 5, 10, 20, 50) if low <= tick <= high])
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("")
    axis.legend(fontsize=7)
    return _saved(pyplot, figure, path)


def _saved(pyplot: Any, figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path
