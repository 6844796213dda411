"""Questions to the index of a catalogue: filters as SQL with bound values, rows as `RunEntry`."""

from __future__ import annotations

import difflib
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from crunode.errors import InputError
from crunode.store.run_record import KINDS

__all__ = ["ORDERS", "STATUSES", "Filter", "RunEntry", "entry_named", "select"]

STATUSES = ("running", "complete", "failed", "open", "damaged")
"""What a run's status can be."""

ORDERS = ("name", "created", "updated", "value", "size")
"""What runs can be listed by."""

_COLUMNS = (
    "name, kind, subject, status, ok, value, se, systematic, summary, findings, seed, created, updated, size, "
    "tags, note"
)


class RunEntry(NamedTuple):
    """One run of a catalogue.

    Attributes:
        name: Its folder, relative to the catalogue's.
        kind: "draws", "sweep", "recipe", "training" or "tracker".
        subject: What it is about: names of its estimates, of its recipe, its model, its probes.
        status: "running" (begun and not ended), "complete", "failed", "open" (can always go on) or "damaged".
        ok: Whether its results can be trusted; None where there are none.
        value: Its first estimate; None where it has none or none that is finite.
        se: Monte-Carlo standard error of that.
        systematic: Size of the systematic error of that.
        summary: One line about other results.
        findings: Codes of what was noticed.
        seed: Where all randomness came from.
        created: Time of its oldest file, in seconds since 1970.
        updated: Time of its newest file.
        size: Bytes of its files.
        tags: The user's own words.
        note: What is wrong with the folder, if anything.
    """

    name: str
    kind: str
    subject: str
    status: str
    ok: bool | None
    value: float | None
    se: float | None
    systematic: float | None
    summary: str
    findings: tuple[str, ...]
    seed: int | None
    created: float
    updated: float
    size: int
    tags: tuple[str, ...]
    note: str

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values; times in ISO form."""
        content = {**self._asdict(), "findings": list(self.findings), "tags": list(self.tags)}
        return {**content, **{k: _iso(content[k]) for k in ("created", "updated")}}


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Filter:
    """Which runs to list: those that meet all that is given.

    Args:
        kind: One of the kinds of run folders.
        name: A pattern of the name or of its last part, with `*` and `?`.
        tag: A tag, or several that must all be there.
        status: One of `STATUSES`.
        ok: Whether the results can be trusted.
        finding: The code of a finding.
        since: The earliest day or time of creation, as 2026-11-16 or 2026-11-16T08:30; UTC.
        until: The latest; a day is meant to its end.
        where: Values of settings by dotted keys; text may have `*` and `?`.

    Raises:
        InputError: There is no such kind, status or time.

    Example:
        >>> Filter(kind="drws")
        Traceback (most recent call last):
        crunode.errors.InputError: expected kind among draws, sweep, recipe, training, tracker, got 'drws'
    """

    kind: str | None = None
    name: str | None = None
    tag: str | tuple[str, ...] | None = None
    status: str | None = None
    ok: bool | None = None
    finding: str | None = None
    since: str | date | None = None
    until: str | date | None = None
    where: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for label, value, known in (("kind", self.kind, KINDS), ("status", self.status, STATUSES)):
            if value is not None and value not in known:
                raise InputError(f"expected {label} among {', '.join(known)}, got {value!r}")
        if self.ok is not None and not isinstance(self.ok, bool):
            raise InputError(f"expected ok as True or False, got {self.ok!r}")
        _moment(self.since, "since"), _moment(self.until, "until")

    def clauses(self, index: sqlite3.Connection) -> tuple[str, list[Any]]:
        """The condition as SQL, and the values to bind.

        Raises:
            InputError: No run has a setting of that key.
        """
        parts: list[tuple[str, list[Any]]] = []
        for column in ("kind", "status", "ok"):
            if (value := getattr(self, column)) is not None:
                parts.append((f"{column} = ?", [value]))
        if self.name is not None:
            # `[` means itself here, as in few patterns and in many names.
            pattern = str(self.name).replace("[", "[[]")
            parts.append(("(name GLOB ? OR name GLOB ?)", [pattern, f"*/{pattern}"]))
        tags = (self.tag,) if isinstance(self.tag, str) else self.tag or ()
        parts += [("instr(' ' || tags || ' ', ?) > 0", [f" {tag} "]) for tag in tags]
        if self.finding is not None:
            parts.append(("instr(' ' || findings || ' ', ?) > 0", [f" {self.finding.upper()} "]))
        for column, sign, moment in (("since", ">=", _moment(self.since, "since")), ("until", "<=", self._end())):
            if getattr(self, column) is not None:
                parts.append((f"created {sign} ?", [moment]))
        for key, value in self.where.items():
            parts.append(_setting(index, key, value))
        return " AND ".join(clause for clause, _ in parts) or "1", [value for _, values in parts for value in values]

    def _end(self) -> float | None:
        moment = _moment(self.until, "until")
        whole_day = isinstance(self.until, str) and len(self.until.strip()) == 10
        whole_day = whole_day or (isinstance(self.until, date) and not isinstance(self.until, datetime))
        return moment if moment is None or not whole_day else moment + 86399.999999


def select(
    index: sqlite3.Connection, wanted: Filter, order: str, descending: bool, limit: int | None, offset: int
) -> list[RunEntry]:
    """The entries that a filter lets through.

    Raises:
        InputError: There is no such order, or the limit is no whole number from 0 up.
    """
    if order not in ORDERS:
        raise InputError(f"expected order among {', '.join(ORDERS)}, got {order!r}")
    for label, number in (("limit", limit), ("offset", offset)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**62):
            raise InputError(f"expected {label} as a whole number from 0 up, got {number!r}")
    condition, values = wanted.clauses(index)
    way = "DESC" if descending else "ASC"
    query = f"SELECT {_COLUMNS} FROM runs WHERE {condition} ORDER BY {order} {way} NULLS LAST, name LIMIT ? OFFSET ?"
    return [_entry(row) for row in index.execute(query, [*values, -1 if limit is None else limit, offset])]


def entry_named(index: sqlite3.Connection, name: str) -> RunEntry | None:
    """The entry of that very name."""
    row = index.execute(f"SELECT {_COLUMNS} FROM runs WHERE name = ?", (name,)).fetchone()
    return None if row is None else _entry(row)


def _entry(row: tuple[Any, ...]) -> RunEntry:
    name, kind, subject, status, ok, value, se, systematic, summary, findings, seed, *times, tags, note = row
    return tuple.__new__(  # as RunEntry(...), in a third of the time: lists have ten thousand of them
        RunEntry,
        (
            name,
            kind,
            subject,
            status,
            None if ok is None else ok != 0,
            value,
            se,
            systematic,
            summary,
            tuple(findings.split()) if findings else (),
            None if seed is None else int(seed),
            *times,
            tuple(tags.split()) if tags else (),
            note,
        ),
    )


def _setting(index: sqlite3.Connection, key: str, value: Any) -> tuple[str, list[Any]]:
    if index.execute("SELECT 1 FROM settings WHERE key = ? LIMIT 1", (key,)).fetchone() is None:
        known = [row[0] for row in index.execute("SELECT DISTINCT key FROM settings LIMIT 5000")]
        near = difflib.get_close_matches(key, known, n=3, cutoff=0.4)
        if known:
            hint = (
                f"; nearest: {', '.join(near)}" if near else "; see `crunode runs show NAME` for the settings of a run"
            )
            raise InputError(f"expected a setting that some run has, got {key!r}{hint}")
        return "0", []
    text = {True: "true", False: "false", None: "null"}.get(value) if value is None or isinstance(value, bool) else None
    if text is None:
        text = str(value)
    choices: list[Any] = [text, *_numbers(text)]
    holds = f"value IN ({', '.join('?' * len(choices))})"
    if any(c in text for c in "*?"):
        holds, choices = f"({holds} OR value GLOB ?)", [*choices, text.replace("[", "[[]")]
    return f"id IN (SELECT run FROM settings WHERE key = ? AND {holds})", [key, *choices]


def _numbers(text: str) -> list[int | float]:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return [number] if isinstance(number, float) or abs(number) < 2**63 else []
    return []


def _moment(value: str | date | None, label: str) -> float | None:
    if value is None:
        return None
    try:
        if isinstance(value, datetime):
            found = value
        else:
            found = datetime.fromisoformat(value.isoformat() if isinstance(value, date) else str(value).strip())
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise InputError(f"expected {label} as a day or time such as 2026-11-16, got {value!r}") from error
