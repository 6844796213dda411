"""The index of a catalogue: an SQLite file that can be thrown away, since the run folders say everything.

Readers and writers hold a shared lock beside it; who has to throw it away holds it alone, so that nobody's open
database is taken from under it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from crunode.errors import StoreError
from crunode.store.run_numbers import flat_settings, text_of
from crunode.store.run_record import RunRecord

if sys.platform != "win32":
    import fcntl

__all__ = ["INDEX", "BadIndex", "discard", "drop", "opened", "put", "writing"]

INDEX = ".crunode-runs.sqlite"
"""Name of the index in the folder of runs."""

_LOCK = ".crunode-runs.lock"
_BESIDE = ("", "-wal", "-shm", "-journal")
_VERSION = 1
_TABLES = (
    "CREATE TABLE runs (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, header TEXT NOT NULL, "
    "signature TEXT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, status TEXT NOT NULL, ok INTEGER, "
    "value REAL, se REAL, systematic REAL, summary TEXT NOT NULL, findings TEXT NOT NULL, seed TEXT, "
    "created REAL NOT NULL, updated REAL NOT NULL, size INTEGER NOT NULL, tags TEXT NOT NULL, note TEXT NOT NULL)",
    "CREATE TABLE settings (run INTEGER NOT NULL, key TEXT NOT NULL, value, PRIMARY KEY (run, key)) WITHOUT ROWID",
    "CREATE TABLE numbers (run INTEGER NOT NULL, place INTEGER NOT NULL, name TEXT NOT NULL, value REAL, se REAL, "
    "systematic REAL, ok INTEGER NOT NULL, PRIMARY KEY (run, place)) WITHOUT ROWID",
    "CREATE INDEX runs_created ON runs (created)",
    "CREATE INDEX settings_key ON settings (key, value)",
)
_PUT = (
    "INSERT INTO runs (name, header, signature, kind, subject, status, ok, value, se, systematic, summary, findings, "
    "seed, created, updated, size, tags, note) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) RETURNING id"
)


class BadIndex(Exception):
    """The index is damaged, of another version or not ours: it has to be built anew."""


@contextlib.contextmanager
def opened(root: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the index, made when absent.

    Raises:
        BadIndex: It is damaged or not ours.
        StoreError: The folder cannot be written, or the index was busy for half a minute.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as index:
        ...     index.execute("SELECT count(*) FROM runs").fetchone()
        (0,)
    """
    with _guarding(root, alone=False):
        _check_files(root)
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(root / INDEX, timeout=30.0, isolation_level=None)
            _prepare(connection)
            yield connection
        except sqlite3.DatabaseError as error:
            raise _translated(error, root) from error
        finally:
            if connection is not None:
                connection.close()


def discard(root: Path) -> None:
    """Throw the index away, once nobody uses it.

    Raises:
        StoreError: The folder cannot be written.
    """
    with _guarding(root, alone=True):
        for end in _BESIDE:
            try:
                os.unlink(root / f"{INDEX}{end}")  # of a link only the link
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _refused(root, error) from error


@contextlib.contextmanager
def writing(index: sqlite3.Connection) -> Iterator[None]:
    """One transaction: all of the block or nothing, one writer at a time."""
    index.execute("BEGIN IMMEDIATE")
    try:
        yield
        index.execute("COMMIT")
    except BaseException:
        if index.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                index.execute("ROLLBACK")
        raise


def put(index: sqlite3.Connection, name: str, header: str, mark: str, record: RunRecord) -> None:
    """Write what a run folder says in place of what was known; within `writing`."""
    drop(index, [name])
    first = record.numbers[0] if record.numbers and record.kind in ("draws", "sweep", "tracker") else None
    main = (None, None, None) if first is None else (first.value, first.se, first.systematic)
    codes = " ".join(dict.fromkeys(finding["code"] for finding in record.findings))
    seed = None if record.seed is None else str(record.seed)
    times = (record.created, record.updated, record.size)
    words = (" ".join(record.tags), text_of(record.note, 2000))
    row = (name, header, mark, record.kind, record.subject, record.status, record.ok, *main, record.summary, codes)
    (key,) = index.execute(_PUT, (*row, seed, *times, *words)).fetchone()
    settings = flat_settings(record.settings)
    index.executemany("INSERT INTO settings VALUES (?,?,?)", [(key, k, v) for k, v in settings.items()])
    numbers = [(key, place, *number) for place, number in enumerate(record.numbers)]
    index.executemany("INSERT INTO numbers VALUES (?,?,?,?,?,?,?)", numbers)


def drop(index: sqlite3.Connection, names: Iterable[str]) -> None:
    """Forget runs; within `writing`."""
    for name in names:
        found = index.execute("SELECT id FROM runs WHERE name = ?", (name,)).fetchone()
        if found is not None:
            for table, column in (("settings", "run"), ("numbers", "run"), ("runs", "id")):
                index.execute(f"DELETE FROM {table} WHERE {column} = ?", found)


def _prepare(index: sqlite3.Connection) -> None:
    index.execute("PRAGMA trusted_schema = OFF")
    index.execute("PRAGMA cell_size_check = ON")
    if _schema(index) != set(_TABLES):
        with writing(index):
            found = _schema(index)  # another process may have been first
            if found and found != set(_TABLES):
                raise BadIndex("its tables are not those of this version")
            if not found:
                for statement in _TABLES:
                    index.execute(statement)
                index.execute(f"PRAGMA user_version = {_VERSION}")
    if index.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        with contextlib.suppress(sqlite3.OperationalError):  # another process is just doing it
            index.execute("PRAGMA journal_mode = WAL")
    index.execute("PRAGMA synchronous = NORMAL")
    index.execute("PRAGMA cache_size = -65536")  # 64 MB, which the index of tens of thousands of runs fits into


def _schema(index: sqlite3.Connection) -> set[str]:
    """All that the file defines; triggers and views of a foreign file would be among it."""
    return {str(row[0]) for row in index.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}


def _translated(error: sqlite3.DatabaseError, root: Path) -> Exception:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(f"the index of {root} is in use by another process for long; wait for it, then try again")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_PERM):
        return _refused(root, error)
    return BadIndex(str(error))


def _refused(root: Path, error: Exception) -> StoreError:
    reason = getattr(error, "strerror", None) or error
    return StoreError(f"could not write the index {root / INDEX}: {reason}; free space or make the folder writable")


def _check_files(root: Path) -> None:
    """See that the index is in the folder itself: a link would have SQLite write somewhere else."""
    for end in _BESIDE:
        try:
            found = os.lstat(root / f"{INDEX}{end}")
        except OSError:
            continue
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise BadIndex(f"{INDEX}{end} is a link or no file")


@contextlib.contextmanager
def _guarding(root: Path, *, alone: bool) -> Iterator[None]:
    if sys.platform == "win32":  # where an open file cannot be removed anyway
        yield
        return
    try:
        handle = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _refused(root, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)
