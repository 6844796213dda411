"""A run folder as files: where things are, what they must look like, who may write them."""

from __future__ import annotations

import contextlib
import os
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError

from crunode.errors import CrunodeError, InputError, StoreError
from crunode.store.atomic import PATIENCE, acquire
from crunode.store.documents import read_document, write_document
from crunode.store.guarded import inside

__all__ = ["VERSION", "RunFolder", "chain_count", "journal_name", "label", "well_formed"]

VERSION = 1
"""Version of the format; a folder of another version is refused."""

_JOURNAL = re.compile(r"g\d{3,}\.json(\.tmp)?")


class RunFolder:
    """Paths, manifest, journals and claims of a run folder; `crunode.store.run_store.RunStore` adds the verbs.

    Args:
        folder: The run folder.
        writable: Whether groups may be claimed.
    """

    def __init__(self, folder: str | os.PathLike[str], writable: bool = True) -> None:
        self.folder = Path(folder).absolute()
        self.writable = writable
        self._claims: dict[int, int] = {}
        weakref.finalize(self, _release, self._claims)

    def __reduce__(self) -> tuple[type[Self], tuple[str, bool]]:
        return type(self), (str(self.folder), self.writable)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r}{'' if self.writable else ', writable=False'})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the groups that this handle has claimed."""
        _release(self._claims)

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest as it is on disk now."""
        return read_document(self.file("manifest.json"), "crunode-run", VERSION)

    @property
    def spec(self) -> dict[str, Any]:
        """Resolved settings of the run."""
        return dict(self.manifest["spec"])

    @property
    def groups(self) -> list[list[int]]:
        """Chains of each group."""
        return [list(group) for group in self.manifest["groups"]]

    @property
    def status(self) -> str:
        """One of "running", "complete", "failed"."""
        return str(self.manifest["status"])

    def file(self, name: str) -> Path:
        """Path of a file of the folder, by its name relative to it.

        Raises:
            StoreError: The name leads out of the folder, or through a link.
        """
        return inside(self.folder, name)

    def write_manifest(self, content: Mapping[str, Any]) -> None:
        """Replace the manifest; the caller holds the lock of the run."""
        write_document(self.file("manifest.json"), "crunode-run", VERSION, content)

    def journal(self, group: int, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """The journal of a group, held against the inventory when the manifest has one."""
        if not 0 <= group < len(manifest["groups"]):
            raise InputError(f"expected a group from 0 to {len(manifest['groups']) - 1}, got {group}")
        name = journal_name(group)
        return read_document(self.file(name), "crunode-group", VERSION, manifest["files"].get(name))

    def journals(self, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The journals of all groups."""
        return [self.journal(group, manifest) for group in range(len(manifest["groups"]))]

    def write_journal(self, content: Mapping[str, Any]) -> None:
        """Replace the journal of a group; the caller has claimed the group."""
        write_document(self.file(journal_name(content["group"])), "crunode-group", VERSION, content)

    def claim(self, group: int) -> None:
        """Take the lock of a group for this handle.

        Raises:
            StoreError: Another handle has it.
        """
        if group not in self._claims:
            handle = acquire(self.file(f"locks/{label(group)}.lock"), patience=PATIENCE)
            if handle is None:
                raise StoreError(
                    f"group {group} of {self.folder} is being written by another process; "
                    "wait for it or end it, or choose another folder"
                )
            self._claims[group] = handle

    def claimed(self, group: int) -> bool:
        """Whether this handle has claimed the group."""
        return group in self._claims

    def release(self, group: int) -> None:
        """Let go of a claimed group."""
        os.close(self._claims.pop(group))

    def check_vacant(self) -> None:
        """See that the folder may become a run: absent, empty, or left behind by an interrupted `create`.

        Raises:
            StoreError: It holds something else; nothing of that is touched.
        """
        try:
            names = {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()
            own = {"locks", "groups", "manifest.json.tmp"} if "locks" in names else set()
            foreign = names - own
            if "groups" in names & own:
                foreign |= {p.name for p in self.file("groups").iterdir() if not _JOURNAL.fullmatch(p.name)}
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(
                f"expected a folder for the run, got {self.folder}: {reason}; choose another path"
            ) from error
        if foreign and "manifest.json" not in names:
            raise StoreError(
                f"expected a run folder or an empty one, got {self.folder}, which has no manifest.json "
                f"but holds {', '.join(sorted(foreign)[:5])}; choose another path"
            )

    def clean(self, journal: Mapping[str, Any] | None) -> None:
        """Remove what an interrupted write left behind: files of a group that its journal does not name.

        Args:
            journal: The journal; or None for the journals themselves, before there is a manifest.
        """
        if journal is None:
            self._remove("groups", _JOURNAL, keep=())
            return
        name = label(journal["group"])
        mine = re.compile(rf"{name}-.*\.safetensors(\.tmp)?")
        self._remove("chunks", mine, keep=[entry["file"] for entry in journal["chunks"]])
        self._remove("state", mine, keep=[journal["state"]["file"]] if journal["state"] else ())
        self._remove("groups", re.compile(rf"{name}\.json\.tmp"), keep=())

    def _remove(self, folder: str, pattern: re.Pattern[str], keep: Sequence[str]) -> None:
        try:
            for path in sorted(self.file(folder).iterdir()) if self.file(folder).exists() else ():
                if pattern.fullmatch(path.name) and f"{folder}/{path.name}" not in keep:
                    os.unlink(path)
        except OSError as error:
            raise StoreError(
                f"could not remove leftovers of an interrupted write in {self.file(folder)}: "
                f"{error.strerror or error}. Make the folder writable, then run again."
            ) from error


def label(group: int) -> str:
    """Name of a group in the names of its files.

    Example:
        >>> label(7)
        'g007'
    """
    return f"g{group:03d}"


def journal_name(group: int) -> str:
    """Name of the journal of a group, relative to the run folder.

    Example:
        >>> journal_name(7)
        'groups/g007.json'
    """
    return f"groups/{label(group)}.json"


@contextlib.contextmanager
def well_formed(folder: Path) -> Iterator[None]:
    """Turn the errors that documents of a wrong content bring about into one that says so.

    Raises:
        StoreError: The block failed over a missing key, a wrong type or the like.

    Example:
        >>> with well_formed(Path("runs/a")):
        ...     {}["spec"]
        Traceback (most recent call last):
        crunode.errors.StoreError: runs/a is corrupt: its files do not fit together (KeyError: 'spec'). ...
    """
    try:
        yield
    except CrunodeError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        SafetensorError,
    ) as error:
        raise StoreError(
            f"{folder} is corrupt: its files do not fit together ({type(error).__name__}: {str(error)[:200]}). "
            "Restore it from a copy, or run again in a new folder."
        ) from error


def chain_count(manifest: Mapping[str, Any]) -> int:
    """Chains of a run, over all its groups."""
    return sum(len(group) for group in manifest["groups"])


def _release(claims: dict[int, int]) -> None:
    while claims:
        os.close(claims.popitem()[1])
