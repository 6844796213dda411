"""Files that are either whole or absent: atomic writes, checked reads, advisory locks."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crunode.errors import StoreError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["PATIENCE", "acquire", "digest", "locked", "make_folder", "read_bytes", "write_bytes"]

_LARGEST = 2**30  # bytes of a file that states no size of its own
_DAMAGED = "Restore it from a copy, or run again in a new folder; `crunode rerun` does so with the stored settings."
_AGAIN = "Free space or choose a folder that can be written, then run again: it continues from what is stored."


def digest(data: bytes) -> str:
    """The SHA-256 of `data` in hexadecimal.

    Example:
        >>> digest(b"crunode")[:8]
        '29b8d0b3'
    """
    return hashlib.sha256(data).hexdigest()


def _sync_folder(folder: Path) -> None:
    if sys.platform != "win32":  # a folder cannot be opened there, and renames are durable without it
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents so that they survive a power cut.

    Raises:
        OSError: It cannot be made.
    """
    missing = [f for f in (folder, *folder.parents) if not f.is_dir()]
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was first; a file in its place fails below
            os.mkdir(each)
        _sync_folder(each.parent)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file, not a folder")


def write_bytes(path: Path, data: bytes) -> dict[str, Any]:
    """Write a file so that at every moment it is either whole or as it was before.

    The order is: temporary name `<name>.tmp` in the same folder, fsync, rename, fsync of the folder. Two
    writers of one path must be kept apart by a lock.

    Returns:
        `{"sha256": ..., "bytes": ...}` of the content.

    Raises:
        StoreError: The file could not be written; nothing half-written stays under `path`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_bytes(Path(folder, "a"), b"crunode")["bytes"]
        7
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        make_folder(path.parent)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise StoreError(f"could not write {path} ({len(data)} bytes): {_reason(error)}. {_AGAIN}") from error
    return {"sha256": digest(data), "bytes": len(data)}


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def read_bytes(path: Path, expected: Mapping[str, Any] | None = None) -> bytes:
    """Read a file and hold it against `{"sha256": ..., "bytes": ...}`.

    Raises:
        StoreError: The file is missing, unreadable, truncated or changed; the message names it.
    """
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):  # a pipe in the place of a file would never answer
            raise OSError(errno.EINVAL, "it is no regular file")
        if expected is None and found.st_size > _LARGEST:
            raise OSError(errno.EFBIG, f"it has {found.st_size} bytes, more than any document")
        right = expected is None or found.st_size == expected["bytes"]
        data = path.read_bytes() if right else b""
    except MemoryError as error:
        raise StoreError(f"could not read {path}: its {found.st_size} bytes do not fit into memory") from error
    except (OSError, ValueError) as error:
        reason = _reason(error) if isinstance(error, OSError) else error
        raise StoreError(
            f"could not read {path}: {reason}. Restore it from a copy, or run again in a new folder."
        ) from error
    if expected is not None and not right:
        raise StoreError(
            f"{path} is truncated or overwritten: expected {expected['bytes']} bytes, got {found.st_size}. {_DAMAGED}"
        )
    if expected is not None and digest(data) != expected["sha256"]:
        raise StoreError(f"{path} is corrupt: expected sha256 {expected['sha256']}, got {digest(data)}. {_DAMAGED}")
    return data


PATIENCE = 1.0
"""Seconds in which the processes that a killed one has left behind end, and let go of their locks."""


def acquire(path: Path, *, wait: bool = False, patience: float = 0.0) -> int | None:
    """Take the exclusive advisory lock on `path`; the kernel lets go of it when the process ends.

    Args:
        path: The lock file; made when absent, and never removed.
        wait: Wait for another holder instead of returning None.
        patience: Seconds to wait for one before that.

    Returns:
        A file descriptor whose closing releases the lock, or None when another holds it.

    Raises:
        StoreError: The lock file cannot be made, or the file system has no locks.
    """
    end = time.monotonic() + patience
    while patience and not wait and time.monotonic() < end:
        found = acquire(path)
        if found is not None:
            return found
        time.sleep(0.02)
    try:
        make_folder(path.parent)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if sys.platform == "win32":
                msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except (BlockingIOError, PermissionError):
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
    except OSError as error:
        raise StoreError(f"could not lock {path}: {_reason(error)}. {_AGAIN}") from error
    return handle


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock on `path`, waiting for it, while the block runs."""
    handle = acquire(path, wait=True)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)
