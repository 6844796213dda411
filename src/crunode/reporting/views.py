"""What a page shows of a run: the answer, tables, charts and pictures, as plain data.

`crunode.reporting.folder_views` makes views of run folders, `crunode.reporting.result_views` of results in memory, and
`crunode.reporting.fragments` makes HTML of views.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crunode.core.result import Estimate
from crunode.reporting.charts import Chart
from crunode.store.run_numbers import Number
from crunode.store.run_record import RunRecord

__all__ = ["Answer", "Picture", "RunView", "Table", "answer_of", "finite", "short", "stated"]

_WAITING = {
    "running": "the run is still being written, or was interrupted; the same command with the same store resumes it",
    "failed": "a chain diverged",
    "open": "nothing was measured so far",
    "complete": "no estimate was saved in the folder",
    "damaged": "the folder is damaged",
}


@dataclass(frozen=True)
class Answer:
    """The result in one sentence.

    Attributes:
        name: What was measured.
        number: The value with its errors, as the command line prints it; empty where there is none.
        where: Where along a series it was measured.
        verdict: "ok", "not ok", or "no result".
        reason: Why.
    """

    name: str
    number: str
    where: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: What it shows.
        head: Names of its columns; the first cell of a row is the row's name.
        rows: Cells as text; those of the words "ok", "agrees", "not ok", "differs" and the like are marked by color.
        note: What the reader should know.
        folded: Whether it is shown only when asked for.
        footnotes: Notes that cells refer to as [1], [2] and so on.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    folded: bool = False
    footnotes: Sequence[str] = ()


@dataclass(frozen=True)
class Picture:
    """A PNG picture of a run folder."""

    name: str
    data: bytes


@dataclass(frozen=True)
class RunView:
    """All that a page shows of a run.

    Attributes:
        name: The run.
        record: What its folder says about itself.
        answer: The result in one sentence.
        tables: Results and diagnostics.
        charts: Traces, trajectories and the like.
        pictures: Pictures that the run has drawn.
        reasons: Why settings were chosen as they were, by their names.
        words: Paragraphs about it.
        citations: Whose work it rests on.
        problems: What could not be read or shown, and why.
    """

    name: str
    record: RunRecord
    answer: Answer
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    pictures: tuple[Picture, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    citations: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def finite(value: Any) -> float | None:
    """`value` where it is a finite number; None for everything else.

    Example:
        >>> [finite(v) for v in (2, True, "3", math.nan, 10**400)]
        [2.0, None, None, None, None]
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def short(value: Any, digits: int = 4) -> str:
    """A number in few digits, and a dash in the place of what is none.

    Example:
        >>> short(3.14159), short(None)
        ('3.142', '–')
    """
    number = finite(value)
    return "–" if number is None else f"{number:.{digits}g}"


def stated(number: Number) -> str:
    """A result with its errors, as `print(estimate)` and the command line have it.

    Example:
        >>> stated(Number("llc", 2.5, 0.1, 0.05, True))
        '2.50 ± 0.1 mc ± 0.05 sys'
    """
    if number.value is None:
        return "no value"
    if number.se is None:
        return f"{number.value:.4g}"
    if number.systematic is None:
        return f"{number.value:.4g} ± {number.se:.2g}"
    whole = str(Estimate("x", number.value, se=number.se, systematic=number.systematic))
    return whole.removeprefix("x ").partition(" | ")[0]


def answer_of(record: RunRecord, where: str = "") -> Answer:
    """The answer of a run: its first number, or what its results amount to.

    Args:
        record: The run.
        where: Where along a series the number was measured.

    Example:
        >>> answer_of(RunRecord("draws", status="complete", ok=True, numbers=(Number("llc", 2.5, 0.1, 0.0, True),)))
        Answer(name='llc', number='2.50 ± 0.1 mc ± 0 sys', where='', verdict='ok', reason='nothing stands against it')
    """
    serious = [f["code"] for f in record.findings if f["severity"] == "error"]
    warned = [f["code"] for f in record.findings if f["severity"] == "warning"]
    verdict = "no result" if record.ok is None else "ok" if record.ok else "not ok"
    if record.ok is None:
        reason = _WAITING.get(record.status, record.status)
        if record.kind == "training" and record.numbers:
            reason = "a training is not judged"
    elif record.ok:
        reason = f"with warnings: {_listed(warned)}" if warned else "nothing stands against it"
    elif serious:
        reason = f"see below: {_listed(serious)}"
    elif record.note:
        reason = "the folder is damaged"
    else:
        reason = _WAITING["failed"] if record.status == "failed" else "a value is missing, not finite, or differs"
    if record.kind == "recipe" or not record.numbers:
        return Answer(record.subject, record.summary, where, verdict, reason)
    return Answer(record.numbers[0].name, stated(record.numbers[0]), where, verdict, reason)


def _listed(codes: Sequence[str]) -> str:
    seen = list(dict.fromkeys(codes))
    return ", ".join(seen[:6]) + (f" and {len(seen) - 6} more" if len(seen) > 6 else "")
