"""Pictures of estimates, with matplotlib."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crunode._extras import need
from crunode.core.result import Draws, Estimate

__all__ = ["STYLE", "draw_levels", "level_colors", "new_figure", "plain_axes", "plot_estimate"]

STYLE = {"ink": "#222222", "soft": "#767676", "shade": "#ECECEC", "answer": "#D55E00", "band": "#F6CDB0"}
"""Colors that stay apart for color-blind readers and in gray print."""

_MARKERS = "osD^vP*X"
_TRACES = 4
_POINTS = 600
_DOTS = 128


def new_figure(width: float, height: float) -> Any:
    """An empty figure with its own canvas; no global state of matplotlib is touched."""
    figure = need("matplotlib.figure", extra="plot").Figure(figsize=(width, height), dpi=110, layout="constrained")
    need("matplotlib.backends.backend_agg", extra="plot").FigureCanvasAgg(figure)
    return figure


def plain_axes(axes: Any, title: str, x: str, y: str) -> None:
    """Title, labels and a quiet frame."""
    axes.set_title(title, fontsize=10, loc="left", color=STYLE["ink"])
    axes.set_xlabel(x, fontsize=9, color=STYLE["ink"])
    axes.set_ylabel(y, fontsize=9, color=STYLE["ink"])
    axes.tick_params(labelsize=8, colors=STYLE["ink"])
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(STYLE["soft"])


def level_colors(count: int) -> list[Any]:
    """One color for each level of nbeta, dark to light in the order of the levels.

    Example:
        >>> len(level_colors(4))
        4
    """
    viridis = need("matplotlib", extra="plot").colormaps["viridis"]
    return [viridis(x) for x in (np.linspace(0.0, 0.78, count) if count > 1 else [0.25])]


def plot_estimate(estimate: Estimate) -> Any:
    """Draw an estimate: what the chains did, how the answer settled, and how it follows from the levels of nbeta.

    Args:
        estimate: An estimate, with or without its draws; one that failed is drawn as far as it went.

    Returns:
        A `matplotlib.figure.Figure`; save it with `figure.savefig("llc.png")`.

    Raises:
        MissingExtra: matplotlib is not installed.

    Example:
        >>> figure = plot_estimate(Estimate("llc", 2.5, se=0.1))
        >>> len(figure.subfigs)
        3
    """
    figure = new_figure(11.5, 4.2)
    figure.suptitle(str(estimate), fontsize=9.5, color=STYLE["ink"], x=0.01, ha="left")
    left, middle, right = figure.subfigures(1, 3, width_ratios=(1.2, 1, 1))
    _draw_traces(left, estimate.draws)
    _draw_running(middle.subplots(), estimate)
    draw_levels(right.subplots(), estimate)
    return figure


def _number(level: float) -> str:
    return f"{level:,.0f}" if level >= 100 else f"{level:.3g}"


def _nothing(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=STYLE["soft"], fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])


def _scaled(draws: Draws, level: float, source: Any) -> np.ndarray:
    """nβ times the excess loss of the chains at a level, (chain, draw); empty when there is none."""
    rows = np.flatnonzero(draws.nbeta == level)
    if "excess" not in source:
        return np.empty((rows.size, 0))
    return level * np.asarray(source["excess"], dtype=np.float64)[rows]


def _draw_traces(figure: Any, draws: Draws | None) -> None:
    """One strip of traces for each level of nbeta."""
    if draws is None:
        axes = figure.subplots()
        plain_axes(axes, "What the chains did", "", "")
        _nothing(axes, "no draws in this estimate")
        return
    levels = draws.levels()
    shown = min(_TRACES, draws.chains // len(levels))
    some = "all chains" if shown * len(levels) == draws.chains else f"{shown} of {draws.chains // len(levels)} chains"
    failed = draws.draws == 0 or not np.isfinite(draws.arrays["excess"]).all()
    strips = figure.subplots(len(levels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, level, color in zip(strips, levels, level_colors(len(levels)), strict=True):
        before, after = (_scaled(draws, level, source)[:shown] for source in (draws.warmup, draws.arrays))
        warm = before.shape[1]
        for values, start, alpha in ((before, -warm, 0.45), (after, 0, 0.8)):
            stride = max(1, -(-values.shape[1] // _POINTS))
            x = start + np.arange(values.shape[1])[::stride]
            for row in values[:, ::stride]:
                good = np.where(np.isfinite(row), row, np.nan)
                axes.plot(x, good, color=color, linewidth=0.6, alpha=alpha, rasterized=True)
        if warm:
            axes.axvspan(-warm, 0, color=STYLE["shade"], zorder=0, linewidth=0)
            axes.axvline(0, color=STYLE["soft"], linewidth=0.8)
        if failed:
            axes.set_yscale("symlog")
            axes.set_ylim(bottom=-1)
        else:
            _limit(axes, np.concatenate([before, after], 1))
        plain_axes(axes, "", "", "")
        axes.text(0.995, 0.97, f"nβ = {_number(level)}", transform=axes.transAxes, fontsize=8, va="top", ha="right")
        axes.set_xlim(-warm, max(draws.draws, 1))
    note = "a chain diverged" if failed else "shaded: warm-up"
    strips[0].set_title(f"Excess loss of {some} ({note})", fontsize=10, loc="left", color=STYLE["ink"])
    strips[-1].set_xlabel("step", fontsize=9, color=STYLE["ink"])
    figure.supylabel("nβ × (loss − loss at center)", fontsize=9, color=STYLE["ink"])


def _limit(axes: Any, values: np.ndarray) -> None:
    """Vertical limits that a few wild values do not take over."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return
    low, high = np.quantile(finite, [0.001, 0.995])
    room = 0.12 * (high - low) or 0.5
    with np.errstate(all="ignore"):
        if math.isfinite(high - low) and abs(high) < 1e200 and abs(low) < 1e200:
            axes.set_ylim(low - room, high + 2 * room)


def _draw_running(axes: Any, estimate: Estimate) -> None:
    draws = estimate.draws
    plain_axes(axes, "Running estimate ± its standard error", "draws kept", "estimate at nβ")
    if draws is None or draws.draws < 2 or not np.isfinite(draws.arrays["excess"]).all():
        _nothing(axes, "no complete draws" if draws is not None else "no draws in this estimate")
        return
    stored = {row["nbeta"]: row["se"] for row in estimate.diagnostics.get("levels", ())}
    ends = np.unique(np.geomspace(max(draws.draws // 50, 1), draws.draws, 60).astype(int))
    middle, levels = [], draws.levels()
    for level, color in zip(levels, level_colors(len(levels)), strict=True):
        values = _scaled(draws, level, draws.arrays)
        means = np.cumsum(values, 1)[:, ends - 1] / ends
        center = means.mean(0)
        # The last width is the stated error; before it, errors grow as the inverse root of the number of draws.
        final = stored.get(level, values.mean(1).std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan)
        width = final * np.sqrt(draws.draws / ends)
        axes.fill_between(ends, center - width, center + width, color=color, alpha=0.22, linewidth=0)
        axes.plot(ends, center, color=color, linewidth=1.5)
        late = ends >= draws.draws / 10
        middle += [*(center - width)[late], *(center + width)[late]]
    _limit(axes, np.asarray(middle))
    axes.set_xlim(0, draws.draws)


def draw_levels(axes: Any, estimate: Estimate) -> None:
    """Estimates of single chains and of each level of nbeta, and the answer they lead to."""
    draws, rows = estimate.draws, list(estimate.diagnostics.get("levels", ()))
    many = len(rows) > 1
    plain_axes(axes, "From levels to the answer" if many else "Estimates of single chains", "nβ", "estimate")
    if not rows or not math.isfinite(estimate.value):
        _nothing(
            axes, "no value" if not math.isfinite(estimate.value) else f"{estimate.value:.4g} ± {estimate.error:.2g}"
        )
        return
    rng, seen = np.random.default_rng(0), [estimate.value - estimate.error, estimate.value + estimate.error]
    axes.set_xscale("log")
    for number, (row, color) in enumerate(zip(rows, level_colors(len(rows)), strict=True)):
        level, marker = row["nbeta"], _MARKERS[number % len(_MARKERS)]
        if draws is not None and level in draws.levels():
            chains = _scaled(draws, level, draws.arrays).mean(1)[:_DOTS]
            spread = 1 + 0.12 * (rng.random(chains.size) - 0.5)
            axes.plot(level * spread, chains, ".", color=color, markersize=3.5, alpha=0.45, zorder=2)
            seen += list(np.quantile(chains, [0.03, 0.97]))
        bar = {"color": color, "markersize": 7, "capsize": 3, "markeredgecolor": "white", "zorder": 3}
        axes.errorbar(level, row["value"], row["se"], fmt=marker, **bar)
        seen += [row["value"] - row["se"], row["value"] + row["se"]]
    low, high = rows[0]["nbeta"], rows[-1]["nbeta"]
    ratio = high / low if many else 4.0
    right = high * ratio**0.3
    axes.set_xlim(low / ratio**0.12, right * ratio**0.12)
    axes.set_xticks([*(row["nbeta"] for row in rows), right], [*(_number(row["nbeta"]) for row in rows), "answer"])
    axes.minorticks_off()
    value, error = estimate.value, estimate.error
    if math.isfinite(error):
        axes.axhspan(value - error, value + error, color=STYLE["band"], zorder=0)
    axes.axhline(value, color=STYLE["answer"], linewidth=1, zorder=1)
    bar = {"color": STYLE["answer"], "markersize": 8, "capsize": 4, "markeredgecolor": "white", "zorder": 4}
    axes.errorbar(right, value, error if math.isfinite(error) else None, fmt="D", **bar)
    _limit(axes, np.asarray(seen))
    text = {"fontsize": 8, "color": STYLE["answer"], "ha": "right", "transform": axes.transAxes}
    plain = estimate.diagnostics.get("plain") or {}
    name = f"at nβ = {_number(plain['nbeta'])}" if plain.get("value") == value else "extrapolated" if many else "answer"
    axes.text(0.99, 0.02, f"{name}: {value:.4g} ± {error:.2g} (all errors)", **text)
