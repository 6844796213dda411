"""Views as HTML: pieces that a report puts into one file and a server sends one by one.

Every text from a run is bounded, freed of control characters and escaped on its way into a page.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from crunode._extras import need
from crunode.errors import FINDINGS
from crunode.reporting.charts import WIDTH, Chart, Series, chart_data, drawing
from crunode.reporting.views import RunView, Table, short, stated
from crunode.store.guarded import shown
from crunode.store.run_numbers import flat_settings, text_of

__all__ = ["asset", "chart_html", "environment", "findings_list", "render", "run_page", "shown_settings", "table_html"]

_LONGEST = 4000
_SPACES = {ord(sign): " " for sign in "\n\r\t"}
_ORDER = {"error": 0, "warning": 1, "info": 2}
_VALUES, _SETTINGS = 120, 60
_NUMBER = re.compile(r"[≤≥]? ?[+-]?[0-9.]+(e[+-]?[0-9]+)?( %)?( not ok)?|–|diverged|")
_CHOSEN = ("kernel", "nbeta", "precision", "chains", "draws", "warmup")
_VERDICTS = {
    **dict.fromkeys(("ok", "agrees", "yes", "complete"), "good"),
    **dict.fromkeys(("explained", "shown", "no result", "running"), "mild"),
    **dict.fromkeys(("not ok", "differs", "no value", "no", "diverged", "damaged", "failed"), "bad"),
}


def run_page(view: RunView, *, level: int = 1, anchor: str = "run") -> str:
    """The whole of a run: answer, findings, charts, tables, settings, provenance, citations.

    Args:
        view: From `folder_view` or `result_view`.
        level: Level of its heading; those of its parts are one below.
        anchor: The id of the section, and the beginning of those inside.

    Returns:
        HTML of one `section`.

    Raises:
        MissingExtra: Jinja2 is not installed.

    Example:
        >>> from crunode.core.result import Estimate
        >>> from crunode.reporting.result_views import result_view
        >>> "<strong>llc = 2.50 ± 0.1 mc ± 0 sys</strong>" in run_page(result_view(Estimate("llc", 2.5, se=0.1)))
        True
    """
    record = view.record
    times = [datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") for t in (record.created, record.updated)]
    as_is = need("markupsafe", extra="report").Markup
    pictures = [(p.name, as_is(base64.b64encode(p.data).decode())) for p in view.pictures]
    return render(
        "run.html.j2",
        view=view,
        record=record,
        level=level,
        anchor=anchor,
        findings=findings_list(record.findings, level=level + 2),
        charts=[chart_html(chart) for chart in view.charts],
        tables=[table_html(table) for table in view.tables],
        settings=_settings(view),
        provenance=list(flat_settings(record.provenance).items())[:_SETTINGS],
        pictures=pictures,
        times=times if record.updated else None,
    )


def findings_list(findings: Sequence[Mapping[str, str]], *, level: int = 3) -> str:
    """Findings in plain words, the most serious first: what was seen, what it means, what to do.

    Example:
        >>> from crunode.core.result import Finding
        >>> "<em>What to do:</em> Use more data" in findings_list([vars(Finding.of("LLC105", "n = 12"))])
        True
    """
    rows = []
    for finding in sorted(findings, key=lambda f: _ORDER.get(f["severity"], 1))[:200]:
        kind = FINDINGS.get(finding["code"])
        title, meaning = ("", "") if kind is None else (kind.title, kind.meaning)
        rows.append({**finding, "title": title, "meaning": meaning})
    return render("findings.html.j2", findings=rows, level=level)


def table_html(table: Table) -> str:
    """A table with its caption, in a frame that scrolls on small screens.

    Example:
        >>> 'scope="col"' in table_html(Table("Results", ("what", "value"), [("llc", "2.5")]))
        True
    """
    columns = [[row[k] for row in table.rows if k < len(row)] for k in range(len(table.head))]
    numeric = [all(_NUMBER.fullmatch(cell) for cell in column) for column in columns]
    rows = [
        [(cell, _VERDICTS.get(cell, ""), "words" if len(cell) > 24 else "brief") for cell in row] for row in table.rows
    ]
    return render("table.html.j2", table=table, rows=rows, numeric=numeric)


def chart_html(chart: Chart) -> str:
    """A chart as a drawing that needs no script, with the data that the script zooms and reads out from.

    Example:
        >>> from crunode.reporting.charts import Series
        >>> "<svg" in chart_html(Chart("Loss", "epoch", "loss", [Series("loss", [1, 2], [0.5, 0.25])]))
        True
    """
    markup = need("markupsafe", extra="report")
    named = [s for s in chart.series if s.name]
    finite = [f"{s.name}: {len([v for v in s.y if v is not None])} points" for s in named]
    axes = " against ".join(filter(None, [chart.y_label, chart.x_label]))
    return render(
        "chart.html.j2",
        chart=chart,
        data=markup.escape(chart_data(chart)),
        drawing=drawing(chart),
        size=(WIDTH, chart.box[1] + chart.box[3] + 40),
        named=named,
        label=text_of(f"{chart.title}. {axes}. {'; '.join(finite[:8])}. {chart.note}", 600),
        values=_listed_values(named, chart) if chart.table else [],
        path=markup.Markup,
    )


def render(template: str, **content: Any) -> str:
    """A template of this package, filled in; text is escaped unless it was made by a template itself."""
    found: str = need("markupsafe", extra="report").Markup(_environment().get_template(template).render(content))
    return found


def asset(name: str) -> str:
    """The text of a file that pages need: "page.css" or "page.js".

    Example:
        >>> "prefers-color-scheme" in asset("page.css")
        True
    """
    return resources.files("crunode.reporting").joinpath("templates", name).read_text(encoding="utf-8")


def environment(source: Callable[[str], str], extra: str) -> Any:
    r"""Templates whose text is bounded, freed of control characters and escaped, whatever page they are for.

    Args:
        source: Gives the text of a template by its name.
        extra: The extra to name where Jinja2 is missing.

    Example:
        >>> environment(lambda name: "{{ text }}", "report").get_template("a").render(text="<b>\x1b[2J")
        '&lt;b&gt;\\x1b[2J'
    """
    jinja2 = need("jinja2", extra=extra)
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_bounded,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@functools.cache
def _environment() -> Any:
    found = environment(asset, "report")
    found.globals["stated"] = stated
    return found


def _bounded(value: Any) -> Any:
    """What a template is about to write: HTML of our own as it is, everything else as short text of one line."""
    if hasattr(value, "__html__"):
        return value
    text = "" if value is None else str(value)[:_LONGEST]
    return shown(text.translate(_SPACES).encode("utf-8", "replace").decode())


def _settings(view: RunView) -> tuple[list[tuple[str, Any, str]], list[tuple[str, Any, str]]]:
    """Key, value and reason of the settings: those that were chosen, then the rest."""
    left = dict(view.reasons)
    rows = []
    for key, value in shown_settings(view.record.settings):
        rows.append((key, value, left.pop(key.partition(".")[0], "")))
    rows += [(key, "", reason) for key, reason in left.items()]
    chosen = [row for row in rows if row[0].partition(".")[0] in (*_CHOSEN, *view.reasons)]
    rest = [row for row in rows if row not in chosen]
    return (chosen, rest) if chosen else (rest[:12], rest[12:])


def shown_settings(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Settings by dotted keys, as pages list them.

    Example:
        >>> shown_settings({"kernel": {"step": 0.1}, "reasons": {"kernel": "asked for"}})
        [('kernel.step', 0.1)]
    """
    return [(k, v) for k, v in flat_settings(settings).items() if not k.startswith("reasons.")]


def _listed_values(named: Sequence[Series], chart: Chart) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for series in named:
        for k, (x, y) in enumerate(zip(series.x, series.y, strict=False)):
            error = series.error[k] if series.error is not None and k < len(series.error) else None
            value = chart.names[int(y)] if chart.names and y is not None and 0 <= y < len(chart.names) else short(y, 5)
            rows.append((series.name, short(x, 5), value, short(error, 2) if error is not None else ""))
    stride = -(-len(rows) // _VALUES)
    return rows[:: max(stride, 1)]
