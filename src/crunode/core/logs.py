"""What happened to a run, one JSON object a line, in the file `log.jsonl` of its folder."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["LOG", "log", "logging_to"]

LOG = "log.jsonl"
"""The file."""

_LONGEST = 2000  # characters of a value; a line stays short enough to be appended in one piece
_place: ContextVar[Path | None] = ContextVar("log", default=None)


@contextlib.contextmanager
def logging_to(folder: Path | None) -> Iterator[None]:
    """Let `log` inside the block write to the log of a run folder, which must be there; None is for nowhere.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with logging_to(Path(folder)):
        ...         log("job done", job=3)
        ...     text = Path(folder, LOG).read_text()
        >>> json.loads(text)["job"]
        3
    """
    token = _place.set(None if folder is None else folder / LOG)
    try:
        yield
    finally:
        _place.reset(token)


def log(event: str, **fields: str | int | float | bool | None) -> None:
    """Append an event with the time, by the wall clock and by one that never jumps, and the process.

    A log that cannot be written, on a full disk for example, is left out: it ends no run.
    """
    path = _place.get()
    if path is None:
        return
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    row = {"time": now, "clock": round(time.monotonic(), 3), "process": os.getpid(), "event": event, **fields}
    short = {key: value[:_LONGEST] if isinstance(value, str) else value for key, value in row.items()}
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with contextlib.suppress(OSError, ValueError):
        handle = os.open(path, flags, 0o666)
        try:
            os.write(handle, (json.dumps(short, allow_nan=False) + "\n").encode())
        finally:
            os.close(handle)
