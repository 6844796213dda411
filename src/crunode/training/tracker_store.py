"""The folder of a tracker: its settings, and one file for each visit.

`tracker.json` has the settings, `visits/step-00001200.json` what was measured at that step. Each file is whole or
absent, so that a kill loses at most the visit in progress.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crunode.errors import StoreError, StoreMismatch
from crunode.store.atomic import locked
from crunode.store.documents import diff, plain, read_document, write_document
from crunode.training.trajectory import Visit

__all__ = ["TrackerStore"]

_HEADER, _VISIT, _VERSION = "crunode-tracker", "crunode-visit", 1
_NAME = re.compile(r"step-(\d{8,})\.json")


class TrackerStore:
    """A folder that holds the visits of one tracker.

    Args:
        folder: The folder; made when absent.
        asked: The tracker's settings.

    Raises:
        StoreMismatch: It holds visits of another tracker; the message shows the differences.
        StoreError: It holds something else, is corrupt, or cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], asked: Mapping[str, Any]) -> None:
        self.home = Path(folder).absolute()
        header = self.home / "tracker.json"
        if self.home.exists() and not self.home.is_dir():
            raise StoreError(f"expected a folder to keep visits in, got the file {self.home}; choose another path")
        allowed = {"tracker.lock", "tracker.json.tmp", "visits"}
        others = self.home.is_dir() and any(p.name not in allowed for p in self.home.iterdir())
        if others and not header.exists():  # in this order: another process may just have begun
            raise StoreError(
                f"expected a new folder or one of a tracker, got {self.home}, which holds other files; choose another"
            )
        with locked(self.home / "tracker.lock"):
            if header.exists():
                lines = diff(read_document(header, _HEADER, _VERSION)["settings"], plain(asked))
                if lines:
                    raise StoreMismatch(
                        f"{self.home} holds visits of another tracker; settings differ:\n  "
                        + "\n  ".join(lines[:20])
                        + "\nChoose another folder, or ask for the stored settings to continue."
                    )
            else:
                write_document(header, _HEADER, _VERSION, {"settings": plain(asked)})

    def read(self) -> list[Visit]:
        """The visits so far, in order.

        Raises:
            StoreError: A file is corrupt; the message names it.
        """
        folder = self.home / "visits"
        if not folder.is_dir():
            return []
        visits = []
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is None:
                continue  # a file that was being written when its process ended, or one that is not ours
            visit = Visit.from_dict(read_document(path, _VISIT, _VERSION)["visit"])
            if visit.step != int(match[1]):
                raise StoreError(f"{path} states step {visit.step}; restore its name, or delete it to measure it again")
            visits.append(visit)
        return sorted(visits, key=lambda visit: visit.step)

    def keep(self, visit: Visit) -> None:
        """Write a visit.

        Raises:
            StoreError: Another process has written it, or the disk refused.
        """
        path = self.path(visit.step)
        with locked(self.home / "tracker.lock"):
            if path.exists():
                raise StoreError(f"{path} was written by another process; let one of them track into this folder")
            write_document(path, _VISIT, _VERSION, {"visit": visit.to_dict()})

    def path(self, step: int) -> Path:
        """The file of a step."""
        return self.home / "visits" / f"step-{step:08d}.json"
