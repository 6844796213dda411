"""The page of one run, its tags, and several runs side by side."""

from __future__ import annotations

from typing import Any

from crunode.app.board import Board, NotThere, fields_of, form_of
from crunode.app.live_progress import progress_of, spent_words
from crunode.app.pages import message_page, piece, redirect, render
from crunode.errors import CrunodeError, InputError
from crunode.reporting.folder_views import folder_view
from crunode.reporting.fragments import run_page
from crunode.reporting.side_by_side import comparison_page

__all__ = ["change_tags", "compare", "run_live", "show_run"]

_MOST, _LINES = 8, 100


def show_run(board: Board, request: Any) -> Any:
    """The page of a run: what a report shows of it, its tags, and its progress while it is at work."""
    name = board.name_of(request.path_params["key"])
    catalog = board.runs.catalog
    view = folder_view(catalog.path(name), name)
    return board.page(
        "run.html.j2",
        title=name,
        here="runs",
        key=request.path_params["key"],
        name=name,
        tags=view.record.tags,
        live=_live(board, name) if view.record.status == "running" else "",
        section=run_page(view),
    )


def run_live(board: Board, request: Any) -> Any:
    """How far a run has come, as the part of its page that is asked for every second."""
    name = board.name_of(request.path_params["key"])
    return render("part.html.j2", part=_live(board, name))


def change_tags(board: Board, request: Any) -> Any:
    """Add or take away tags, and show the run again."""
    key = request.path_params["key"]
    name = board.name_of(key)
    form = form_of(request)
    change = {"add": board.runs.catalog.tag, "remove": board.runs.catalog.untag}.get(form.text("change"))
    try:
        words = form.text("tags").split()
        if change is None or not words:
            raise InputError("expected a word to add or to take away, got none")
        change(name, *words)
    except InputError as error:
        return message_page(400, "The tag was not changed", str(error))
    return redirect(f"/run/{key}")


def compare(board: Board, request: Any) -> Any:
    """Several runs side by side, the first one being what the others are held against."""
    keys = list(dict.fromkeys(fields_of(request).texts("run")))
    if not 2 <= len(keys) <= _MOST:
        return message_page(
            400, "Choose two runs or more", f"Mark 2 to {_MOST} runs in the list, then compare; {len(keys)} are marked."
        )
    names = [board.name_of(key) for key in keys]
    views = [folder_view(board.runs.catalog.path(name), name) for name in names]
    lines: list[str] = []
    if len({view.record.kind for view in views}) > 1:  # of one kind, the comparison has a table of them
        for other in names[1:]:
            try:
                lines += board.runs.catalog.diff(names[0], other)[:_LINES]
            except CrunodeError as error:
                lines.append(str(error))
    return board.page(
        "compare.html.j2",
        title=f"{len(views)} runs side by side",
        here="runs",
        section=comparison_page(views, [f"/run/{key}" for key in keys]),
        lines=lines,
        others=[(key, name) for key, name in zip(keys, names, strict=True)],
    )


def _live(board: Board, name: str) -> Any:
    try:
        record = board.runs.catalog.record(name)
        progress = progress_of(board.runs.catalog.path(name), record)
    except InputError as error:
        raise NotThere from error
    return piece(
        "run_live.html.j2",
        done=record.status != "running",
        name=name,
        progress=progress,
        said=f"{progress.words}" if record.status == "running" else f"{record.status}",
        quiet=spent_words(progress.quiet),
        long=progress.quiet > 600,
    )
