"""Running job files: units over an executor, each kept under the hash of all that it depends on."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crunode.core.execute import Executor, Serial
from crunode.core.logs import log, logging_to
from crunode.core.result import Estimate, provenance
from crunode.errors import DeadlineReached, DiagnosticWarning, EstimationError, InputError, StoreError
from crunode.jobs.call import Call
from crunode.jobs.job_file import JobFile, Unit
from crunode.jobs.loading import landscape_from
from crunode.jobs.recipe import Run
from crunode.jobs.registry import recipe
from crunode.store.atomic import PATIENCE, acquire, digest
from crunode.store.documents import document_bytes, dumps, plain, read_document
from crunode.store.guarded import replace_file

__all__ = ["JobRun", "Outcome", "Work", "run_jobs", "run_unit", "works"]

_FORMAT, _VERSION = "crunode-job-record", 1
_LOSSES = 3


@dataclass(frozen=True)
class Work:
    """A unit on its way to a worker.

    Attributes:
        unit: The unit.
        base: Folder of the job file, which weights are relative to.
        here: Folder that modules are imported from.
        place: Its run folder; its record lies beside it.
        executor: Where its own parts run; None within a worker.
    """

    unit: Unit
    base: Path
    here: Path
    place: Path
    executor: Executor | None = None

    def __repr__(self) -> str:
        return f"unit {self.unit.name}"

    @property
    def record(self) -> Path:
        """The file of what came out."""
        return self.place.with_name(f"{self.place.name}.json")


@dataclass(frozen=True)
class Outcome:
    """What came out of a unit.

    Attributes:
        unit: The unit.
        ok: Whether it can be trusted; None when it was not run.
        summary: One line.
        seconds: How long it took.
        result: The result as JSON-able values.
        error: Why there is none.
    """

    unit: Unit
    ok: bool | None
    summary: str = ""
    seconds: float = 0.0
    result: Mapping[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True)
class JobRun:
    """What came out of a job file.

    Attributes:
        outcomes: One for each unit, in the order of the file.
        store: Where everything is kept.
        stopped: Why not all were run; None when they were.
    """

    outcomes: tuple[Outcome, ...]
    store: Path
    stopped: str | None = None

    @property
    def ok(self) -> bool:
        """Whether all units were run and all results can be trusted."""
        return self.stopped is None and all(outcome.ok for outcome in self.outcomes)

    def table(self) -> str:
        """One line for each unit."""
        head = ("unit", "ok", "seconds", "result")
        state = {None: "-", True: "yes", False: "no"}
        lines = [head]
        for o in self.outcomes:
            took = "-" if o.ok is None else f"{o.seconds:.1f}"
            lines.append((o.unit.name, state[o.ok], took, o.error or o.summary or "not run"))
        widths = [max(len(line[k]) for line in lines) for k in range(3)]
        rows = ["  ".join([*(c.ljust(w) for c, w in zip(ln[:3], widths, strict=True)), ln[3]]) for ln in lines]
        return "\n".join([*rows, *([self.stopped] if self.stopped else [])])

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON-able values."""
        keys = ("ok", "summary", "seconds", "result", "error")
        rows = [{"unit": plain(vars(o.unit)), **{key: getattr(o, key) for key in keys}} for o in self.outcomes]
        return {"ok": self.ok, "store": str(self.store), "stopped": self.stopped, "units": rows}


def works(jobs: JobFile, store: str | os.PathLike[str], executor: Executor | None = None) -> list[Work]:
    """The units with their run folders, whose names hold a hash of all that the results depend on.

    Landscapes are made for it, each once: code or data that changed since make other folders.

    Raises:
        InputError: A landscape cannot be made, or weights cannot be read.
    """
    home, base = Path(store).absolute(), jobs.path.absolute().parent
    prints: dict[str, str] = {}
    files: dict[str, str] = {}
    found = []
    for unit in jobs.units:
        content: dict[str, Any] = {"kind": unit.kind, "seed": unit.seed}
        if unit.kind == "recipe":
            content |= {"recipe": unit.subject, "version": recipe(unit.subject).version, "size": unit.size}
        else:
            if unit.subject not in prints:
                prints[unit.subject] = landscape_from(unit.subject).fingerprint()
            if unit.weights is not None and unit.weights not in files:
                files[unit.weights] = _file_mark(base / unit.weights)
            content |= {"landscape": prints[unit.subject], "weights": files.get(unit.weights or "")}
            content |= {"settings": unit.settings, "axes": unit.axes}
        key = digest(dumps(content).encode())
        part = executor if unit.kind != "llc" else None
        found.append(Work(unit, base, Path.cwd(), home / f"{unit.name}-{key[:10]}", part))
    return found


def run_jobs(jobs: JobFile, store: str | os.PathLike[str], executor: Executor | None = None) -> JobRun:
    """Run all units of a job file; those that are finished are read.

    Estimates run side by side on the executor; then sweeps and recipes one after the other, with their cells on it.
    A unit that fails does not end the others. At the deadline of the executor no more is begun.

    Args:
        jobs: The job file.
        store: Folder for the results.
        executor: Where to run; the numbers do not depend on it.

    Raises:
        InputError: A landscape, weights or a recipe cannot be had; nothing has been computed then.
        StoreError: Another process is at work in the folder.

    Example:
        >>> import tempfile
        >>> unit = Unit("volume", "volume", "recipe", "toy-volumes", size="tiny")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run_jobs(JobFile(Path("study.toml"), (unit,)), folder).outcomes[0].error
        "InputError: expected size among toy, paper, got 'tiny'"
    """
    home = Path(store).absolute()
    if home.exists() and not home.is_dir():
        raise StoreError(f"expected a folder to keep the results in, got the file {home}; choose another path")
    run_on = executor or Serial()
    todo = works(jobs, home, run_on)
    handle = acquire(home / "locks" / "jobs.lock", patience=PATIENCE)
    if handle is None:
        raise StoreError(f"another process is running jobs in {home}; wait for it, or choose another folder")
    found: dict[str, Outcome] = {}
    stopped = None
    try:
        with logging_to(home):
            log("start", units=len(todo), file=str(jobs.path.name))
            try:
                for outcome in _outcomes(todo, run_on):
                    found[outcome.unit.name] = outcome
            except DeadlineReached as error:
                stopped = str(error)
                # Those that ended behind the first one that was not begun are on disk.
                found |= {w.unit.name: run_unit(w) for w in todo if w.unit.name not in found and w.record.exists()}
            log("end", units=len(found), stopped=stopped)
    finally:
        os.close(handle)
    return JobRun(tuple(found.get(w.unit.name, Outcome(w.unit, None)) for w in todo), home, stopped)


def _outcomes(todo: list[Work], executor: Executor) -> Iterator[Outcome]:
    for work in [work for work in todo if work.record.exists()]:
        yield run_unit(work)
    estimates = [work for work in todo if work.unit.kind == "llc" and not work.record.exists()]
    lost = done = 0
    while done < len(estimates):
        try:
            for outcome in executor.map(run_unit, estimates[done:]):
                done, lost = done + 1, 0
                yield outcome
        except EstimationError as error:
            lost += 1
            if lost >= _LOSSES or done >= len(estimates):
                raise
            yield _failed(estimates[done], error, 0.0)
            done += 1
    for work in [work for work in todo if work.unit.kind != "llc" and not work.record.exists()]:
        yield run_unit(work)


def run_unit(work: Work) -> Outcome:
    """The outcome of a unit: read where it was finished before, else computed and kept; an error becomes part of it."""
    if work.record.exists():
        kept = read_document(work.record, _FORMAT, _VERSION)
        return Outcome(work.unit, kept["ok"], kept["summary"], kept["seconds"], kept["result"])
    if str(work.here) not in sys.path:
        sys.path.insert(0, str(work.here))
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DiagnosticWarning)  # the result says so
            ok, summary, result = _computed(work)
    except DeadlineReached:
        raise
    except Exception as error:
        return _failed(work, error, time.perf_counter() - start)
    outcome = Outcome(work.unit, ok, summary, time.perf_counter() - start, plain(result))
    content = {key: getattr(outcome, key) for key in ("ok", "summary", "seconds", "result")}
    content |= {"unit": plain(vars(work.unit)), "provenance": provenance()}
    replace_file(work.record, document_bytes(_FORMAT, _VERSION, content))
    return outcome


def _failed(work: Work, error: BaseException, seconds: float) -> Outcome:
    return Outcome(work.unit, False, "", seconds, None, f"{type(error).__name__}: {error}")


def _computed(work: Work) -> tuple[bool, str, dict[str, Any]]:
    unit = work.unit
    weights = None if unit.weights is None else work.base / unit.weights
    call = Call(unit.kind, unit.subject, unit.seed, unit.settings, weights, unit.size, unit.axes)
    found = call.make(work.place, work.executor)
    if isinstance(found, Run):
        if any(result.error is not None for result in found.results):
            failed = [result.cell.name for result in found.results if result.error is not None]
            raise EstimationError(f"{len(failed)} of {len(found.results)} cells failed: {', '.join(failed[:5])}")
        agree = sum(row.verdict == "agrees" for row in found.rows)
        return found.ok, f"{agree} of {len(found.rows)} rows agree", found.to_dict()
    summary = str(found) if isinstance(found, Estimate) else f"{len(found.cells)} cells; {found.estimate}"
    return found.ok, summary, found.to_dict()


def _file_mark(path: Path) -> str:
    with contextlib.suppress(OSError):
        return digest(path.read_bytes())
    raise InputError(f"expected a file with weights at {path}, got none that can be read")
