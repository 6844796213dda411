"""The picture of a trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crunode.errors import InputError
from crunode.reporting.plots import STYLE, new_figure, plain_axes

__all__ = ["plot_trajectory"]


def plot_trajectory(trajectory: Any, names: Sequence[str] | None = None, *, transitions: bool = True) -> Any:
    """Each column with its errors against the step, change points with their intervals, and where probes failed.

    Estimates that are not ok are hollow; failures are marked at the lower edge.

    Args:
        trajectory: What a `Tracker` gives.
        names: Which columns; all by default.
        transitions: Whether to look for change points, where there are at least six estimates.

    Returns:
        A matplotlib figure.

    Raises:
        InputError: There is nothing to draw.
        MissingExtra: matplotlib is not installed.

    Example:
        >>> from crunode.core.result import Estimate
        >>> from crunode.training.trajectory import Trajectory, Visit
        >>> visits = [Visit(k, 1.0, "", {"llc": Estimate("llc", 5.0 - k, se=0.1)}) for k in range(3)]
        >>> len(plot_trajectory(Trajectory(tuple(visits), ("llc",), n=100)).axes)
        1
    """
    shown = list(trajectory.names if names is None else names)
    if not shown or not len(trajectory):
        raise InputError(f"expected a trajectory with visits and columns to draw, got {trajectory}")
    figure = new_figure(7.5, 1.0 + 2.3 * len(shown))
    rows = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, name in zip(rows, shown, strict=True):
        _draw(axes, trajectory, name, transitions)
    rows[-1].set_xlabel("step", fontsize=9, color=STYLE["ink"])
    return figure


def _draw(axes: Any, trajectory: Any, name: str, transitions: bool) -> None:
    steps, values, errors = np.array(trajectory.steps), trajectory.values(name), trajectory.errors(name)
    failed = np.isin(steps, [step for step, which, _ in trajectory.failures() if which == name])
    drawn = np.isfinite(values) & ~failed
    good = trajectory.ok(name) & drawn
    title = name
    usable = good if good.sum() >= 6 else drawn
    if transitions and usable.sum() >= 6:
        found = trajectory.transitions(name, only_ok=bool(good.sum() >= 6))
        for change in found.changes:
            axes.axvspan(change.low, change.high, color=STYLE["band"], zorder=0, linewidth=0)
            axes.axvline((change.previous + change.step) / 2, color=STYLE["answer"], linewidth=1)
        for point in found.critical:
            marker = "v" if point.kind == "maximum" else "^"
            axes.plot((point.low + point.high) / 2, point.value, marker, color=STYLE["answer"], markersize=6, zorder=4)
        title = f"{name}: {len(found)} change{'s' * (len(found) != 1)}"
    spread = np.where(np.isfinite(errors), errors, 0.0)
    axes.plot(steps[drawn], values[drawn], color=STYLE["soft"], linewidth=0.8, zorder=2)
    for part, face in ((good, STYLE["ink"]), (drawn & ~good, "white")):
        axes.errorbar(
            steps[part],
            values[part],
            spread[part],
            fmt="o",
            markersize=4,
            capsize=2,
            color=STYLE["ink"],
            markerfacecolor=face,
            linewidth=1,
            zorder=3,
        )
    if failed.any():
        lower = axes.get_xaxis_transform()
        axes.plot(steps[failed], np.full(failed.sum(), 0.02), "x", color=STYLE["answer"], transform=lower, markersize=6)
    if _is_log(steps):
        axes.set_xscale("symlog", linthresh=max(float(steps[steps > 0].min()), 1.0) if (steps > 0).any() else 1.0)
    plain_axes(axes, title, "", name)


def _is_log(steps: Any) -> bool:
    """Whether the steps are spread more evenly in their logarithm than in themselves."""
    if len(steps) < 4:
        return False
    gaps = [np.diff(x.astype(float)) for x in (np.log1p(steps), steps)]
    return bool(gaps[0].std() / gaps[0].mean() < gaps[1].std() / gaps[1].mean())
