"""What a run will cost, before it starts: from what its folder has on record, or else from a short trial."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from crunode.core.execute import Executor
from crunode.core.ledger import pickled
from crunode.core.workers import Loss, Pool
from crunode.errors import CrunodeError, EstimationError, InputError
from crunode.jobs.job_file import JobFile
from crunode.jobs.job_running import Work, run_unit, works
from crunode.jobs.recipe import Cell, Recipe
from crunode.jobs.registry import recipe
from crunode.jobs.running import Job, run_job
from crunode.store.documents import read_document
from crunode.store.guarded import entries
from crunode.store.run_store import RunStore

__all__ = ["Cost", "Forecast", "plan_jobs", "plan_recipe"]

_FINISHED, _EXTRAPOLATED, _ONE_CELL = (0.8, 1.4), (0.6, 2.0), (0.3, 4.0)
_AROUND = 8  # cells of a sweep beside its grid
_GRID = {"steps": 7, "precisions": 5, "nbetas": 3}


@dataclass(frozen=True)
class Cost:
    """What a job will take.

    Attributes:
        name: The job.
        units: Units of work: estimates, or cells of a sweep or a recipe.
        done: Those that are finished and will be read.
        seconds: On one core, for what is left; None where it cannot be told.
        low: The least it may be.
        high: The most; None where only the least is known.
        gradients: Of one unit, each of one chain and one batch; None where it cannot be told.
        memory: Bytes of the process of a worker; None where it cannot be told.
        source: Where this is known from.
    """

    name: str
    units: int
    done: int
    seconds: float | None
    low: float
    high: float | None
    gradients: float | None
    memory: float | None
    source: str


@dataclass(frozen=True)
class Forecast:
    """What a run will take.

    Attributes:
        costs: One for each job.
        workers: How many work at a time.
        on: Where, in words.
    """

    costs: tuple[Cost, ...]
    workers: int
    on: str

    @property
    def seconds(self) -> tuple[float | None, float, float | None]:
        """How long it takes, the least and the most; None where it cannot be told."""
        known = [cost.seconds for cost in self.costs if cost.seconds is not None]
        most = [cost.high for cost in self.costs if cost.high is not None]
        total = sum(known) / self.workers if len(known) == len(self.costs) else None
        high = sum(most) / self.workers if len(most) == len(self.costs) else None
        return total, sum(cost.low for cost in self.costs) / self.workers, high

    def table(self) -> str:
        """One line for each job, and what they take together."""
        lines = [("job", "units", "gradients each", "memory", "core time left", "known from")]
        for cost in self.costs:
            units = f"{cost.units}" + (f" ({cost.done} done)" if cost.done else "")
            gradients = "-" if cost.gradients is None else f"{cost.gradients:.3g}"
            memory = "-" if cost.memory is None else f"{cost.memory / 1e6:.0f} MB"
            lines.append((cost.name, units, gradients, memory, _span(cost.seconds, cost.low, cost.high), cost.source))
        widths = [max(len(line[k]) for line in lines) for k in range(6)]
        rows = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([*rows, f"{self.on}, {self.workers} at a time: {_span(*self.seconds)}"])

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON-able values."""
        seconds, low, high = self.seconds
        costs = [asdict(cost) for cost in self.costs]
        return {"on": self.on, "workers": self.workers, "seconds": seconds, "low": low, "high": high, "jobs": costs}


def plan_recipe(
    name: str,
    size: str = "toy",
    seed: int = 0,
    store: Path | None = None,
    *,
    executor: Executor | None = None,
    trial: float = 20.0,
) -> Forecast:
    """What a recipe will cost.

    Finished cells in `store` are the record it goes by. Where there are none, cells from all over the recipe are
    computed for so many seconds, in a process of their own that is then ended.

    Args:
        name: The recipe.
        size: Its size.
        seed: Where all randomness comes from.
        store: The folder that it would be run in.
        executor: Where it would run.
        trial: Seconds to try; 0 for none.

    Raises:
        InputError: There is no such recipe or size.

    Example:
        >>> plan_recipe("toy-volumes", trial=0).costs[0].units
        9
    """
    found = recipe(name)
    return Forecast((_recipe_cost(found, name, size, seed, store, trial),), _workers(executor), _words(executor))


def plan_jobs(
    jobs: JobFile, store: Path, *, executor: Executor | None = None, trial: float = 20.0, most: int = 20
) -> Forecast:
    """What the jobs of a file will cost; see `plan_recipe`. The code that they name is imported and called for it.

    Args:
        jobs: The job file.
        store: The folder that it would be run in.
        executor: Where it would run.
        trial: Seconds to try each job; 0 for none.
        most: Jobs to try at most.

    Raises:
        InputError: A landscape, weights or a recipe cannot be had.
    """
    costs: list[Cost] = []
    groups: dict[str, list[Work]] = {}
    for work in works(jobs, store):
        groups.setdefault(work.unit.job, []).append(work)
    for name, group in groups.items():
        seconds = trial if len(costs) < most else 0.0
        first = group[0].unit
        if first.kind == "recipe":
            found = recipe(first.subject)
            for w in group:
                costs.append(_recipe_cost(found, w.unit.name, w.unit.size, w.unit.seed, w.place, seconds))
        else:
            costs.append(_unit_cost(name, group, seconds))
    return Forecast(tuple(costs), _workers(executor), _words(executor))


def _recipe_cost(found: Recipe, name: str, size: str, seed: int, store: Path | None, trial: float) -> Cost:
    if size not in found.sizes:
        raise InputError(f"expected size among {', '.join(found.sizes)}, got {size!r}")
    cells = list(found.cells(size, seed))
    kept = {} if store is None else _seconds_on_record(found, cells, store)
    left = [cell for cell in cells if cell.name not in kept]
    if kept or not left:
        return _spread(name, cells, list(kept.values()), None, None, f"{len(kept)} cells on record in the folder")
    if trial <= 0:
        return _unknown(name, len(cells), "no record, no trial")
    with tempfile.TemporaryDirectory() as folder:
        order = [cells[k] for k in _spread_order(len(cells))]
        seen = _tried(_try_cells, [Job(cell, found.compute, None) for cell in order], trial, Path(folder))
        took = [float(text) for text in Path(folder, "seconds").read_text().split()] if seen.started else []
    if seen.error:
        return replace(_unknown(name, len(cells), f"a cell failed: {seen.error[:80]}"), memory=seen.memory)
    # A cell that was ended took at least as long as it had.
    unfinished = None if seen.finished else max(seen.seconds - sum(took), 0.0)
    source = f"{len(took)} cells tried in {seen.seconds:.1f} s"
    return _spread(name, cells, took, unfinished, seen.memory, source, done=0)


def _spread(
    name: str,
    cells: Sequence[Cell],
    took: Sequence[float],
    unfinished: float | None,
    memory: float | None,
    source: str,
    done: int | None = None,
) -> Cost:
    """The cost of all cells from the seconds of some, drawn from all over."""
    done = len(took) if done is None else done
    left = len(cells) - done
    if not took:
        return replace(_unknown(name, len(cells), source), low=left * (unfinished or 0.0) / 2, memory=memory)
    mean = statistics.fmean(took)
    if len(took) == len(cells):
        low, high = (factor * mean for factor in _FINISHED)
    elif len(took) == 1:
        low, high = (factor * mean for factor in _ONE_CELL)
    else:
        # Few cells say little about the longest ones: the error of the mean is doubled twice.
        error = 4 * statistics.stdev(took) / math.sqrt(len(took))
        low, high = max(mean - error, min(took)) * _FINISHED[0], max(mean + error, mean * _FINISHED[1])
    longer = unfinished is not None and unfinished > max(took)
    if longer and len(took) < 5:  # the longest cells may be those that were not seen to end
        return Cost(name, len(cells), done, None, left * low, None, None, memory, f"{source}; one took longer")
    high = max(high, (unfinished or 0.0) * 2) if longer else high
    return Cost(name, len(cells), done, left * mean, left * low, left * high, None, memory, source)


def _unit_cost(name: str, group: Sequence[Work], trial: float) -> Cost:
    """The cost of estimates or sweeps that differ in settings only."""
    first = group[0].unit
    each = 1
    if first.kind == "sweep":
        free = not first.axes
        each = math.prod(len(first.axes.get(a, ())) or (_GRID[a] if free else 1) for a in _GRID) + _AROUND
    done = [work for work in group if work.record.exists()]
    left = [work for work in group if not work.record.exists()]
    units = each * len(group)
    if done or not left:
        took = [run_unit(work) for work in done]
        mean = statistics.fmean(outcome.seconds for outcome in took)
        low, high = (factor * mean * len(left) for factor in (_FINISHED if len(took) > 1 else _EXTRAPOLATED))
        known = next((g for g in (_gradients(outcome.result or {}) for outcome in took) if g is not None), None)
        source = f"{len(done)} on record in the folder"
        return Cost(name, units, each * len(done), mean * len(left), low, high, known, None, source)
    if trial <= 0:
        return _unknown(name, units, "no record, no trial")
    with tempfile.TemporaryDirectory() as folder:
        work = replace(left[-1], place=Path(folder, "unit"), executor=None)
        seen = _tried(run_unit, work, trial)
        if seen.finished and seen.error is None and seen.value.error is None:
            seconds, (low, high), source = seen.value.seconds, _FINISHED, "one tried to its end"
            gradients_each = _gradients(seen.value.result)
        else:
            seconds, gradients_each, source = _extrapolated(work, seen.seconds, each)
            low, high = _EXTRAPOLATED
            if seen.finished:
                seconds, source = None, f"a trial failed: {(seen.error or seen.value.error)[:80]}"
    if seconds is None:
        return Cost(name, units, 0, None, seen.seconds * len(left), None, gradients_each, seen.memory, source)
    total = seconds * len(left)
    spread = 1.0 if len(left) == 1 else 1.5  # the others have other settings
    return Cost(name, units, 0, total, total * low / spread, total * high * spread, gradients_each, seen.memory, source)


def _extrapolated(work: Work, seconds: float, each: int) -> tuple[float | None, float | None, str]:
    """Seconds of a whole unit, and gradients, from what a trial left behind when it was ended."""
    try:
        if work.unit.kind == "sweep":
            cells = [e for e in entries(work.place / "cells", 100_000) if e.name.endswith(".json")]
            times = sorted(cell.stat().st_mtime for cell in cells)
            if len(times) > 2:
                rate = (times[-1] - times[0]) / (len(times) - 1)
                return seconds + rate * (each - len(times) - 1), None, f"{len(times)} cells tried in {seconds:.0f} s"
            return None, None, f"fewer than 3 cells in a trial of {seconds:.0f} s"
        store = RunStore.open(work.place)
        manifest, spec = store.manifest, store.spec
        journals = store.journals(manifest)
        steps = sum(chunk["draws"] for journal in journals for chunk in journal["chunks"])
        length = spec["warmup"] + spec["draws"]
        chains = sum(len(group) for group in manifest["groups"])
        gradients = float(chains * length * (spec["kernel"].get("leaps") or 1))
        files = sorted(path.stat().st_mtime for path in (work.place / "chunks").glob("*.safetensors"))
        if len(files) > 2 and files[-1] > files[0]:
            each_step = (files[-1] - files[0]) / (steps * (len(files) - 1) / len(files))
            rest = each_step * (length * len(journals) - steps)
            return seconds + rest, gradients, f"{steps} of {length * len(journals)} steps in {seconds:.0f} s"
        return None, gradients, f"still at its first steps after {seconds:.0f} s"
    except (CrunodeError, OSError, KeyError):
        return None, None, f"still tuning after {seconds:.0f} s"


@dataclass(frozen=True)
class _Seen:
    """What a trial showed."""

    finished: bool
    seconds: float
    memory: float | None
    value: Any = None
    error: str | None = None
    started: bool = True


def _tried(fn: Callable[[Any], Any], job: Any, seconds: float, folder: Path | None = None) -> _Seen:
    """Run a job in a process of its own for at most so many seconds."""
    argument = job if folder is None else (job, folder)
    with Pool(1) as pool:
        pool.grow(1)
        lost = [event for event in pool.events(120.0) if isinstance(event, Loss)]
        if lost or not pool.idle():
            raise EstimationError("expected a process for a trial to start, but it did not; try again with --trial 0")
        (worker,) = pool.idle()
        worker.take(0, pickled(_import_all, argument, 0))
        list(pool.events(120.0))
        if folder is not None:
            (folder / "seconds").touch()
        start = time.monotonic()
        worker.take(0, pickled(fn, argument, 0))
        events = list(pool.events(seconds))
        elapsed = time.monotonic() - start
        memory = None if not pool.workers else _peak(worker.process.pid)
    for event in events:
        if isinstance(event, Loss):
            return _Seen(True, elapsed, memory, error=f"the process ended ({event.reason()})")
        good, value = event[1]
        if not good:
            return _Seen(True, elapsed, memory, error=f"{type(value).__name__}: {value}")
        return _Seen(True, elapsed, memory, value)
    return _Seen(False, elapsed, memory)


def _import_all(_: Any) -> None:
    """Import what units are made with, which a worker does once; the argument has brought its own modules along."""
    from crunode.estimators import coefficient, sweeps  # noqa: F401


def _try_cells(given: tuple[Sequence[Job], Path]) -> None:
    """Compute cells one after the other, and write down the seconds of each as soon as it is done."""
    jobs, folder = given
    for job in jobs:
        result = run_job(job)
        if result.error is not None:
            raise EstimationError(f"cell {result.cell.name}: {result.error}")
        with (folder / "seconds").open("a") as file:
            file.write(f"{result.seconds}\n")


def _seconds_on_record(found: Recipe, cells: Sequence[Cell], store: Path) -> dict[str, float]:
    kept = {}
    for cell in cells:
        file = store / "cells" / f"{cell.key(found.name, found.version)}.json"
        if file.exists():
            kept[cell.name] = float(read_document(file, "crunode-recipe-cell", 1)["seconds"])
    return kept


def _spread_order(count: int) -> list[int]:
    """0, ..., count - 1 so that each beginning of the list is spread over all: cells are often sorted by size."""
    order = [count - 1, 0]
    width = count
    while width > 1:
        width = -(-width // 2)
        order += range(width, count, width)
    return list(dict.fromkeys([*(k for k in order if 0 <= k < count), *range(count)]))


def _gradients(result: Mapping[str, Any]) -> float | None:
    cost = result.get("diagnostics", {}).get("cost", {}) if isinstance(result, Mapping) else {}
    return float(cost["gradients"]) if "gradients" in cost else None


def _unknown(name: str, units: int, source: str) -> Cost:
    return Cost(name, units, 0, None, 0.0, None, None, None, source)


def _workers(executor: Executor | None) -> int:
    if executor is None or type(executor).__name__ == "Serial":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(getattr(executor, "workers", None) or cores)


def _words(executor: Executor | None) -> str:
    name = "serial" if executor is None else type(executor).__name__.lower()
    if name == "ray" and getattr(executor, "workers", None) is None:
        return "ray with as many slots as this machine has cores (give ray,workers=N for more)"
    return name


def _peak(pid: int | None) -> float | None:
    """The most memory that a process has held so far."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration, ValueError):
        return None


def _span(seconds: float | None, low: float, high: float | None) -> str:
    if seconds is None:
        return f"more than {_time(low)}" if low else "unknown"
    return f"{_time(seconds)} ({_time(low)} to {_time(high)})" if high is not None else f"at least {_time(low)}"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.3g} min" if seconds < 6000 else f"{seconds / 3600:.3g} h"
