"""Recipes to start, and all that is running."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

from crunode.app.board import Board, form_of, verdict_of
from crunode.app.live_progress import progress_of, spent_words
from crunode.app.pages import message_page, piece, redirect, render
from crunode.errors import CrunodeError, InputError
from crunode.jobs.registry import recipe as recipe_named
from crunode.jobs.registry import recipes
from crunode.store.catalog_query import RunEntry

__all__ = ["gallery", "recipe_cards", "running", "running_live", "start_recipe", "stop_job"]

_MOST, _KNOWN, _FRESH, _QUIET = 50, 1000, 60.0, 600.0
_loading = threading.Lock()


def gallery(board: Board, request: Any) -> Any:
    """The page with all recipes."""
    board.runs.refresh()
    made: dict[str, list[RunEntry]] = {}
    for run in board.runs.catalog.list(kind="recipe", order="updated", descending=True, limit=_KNOWN):
        made.setdefault(run.subject, []).append(run)
    found = []
    for card in recipe_cards():
        newest = made.get(card["name"], [])[:3]
        seen = [(board.runs.key(run.name), run, *verdict_of(run.ok)) for run in newest]
        found.append({**card, "seen": seen})
    return board.page("gallery.html.j2", title="Recipes", here="recipes", cards=found, most=board.jobs.most)


def recipe_cards() -> tuple[dict[str, Any], ...]:
    """What each recipe says about itself; loading them all takes a few seconds the first time.

    Example:
        >>> [card["sizes"] for card in recipe_cards() if card["name"] == "toy-volumes"]
        [[('toy', 9), ('paper', 9)]]
    """
    with _loading:
        return _cards()


@functools.cache
def _cards() -> tuple[dict[str, Any], ...]:
    found = []
    for name in recipes():
        card: dict[str, Any] = {"name": name, "title": "", "paper": "", "notes": [], "sizes": [], "problem": ""}
        try:
            each = recipe_named(name)
            sizes = [(size, len(each.cells(size, 0))) for size in each.sizes]
            notes = [part for part in each.notes.split("\n\n") if part.strip()]
            card |= {"title": each.title, "paper": each.paper, "notes": notes, "sizes": sizes}
        except Exception as error:  # of another package, or without its data; the others are shown all the same
            card["problem"] = f"cannot be loaded: {type(error).__name__}: {error}"
        found.append(card)
    return tuple(found)


def start_recipe(board: Board, request: Any) -> Any:
    """Start a recipe at toy size and show what is running."""
    form = form_of(request)
    try:
        board.jobs.start(form.text("recipe"), form.number("seed", 0, 2**31 - 1, 0))
    except CrunodeError as error:
        return message_page(400, "The recipe was not started", str(error))
    return redirect("/running")


def stop_job(board: Board, request: Any) -> Any:
    """Stop a recipe that was started here."""
    try:
        board.jobs.stop(form_of(request).text("job"))
    except InputError as error:
        return message_page(400, "Nothing was stopped", str(error))
    return redirect("/running")


def running(board: Board, request: Any) -> Any:
    """The page with all that is running, whoever started it."""
    return board.page("running.html.j2", title="Running", here="running", part=_part(board))


def running_live(board: Board, request: Any) -> Any:
    """The part of that page that is asked for every second."""
    return render("part.html.j2", part=_part(board))


def _part(board: Board) -> Any:
    board.runs.refresh()
    jobs = [_job(board, job) for job in board.jobs.all()]
    own = {job["run"] for job in jobs}
    catalog = board.runs.catalog
    listed = list(catalog.list(status="running", order="updated", descending=True, limit=_MOST))
    # A training or tracker can always go on: it counts while its files change.
    opened = catalog.list(status="open", order="updated", descending=True, limit=_MOST)
    listed += [run for run in opened if time.time() - run.updated < _FRESH]
    others = [found for run in listed if run.name not in own and (found := _other(board, run.name)) is not None]
    active = [row for row in others if row["quiet"] < _QUIET]
    said = [f"{row['name']}: {row['words']}" for row in jobs + active if row["alive"]]
    return piece(
        "running_live.html.j2",
        jobs=jobs,
        active=active,
        silent=[row for row in others if row["quiet"] >= _QUIET],
        said="; ".join(said) or "Nothing is running.",
        form_token=board.access.form_token(),
        most=board.jobs.most,
    )


def _job(board: Board, job: Any) -> dict[str, Any]:
    state = job.state
    found = _other(board, job.run) or {"run": job.run, "name": job.run, "key": None, "progress": None, "quiet": 0.0}
    words = found["progress"].words if found["progress"] is not None else "starting"
    return {
        **found,
        "job": job,
        "state": state,
        "alive": job.alive,
        "words": words if state in ("running", "stopping") else state,
        "tail": job.tail() if state == "failed" else "",
        "spent": spent_words(time.time() - job.started),
    }


def _other(board: Board, name: str) -> dict[str, Any] | None:
    """A run as its folder has it now."""
    try:
        record = board.runs.catalog.record(name)
        progress = progress_of(board.runs.catalog.path(name), record)
    except InputError:
        return None
    verdict, color = verdict_of(record.ok)
    return {
        "run": name,
        "name": name,
        "key": board.runs.key(name),
        "kind": record.kind,
        "subject": record.subject,
        "summary": record.summary,
        "progress": progress,
        "quiet": progress.quiet,
        "ago": spent_words(progress.quiet),
        "words": progress.words,
        "alive": record.status in ("running", "open"),
        "verdict": verdict,
        "color": color,
    }
