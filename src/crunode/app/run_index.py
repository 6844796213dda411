"""The runs that pages show: the catalogue, kept up to date in the background, and a key for each run in addresses."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

from crunode.errors import CrunodeError
from crunode.store.atomic import digest
from crunode.store.catalog import Catalog

__all__ = ["RunIndex"]

_KEY = re.compile(r"[0-9a-f]{20}")
_WAIT, _LEAST, _SHARE = 0.25, 1.0, 8.0


class RunIndex:
    """The catalogue behind the pages.

    Addresses have keys in place of names, so that nothing from a request is ever part of a path: a key is looked up
    among those of the runs that are there.

    Args:
        root: The folder that run folders lie below.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     runs = RunIndex(folder)
        ...     key = runs.key("a/b")
        ...     runs.name(key), runs.name("0" * 20)
        ('a/b', None)
    """

    def __init__(self, root: str | Path) -> None:
        self.catalog = Catalog(root)
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._listed = 0.0
        self._worker: threading.Thread | None = None
        self._next = 0.0
        self.as_of = time.time()

    def key(self, name: str) -> str:
        """What stands for a run in addresses."""
        found = digest(name.encode("utf-8", "surrogatepass"))[:20]
        self._names[found] = name
        return found

    def name(self, key: str) -> str | None:
        """The run that a key stands for; None when there is none."""
        if not _KEY.fullmatch(key):
            return None
        if key not in self._names and time.monotonic() - self._listed > 1.0:
            for run in self.catalog.list():
                self.key(run.name)
            self._listed = time.monotonic()
        return self._names.get(key)

    def refresh(self) -> None:
        """Look at the folders again when that has not just been done, and wait a moment for it.

        With few runs it is over before the page is made. With very many the page shows what was known before, which
        is `as_of` that time, and the next page shows more.
        """
        with self._lock:
            busy = self._worker is not None and self._worker.is_alive()
            if not busy and time.monotonic() >= self._next:
                self._worker = threading.Thread(target=self._refresh, name="crunode-refresh", daemon=True)
                self._worker.start()
            worker = self._worker
        if worker is not None:
            worker.join(_WAIT)

    def close(self) -> None:
        """Wait for a look at the folders that is under way."""
        if self._worker is not None:
            self._worker.join()

    def _refresh(self) -> None:
        start = time.monotonic()
        try:
            self.catalog.refresh()
            self.as_of = time.time()
        except CrunodeError:  # a full disk or the like: pages show what was known before, and as of when
            pass
        finally:
            spent = time.monotonic() - start
            self._next = time.monotonic() + max(_LEAST, _SHARE * spent)
