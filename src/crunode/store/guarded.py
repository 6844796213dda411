"""Files of folders that others may have made: no link is followed, no pipe waited for, no size taken on trust.

The checks hold against what a folder contains, such as an archive that was unpacked. They do not hold against a process
of the same user that exchanges folders for links while they are being read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from crunode.errors import StoreError
from crunode.store.atomic import make_folder

__all__ = ["LIMIT", "entries", "inside", "is_folder", "is_plain_name", "read_regular", "replace_file", "shown"]

LIMIT = 16 * 2**20
"""The most bytes that are read of one document."""

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def shown(text: str) -> str:
    r"""`text` on one line and without characters that would steer a terminal: they are written as escapes.

    Example:
        >>> print(shown("a\x1b[31mred\n"))
        a\x1b[31mred\x0a
    """
    return "".join(c if c.isprintable() else _escape(ord(c)) for c in str(text))


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def is_plain_name(name: object) -> bool:
    """Whether `name` is a relative path downward, with `/` between its parts.

    Example:
        >>> [is_plain_name(name) for name in ("a/b.json", "../b", "/etc/passwd", "a//b", "c:x", 3)]
        [True, False, False, False, False, False]
    """
    if not isinstance(name, str) or not 0 < len(name) <= 4096 or any(c in name for c in "\\:\0"):
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def inside(folder: Path, name: object) -> Path:
    """The path of a file or folder below `folder`, once it is known that no link leads out of it.

    Args:
        folder: The folder; it may itself be reached by a link.
        name: Relative path, as documents of the folder state it.

    Raises:
        StoreError: The name leads elsewhere, or a part of it is a link.

    Example:
        >>> inside(Path("runs"), "../b")
        Traceback (most recent call last):
        crunode.errors.StoreError: expected the name of something inside runs, got '../b'; the folder is corrupt
    """
    if not is_plain_name(name):
        raise StoreError(
            f"expected the name of something inside {folder}, got {str(name)[:80]!r}; the folder is corrupt"
        )
    path = folder
    for part in str(name).split("/"):
        path = path / part
        try:
            mode = os.lstat(path).st_mode
        except (OSError, ValueError):
            continue  # absent: whoever opens it will say so
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            kind = "a link" if stat.S_ISLNK(mode) else "no file"
            raise StoreError(f"expected a file or folder at {path}, got {kind}; links and devices are not followed")
    return path


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder itself, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def read_regular(path: Path, limit: int = LIMIT) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Raises:
        StoreError: It is absent, larger, a link, a pipe or a device.

    Example:
        >>> read_regular(Path(os.devnull))
        Traceback (most recent call last):
        crunode.errors.StoreError: expected a file at /dev/null, got something else; ...
    """
    try:
        handle = os.open(path, os.O_RDONLY | _NO_LINK | _NO_WAIT)
        try:
            found = os.fstat(handle)
            regular = stat.S_ISREG(found.st_mode)
            data = _read(handle, limit + 1) if regular and found.st_size <= limit else b""
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"could not read {path}: {reason}. Restore it from a copy, or run again.") from error
    if not regular:
        raise StoreError(f"expected a file at {path}, got something else; links and devices are not followed")
    size = max(found.st_size, len(data))
    if size > limit:
        raise StoreError(f"expected at most {limit} bytes in {path}, got {size}; it was not read")
    return data


def _read(handle: int, most: int) -> bytes:
    parts = []
    while most > 0 and (part := os.read(handle, min(most, 2**20))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, through a name that nobody can have put there before.

    Raises:
        StoreError: The disk refused.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     replace_file(Path(folder, "a"), b"1")
        ...     read_regular(Path(folder, "a"))
        b'1'
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        make_folder(path.parent)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise StoreError(
            f"could not write {path}: {error.strerror or error}; free space or make the folder writable"
        ) from error


def entries(folder: Path, most: int) -> Iterator[os.DirEntry[str]]:
    """Up to `most` entries of a folder, in no order; none where it cannot be listed, or is a link.

    Example:
        >>> list(entries(Path("no such folder"), 10))
        []
    """
    if not is_folder(folder):
        return
    try:
        listing = os.scandir(folder)
    except (OSError, ValueError):
        return
    with listing:
        for _ in range(most):
            try:
                entry = next(listing, None)
            except OSError:
                return
            if entry is None:
                return
            yield entry
