"""Charts and tables of chains and of the estimates that rest on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from crunode.core.result import Draws
from crunode.reporting.charts import Chart, Series
from crunode.reporting.neighbors import chain_figures
from crunode.reporting.views import Table, finite, short
from crunode.store.run_numbers import Number, text_of

__all__ = ["chain_charts", "chain_tables", "level_charts", "number_table", "term_tables"]

_LEVELS, _TRACES, _POINTS, _CHAINS, _TOGETHER = 4, 4, 240, 64, 1024


_FIGURES = {"nbeta": 5, "value": 5, "se": 3, "rhat": 4, "ess": 5, "accept": 2}


def number_table(numbers: Sequence[Number], title: str = "Results") -> Table:
    """Results with their errors.

    Example:
        >>> number_table([Number("llc", 2.5, 0.1, 0.05, True)]).rows
        [('llc', '2.5', '0.1', '0.05', 'ok')]
    """
    rows = [
        (n.name, short(n.value, 6), short(n.se, 2), short(n.systematic, 2), "ok" if n.ok else "not ok")
        for n in numbers[:200]
    ]
    note = f"The first 200 of {len(numbers)}." if len(numbers) > 200 else ""
    return Table(title, ("what", "value", "± mc", "± sys", "verdict"), rows, note)


def term_tables(estimates: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Parts of the systematic errors, and figures of each level of nbeta, as estimates state them."""
    tables = []
    for content in estimates[:8]:
        name = text_of(content.get("name", ""), 100)
        terms, seen = content.get("terms"), content.get("diagnostics")
        if isinstance(terms, dict) and terms:
            parts = [(text_of(key, 100), short(value, 3)) for key, value in list(terms.items())[:40]]
            tables.append(Table(f"Systematic error of {name}, by cause", ("cause", "size"), parts))
        levels = level_rows(content)
        if levels:
            rows = [tuple(short(row.get(key), digits) for key, digits in _FIGURES.items()) for row in levels]
            head = ("nβ", "estimate", "± mc", "R-hat", "ESS", "acceptance")
            tables.append(Table(f"Levels of nβ behind {name}", head, rows))
        elif isinstance(seen, dict) and finite(seen.get("rhat")) is not None:
            row = (name, short(seen.get("rhat"), 4), short(seen.get("ess"), 5))
            tables.append(Table(f"Diagnostics of {name}", ("what", "R-hat", "ESS"), [row]))
    return tables


def level_rows(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Levels of nbeta as an estimate states them, without those that lack a value."""
    seen = content.get("diagnostics")
    levels = seen.get("levels") if isinstance(seen, dict) else None
    kept = [row for row in (levels if isinstance(levels, list) else [])[:64] if isinstance(row, dict)]
    return [r for r in kept if (finite(r.get("nbeta")) or 0) > 0 and finite(r.get("value")) is not None]


def level_charts(estimates: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """How the answer follows from the levels of nbeta."""
    charts = []
    for content in estimates[:4]:
        levels = sorted(level_rows(content), key=lambda row: row["nbeta"])
        value, se, systematic = (finite(content.get(k)) for k in ("value", "se", "systematic"))
        if len(levels) < 2 or value is None:
            continue
        name = text_of(content.get("name", ""), 60)
        x, y = [float(row["nbeta"]) for row in levels], [float(row["value"]) for row in levels]
        points = Series("level", x, y, [finite(row.get("se")) for row in levels], line=False, dots=True)
        band = (value, math.hypot(se or 0.0, systematic or 0.0))
        note = "Band: the answer with all its errors."
        charts.append(Chart(f"From levels of nβ to {name}", "nβ", "estimate", [points], "log", level=band, note=note))
    return charts


def chain_charts(draws: Draws) -> list[Chart]:
    """Traces of the chains at each level, and how the estimates settled.

    Example:
        >>> excess = np.random.default_rng(0).random((2, 50))
        >>> [chart.title for chart in chain_charts(Draws({"excess": excess}, {}, np.array([5.0, 5.0]), {}))]
        ['Traces at nβ = 5', 'Running estimate']
    """
    levels = draws.levels()
    if not levels:
        return []
    picked = (
        levels if len(levels) <= _LEVELS else [levels[k] for k in np.linspace(0, len(levels) - 1, _LEVELS, dtype=int)]
    )
    charts = [_traces(draws, level) for level in picked]
    lines = []
    for level in picked:
        values = _scaled(draws, level, draws.arrays)
        if values.size and np.isfinite(values).all():
            ends = np.unique(np.linspace(max(values.shape[1] // 50, 1), values.shape[1], 120).astype(int))
            means = (np.cumsum(values, 1)[:, ends - 1] / ends).mean(0)
            lines.append(Series(f"nβ = {_plain(level)}", ends.tolist(), means.tolist()))
    if lines:
        note = "Mean over all chains of a level, from the first kept draw on."
        charts.append(Chart("Running estimate", "draws kept", "nβ × excess loss", lines, note=note, table=False))
    return [chart for chart in charts if chart.drawable]


def _plain(level: float) -> str:
    return f"{level:.0f}" if 1000 <= level < 1e6 else f"{level:.4g}"


def _scaled(draws: Draws, level: float, source: Mapping[str, np.ndarray]) -> np.ndarray:
    rows = np.flatnonzero((draws.nbeta == level) & draws.role("ladder"))
    if "excess" not in source:
        return np.empty((rows.size, 0))
    with np.errstate(all="ignore"):
        return level * np.asarray(source["excess"], dtype=np.float64)[rows]


def _traces(draws: Draws, level: float) -> Chart:
    before, after = (_scaled(draws, level, source) for source in (draws.warmup, draws.arrays))
    whole = np.concatenate([before, after], 1)
    stride = max(1, -(-whole.shape[1] // _POINTS))
    x = (np.arange(whole.shape[1]) - before.shape[1])[::stride].tolist()
    lines = [Series(f"chain {k}", x, row[::stride].tolist()) for k, row in enumerate(whole[:_TRACES])]
    words = [f"{len(lines)} of {len(whole)} chains" if len(whole) > len(lines) else "all chains"]
    words += [f"one draw in {stride}"] if stride > 1 else []
    words += ["shaded: warm-up, which enters no estimate"] if before.shape[1] else []
    words += [] if np.isfinite(whole).all() else ["a chain diverged"]
    bands = [(-float(before.shape[1]), 0.0)] if before.shape[1] else []
    note = "; ".join(words).capitalize() + "."
    axis = "nβ × (loss − loss at center)"
    return Chart(f"Traces at nβ = {_plain(level)}", "draw", axis, lines, bands=bands, note=note, table=False)


def chain_tables(draws: Draws) -> list[Table]:
    """R-hat and effective sample size of the levels, and of every chain by itself."""
    if "excess" not in draws.arrays or not draws.draws:
        return []
    together: list[tuple[str, ...]] = []
    rows: list[tuple[str, ...]] = []
    chains = 0
    for level in draws.levels()[:64]:
        values = _scaled(draws, level, draws.arrays)
        found = chain_figures(values[:_TOGETHER], _CHAINS - len(rows))
        together.append((short(level, 5), str(len(values)), short(found["rhat"]), short(found["ess"], 5)))
        for k, each in enumerate(found["each"]):
            rows.append((str(k), short(level, 5), *(short(each[key]) for key in ("mean", "rhat", "ess"))))
        chains += len(values)
    note = "Split R-hat above 1.01 is doubtful; ESS is how many independent draws would give the same error."
    cut = f"The first {len(rows)} of {chains} chains. " if chains > len(rows) else ""
    head = ("chain", "nβ", "nβ × mean excess loss", "R-hat of its halves", "ESS")
    return [
        Table("Do the chains agree?", ("nβ", "chains", "R-hat", "ESS"), together, note),
        Table("Every chain by itself", head, rows, cut + "One chain's ESS is at most its number of draws or so.", True),
    ]
