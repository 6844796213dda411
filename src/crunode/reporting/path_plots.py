"""Pictures of paths between solutions, and of merge trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from crunode.reporting.plots import STYLE, level_colors, new_figure, plain_axes

__all__ = ["plot_merge_tree", "plot_path"]


def plot_path(found: Any) -> Any:
    """The loss along a path, with its grid points, what it stays below, and the level it was held against.

    Args:
        found: A path, or anything with one as `path`: what `connect` and `barrier` of `crunode.topology` give.

    Returns:
        A matplotlib figure.

    Example:
        >>> from types import SimpleNamespace
        >>> path = SimpleNamespace(positions=[0.0, 0.5, 1.0], losses=[0.0, 1.0, 0.0], largest=1.0, bound=1.1)
        >>> len(plot_path(path).axes)
        1
    """
    path = getattr(found, "path", found)
    figure = new_figure(6.0, 3.8)
    axes = figure.subplots()
    if path is None:
        axes.text(0.5, 0.5, f"unknown: {found.reason}", ha="center", va="center", fontsize=9, wrap=True)
        plain_axes(axes, f"No path found at level {found.level:.4g}", "", "")
        return figure
    axes.plot(path.positions, path.losses, color=STYLE["ink"], linewidth=1.2, marker=".", markersize=3)
    axes.axhspan(path.largest, path.bound, color=STYLE["band"], linewidth=0, label="may be between grid points")
    if hasattr(found, "answer"):
        axes.axhline(found.level, color=STYLE["answer"], linewidth=1, label="level")
    axes.set_xlim(0, 1)
    axes.legend(fontsize=8, frameon=False)
    plain_axes(axes, f"Largest loss {path.largest:.4g} on {len(path.losses)} grid points", "share of the path", "loss")
    return figure


def plot_merge_tree(tree: Any) -> Any:
    """A merge tree: solutions at their losses, joined at the levels where paths join them; beside it N over levels.

    Args:
        tree: What `crunode.topology.merge_tree` gives.

    Returns:
        A matplotlib figure.
    """
    figure = new_figure(9.0, 4.0)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.5, 1))
    order = _order(tree)
    place = {(solution,): float(x) for x, solution in enumerate(order)}
    bottom = {(k,): float(loss) for k, loss in enumerate(tree.losses)}
    color = level_colors(1)[0]
    for merge in tree.merges:
        ends = [tuple(sorted(side)) for side in (merge.left, merge.right)]
        x, y = [place[side] for side in ends], [bottom[side] for side in ends]
        left.plot([x[0], x[0], x[1], x[1]], [y[0], merge.level, merge.level, y[1]], color=color, linewidth=1.4)
        whole = tuple(sorted(merge.left + merge.right))
        place[whole], bottom[whole] = sum(x) / 2, merge.level
    left.plot(range(len(order)), [tree.losses[k] for k in order], "o", color=STYLE["ink"], markersize=4)
    left.set_xticks(range(len(order)), [str(k) for k in order])
    top = max([m.level for m in tree.merges] + list(tree.losses))
    low = float(min(tree.losses))
    levels = np.linspace(low, top + 0.1 * max(top - low, 1e-12), 400)
    right.step(tree.components(levels), levels, where="post", color=STYLE["answer"])
    plain_axes(left, "Solutions and the levels that join them", "solution", "loss")
    plain_axes(right, "Components, at most", "number", "")
    return figure


def _order(tree: Any) -> list[int]:
    """Solutions such that groups that merge lie side by side."""
    rows = {(k,): [k] for k in range(len(tree.losses))}
    for merge in tree.merges:
        left, right = tuple(sorted(merge.left)), tuple(sorted(merge.right))
        rows[tuple(sorted(left + right))] = rows.pop(left) + rows.pop(right)
    return [k for row in rows.values() for k in row]
