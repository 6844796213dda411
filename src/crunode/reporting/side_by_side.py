"""Several runs side by side, as HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from crunode.reporting.charts import Chart, Series
from crunode.reporting.fragments import chart_html, render, shown_settings, table_html
from crunode.reporting.views import RunView, Table, short
from crunode.store.run_compare import compared
from crunode.store.run_numbers import text_of

__all__ = ["comparison_page"]

_COMPARED, _SETTINGS = 400, 60


def comparison_page(views: Sequence[RunView], anchors: Sequence[str], *, level: int = 2) -> str:
    """Several runs side by side: answers, differences of like results, and the settings that differ.

    Args:
        views: The runs; the others are held against the first.
        anchors: Where the page shows them: ids, or addresses of pages of their own.
        level: Level of its heading.

    Example:
        >>> from crunode.core.result import Estimate
        >>> from crunode.reporting.result_views import result_view
        >>> views = [result_view(Estimate("llc", 2.0 + k, se=0.3), f"run {k}") for k in (0, 1)]
        >>> "+2.36" in comparison_page(views, ["#run-1", "#run-2"])
        True
    """
    found = compared([(f"{k + 1}. {view.name}", view.record.numbers) for k, view in enumerate(views)])
    counts = Counter(row.quantity for row in found.rows)
    shared = [row for row in found.rows if counts[row.quantity] > 1]
    rows = []
    for row in shared[:_COMPARED]:
        figures = (short(row.value, 6), short(row.se, 2), short(row.systematic, 2), "ok" if row.ok else "not ok")
        gaps = ("–" if gap is None else f"{gap:+.3g}" for gap in (row.difference, row.z))
        rows.append((row.quantity, row.run, *figures, *gaps))
    head = ("what", "run", "value", "± mc", "± sys", "verdict", "difference", "z")
    note = "Difference from the first run, and z: the difference over the stated errors of both, taken as independent."
    note += f" The first {_COMPARED} rows." if len(shared) > _COMPARED else ""
    return render(
        "comparison.html.j2",
        views=list(zip(views, anchors, strict=True)),
        level=level,
        results=table_html(Table("Results side by side", head, rows, note)) if rows else "",
        settings=table_html(table) if (table := _differing(views)) is not None else "",
        charts=[chart_html(chart) for chart in _forest(views)],
    )


def _differing(views: Sequence[RunView]) -> Table | None:
    """Settings that are not the same in all runs of one kind."""
    if len(views) > 12 or len({view.record.kind for view in views}) > 1:
        return None
    found = [{"seed": view.record.seed, **dict(shown_settings(view.record.settings))} for view in views]
    keys = dict.fromkeys(key for each in found for key in each)
    rows = [
        (key, *(str(each.get(key, "–")) for each in found))
        for key in keys
        if len({str(each.get(key, "–")) for each in found}) > 1
    ]
    if not rows:
        return Table("Settings that differ", ("setting",), [], "The settings are the same.")
    head = ("setting", *(f"{k + 1}. {view.name}" for k, view in enumerate(views)))
    return Table(
        "Settings that differ", head, rows[:_SETTINGS], f"The first {_SETTINGS}." if len(rows) > _SETTINGS else ""
    )


def _forest(views: Sequence[RunView]) -> list[Chart]:
    """The first result that several runs have, with all errors."""
    tables = [{n.name: n for n in view.record.numbers if n.value is not None} for view in views]
    names = [name for table in tables for name in table if sum(name in other for other in tables) > 1]
    if not names or len(views) > 40:
        return []
    name = "llc" if "llc" in names else names[0]
    have = [(k, table[name]) for k, table in enumerate(tables) if name in table]
    x = [float(k + 1) for k, _ in have]
    values = [number.value for _, number in have]
    bars, hollow = [number.error for _, number in have], [not number.ok for _, number in have]
    series = Series(name, x, values, bars, line=False, dots=True, hollow=hollow)
    return [
        Chart(
            f"{text_of(name, 60)} of all runs", "run", name, [series], note="Bars: all stated errors. Hollow: not ok."
        )
    ]
