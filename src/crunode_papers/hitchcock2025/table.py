"""The record of a benchmark as a text table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["describe_benchmark"]

_HEAD = (
    "class",
    "method",
    "runs",
    "failed",
    "ok",
    "median error (95 %)",
    "95th",
    "worst",
    "order",
    "covered (95 %)",
    "gradients",
    "seconds",
)


def describe_benchmark(record: Mapping[str, Any]) -> str:
    """Summary and notes of a record in words.

    Args:
        record: As `crunode_papers.hitchcock2025.run.run_benchmark` returns it.

    Example:
        >>> print(describe_benchmark({"settings": {"target": "basin"}, "summary": [], "notes": ["all left out"]}))
        errors are relative to the exact coefficient of the model; failed runs count as infinitely far off
        class  method  runs  failed  ok  median error (95 %)  95th  worst  order  covered (95 %)  gradients  seconds
        note: all left out
    """
    settings = record["settings"]
    kind = {"local": "local coefficient", "basin": "coefficient of the model"}[settings["target"]]
    lines = [f"errors are relative to the exact {kind}; failed runs count as infinitely far off"]
    rows = [list(_HEAD), *(_cells(entry) for entry in record["summary"])]
    lines += _aligned(rows)
    return "\n".join([*lines, *(f"note: {note}" for note in record["notes"])])


def _cells(entry: Mapping[str, Any]) -> list[str]:
    low, high = entry["median_interval"]
    least, most = entry["coverage_interval"]
    return [
        entry["class"],
        entry["method"],
        str(entry["runs"]),
        str(entry["failed"]),
        _percent(entry["ok"], 0),
        f"{_percent(entry['median_relative_error'])} ({_percent(low)} to {_percent(high)})",
        _percent(entry["95th_percentile"]),
        _percent(entry["worst_relative_error"]),
        _percent(entry["order_preserved"]),
        f"{_percent(entry['coverage'], 0)} ({_percent(least, 0)} to {_percent(most, 0)})",
        "-" if entry["median_gradients"] is None else f"{entry['median_gradients']:.0f}",
        "-" if entry["median_seconds"] is None else f"{entry['median_seconds']:.1f}",
    ]


def _percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    sizes = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    # Names to the left, numbers to the right.
    return [
        "  ".join(
            cell.ljust(size) if k < 2 else cell.rjust(size)
            for k, (cell, size) in enumerate(zip(row, sizes, strict=True))
        )
        for row in rows
    ]
