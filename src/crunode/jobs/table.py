"""The table of a recipe as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crunode.jobs.recipe import Row, Run

__all__ = ["describe_recipe_run"]

_HEAD = ("row", "expected", "ours", "se", "tolerance", "verdict")
_SIGNS = {"equal": "", "at most": "≤ ", "at least": "≥ "}


def describe_recipe_run(run: Run) -> str:
    """The table with its notes, in words.

    Example:
        >>> from crunode.jobs.recipe import Expected, Recipe, Run
        >>> recipe = Recipe("demo", "A demonstration", "nobody", None, None, None)
        >>> row = Expected(1.5, 0.1, "Theorem 1", exact=True).row("λ", 1.4567, se=0.01)
        >>> print(describe_recipe_run(Run(recipe, "toy", 0, (row,), ())))
        demo, toy size, seed 0: A demonstration
        row  expected  ours   se    tolerance  verdict  source
        λ    1.5       1.457  0.01  0.13       agrees   exact: Theorem 1
        ok: 1 agrees
    """
    lines = [f"{run.recipe.name}, {run.size} size, seed {run.seed}: {run.recipe.title}"]
    notes: dict[str, int] = {}
    for row in run.rows:
        if row.note:
            notes.setdefault(row.note, len(notes) + 1)
    rows = [[*_HEAD, *(["note"] if notes else []), "source"]]
    for row in run.rows:
        number = [f"[{notes[row.note]}]" if row.note else ""] if notes else []
        rows.append([*_cells(row), *number, row.source])
    sizes = [max(len(cells[k]) for cells in rows) for k in range(len(rows[0]))]
    lines += ["  ".join(c.ljust(s) for c, s in zip(cells, sizes, strict=True)).rstrip() for cells in rows]
    lines += [
        textwrap.fill(f"[{number}] {note}", 120, subsequent_indent="    ", break_long_words=False)
        for note, number in notes.items()
    ]
    counts = {verdict: sum(row.verdict == verdict for row in run.rows) for verdict in {r.verdict: 0 for r in run.rows}}
    verdict = "ok" if run.ok else "not ok"
    lines += [f"note: {message}" for message in run.messages]
    lines.append(f"{verdict}: " + (", ".join(f"{count} {name}" for name, count in counts.items()) or "no rows"))
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    expected = "-" if row.paper is None else _SIGNS[row.side] + f"{row.paper:.4g}"
    numbers = ["-" if x is None else f"{x:.{d}g}" for x, d in ((row.ours, 4), (row.se, 2), (row.tolerance, 2))]
    return [row.name, expected, *numbers, row.verdict]
