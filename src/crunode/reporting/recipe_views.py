"""The table of a recipe beside its paper's values, and the pictures it has drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crunode.errors import StoreError
from crunode.reporting.charts import Chart, Series
from crunode.reporting.views import Picture, Table, finite, short
from crunode.store.guarded import entries, inside, read_regular
from crunode.store.run_numbers import text_of

__all__ = ["folder_pictures", "recipe_charts", "recipe_tables"]

_SIGNS = {"at most": "≤ ", "at least": "≥ "}
_ROWS, _DRAWN, _PICTURES, _BYTES, _TOTAL = 500, 24, 12, 2 * 2**20, 8 * 2**20
_PNG = b"\x89PNG\r\n\x1a\n"


def recipe_tables(result: Mapping[str, Any]) -> list[Table]:
    """Rows with the paper's value, ours, the tolerance and the verdict; and the cells, with what failed.

    Args:
        result: As `Run.to_dict` of a recipe gives it.

    Example:
        >>> row = {"name": "λ", "paper": 1.5, "ours": 1.46, "se": 0.01, "tolerance": 0.08, "verdict": "agrees"}
        >>> recipe_tables({"rows": [row]})[0].rows
        [('λ', 'agrees', '1.5', '1.46', '0.01', '0.08', '', '')]
    """
    rows = _dicts(result.get("rows"))
    lines = []
    notes: dict[str, int] = {}
    for row in rows[:_ROWS]:
        expected = short(row.get("paper"))
        sign = _SIGNS.get(str(row.get("side")), "") if expected != "–" else ""
        numbers = (short(row.get("ours")), short(row.get("se"), 2), short(row.get("tolerance"), 2))
        note = text_of(row.get("note", ""), 1000)
        mark = f"[{notes.setdefault(note, len(notes) + 1)}]" if note else ""
        words = (mark, text_of(row.get("source", ""), 300))
        lines.append(
            (text_of(row.get("name", ""), 200), text_of(row.get("verdict", ""), 20), sign + expected, *numbers, *words)
        )
    head = ("row", "verdict", "paper value", "our value", "± se", "tolerance", "note", "source")
    cut = f"The first {_ROWS} of {len(rows)} rows." if len(rows) > _ROWS else ""
    tables = [Table("Against the paper", head, lines, cut, footnotes=tuple(notes))]
    cells = _dicts(result.get("cells"))
    if cells:
        shown = [
            (text_of(c.get("name", ""), 200), short(c.get("seconds"), 3), text_of(c.get("error") or "", 600) or "ok")
            for c in cells[:_ROWS]
        ]
        tables.append(Table("Cells", ("cell", "seconds", "outcome"), shown, folded=True))
    return tables


def recipe_charts(result: Mapping[str, Any]) -> list[Chart]:
    """How far our values are from the paper's, in units of the tolerance."""
    names, places, errors, good = [], [], [], []
    for row in _dicts(result.get("rows")):
        paper, ours, allowed = (finite(row.get(k)) for k in ("paper", "ours", "tolerance"))
        if paper is None or ours is None or not allowed or row.get("side", "equal") != "equal":
            continue
        names.append(text_of(row.get("name", ""), 80))
        places.append((ours - paper) / allowed)
        errors.append((finite(row.get("se")) or 0.0) / allowed)
        good.append(row.get("verdict") in ("agrees", "explained"))
    if len(names) < 2:
        return []
    shown = slice(0, _DRAWN)
    far = max([1.0, *(abs(p) for p in places[shown])])
    rows = [float(k) for k in range(len(names[shown]))][::-1]
    points = Series("ours − paper", places[shown], rows, line=False, dots=True, hollow=[not g for g in good[shown]])
    edge = Series("", [-1.15 * far, 1.15 * far], [None, None])
    note = "Shaded: within the tolerance. Hollow: differs."
    note += f" The first {_DRAWN} of {len(names)} rows." if len(names) > _DRAWN else ""
    axis = "(ours − paper) / tolerance"
    chart = Chart(
        "Distance from the paper", axis, "", [points, edge], bands=[(-1.0, 1.0)], note=note, names=names[shown][::-1]
    )
    return [chart]


def folder_pictures(folder: Path, problems: list[str]) -> list[Picture]:
    """The PNG pictures in `figures` of a run folder, as far as they are small."""
    found: list[Picture] = []
    total = 0
    for name in sorted(e.name for e in entries(folder / "figures", 1000) if e.name.endswith(".png")):
        if len(found) >= _PICTURES:
            problems.append(f"more than {_PICTURES} pictures; the rest is in the folder")
            break
        try:
            data = read_regular(inside(folder, f"figures/{name}"), _BYTES)
        except StoreError as error:
            problems.append(str(error))
            continue
        total += len(data)
        if total > _TOTAL:
            problems.append("the pictures are large; the rest is in the folder")
            break
        if data.startswith(_PNG):
            found.append(Picture(text_of(name.removesuffix(".png"), 100), data))
        else:
            problems.append(f"figures/{name} is no PNG picture")
    return found


def _dicts(value: Any) -> Sequence[dict[str, Any]]:
    return [each for each in (value if isinstance(value, list) else [])[:20_000] if isinstance(each, dict)]
