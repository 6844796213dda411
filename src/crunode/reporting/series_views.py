"""Charts and tables of trajectories, trainings and sweeps, from their documents."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from crunode.reporting.charts import Chart, Series
from crunode.reporting.neighbors import changes_of
from crunode.reporting.views import Table, finite, short
from crunode.store.run_numbers import text_of

__all__ = ["history_charts", "sweep_parts", "trajectory_parts"]

_PROBES, _COLUMNS, _AXIS = 8, 8, 24


def trajectory_parts(visits: Sequence[Mapping[str, Any]]) -> tuple[list[Chart], list[Table], str]:
    """Charts of the probes along the steps with change points, tables of these, and a sentence about them.

    Args:
        visits: As `Visit.to_dict` gives them, in the order of their steps.

    Example:
        >>> def visit(step):
        ...     return {"step": step, "loss": 1.0, "estimates": {"llc": {"value": 9.0 - 5 * (step > 4), "se": 0.1}}}
        >>> trajectory_parts([visit(step) for step in range(10)])[2]
        'llc: 1 change, between steps 4 and 5'
    """
    known = [(step, visit) for visit in visits if (step := _whole(visit.get("step"))) is not None]
    steps = [step for step, _ in known]
    scale = "log1p" if _is_log(steps) else "linear"
    names = dict.fromkeys(str(name) for _, v in known for name in _mapping(v.get("estimates")))
    charts, rows, said = [], [], []
    for name in list(names)[:_PROBES]:
        found = [_mapping(_mapping(v.get("estimates")).get(name)) for _, v in known]
        values, errors = [finite(e.get("value")) for e in found], [finite(e.get("se")) for e in found]
        good = [_trusted(e) for e in found]
        use = good if sum(good) >= 6 else [v is not None for v in values]
        kept = [k for k, u in enumerate(use) if u and values[k] is not None]
        title = text_of(name, 60)
        turns = changes_of(
            [steps[k] for k in kept], [values[k] or 0.0 for k in kept], [errors[k] or 0.0 for k in kept], name
        )
        changes = [] if turns is None else list(turns.changes)
        rows += [
            (
                title,
                f"{c.previous} to {c.step}",
                f"{c.low} to {c.high}",
                f"{c.jump:.3g} ± {c.jump_se:.2g}",
                f"{c.p_value:.2g}",
            )
            for c in changes
        ]
        if turns is not None:
            places = ", ".join(f"between steps {c.previous} and {c.step}" for c in changes[:3])
            said.append(
                f"{title}: {len(changes)} change{'s' * (len(changes) != 1)}" + (f", {places}" if places else "")
            )
        hollow = [not ok for ok in good]
        line = Series(title, [float(s) for s in steps], values, errors, dots=True, hollow=hollow)
        note = ["Lines and shades: change points with 95 % intervals."] if changes else []
        note += ["Hollow: not ok."] if any(hollow) else []
        note += [f"Failed at {values.count(None)} steps."] if None in values else []
        bands, marks = [(float(c.low), float(c.high)) for c in changes], [(c.previous + c.step) / 2 for c in changes]
        chart = Chart(f"{title} along training", "step", title, [line], scale, bands, marks, note=" ".join(note))
        charts.append(chart)
    losses = Series("loss", [float(s) for s in steps], [finite(v.get("loss")) for _, v in known], dots=True)
    charts.append(Chart("Loss along training", "step", "loss", [losses], scale))
    head = ("what", "between steps", "interval", "jump", "p")
    tables = (
        [Table("Change points", head, rows, "p: how often a series without a change shows one as strong.")]
        if rows
        else []
    )
    return [chart for chart in charts if chart.drawable], tables, "; ".join(said[:4])


def history_charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Loss and whatever else was measured, epoch after epoch.

    Example:
        >>> [chart.title for chart in history_charts([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}])]
        ['Loss']
    """
    columns = dict.fromkeys(str(name) for row in rows for name in row)
    epochs = [e if (e := finite(row.get("epoch"))) is not None else float(k + 1) for k, row in enumerate(rows)]
    both = [name for name in ("loss", "validation_loss") if name in columns]
    groups: list[tuple[str, list[str]]] = [("Loss", list(both))] if both else []
    rest = [name for name in columns if name not in ("epoch", "step", "seconds", *both)]
    groups += [(text_of(name, 60).replace("_", " ").capitalize(), [name]) for name in rest]
    charts = []
    for title, names in groups[:_COLUMNS]:
        lines = [
            Series(text_of(n, 60).replace("_", " "), epochs, [finite(r.get(n)) for r in rows], dots=len(rows) <= 60)
            for n in names
        ]
        charts.append(Chart(title, "epoch", title.lower(), lines))
    return [chart for chart in charts if chart.drawable]


def sweep_parts(sweep: Mapping[str, Any]) -> tuple[list[Chart], list[Table]]:
    """The grid of a sweep: a table and a chart for each nbeta, and how far the answer moves.

    Args:
        sweep: As `Sweep.to_dict` gives it.
    """
    listed = sweep.get("cells")
    cells = [c for c in (listed if isinstance(listed, list) else [])[:20_000] if isinstance(c, dict)]
    cells = [c for c in cells if all((finite(c.get(k)) or 0) > 0 for k in ("step", "precision", "nbeta"))]
    axes = {key: sorted({float(c[key]) for c in cells})[:_AXIS] for key in ("step", "precision", "nbeta")}
    at = {(float(c["nbeta"]), float(c["precision"]), float(c["step"])): c for c in cells}
    charts, tables = [], []
    for nbeta in axes["nbeta"][:4]:
        rows = [
            (short(step, 3), *(_grid_cell(at.get((nbeta, p, step))) for p in axes["precision"]))
            for step in axes["step"]
        ]
        head = ("step", *(f"γ = {p:.3g}" for p in axes["precision"]))
        note = "“not ok” and “diverged” mark cells without an answer to trust."
        tables.append(Table(f"λ̂ over step and precision at nβ = {nbeta:.4g}", head, rows, note))
        lines = []
        for precision in axes["precision"][:8]:
            found = [_mapping(at.get((nbeta, precision, step))) for step in axes["step"]]
            y, error = [finite(c.get("value")) for c in found], [finite(c.get("se")) for c in found]
            hollow = [c.get("ok") is not True for c in found]
            lines.append(Series(f"γ = {precision:.3g}", axes["step"], y, error, dots=True, hollow=hollow))
        charts.append(
            Chart(f"λ̂ against the step at nβ = {nbeta:.4g}", "step", "λ̂", lines, "log", note="Hollow: not ok.")
        )
    moves = _mapping(_mapping(sweep.get("summary")).get("sensitivity"))
    rows = []
    for axis in ("step", "precision", "nbeta"):
        seen = _mapping(moves.get(axis))
        if seen:
            share = finite(seen.get("share"))
            rows.append(
                (
                    axis,
                    *(short(seen.get(k), 3) for k in ("low", "high", "range", "se")),
                    f"{100 * share:.0f} %" if share is not None else "–",
                )
            )
    if rows:
        head = ("setting", "least", "largest", "range", "± mc", "share")
        tables.insert(0, Table("How far λ̂ moves when a setting is halved or doubled", head, rows))
    return [chart for chart in charts if chart.drawable], tables


def _grid_cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "–"
    findings = cell.get("findings")
    if isinstance(findings, list) and "MC204" in findings:
        return "diverged"
    return short(cell.get("value"), 3) + ("" if cell.get("ok") is True else " not ok")


def _trusted(estimate: Mapping[str, Any]) -> bool:
    if any(finite(estimate.get(key, 0.0)) is None for key in ("value", "se", "systematic")):
        return False
    findings = estimate.get("findings", [])
    listed = findings if isinstance(findings, list) else [None]
    return all(isinstance(f, dict) and f.get("severity") != "error" for f in listed)


def _is_log(steps: Sequence[int]) -> bool:
    """Whether the steps are spread more evenly in their logarithm than in themselves."""
    if len(steps) < 4:
        return False
    spreads = []
    for place in ([math.log1p(s) for s in steps], [float(s) for s in steps]):
        gaps = [b - a for a, b in itertools.pairwise(place)]
        mean = sum(gaps) / len(gaps)
        spreads.append(math.sqrt(sum((g - mean) ** 2 for g in gaps)) / mean if mean > 0 else math.inf)
    return spreads[0] < spreads[1]


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
