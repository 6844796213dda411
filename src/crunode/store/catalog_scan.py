"""Finding run folders below a folder, however much else lies there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crunode.store.guarded import entries
from crunode.store.run_record import HEADERS, header_of

__all__ = ["LEFTOVER", "Scan", "walk"]

LEFTOVER = re.compile(r"\.crunode-deleted-[0-9a-f]{16}")
"""Name that a run folder has from when its deletion begins until it has ended."""

_FOLDER, _TOTAL, _DEPTH = 200_000, 2_000_000, 8


@dataclass
class Scan:
    """What a look at the folders gave.

    Attributes:
        runs: Run folders that are there.
        read: Those that were read, because they are new or have changed.
        gone: Those that were known and are no longer there.
        problems: What could not be looked at, and why.
        leftovers: Folders whose deletion was interrupted.

    Example:
        >>> print(Scan(runs=3, read=1))
        3 runs, 1 read, 0 gone
    """

    runs: int = 0
    read: int = 0
    gone: int = 0
    problems: list[str] = field(default_factory=list)
    leftovers: list[Path] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.runs} runs, {self.read} read, {self.gone} gone"

    def note(self, problem: str) -> None:
        """Keep a problem, of the first hundred."""
        if len(self.problems) < 100:
            self.problems.append(problem)


def walk(root: Path, known: dict[str, str], scan: Scan) -> Iterator[tuple[str, str]]:
    """Name and header of every run folder below `root`.

    What lies inside a run folder belongs to it and is not looked at. Links are not followed, hidden folders are passed
    over, and folders deeper than 8 levels or beyond 200 000 entries are left out, which the scan then says.

    Args:
        root: The folder.
        known: Headers of known run folders by name, which saves listing these.
        scan: Takes what was noticed.
    """
    waiting = [("", 0)]
    total = 0
    while waiting:
        prefix, depth = waiting.pop()
        here = root / prefix if prefix else root
        seen = 0
        for entry in entries(here, _FOLDER + 1):
            seen += 1
            total += 1
            if seen > _FOLDER or total > _TOTAL:
                scan.note(f"{prefix or '.'}: more than {min(_FOLDER, total)} entries; the rest was not looked at")
                if total > _TOTAL:
                    return
                break
            name = entry.name
            try:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                name.encode()
            except OSError:
                continue
            except UnicodeEncodeError:
                scan.note(f"{prefix or '.'}: a folder whose name is no UTF-8 text was left out; rename it")
                continue
            if name.startswith("."):
                if LEFTOVER.fullmatch(name):
                    scan.leftovers.append(Path(entry.path))
                continue
            full = f"{prefix}/{name}" if prefix else name
            header = known.get(full)
            if header is None or not os.path.lexists(f"{entry.path}/{header}"):
                header = header_of(Path(entry.path))
            if header is not None:
                yield full, header
            elif depth + 1 >= _DEPTH:
                scan.note(f"{full}: deeper than {_DEPTH} folders; not looked into")
            else:
                _foreign(Path(entry.path), full, scan)
                waiting.append((full, depth + 1))


def _foreign(folder: Path, name: str, scan: Scan) -> None:
    found = next((header for header in HEADERS if os.path.lexists(folder / header)), None)
    if found is not None:
        scan.note(f"{name}: {found} is not of crunode, or destroyed; the folder is not listed")
