"""Figs. 1 and 3-9 of Murfet et al. 2020: E[G(n)] against n, with error bars over data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crunode.jobs import Result
from crunode.reporting import new_figure, plain_axes
from crunode_papers.murfet2020.networks import Panel
from crunode_papers.murfet2020.table import collect, label

__all__ = ["draw_figures"]

_STYLES = {
    "MAP": ("#222222", "o", "-"),
    "last-layer MCMC": ("#0072B2", "s", "-"),
    "two-layer MCMC": ("#D55E00", "D", "-"),
    "last-layer Laplace": ("#009E73", "^", "-"),
    "two-layer Laplace": ("#CC79A7", "v", "-"),
    "last-layer Laplace as coded": ("#009E73", "^", ":"),
    "last-layer MCMC as coded": ("#0072B2", "s", ":"),
}
_MAIN = ("MAP", "last-layer MCMC", "two-layer MCMC", "last-layer MCMC as coded")
_LAPLACE = ("MAP", "last-layer Laplace", "two-layer Laplace", "last-layer Laplace as coded")
_NUMBERS = {1: (1, 6), 3: (3, 7), 4: (4, 8), 5: (5, 9)}


def draw_figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Two pictures for each table: the figure with MAP and MCMC, and the one with the Laplace approximations."""
    tables: dict[int, list[tuple[Panel, list[int], dict[str, Any]]]] = {}
    for found in collect(results):
        tables.setdefault(found[0].table, []).append(found)
    paths = []
    for table, panels in tables.items():
        for number, methods in zip(_NUMBERS[table], (_MAIN, _LAPLACE), strict=True):
            path = folder / f"figure{number}.png"
            _figure(panels, methods).savefig(path)
            paths.append(path)
    return paths


def _figure(panels: Sequence[tuple[Panel, list[int], dict[str, Any]]], methods: Sequence[str]) -> Any:
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure = new_figure(5.2 * columns, 3.6 * lines)
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, (panel, sizes, arrays) in zip(grid, panels, strict=False):
        for k, name in enumerate(methods):
            color, marker, line = _STYLES[name]
            errors = arrays[name]
            axes.errorbar(
                np.asarray(sizes) * (1 + 0.008 * (k - 1.5)),  # apart, so that bars do not hide one another
                errors.mean(1),
                yerr=errors.std(1, ddof=1) / np.sqrt(errors.shape[1]),
                color=color,
                marker=marker,
                linestyle=line,
                markersize=4,
                linewidth=1,
                capsize=2,
                label=name,
            )
        axes.set_xscale("log")
        if "two-layer Laplace" in methods:
            axes.set_yscale("log")
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.minorticks_off()
        plain_axes(axes, label(panel), "n", "average G(n)")
        axes.tick_params(axis="x", labelsize=7)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    grid[0].legend(fontsize=7, frameon=False)
    return figure
