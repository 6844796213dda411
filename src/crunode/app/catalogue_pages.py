"""The list of all runs: filters, order, pages, and boxes to choose runs for a comparison."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from crunode.app.board import Board, fields_of, result_words, verdict_of
from crunode.app.forms import Fields
from crunode.errors import CrunodeError, InputError
from crunode.store.catalog_query import ORDERS, STATUSES
from crunode.store.run_record import KINDS

__all__ = ["catalogue"]

_SIZE = 50
_FILTERS = ("name", "kind", "status", "ok", "tag", "finding", "where", "since", "until")


def catalogue(board: Board, request: Any) -> Any:
    """The page with all runs."""
    query = fields_of(request)
    board.runs.refresh()
    given = {name: query.text(name) for name in _FILTERS}
    content: dict[str, Any] = {"rows": [], "count": 0, "pages": 1, "page": 1, "problem": ""}
    order, down = query.text("order") or "updated", query.text("down") != "no"
    status = 200
    try:
        filters = _filters(given)
        count = board.runs.catalog.count(**filters)
        pages = max(1, -(-count // _SIZE))
        page = min(query.number("page", 1, 10**9, 1), pages)
        found = board.runs.catalog.list(order=order, descending=down, limit=_SIZE, offset=(page - 1) * _SIZE, **filters)
        content |= {"rows": [_row(board, run) for run in found], "count": count, "pages": pages, "page": page}
    except CrunodeError as error:
        content["problem"], status = str(error), 400
        order = order if order in ORDERS else "updated"
    chosen = _chosen(board, query)
    kept = {key: value for key, value in given.items() if value}
    return board.page(
        "catalogue.html.j2",
        status,
        title="Runs",
        here="runs",
        given=given,
        filtered=bool(kept),
        kinds=KINDS,
        statuses=STATUSES,
        order=order,
        down=down,
        heads=[_head(name, order, down, kept, chosen) for name in ORDERS],
        turns=_turns(content["page"], content["pages"], kept, order, down, chosen),
        chosen=chosen,
        root=board.root,
        as_of=board.runs.as_of,
        **content,
    )


def _filters(given: dict[str, str]) -> dict[str, Any]:
    """Filters of the catalogue from what was written into the form.

    A name without `*` and `?` is looked for anywhere in names.
    """
    found: dict[str, Any] = {key: given[key] or None for key in ("kind", "status", "finding", "since", "until")}
    name = given["name"]
    found["name"] = None if not name else name if any(sign in name for sign in "*?") else f"*{name}*"
    found["tag"] = tuple(given["tag"].split()) or None
    if given["ok"] not in ("", "yes", "no"):
        raise InputError(f"expected ok as yes or no, got {given['ok'][:40]!r}")
    found["ok"] = {"yes": True, "no": False, "": None}[given["ok"]]
    if given["where"]:
        key, equals, value = given["where"].partition("=")
        if not equals or not key.strip():
            raise InputError(f"expected a setting as key=value, got {given['where'][:80]!r}")
        found["where"] = {key.strip(): value.strip()}
    return found


def _row(board: Board, run: Any) -> dict[str, Any]:
    word, color = verdict_of(run.ok)
    return {
        "key": board.runs.key(run.name),
        "run": run,
        "result": result_words(run),
        "verdict": word,
        "color": color,
        "size": _size(run.size),
    }


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.0f} TB"


def _chosen(board: Board, query: Fields) -> list[tuple[str, str]]:
    """Runs that are to be compared already: key and name."""
    keys = list(dict.fromkeys(query.texts("run")))[:8]
    return [(key, name) for key in keys if (name := board.runs.name(key)) is not None]


def _address(kept: dict[str, str], chosen: list[tuple[str, str]], **more: Any) -> str:
    return "/?" + urlencode([*kept.items(), *more.items(), *(("run", key) for key, _ in chosen)])


def _head(name: str, order: str, down: bool, kept: dict[str, str], chosen: list[tuple[str, str]]) -> dict[str, Any]:
    """A column that the list can be sorted by: its address sorts by it, or the other way round."""
    now = name == order
    turned = not down if now else name != "name"
    address = _address(kept, chosen, order=name, down="yes" if turned else "no")
    return {"name": name, "address": address, "sorted": ("descending" if down else "ascending") if now else ""}


def _turns(
    page: int, pages: int, kept: dict[str, str], order: str, down: bool, chosen: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Links to other pages of the list: words and address."""
    wanted = [("First", 1), ("Previous", page - 1), ("Next", page + 1), ("Last", pages)]
    way = "yes" if down else "no"
    return [
        (word, _address(kept, chosen, order=order, down=way, page=number))
        for word, number in wanted
        if 1 <= number <= pages and number != page
    ]
