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

from crunode.errors import StoreError
from crunode.store.atomic import locked
from crunode.store.belongs import Header
from crunode.store.documents import read_document, write_document
from crunode.training.trajectory import Visit

__all__ = ["TrackerStore"]

_HEADER = Header("tracker", "tracker.json", "crunode-tracker", "settings", lock="tracker.lock")
_VISIT, _VERSION = "crunode-visit", 1
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
        _HEADER.check(self.home, "visits")
        with locked(self.home / _HEADER.lock):
            _HEADER.settle(self.home, asked)

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
        with locked(self.home / _HEADER.lock):
            if path.exists():
                raise StoreError(f"{path} was written by another process; let one of them track into this folder")
            write_document(path, _VISIT, _VERSION, {"visit": visit.to_dict()})

    def path(self, step: int) -> Path:
        """The file of a step."""
        return self.home / "visits" / f"step-{step:08d}.json"
