"""Progress bars: shown on a terminal for anything that takes over two seconds, silent elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

__all__ = ["Progress"]


class Progress:
    """A bar over `total` units, or a count where that is None, drawn on standard error when that is a terminal.

    Example:
        >>> with Progress(3, "work") as bar:
        ...     bar.advance()
    """

    def __init__(self, total: int | None, label: str, start: int = 0) -> None:
        self._bar: Any = None
        if sys.stderr is not None and sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=total, desc=label, initial=start, delay=2, leave=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, units: int = 1, note: str | None = None) -> None:
        """Count `units` as done; `note` is shown beside the bar."""
        if self._bar is not None:
            if note is not None:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(units)
