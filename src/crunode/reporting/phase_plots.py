"""The picture of a phase diagram."""

from __future__ import annotations

from typing import Any

from crunode.reporting.plots import STYLE, level_colors, new_figure, plain_axes

__all__ = ["plot_phases"]

_MARKERS = "osD^vP*X"


def plot_phases(diagram: Any) -> Any:
    """Occupations of regions and scaled losses against nbeta, with transitions and their intervals.

    Args:
        diagram: What `crunode.phases` gives.

    Returns:
        A matplotlib figure.
    """
    figure = new_figure(7.5, 6.0)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.4, 1))
    for k, (name, color) in enumerate(zip(diagram.regions, level_colors(len(diagram.regions)), strict=True)):
        upper.errorbar(
            diagram.nbeta,
            diagram.occupation[:, k],
            diagram.occupation_se[:, k],
            marker=_MARKERS[k % len(_MARKERS)],
            markersize=5,
            capsize=2,
            color=color,
            label=name,
        )
    lower.errorbar(
        diagram.nbeta, diagram.scaled_loss, diagram.scaled_loss_se, marker="o", markersize=4, color=STYLE["ink"]
    )
    for change in diagram.transitions:
        low, high = max(change.low, diagram.nbeta[0]), min(change.high, diagram.nbeta[-1])
        for axes in (upper, lower):
            axes.axvspan(low, high, color=STYLE["band"], zorder=0, linewidth=0)
            axes.axvline(change.nbeta, color=STYLE["answer"], linewidth=1, linestyle="-" if change.sure else ":")
        text = f"{change.before} → {change.after}" + ("" if change.sure else " ?")
        upper.annotate(text, (change.nbeta, 1.02), fontsize=8, color=STYLE["answer"], ha="center", va="bottom")
    upper.set_xscale("log")
    upper.set_ylim(-0.03, 1.12)
    upper.legend(title=diagram.label, fontsize=8, title_fontsize=8, frameon=False)
    plain_axes(upper, "Which region holds the posterior", "", "share of draws")
    plain_axes(lower, "Scaled loss (λ within a phase)", "nβ", "nβ × mean loss above the center")
    return figure
