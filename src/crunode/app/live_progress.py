"""How far a run has come, read from its folder: so it does not matter who started it, and where."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from crunode.errors import StoreError
from crunode.store.documents import parse_document
from crunode.store.folder import journal_name
from crunode.store.guarded import entries, inside, read_regular
from crunode.store.run_record import RunRecord

__all__ = ["RunProgress", "progress_of", "spent_words"]

_GROUPS, _FILES = 256, 100_000


class RunProgress(NamedTuple):
    """How far a run has come.

    Attributes:
        done: Units that are done.
        total: Units in all; None where the folder does not say.
        unit: What they are.
        quiet: Seconds since a file of it was written last.
    """

    done: int
    total: int | None
    unit: str
    quiet: float

    @property
    def words(self) -> str:
        """In words.

        Example:
            >>> RunProgress(3, 9, "cells", 2.0).words
            '3 of 9 cells'
        """
        return f"{self.done} {self.unit}" if self.total is None else f"{self.done} of {self.total} {self.unit}"


def progress_of(folder: Path, record: RunRecord, now: float | None = None) -> RunProgress:
    """The progress of a run folder; what cannot be read counts as not done.

    Args:
        folder: The run folder.
        record: What `read_run` gave of it.
        now: The time, in seconds since 1970.

    Example:
        >>> record = RunRecord("recipe", settings={"cells": {"a": {}, "b": {}}}, updated=90.0)
        >>> progress_of(Path("no such folder"), record, now=100.0)
        RunProgress(done=0, total=2, unit='cells', quiet=10.0)
    """
    done, total, unit = _PARTS[record.kind](folder, record.settings)
    quiet = max(0.0, (time.time() if now is None else now) - record.updated)
    return RunProgress(done if total is None else min(done, total), total, unit, quiet)


def spent_words(seconds: float) -> str:
    """A length of time in few words.

    Example:
        >>> spent_words(4.2), spent_words(150), spent_words(9000), spent_words(3e5)
        ('4 s', '2 min', '2 h', '3 days')
    """
    for size, word in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {word}"
    return f"{seconds:.0f} s"


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else None


def _cells(folder: Path, settings: Mapping[str, Any]) -> tuple[int, int | None, str]:
    found = sum(e.name.endswith(".json") and not e.name.startswith(".") for e in entries(folder / "cells", _FILES))
    asked = settings.get("cells")
    return found, len(asked) if isinstance(asked, Mapping) else None, "cells"


def _draws(folder: Path, settings: Mapping[str, Any]) -> tuple[int, int | None, str]:
    counts = [_count(settings.get(key)) for key in ("warmup", "draws")]
    chains = settings.get("nbeta_per_chain")
    done = 0
    for number in range(_GROUPS):
        try:
            path = inside(folder, journal_name(number))
            journal = parse_document(read_regular(path), path, "crunode-group", 1)
        except (StoreError, RecursionError):
            break
        held, chunks = journal.get("chains"), journal.get("chunks")
        if isinstance(held, list) and isinstance(chunks, list):
            lengths = [_count(chunk.get("draws")) for chunk in chunks if isinstance(chunk, dict)]
            done += len(held) * sum(length or 0 for length in lengths)
    if None in counts or not isinstance(chains, list):
        return done, None, "draws"
    return done, len(chains) * sum(count or 0 for count in counts), "draws"


def _epochs(folder: Path, settings: Mapping[str, Any]) -> tuple[int, int | None, str]:
    try:
        path = inside(folder, "history.json")
        rows = parse_document(read_regular(path), path, "crunode-training-history", 1).get("rows")
    except (StoreError, RecursionError):
        rows = None
    return len(rows) if isinstance(rows, list) else 0, _count(settings.get("epochs")), "epochs"


def _visits(folder: Path, settings: Mapping[str, Any]) -> tuple[int, int | None, str]:
    return sum(e.name.endswith(".json") for e in entries(folder / "visits", _FILES)), None, "visits"


def _sweep(folder: Path, settings: Mapping[str, Any]) -> tuple[int, int | None, str]:
    return sum(e.name.endswith(".json") for e in entries(folder / "cells", _FILES)), None, "cells"


_PARTS = {"recipe": _cells, "draws": _draws, "training": _epochs, "tracker": _visits, "sweep": _sweep}
