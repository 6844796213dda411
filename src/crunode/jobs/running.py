"""Running a recipe: cells over an executor, each kept on disk as soon as it is done."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crunode.core.execute import Executor, Serial
from crunode.core.logs import log, logging_to
from crunode.core.origin import merged, provenance
from crunode.core.progress import Progress
from crunode.core.threads import one_thread
from crunode.errors import (
    DeadlineReached,
    DiagnosticWarning,
    EstimationError,
    InputError,
    MissingExtra,
    StoreError,
)
from crunode.jobs.recipe import Cell, Recipe, Result, Row, Run
from crunode.store.atomic import PATIENCE
from crunode.store.belongs import Header
from crunode.store.documents import document_bytes, dumps, loads, read_document
from crunode.store.guarded import replace_file

__all__ = ["Job", "run_job", "run_recipe"]

_HEADER = Header("recipe", "recipe.json", "crunode-recipe-store", "run")
_CELL, _FORMAT = "crunode-recipe-cell", 1
_LOSSES = 3


@dataclass(frozen=True)
class Job:
    """A cell on its way to a worker.

    Attributes:
        cell: The cell.
        compute: What computes it.
        file: Where its result goes; None for nowhere.
    """

    cell: Cell
    compute: Callable[[Cell], Mapping[str, Any]]
    file: Path | None


def run_job(job: Job) -> Result:
    """The result of a cell, from its file when there is one; an error becomes part of the result.

    Example:
        >>> run_job(Job(Cell("a", {"x": 2}), lambda cell: {"square": cell.settings["x"] ** 2}, None)).value
        {'square': 4}
    """
    if job.file is not None and job.file.exists():
        return _read(job.cell, job.file)
    start, origin = time.perf_counter(), {**provenance(), "threads": 1}
    try:
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DiagnosticWarning)  # rows and notes say what is to be said
            found = job.compute(job.cell)
        if not isinstance(found, Mapping):
            raise InputError(f"expected a dictionary of results, got {type(found).__name__}")
        # As a file would give it back, so that a resumed run sees the very same.
        value = loads(dumps(found))
    except DeadlineReached:
        raise
    except Exception as error:
        return Result(job.cell, None, time.perf_counter() - start, f"{type(error).__name__}: {error}", origin)
    seconds = time.perf_counter() - start
    result = Result(job.cell, value, seconds, provenance=origin)
    if job.file is not None:
        _keep(result, job.file)
    return result


def _keep(result: Result, file: Path) -> None:
    """Write a cell's file. A worker that was given up may still be at it: each has a temporary name of its own."""
    kept: dict[str, Any] = {"cell": result.cell.name, "settings": result.cell.settings, "value": result.value}
    kept |= {"seconds": result.seconds, "provenance": result.provenance}
    replace_file(file, document_bytes(_CELL, _FORMAT, kept))


def run_recipe(
    recipe: Recipe, size: str, seed: int, store: str | os.PathLike[str] | None, executor: Executor | None
) -> Run:
    """What `Recipe.run` does; see there."""
    if size not in recipe.sizes:
        raise InputError(f"expected size among {', '.join(recipe.sizes)}, got {size!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"expected seed as a whole number from 0 up, got {seed!r}")
    cells = list(recipe.cells(size, seed))
    names = [cell.name for cell in cells]
    if not cells or len(set(names)) < len(names):
        raise InputError(f"expected cells with different names from recipe {recipe.name}, got {names[:20]}")
    home = None if store is None else Path(store).absolute()
    with contextlib.ExitStack() as stack:
        if home is not None:
            stack.enter_context(_opened(home, recipe, size, seed, cells))
        files = [None if home is None else home / "cells" / f"{c.key(recipe.name, recipe.version)}.json" for c in cells]
        jobs = [Job(cell, recipe.compute, file) for cell, file in zip(cells, files, strict=True)]
        with logging_to(home):
            log("start", recipe=recipe.name, size=size, seed=seed, cells=len(cells))
            results = tuple(_computed(jobs, executor or Serial(), recipe.name))
            log("end", failed=sum(result.error is not None for result in results))
        good = [result for result in results if result.error is None]
        rows = [*_table(recipe, good, size), *(_failed(result) for result in results if result.error is not None)]
        figures, messages = _drawn(recipe, good, home)
        run = Run(recipe, size, seed, tuple(rows), results, figures, messages, _origin(results))
        if home is not None:
            run.save(home / "result.json")
    return run


def _origin(results: Sequence[Result]) -> dict[str, Any]:
    """Of all cells in the table, and of this process, which makes it; cells say on how many threads."""
    cells, own = [result.provenance for result in results if result.error is None], provenance()
    return merged([*cells, {**own, "threads": cells[-1].get("threads") if cells else own["threads"]}])


def _computed(jobs: Sequence[Job], executor: Executor, label: str) -> Iterator[Result]:
    """Results in the order of the jobs. A job that keeps losing its worker fails alone, unless all do."""
    ready = [job.file is not None and job.file.exists() for job in jobs]
    found = {k: run_job(job) for k, job in enumerate(jobs) if ready[k]}
    todo = [k for k in range(len(jobs)) if not ready[k]]
    lost = 0
    with Progress(len(jobs), label, len(found)) as bar:
        while todo:
            done = 0
            try:
                for result in executor.map(run_job, [jobs[k] for k in todo]):
                    found[todo[done]] = result
                    file = jobs[todo[done]].file
                    if file is not None and result.error is None and not file.exists():
                        _keep(result, file)  # of a worker whose disk is another one
                    done, lost = done + 1, 0
                    bar.advance(note=result.cell.name)
                todo = todo[done:]
            except EstimationError as error:
                lost += 1
                if lost >= _LOSSES or done >= len(todo):
                    raise
                failed = jobs[todo[done]].cell
                found[todo[done]] = Result(failed, None, 0.0, f"{type(error).__name__}: {error}")
                todo = todo[done + 1 :]
            else:
                if todo:
                    raise EstimationError(f"expected one result for each cell, got {len(todo)} too few; use Serial()")
    yield from (found[k] for k in range(len(jobs)))


def _table(recipe: Recipe, good: Sequence[Result], size: str) -> list[Row]:
    try:
        return list(recipe.rows(good, size))
    except Exception as error:
        # With cells missing a table may not be possible; what was computed is worth returning all the same.
        reason = f"the table could not be made: {type(error).__name__}: {error}"
        return [Row("table", None, None, None, None, "no value", reason)]


def _failed(result: Result) -> Row:
    return Row(f"cell {result.cell.name}", None, None, None, None, "no value", result.error or "")


def _drawn(recipe: Recipe, good: Sequence[Result], home: Path | None) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    if recipe.figures is None or home is None:
        return (), ()
    folder = home / "figures"
    folder.mkdir(exist_ok=True)
    try:
        return tuple(recipe.figures(good, folder)), ()
    except MissingExtra as error:
        return (), (f"no pictures: {error}",)
    except Exception as error:
        return (), (f"pictures could not be drawn: {type(error).__name__}: {error}",)


@contextlib.contextmanager
def _opened(home: Path, recipe: Recipe, size: str, seed: int, cells: Sequence[Cell]) -> Iterator[None]:
    """Hold the folder for this process while the block runs, once it is known to be of this very run."""
    own = {"recipe": recipe.name, "recipe_version": recipe.version, "size": size, "seed": seed}
    # Where the size or the seed differ all cells do; the refusal names what is nearest the top.
    with _HEADER.held(home, {**own, "cells": {cell.name: cell.settings for cell in cells}}, PATIENCE):
        for left in (home / "cells").glob(".*.tmp"):  # of workers that were killed
            left.unlink(missing_ok=True)
        yield


def _read(cell: Cell, file: Path) -> Result:
    try:
        content = read_document(file, _CELL, _FORMAT)
    except StoreError as error:
        raise StoreError(f"{error} Or delete it: the same call then computes this cell again.") from error
    return Result(cell, content["value"], float(content["seconds"]), provenance=content.get("provenance", {}))
