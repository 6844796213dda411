"""`check_recipe`: is a recipe one that executors, stores and tables can use?"""

from __future__ import annotations

import pickle
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crunode.core.rng import preserved_rng
from crunode.store.documents import dumps, loads, plain

__all__ = ["check_recipe"]


def check_recipe(recipe: Any, *, seed: int = 0, seconds: float = 30.0) -> Any:
    """Check the contract of a `crunode.jobs.recipe.Recipe` at toy size.

    Its cells have different names and JSON-able settings, depend on nothing but size and seed, and change with the
    seed; function and cells can be pickled; all cells can be computed, within `seconds`; the table has rows, each with
    a name, a verdict and, where it compares, a source; a second call with the same store computes nothing and gives
    the same table; and a cell computed anew, under another global random state, gives the same result.

    Args:
        recipe: The recipe.
        seed: Its seed.
        seconds: How long the toy size may take.

    Returns:
        The run.

    Raises:
        AssertionError: The recipe breaks the contract; the message says where.

    Example:
        >>> from crunode.jobs.registry import recipe
        >>> check_recipe(recipe("toy-volumes")).ok
        True
    """
    require(bool(recipe.name and recipe.title and recipe.paper), "expected a name, a title and a paper")
    require("toy" in recipe.sizes, f"expected a toy size, got {recipe.sizes}")
    for size in recipe.sizes:
        _check_cells(recipe, size, seed)
    _check_pickle(recipe.compute)
    with preserved_rng(), tempfile.TemporaryDirectory() as folder:
        _stir(101)
        start = time.perf_counter()
        run = recipe.run("toy", seed, store=folder)
        took = time.perf_counter() - start
        failed = [f"{r.cell.name}: {r.error}" for r in run.results if r.error is not None]
        require(not failed, f"expected all cells to be computed, got {'; '.join(failed)}")
        require(took <= seconds, f"expected toy size within {seconds:g} s, took {took:.1f} s")
        _check_rows(run)
        before = _files(Path(folder))
        again = recipe.run("toy", seed, store=folder)
        require(_files(Path(folder)) == before, "expected a second call to compute nothing, but cells were written")
        require(again.rows == run.rows, "expected the same table from the stored cells")
        _stir(202)
        first = min(run.results, key=lambda result: result.seconds)
        anew = loads(dumps(recipe.compute(first.cell)))
        require(_near(anew, first.value), f"cell {first.cell.name}: expected the same result from the same seed")
    return run


def _check_pickle(function: Any) -> None:
    try:
        pickle.loads(pickle.dumps(function))
    except Exception as error:
        raise AssertionError(f"expected a compute that can be pickled, from the top of a module: {error}") from error


def _check_cells(recipe: Any, size: str, seed: int) -> None:
    cells, again, other = (list(recipe.cells(size, s)) for s in (seed, seed, seed + 1))
    names = [cell.name for cell in cells]
    require(bool(cells) and len(set(names)) == len(names), f"{size}: expected cells with different names, got {names}")
    require(cells == again, f"{size}: expected the same cells from the same seed")
    require(cells != other, f"{size}: expected the settings of cells to tell their seed")
    for cell in cells:
        settings = plain(cell.settings, cell.name)
        require(loads(dumps(settings)) == settings, f"{cell.name}: expected settings that survive JSON")
        require(pickle.loads(pickle.dumps(cell)) == cell, f"{cell.name}: expected a cell that can be pickled")


def _check_rows(run: Any) -> None:
    require(bool(run.rows), "expected rows, got none")
    names = [row.name for row in run.rows]
    require(len(set(names)) == len(names), f"expected rows with different names, got {names}")
    for row in run.rows:
        require(bool(row.name), "expected each row to have a name")
        if row.verdict in ("agrees", "differs", "explained"):
            complete = None not in (row.paper, row.ours, row.tolerance) and bool(row.source)
            require(complete, f"row {row.name}: expected both values, a tolerance and a source")
    require(loads(dumps(run.to_dict())) is not None and bool(run.compare()), "expected a table and a JSON form")


def _near(one: Any, other: Any) -> bool:
    """Equal but for rounding, which may depend on how chains were laid out."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_near(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_near(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-6, atol=1e-12, equal_nan=True))
    return bool(one == other)


def _files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}


def _stir(noise: int) -> None:
    torch.manual_seed(noise)
    np.random.seed(noise)  # noqa: NPY002
    random.seed(noise)


def require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
