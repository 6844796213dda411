"""Charts as data, and where their lines go on the page: drawn by a template, zoomed by a script from the same data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from crunode.reporting.chart_axes import inverse, tick_text, ticks, transform
from crunode.store.guarded import shown
from crunode.store.run_numbers import text_of

__all__ = ["WIDTH", "Chart", "Series", "chart_data", "drawing"]

WIDTH = 420
"""Width of a drawing in its own units, which the page scales."""

_COLORS = 8
_FAR = 1e150  # what is further out cannot be drawn to scale with anything


@dataclass(frozen=True)
class Series:
    """Points of one kind.

    Attributes:
        name: What they are.
        x: Horizontal places, ascending.
        y: Values; None and values that are not finite leave a gap.
        error: Lengths of the error bars, up and down.
        line: Whether the points are joined.
        dots: Whether they are marked.
        hollow: Which of the marks are hollow: points that cannot be trusted.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    error: Sequence[float | None] | None = None
    line: bool = True
    dots: bool = False
    hollow: Sequence[bool] = ()


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        title: What it shows, in a few words.
        x_label: Name of the horizontal axis.
        y_label: Name of the vertical axis.
        series: What is drawn.
        scale: One of `crunode.reporting.chart_axes.SCALES`.
        bands: Upright bands (from, to), such as intervals of change points and warm-up.
        marks: Upright lines.
        level: A horizontal line and half the width of the band around it: the answer.
        note: What the reader should know.
        names: Words in the place of numbers on the vertical axis, for values 0, 1, ...
        table: Whether its values are listed below it too.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    scale: str = "linear"
    bands: Sequence[tuple[float, float]] = ()
    marks: Sequence[float] = ()
    level: tuple[float, float] | None = None
    note: str = ""
    names: Sequence[str] = field(default=())
    table: bool = True

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, width and height of the field inside the axes; names take more room than numbers."""
        return (150, 8, 252, max(18 * len(self.names), 60)) if self.names else (56, 8, 346, 202)

    @property
    def drawable(self) -> bool:
        """Whether there is a point to draw."""
        return any(True for s in self.series for _ in _points(s, self.scale))


def chart_data(chart: Chart) -> str:
    """What the script needs to draw the chart anew, as JSON text; names are bounded and without control characters."""
    xs: list[list[float]] = []
    listed = []
    for series in chart.series:
        x = [_short(v) for v in series.x]
        if x not in xs:
            xs.append(x)
        content: dict[str, Any] = {"name": _name(series.name), "x": xs.index(x), "y": [_short(v) for v in series.y]}
        if series.error is not None:
            content["error"] = [_short(v) for v in series.error]
        if any(series.hollow):
            content["hollow"] = [k for k, hollow in enumerate(series.hollow) if hollow]
        listed.append(content)
    labels = [_name(chart.x_label), _name(chart.y_label)]
    names = [_name(name) for name in chart.names]
    domain = _domain(chart)
    return json.dumps(
        {
            "scale": chart.scale,
            "box": chart.box,
            "domain": domain,
            "xs": xs,
            "series": listed,
            "labels": labels,
            "names": names,
        }
        | {"bands": _bands(chart), "marks": _marks(chart), "level": _level(chart)},
        separators=(",", ":"),
        allow_nan=False,
    )


def drawing(chart: Chart) -> dict[str, Any]:
    """Paths, ticks and places of a chart in the units of its drawing."""
    x0, x1, y0, y1 = _domain(chart)
    left, top, width, height = chart.box
    put = transform(chart.scale)
    span = (put(x1) - put(x0)) or 1.0

    def across(x: float) -> float:
        return (put(x) - put(x0)) / span * width

    def down(y: float) -> float:
        return height - (y - y0) / ((y1 - y0) or 1.0) * height

    named = {float(k): _name(text, 22) for k, text in enumerate(chart.names)}
    rows = sorted(named) if named else ticks(y0, y1)
    found: dict[str, Any] = {
        "x_ticks": [(round(left + across(v), 1), tick_text(v)) for v in ticks(x0, x1, chart.scale)],
        "y_ticks": [(round(top + down(v), 1), named.get(v, tick_text(v))) for v in rows],
        "bands": [(round(across(a), 1), round(max(across(b) - across(a), 1.0), 1)) for a, b in _bands(chart)],
        "marks": [round(across(v), 1) for v in _marks(chart)],
        "series": [_paths(s, chart.scale, across, down) | {"color": k % _COLORS} for k, s in enumerate(chart.series)],
    }
    if (level := _level(chart)) is not None:
        value, half = level
        top_edge, bottom = down(value + half), down(value - half)
        found["level"] = (round(down(value), 1), round(top_edge, 1), round(max(bottom - top_edge, 0.0), 1))
    return found


def _paths(series: Series, scale: str, across: Any, down: Any) -> dict[str, str]:
    line, dots, holes, bars = [], [], [], []
    last = -2
    for k, x, y in _points(series, scale):
        px, py = f"{across(x):.1f}", f"{_held(down(y)):.1f}"
        line.append(f"{'L' if last == k - 1 else 'M'}{px} {py}")
        last = k
        dots.append(f"M{px} {py}h0")
        if k < len(series.hollow) and series.hollow[k]:
            holes.append(f"M{px} {py}h0")
        error = None if series.error is None or k >= len(series.error) else series.error[k]
        if error is not None and _near(error):
            bars.append(f"M{px} {_held(down(y - error)):.1f}V{_held(down(y + error)):.1f}")
    return {
        "line": "".join(line) if series.line else "",
        "dots": "".join(dots) if series.dots else "",
        "holes": "".join(holes) if series.dots else "",
        "bars": "".join(bars),
    }


def _points(series: Series, scale: str) -> Iterable[tuple[int, float, float]]:
    for k, (x, y) in enumerate(zip(series.x, series.y, strict=False)):
        if y is not None and _near(y) and _along(x, scale):
            yield k, x, y


def _domain(chart: Chart) -> tuple[float, float, float, float]:
    """Least and largest x and y that are drawn; a few wild values of a long series do not take over."""
    points = [(x, y, _bar(s, k), s.dots) for s in chart.series for k, x, y in _points(s, chart.scale)]
    if not points:
        return 1.0, 10.0, 0.0, 1.0
    xs = [p[0] for p in points] + [v for band in _bands(chart) for v in band] + _marks(chart)
    if chart.names:
        return *_room(min(xs), max(xs), chart), -0.5, len(chart.names) - 0.5
    ys = sorted(y for _, y, _, dots in points if not dots)
    if len(ys) > 400:
        ys = ys[len(ys) // 1000 : len(ys) - len(ys) // 400]
    ys += [v for _, y, error, dots in points for v in (y - error, y + error) if dots]
    if (level := _level(chart)) is not None:
        ys += [level[0] - level[1], level[0] + level[1]]
    low, high = min(ys), max(ys)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    return *_room(min(xs), max(xs), chart), low - pad, high + pad


def _bands(chart: Chart) -> list[tuple[float, float]]:
    return [band for band in chart.bands if all(_along(x, chart.scale) for x in band)]


def _marks(chart: Chart) -> list[float]:
    return [x for x in chart.marks if _along(x, chart.scale)]


def _level(chart: Chart) -> tuple[float, float] | None:
    return chart.level if chart.level is not None and all(_near(v) for v in chart.level) else None


def _room(low: float, high: float, chart: Chart) -> tuple[float, float]:
    """The horizontal range, with room at both ends for marks and error bars."""
    scale = chart.scale
    if high > low:
        put, back = transform(scale), inverse(scale)
        pad = 0.03 * (put(high) - put(low)) if any(series.dots for series in chart.series) else 0.0
        return (low if scale == "log1p" and low <= 0 else back(put(low) - pad)), back(put(high) + pad)
    return (low / 2, high * 2) if scale == "log" else (low, high + 1) if scale == "log1p" else (low - 0.5, high + 0.5)


def _bar(series: Series, k: int) -> float:
    error = None if series.error is None or k >= len(series.error) else series.error[k]
    return error if error is not None and _near(error) else 0.0


def _near(value: float) -> bool:
    return abs(value) < _FAR  # false for what is not a number, too


def _along(x: float, scale: str) -> bool:
    """Whether x has a place on an axis of the scale."""
    return _near(x) and x >= {"linear": -_FAR, "log": 1 / _FAR, "log1p": 0.0}[scale]


def _held(place: float) -> float:
    """A place not so far out that browsers lose count."""
    return min(max(place, -5000.0), 5000.0)


def _short(value: float | None) -> Any:
    return None if value is None or not _near(value) else float(f"{value:.6g}")


def _name(text: str, most: int = 80) -> str:
    return shown(text_of(text, most))
