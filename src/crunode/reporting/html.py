"""`report`: results and run folders as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from crunode._extras import need
from crunode.errors import InputError
from crunode.reporting.folder_views import broken_view, folder_view
from crunode.reporting.fragments import asset, render, run_page
from crunode.reporting.result_views import result_view
from crunode.reporting.side_by_side import comparison_page
from crunode.reporting.views import RunView
from crunode.store.catalog_scan import Scan, walk
from crunode.store.guarded import replace_file, shown
from crunode.store.run_record import HEADERS, header_of

__all__ = ["checked_target", "page_html", "policy", "report", "views_of"]

_MOST = 200


def report(thing: Any, path: str | os.PathLike[str]) -> Path:
    """Write results or run folders as one self-contained HTML file.

    The answer comes first, then findings with what to do about them, charts, diagnostics, settings, versions and
    citations. Several results are compared at the top. The file loads nothing, works without network, on a phone and
    in print, and the same results give the same file.

    Args:
        thing: A run folder, a folder of run folders, an `Estimate`, `Draws`, a `Trajectory`, a `Sweep`, a `History`,
            the `Run` of a recipe; or several of these in a list, or in a dictionary by their names.
        path: The file to write, ending in .html; one that is there is replaced.

    Returns:
        Its path.

    Raises:
        InputError: There is nothing to report, more than 200 runs, or the path is no HTML file.
        MissingExtra: Jinja2 is not installed (extra `report`).
        StoreError: The disk refused.

    Example:
        >>> import tempfile
        >>> from crunode.core.result import Estimate
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = report(Estimate("llc", 2.5, se=0.1), folder + "/llc.html")
        ...     "2.50 ± 0.1 mc" in written.read_text(encoding="utf-8")
        True
    """
    target = checked_target(path)
    replace_file(target, page_html(views_of(thing)).encode("utf-8"))
    return target


def checked_target(path: str | os.PathLike[str]) -> Path:
    """The file to write, once its name is known to be that of a page.

    Raises:
        InputError: It is not.
    """
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm") or target.is_dir():
        raise InputError(f"expected a file ending in .html to write the report to, got {target}")
    return target


def views_of(thing: Any) -> list[RunView]:
    """What a report on `thing` shows; see `report`.

    Raises:
        InputError: There is nothing to report, or more than 200 runs.

    Example:
        >>> from crunode.core.result import Estimate
        >>> [view.name for view in views_of({"a": Estimate("llc", 2.5, se=0.1)})]
        ['a']
    """
    parts: list[tuple[Any, str | None]]
    if isinstance(thing, dict):
        parts = [(each, str(name)) for name, each in thing.items()]
    else:
        parts = [(each, None) for each in (thing if isinstance(thing, list | tuple) else [thing])]
    found = [view for each, name in parts for view in _views(each, name, alone=len(parts) == 1)]
    if not 0 < len(found) <= _MOST:
        raise InputError(f"expected 1 to {_MOST} results or run folders to report, got {len(found)}; pass others")
    return found


def page_html(views: Sequence[RunView]) -> str:
    """The whole page on some runs, as `report` writes it."""
    style, script = asset("page.css"), asset("page.js")
    many = len(views) > 1
    anchors = [f"run-{k + 1}" for k in range(len(views))]
    named = [replace(view, name=f"{k + 1}. {view.name}") for k, view in enumerate(views)] if many else views
    sections = [run_page(v, level=2 if many else 1, anchor=a) for v, a in zip(named, anchors, strict=True)]
    from crunode import __version__

    page = render(
        "report.html.j2",
        title=f"{len(views)} runs" if many else views[0].name,
        comparison=comparison_page(views, [f"#{a}" for a in anchors]) if many else "",
        sections=sections,
        style=render_plain(style),
        script=render_plain(script),
        policy=policy([style], [script]),
        version=__version__,
    )
    return f"{page}\n"


def policy(styles: Iterable[str], scripts: Iterable[str]) -> str:
    """A content security policy that lets these very styles and scripts run, shows pictures of the page, and no more.

    Example:
        >>> policy([], ["let x = 1;"]).split("; ")[:3]
        ["default-src 'none'", 'img-src data:', "style-src 'none'"]
    """
    parts = ["default-src 'none'", "img-src data:"]
    for name, texts in (("style-src", styles), ("script-src", scripts)):
        marks = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        parts.append(" ".join([name, *(f"'sha256-{mark}'" for mark in marks)]) if marks else f"{name} 'none'")
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])


def render_plain(text: str) -> Any:
    """A style sheet or script of our own, to be put into a page as it is."""
    return need("markupsafe", extra="report").Markup(text)


def _views(thing: Any, name: str | None, alone: bool) -> list[RunView]:
    if not isinstance(thing, str | os.PathLike):
        return [result_view(thing, name)]
    folder = Path(thing)
    if not folder.is_dir():
        raise InputError(f"expected a run folder, or a folder of such, got {shown(str(folder))}; check the path")
    called = name or folder.name or folder.resolve().name
    if header_of(folder) is not None or any(os.path.lexists(folder / each) for each in HEADERS):
        return [folder_view(folder, called)]
    scan = Scan()
    names = sorted(each for each, _ in walk(folder.resolve(), {}, scan))
    found = [folder_view(folder / each, f"{called}/{each}") for each in names[: _MOST + 1]]
    if not found and not scan.problems:
        if alone:
            raise InputError(f"expected a run folder, or a folder of such, got {shown(str(folder))}, which holds none")
        return [broken_view(called, "there is no run in this folder")]
    return found + [broken_view(f"{called}/{text.partition(': ')[0]}", text) for text in scan.problems]
