"""A folder belongs to one question: its header says which, and another question is refused with the difference."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crunode.errors import StoreError, StoreMismatch
from crunode.store.atomic import acquire
from crunode.store.documents import diff, plain, read_document, write_document

__all__ = ["Header", "refuse"]

_SHOWN = 20
_VERSION = 1  # of all headers


def refuse(folder: str | os.PathLike[str], what: str, lines: Sequence[str]) -> None:
    """Refuse a folder whose settings differ from those asked for in `lines`; none is no difference.

    Raises:
        StoreMismatch: There are some; the message shows those nearest the top, of which the others follow.

    Example:
        >>> refuse("a", "this run", [])
    """
    if not lines:
        return
    first = sorted(lines, key=lambda line: line.partition(":")[0].count("."))
    shown = "\n  ".join([*first[:_SHOWN], *([f"and {len(first) - _SHOWN} more"] if len(first) > _SHOWN else [])])
    raise StoreMismatch(
        f"expected {folder} to hold {what}, got another one; settings differ:\n  {shown}\n"
        "Choose another folder, or repeat the call with the stored settings."
    )


@dataclass(frozen=True)
class Header:
    """The file of a folder that says what it belongs to.

    Attributes:
        what: What a folder of this kind holds, such as "recipe".
        file: Its name in the folder.
        format: Its format.
        key: Where the settings are in it.
        lock: The lock file of who writes the folder.

    Example:
        >>> import tempfile
        >>> header = Header("study", "study.json", "study", "settings")
        >>> with tempfile.TemporaryDirectory() as home:
        ...     with header.held(Path(home, "a"), {"seed": 0}):
        ...         print(header.held(Path(home, "a"), {"seed": 0}).__enter__())
        Traceback (most recent call last):
        crunode.errors.StoreError: another process is at work on the study in ...
    """

    what: str
    file: str
    format: str
    key: str
    lock: str = "locks/run.lock"

    def check(self, home: Path, *beside: str) -> None:
        """Refuse a file, and a folder with other files than `beside` that is not of this kind."""
        if home.exists() and not home.is_dir():
            raise StoreError(f"expected a folder to keep the {self.what} in, got the file {home}; choose another path")
        allowed = {f"{self.file}.tmp", Path(self.lock).parts[0], *beside}
        others = home.is_dir() and any(path.name not in allowed for path in home.iterdir())
        if others and not (home / self.file).exists():  # in this order: another process may just have begun
            raise StoreError(
                f"expected a new folder or one of a {self.what}, got {home}, which holds other files; choose another"
            )

    def settle(self, home: Path, asked: Any) -> None:
        """Write the header of a new folder, or hold the one that is there against what is asked for."""
        path, settings = home / self.file, plain(asked)
        if path.exists():
            stored = read_document(path, self.format, _VERSION)[self.key]
            refuse(home, f"this {self.what}", diff(stored, settings))
        else:
            write_document(path, self.format, _VERSION, {self.key: settings})

    @contextlib.contextmanager
    def held(self, home: Path, asked: Any, patience: float = 0.0) -> Iterator[None]:
        """Hold the folder for this process while the block runs, once it is known to belong to what is asked for.

        Raises:
            StoreMismatch: It belongs to something else; the message shows the difference.
            StoreError: It is something else, is corrupt, cannot be written, or another process holds it.
        """
        self.check(home)
        handle = acquire(home / self.lock, patience=patience)
        if handle is None:
            raise StoreError(
                f"another process is at work on the {self.what} in {home}; wait for it, or choose another folder"
            )
        try:
            self.settle(home, asked)
            yield
        finally:
            os.close(handle)
