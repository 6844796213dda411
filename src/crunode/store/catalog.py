"""`Catalog`: the run folders below a folder, found again, compared, tagged and thrown away."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from crunode.errors import InputError, StoreError
from crunode.store.atomic import digest
from crunode.store.catalog_index import BadIndex, discard, drop, opened, put, writing
from crunode.store.catalog_query import Filter, RunEntry, entry_named, select
from crunode.store.catalog_scan import Scan, walk
from crunode.store.documents import diff, dumps
from crunode.store.guarded import entries, inside, is_folder, is_plain_name, replace_file
from crunode.store.run_compare import RunComparison, compared
from crunode.store.run_numbers import Number
from crunode.store.run_record import TAGS, RunRecord, header_of, read_run, signature

if TYPE_CHECKING:
    from crunode.core.result import Draws

if sys.platform != "win32":
    import fcntl

__all__ = ["Catalog"]

T = TypeVar("T")
_BATCH = 500
_MOST_TAGS = 100
_TAG = re.compile(r"[\w.+:@/-]{1,64}")


class Catalog:
    """All run folders below a folder, with an index that makes questions quick.

    The folders are what counts: the index (an SQLite file in the folder) is a copy of what they say, brought up to date
    by `refresh` and built anew when it is damaged. Any number of processes may use it at once. Run folders are
    recognized by their headers: draws of `sample` and `llc`, sweeps, recipes, trainings, trackers. What lies inside
    one, such as the cells of a sweep, belongs to it. Links are never followed, nothing outside the folder is touched.

    Args:
        root: The folder that run folders lie below.

    Raises:
        InputError: It is no folder, or itself a run folder.
        StoreError: The index cannot be written.

    Example:
        >>> import tempfile
        >>> from crunode.core.result import Estimate
        >>> from crunode.store.run_store import RunStore, save_estimate
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for seed in (0, 1):
        ...         store = RunStore.create(f"{root}/a{seed}", spec={"n": 9}, groups=[[0]], seed=seed, provenance={})
        ...         _ = save_estimate(store.folder, Estimate("llc", 2.5 + seed, se=0.3))
        ...     catalog = Catalog(root)
        ...     catalog.tag("a1", "best")
        ...     print([run.name for run in catalog.list(tag="best", where={"n": 9})])
        ...     print(catalog.compare(["a0", "a1"]).rows[1].z)
        ('best',)
        ['a1']
        2.357...
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        home = Path(root)
        if not home.is_dir():
            raise InputError(f"expected a folder of runs, got {home}, which is not there; check the path")
        self.root = home.resolve()
        if header_of(self.root) is not None:
            raise InputError(f"expected a folder that run folders lie in, got the run folder {home}; pass its parent")
        self.refresh()

    def __repr__(self) -> str:
        return f"Catalog({str(self.root)!r})"

    def refresh(self) -> Scan:
        """Bring the index up to date: read the run folders that are new or have changed.

        Returns:
            How many there are, and what could not be looked at.
        """
        return self._with(lambda index: self._scan(index, anew=False))

    def rebuild(self) -> Scan:
        """Read every run folder again, and remove what interrupted deletions have left behind."""
        scan = self._with(lambda index: self._scan(index, anew=True))
        for leftover in scan.leftovers:
            if is_folder(leftover):
                shutil.rmtree(leftover, ignore_errors=True)
        return scan

    def list(
        self,
        *,
        order: str = "name",
        descending: bool = False,
        limit: int | None = None,
        offset: int = 0,
        **filters: Any,
    ) -> Sequence[RunEntry]:
        """The runs that meet all filters, as of the last `refresh`.

        Args:
            order: "name", "created", "updated", "value" or "size".
            descending: The other way round.
            limit: The most to return.
            offset: How many to pass over before.
            filters: See `Filter`: kind, name, tag, status, ok, finding, since, until, where.

        Raises:
            InputError: A filter is unknown or not valid.
        """
        wanted = _filter(filters)
        return self._with(lambda index: select(index, wanted, order, descending, limit, offset))

    def count(self, **filters: Any) -> int:
        """How many runs meet all filters; see `list`."""
        wanted = _filter(filters)

        def counted(index: sqlite3.Connection) -> int:
            condition, values = wanted.clauses(index)
            (found,) = index.execute(f"SELECT count(*) FROM runs WHERE {condition}", values).fetchone()
            return int(found)

        return self._with(counted)

    def get(self, name: str) -> RunEntry:
        """The entry of one run, read from its folder now.

        Raises:
            InputError: There is no run of that name.
        """
        self._update(name)
        found = self._with(lambda index: entry_named(index, name))
        if found is None:
            raise InputError(f"expected the name of a run in {self.root}, got {name!r}; it has just been removed")
        return found

    def record(self, name: str) -> RunRecord:
        """All that a run folder says about itself: settings, results, findings, provenance.

        Raises:
            InputError: There is no run of that name.
        """
        home, header = self._home(name)
        return read_run(home, header)

    def numbers(self, name: str) -> tuple[Number, ...]:
        """The results of a run by name: estimates, rows of a recipe, the last visit or epoch."""
        return self.record(name).numbers

    def draws(self, name: str) -> Draws:
        """The draws that a run of kind "draws" has stored, checked.

        Raises:
            InputError: There is no run of that name, or it is of another kind.
            StoreError: A file of it is damaged.
        """
        from crunode.store.run_store import RunStore  # brings torch, which no other question needs

        home, header = self._home(name)
        if header != "manifest.json":
            raise InputError(f"expected a run with draws, got {name!r}, a {self.record(name).kind}")
        return RunStore.open(home).draws()

    def path(self, name: str) -> Path:
        """The folder of a run.

        Raises:
            InputError: There is no run of that name.
        """
        return self._home(name)[0]

    def tag(self, name: str, *tags: str) -> tuple[str, ...]:
        """Add tags to a run; they are kept in its folder.

        Args:
            name: The run.
            tags: Words of letters, digits and ``. + : @ / - _``, of at most 64 characters.

        Returns:
            All its tags.

        Raises:
            InputError: There is no run of that name, or a tag is not valid.
        """
        return self._retag(name, tags, lambda old: old | set(tags))

    def untag(self, name: str, *tags: str) -> tuple[str, ...]:
        """Take tags from a run; those that it does not have are passed over. Returns what is left."""
        return self._retag(name, tags, lambda old: old - set(tags))

    def compare(self, names: Iterable[str], *, against: str | None = None) -> RunComparison:
        """Results of several runs side by side, with errors, and z of the difference from one of them.

        z is (a - b) / sqrt(e_a² + e_b²), with e the total stated error. It takes errors of the two as independent,
        which those of runs on the same data with the same seed are not.

        Args:
            names: The runs.
            against: The one that the others are held against; the first when left out.

        Raises:
            InputError: There are fewer than two names, or no run of a name.
        """
        listed = list(dict.fromkeys(names))
        first = against if against is not None else listed[0] if listed else ""
        if len(listed) < 2 or first not in listed:
            raise InputError(f"expected two or more runs, the one to hold against among them, got {listed}")
        return compared([(name, self.record(name).numbers) for name in [first, *(n for n in listed if n != first)]])

    def diff(self, one: str, other: str) -> Sequence[str]:
        """The settings in which two runs differ, one line each; empty when they are the same.

        Raises:
            InputError: There is no run of a name.
            StoreError: Settings are nested too deep to be compared.
        """
        records = [self.record(name) for name in (one, other)]
        settings = [{"kind": r.kind, "seed": r.seed, "settings": r.settings} for r in records]
        for name, content in zip((one, other), settings, strict=True):
            _check_depth(content, name)
        lines = diff(*settings)
        return [line.replace(": stored ", f": {one} ", 1).replace(", asked ", f", {other} ", 1) for line in lines]

    def delete(self, name: str) -> None:
        """Remove a run folder and all that is in it; of links only the link.

        Raises:
            InputError: There is no run folder of that name.
            StoreError: A process is writing it, or the disk refused.
        """
        home, _ = self._home(name)
        with _not_in_use(home):
            # Out of sight first, so that a deletion that is cut short leaves no run with half its files.
            hidden = home.with_name(f".crunode-deleted-{secrets.token_hex(8)}")
            try:
                os.rename(home, hidden)
                shutil.rmtree(hidden)
            except OSError as error:
                raise StoreError(f"could not delete {home}: {error.strerror or error}; make it writable") from error
        self._with(lambda index: _forget(index, [name]))

    def _with(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do something with the index; one that is damaged is built anew first."""
        for attempt in range(3):
            try:
                with opened(self.root) as index:
                    if attempt:
                        self._scan(index, anew=True)
                    return work(index)
            except BadIndex as error:
                if attempt == 2:
                    raise StoreError(f"the index of {self.root} is damaged again and again: {error}") from error
                discard(self.root)
        raise AssertionError  # the loop returns or raises

    def _scan(self, index: sqlite3.Connection, *, anew: bool) -> Scan:
        scan = Scan()
        rows = index.execute("SELECT name, header, signature FROM runs").fetchall()
        known = {name: header for name, header, _ in rows}
        marks = {} if anew else {name: mark for name, _, mark in rows}
        fresh: list[tuple[str, str, str, RunRecord]] = []
        seen: set[str] = set()
        for name, header in walk(self.root, known, scan):
            seen.add(name)
            mark = signature(f"{self.root}/{name}", header)
            if mark is not None and marks.get(name) != f"{header} {mark}":
                fresh.append((name, header, f"{header} {mark}", read_run(self.root / name, header)))
                scan.read += 1
            if len(fresh) >= _BATCH:
                _write(index, fresh)
                fresh = []
        _write(index, fresh)
        # A folder too large to be listed whole may hold runs that were not met this time.
        gone = [name for name in known if name not in seen and header_of(self.root / name) is None]
        _forget(index, gone)
        scan.gone, scan.runs = len(gone), len(seen | known.keys()) - len(gone)
        return scan

    def _home(self, name: str) -> tuple[Path, str]:
        """Folder and header of a run, held against the disk and not the index."""
        if is_plain_name(name) and not any(part.startswith(".") for part in name.split("/")):
            with contextlib.suppress(StoreError):
                home = inside(self.root, name)
                header = header_of(home) if is_folder(home) else None
                if header is not None:
                    return home, header
        raise InputError(f"expected the name of a run in {self.root}, got {str(name)[:200]!r}; see: crunode runs list")

    def _update(self, name: str) -> RunRecord:
        home, header = self._home(name)
        mark = signature(str(home), header) or ""
        record = read_run(home, header)
        self._with(lambda index: _write(index, [(name, header, f"{header} {mark}", record)]))
        return record

    def _retag(self, name: str, tags: tuple[str, ...], change: Callable[[set[str]], set[str]]) -> tuple[str, ...]:
        for tag in tags:
            if not isinstance(tag, str) or not _TAG.fullmatch(tag):
                raise InputError(f"expected tags of letters, digits and . + : @ / - _, at most 64, got {tag!r}")
        home, header = self._home(name)

        def work(index: sqlite3.Connection) -> tuple[str, ...]:
            with writing(index):  # keeps apart those who tag at the same moment
                record = read_run(home, header)
                wanted = tuple(sorted(change(set(record.tags))))
                if len(wanted) > _MOST_TAGS:
                    raise InputError(f"expected at most {_MOST_TAGS} tags on a run, got {len(wanted)}")
                _write_tags(home, wanted)
                mark = signature(str(home), header) or ""
                put(index, name, header, f"{header} {mark}", read_run(home, header))
            return wanted

        return self._with(work)


def _filter(filters: dict[str, Any]) -> Filter:
    unknown = filters.keys() - Filter.__dataclass_fields__.keys()
    if unknown:
        raise InputError(f"expected filters among {', '.join(Filter.__dataclass_fields__)}, got {', '.join(unknown)}")
    return Filter(**filters)


def _write(index: sqlite3.Connection, fresh: list[tuple[str, str, str, RunRecord]]) -> None:
    if fresh:
        with writing(index):
            for name, header, mark, record in fresh:
                put(index, name, header, mark, record)


def _forget(index: sqlite3.Connection, names: list[str]) -> None:
    if names:
        with writing(index):
            drop(index, names)


def _write_tags(home: Path, tags: tuple[str, ...]) -> None:
    body = {"format": "crunode-tags", "version": 1, "tags": list(tags)}
    text = dumps({**body, "sha256": digest(dumps(body).encode())}, indent=1)
    for entry in entries(home, 100_000):
        if entry.name.startswith(f".{TAGS}.") and entry.name.endswith(".tmp"):  # of one that was killed while writing
            with contextlib.suppress(OSError):
                os.unlink(entry.path)
    replace_file(inside(home, TAGS), (text + "\n").encode())


def _check_depth(content: Any, name: str) -> None:
    waiting = [(content, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > 64:
            raise StoreError(f"the settings of {name} are nested deeper than 64 levels; they cannot be compared")
        if isinstance(value, dict | list):
            waiting += [(inner, depth + 1) for inner in (value.values() if isinstance(value, dict) else value)]


@contextlib.contextmanager
def _not_in_use(home: Path) -> Iterator[None]:
    """Hold all locks of a run folder, so that no process can be writing it."""
    held: list[int] = []
    try:
        places = [home / "locks", home]
        for entry in (e for place in places for e in entries(place, 100_000) if e.name.endswith(".lock")):
            if sys.platform == "win32" or not entry.is_file(follow_symlinks=False):
                continue
            handle = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            held.append(handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreError(f"{home} is being written by another process; end it first, then delete") from error
        yield
    finally:
        for handle in held:
            os.close(handle)
