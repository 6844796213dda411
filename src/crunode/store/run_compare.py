"""Results of several runs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from crunode.store.run_numbers import Number

__all__ = ["ComparedRow", "RunComparison", "compared"]


@dataclass(frozen=True)
class ComparedRow:
    """One result of one run.

    Attributes:
        quantity: What it is.
        run: Whose it is.
        value: Its value.
        se: Its Monte-Carlo standard error.
        systematic: Size of its systematic error.
        ok: Whether it can be trusted.
        difference: From the run that the others are held against; None for that one, and where a value is missing.
        z: The difference in units of the stated errors of both; None where one states none.
    """

    quantity: str
    run: str
    value: float | None
    se: float | None
    systematic: float | None
    ok: bool
    difference: float | None = None
    z: float | None = None


@dataclass(frozen=True)
class RunComparison:
    """Results by quantity, within each the run that the others are held against first.

    Attributes:
        runs: Names of the runs.
        rows: The results.
    """

    runs: tuple[str, ...]
    rows: tuple[ComparedRow, ...]

    @property
    def ok(self) -> bool:
        """True when there are results, and all can be trusted."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    def table(self) -> str:
        """The rows as text."""
        head = ("quantity", "run", "value", "± mc", "± sys", "ok", "difference", "z")
        lines = [head, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
        return "\n".join(
            "  ".join(
                cell.ljust(w) if k < 2 else cell.rjust(w) for k, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values."""
        return {"runs": list(self.runs), "ok": self.ok, "rows": [asdict(row) for row in self.rows]}


def compared(runs: Sequence[tuple[str, Sequence[Number]]]) -> RunComparison:
    """Hold the results of runs against those of the first.

    Args:
        runs: Names and results.

    Example:
        >>> one, other = Number("llc", 2.0, 0.3, 0.0, True), Number("llc", 3.0, 0.4, 0.0, True)
        >>> compared([("a", [one]), ("b", [other])]).rows[1].z
        2.0
    """
    tables = [(name, {number.name: number for number in numbers}) for name, numbers in runs]
    quantities = dict.fromkeys(number.name for _, numbers in runs for number in numbers)
    rows = []
    for quantity in quantities:
        base = tables[0][1].get(quantity)
        for place, (name, numbers) in enumerate(tables):
            number = numbers.get(quantity)
            if number is not None:
                gap, z = _gap(number, base) if place else (None, None)
                rows.append(ComparedRow(quantity, name, *number[1:], difference=gap, z=z))
    return RunComparison(tuple(name for name, _ in runs), tuple(rows))


def _gap(number: Number, base: Number | None) -> tuple[float | None, float | None]:
    if base is None or number.value is None or base.value is None:
        return None, None
    gap = number.value - base.value
    if number.error is None or base.error is None:
        return gap, None
    scale = math.hypot(number.error, base.error)
    return gap, gap / scale if scale > 0 else None


def _cells(row: ComparedRow) -> tuple[str, ...]:
    figures = ("-" if x is None else f"{x:.4g}" for x in (row.value, row.se, row.systematic))
    ends = ("-" if x is None else f"{x:+.4g}" for x in (row.difference, row.z))
    return (row.quantity, row.run, *figures, "yes" if row.ok else "no", *ends)
