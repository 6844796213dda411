"""What a paper's experiment is made of: cells to compute, values to expect, rows that hold the two together.

A package offers a recipe as an entry point of the group "crunode.recipes": its name, and the `Recipe`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crunode.errors import InputError
from crunode.store.atomic import digest
from crunode.store.documents import dumps, plain, write_document

if TYPE_CHECKING:
    from crunode.core.execute import Executor

__all__ = ["SIDES", "VERDICTS", "Cell", "Expected", "Recipe", "Result", "Row", "Run"]

VERDICTS = ("agrees", "differs", "explained", "no value", "shown")
"""What a row can say: "explained" differs for a reason that its note gives, "no value" could not be computed, and
"shown" has nothing to be held against."""

SIDES = ("equal", "at most", "at least")
"""How a value can be expected."""


@dataclass(frozen=True)
class Row:
    """One line of a recipe's table.

    Attributes:
        name: What was measured.
        paper: The value to expect: printed in the paper, or exact; None where there is none.
        ours: The value that came out; None where there is none.
        se: Its standard error, where there is one.
        tolerance: How far the two may be apart.
        verdict: One of `VERDICTS`.
        note: Why it differs, or what went wrong, or anything to know.
        source: Where the expected value is from.
        side: One of `SIDES`: which way ours is held against it.

    Example:
        >>> Row("λ", 1.5, 1.48, 0.02, 0.06, "agrees").verdict
        'agrees'
    """

    name: str
    paper: float | None
    ours: float | None
    se: float | None
    tolerance: float | None
    verdict: str
    note: str = ""
    source: str = ""
    side: str = "equal"

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InputError(f"expected a verdict among {', '.join(VERDICTS)}, got {self.verdict!r}")
        if self.verdict == "explained" and not self.note:
            raise InputError(f"expected a note that explains why {self.name} differs, got none; give the reason")


@dataclass(frozen=True)
class Expected:
    """A value that a paper prints, or a closed form, and how near to it ours has to be.

    Attributes:
        value: The value.
        tolerance: How far ours may be off beyond its statistical error.
        source: Where it is from: a table or equation of the paper, or the theorem.
        note: Anything to know about it.
        exact: True for closed forms, False for what a paper printed.
        relative: Whether the tolerance is a share of the value.
        side: "equal", or "at most" or "at least" for a bound.

    Example:
        >>> Expected(1.5, 0.05, "Theorem 1", exact=True).row("λ", 1.46, se=0.01).verdict
        'agrees'
        >>> Expected(0.5, 0.0, "Table 2").row("λ", 8.0, se=0.1, why="another phase").verdict
        'explained'
    """

    value: float
    tolerance: float
    source: str
    note: str = ""
    exact: bool = False
    relative: bool = False
    side: str = "equal"

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or not 0 <= self.tolerance < math.inf:
            given = f"{self.value!r} with {self.tolerance!r}"
            raise InputError(f"expected a finite value and a finite tolerance from 0 up, got {given}")
        if self.side not in SIDES:
            raise InputError(f"expected side among {', '.join(SIDES)}, got {self.side!r}")

    def row(
        self,
        name: str,
        ours: float | None,
        *,
        se: float | None = None,
        sigmas: float = 3.0,
        why: str = "",
        note: str = "",
    ) -> Row:
        """Hold a result against this value: they agree within the tolerance plus `sigmas` standard errors.

        Args:
            name: What was measured.
            ours: The result; None, or a number that is not finite, gives the verdict "no value".
            se: Its standard error, where it has one.
            sigmas: How many of these it may be off. At 3 one true row in 370 is found to differ.
            why: The known reason for a difference; a row that differs then counts as explained.
            note: Anything to know.
        """
        where = f"{'exact' if self.exact else 'paper'}: {self.source}"
        if ours is None or not math.isfinite(ours) or (se is not None and not math.isfinite(se)):
            return Row(name, self.value, None, None, None, "no value", note or "no finite value", where, self.side)
        allowed = self.tolerance * (abs(self.value) if self.relative else 1.0) + sigmas * (se or 0.0)
        gap = ours - self.value
        off = {"equal": abs(gap), "at most": gap, "at least": -gap}[self.side]
        verdict = "agrees" if off <= allowed else "explained" if why else "differs"
        said = why if verdict == "explained" else " ".join(text for text in (note, self.note) if text)
        return Row(name, self.value, float(ours), se, allowed, verdict, said, where, self.side)


@dataclass(frozen=True)
class Cell:
    """One unit of work: computed alone, in any process, and kept under the hash of its settings.

    Attributes:
        name: Unique within a run.
        settings: All that the result depends on, its seed included, as JSON-able values.

    Example:
        >>> Cell("n=100", {"n": 100, "seed": 0}).key("demo", 1)[:8]
        '971a9033'
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def key(self, recipe: str, version: int) -> str:
        """The hash that its result is kept under."""
        content = {"recipe": recipe, "version": version, "cell": self.name, "settings": self.settings}
        return digest(dumps(content).encode())


@dataclass(frozen=True)
class Result:
    """What came out of a cell.

    Attributes:
        cell: The cell.
        value: What `compute` returned, as JSON gives it back; None when it failed.
        seconds: How long it took.
        error: The error of a cell that failed.
        provenance: Versions and source state of the process that computed it.
    """

    cell: Cell
    value: dict[str, Any] | None
    seconds: float
    error: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the cell."""
        return self.cell.settings

    def __getitem__(self, key: str) -> Any:
        if self.value is None:
            raise InputError(f"expected a result of cell {self.cell.name}, which failed: {self.error}")
        return self.value[key]


@dataclass(frozen=True)
class Recipe:
    """A paper's experiment.

    `compute` has to be a function at the top of a module, so that executors can send it to other processes; cells are
    computed on one thread each. `rows` and `figures` get the results of the cells that did not fail, in the order of
    the cells; a failed cell becomes a row of its own.

    Attributes:
        name: As the command line has it, such as "toy-volumes".
        title: One line.
        paper: What it reproduces: authors, year, title, where.
        cells: `cells(size, seed)`: the units of work of a size.
        compute: `compute(cell)`: its result as JSON-able values.
        rows: `rows(results, size)`: the table.
        figures: `figures(results, folder)`: draws pictures and returns their paths.
        notes: Plain explanation, and where the paper is wrong.
        sizes: "toy" runs in seconds; "paper" is the paper's own size.
        version: To be raised when the same settings give other results; results of other versions are not mixed.
    """

    name: str
    title: str
    paper: str
    cells: Callable[[str, int], Sequence[Cell]]
    compute: Callable[[Cell], Mapping[str, Any]]
    rows: Callable[[Sequence[Result], str], Sequence[Row]]
    figures: Callable[[Sequence[Result], Path], Sequence[Path]] | None = None
    notes: str = ""
    sizes: tuple[str, ...] = ("toy", "paper")
    version: int = 1

    def run(
        self,
        size: str = "toy",
        seed: int = 0,
        store: str | os.PathLike[str] | None = None,
        executor: Executor | None = None,
    ) -> Run:
        """Compute all cells and make the table.

        Args:
            size: One of `sizes`.
            seed: All randomness comes from it.
            store: Folder that finished cells are kept in. The same call after an interruption, or a kill, computes
                only what is missing; figures and result.json are written there at the end.
            executor: Where cells run; the numbers do not depend on it.

        Raises:
            InputError: No such size, or a seed that is not a whole number from 0 up.
            StoreMismatch: The folder holds a run of another recipe, version, size or seed, or of other cells.
            StoreError: Another process is at work in the folder, or a file of it is corrupt.

        Example:
            >>> from crunode.jobs.registry import recipe
            >>> recipe("toy-volumes").run(size="tiny")
            Traceback (most recent call last):
            crunode.errors.InputError: expected size among toy, paper, got 'tiny'
        """
        from crunode.jobs.running import run_recipe

        return run_recipe(self, size, seed, store, executor)


@dataclass(frozen=True)
class Run:
    """A recipe that was run: its table, and what it was made from.

    Attributes:
        recipe: The recipe.
        size: Its size.
        seed: Where all randomness came from.
        rows: The table.
        results: What came out of each cell, failed ones too.
        figures: Pictures that were drawn.
        messages: What else happened, such as a picture that could not be drawn.
        provenance: Versions and source state: a list where cells, or cells and table, were made by different ones.
    """

    recipe: Recipe = field(repr=False)
    size: str
    seed: int
    rows: tuple[Row, ...]
    results: tuple[Result, ...] = field(repr=False)
    figures: tuple[Path, ...] = ()
    messages: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """True when no cell failed and no row differs without a reason or lacks its value."""
        return all(r.error is None for r in self.results) and all(
            row.verdict not in ("differs", "no value") for row in self.rows
        )

    def compare(self) -> str:
        """The table as text: expected value, ours, tolerance and verdict, row by row."""
        from crunode.jobs.table import describe_recipe_run

        return describe_recipe_run(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON-able values."""
        return {
            "recipe": self.recipe.name,
            "title": self.recipe.title,
            "paper": self.recipe.paper,
            "recipe_version": self.recipe.version,
            "size": self.size,
            "seed": self.seed,
            "ok": self.ok,
            "rows": [asdict(row) for row in self.rows],
            "notes": self.recipe.notes,
            "messages": list(self.messages),
            "figures": [str(path) for path in self.figures],
            "cells": [
                {
                    "name": result.cell.name,
                    "settings": plain(result.cell.settings),
                    "value": result.value,
                    "seconds": result.seconds,
                    "error": result.error,
                    "provenance": dict(result.provenance),
                }
                for result in self.results
            ],
            "provenance": dict(self.provenance),
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the table, the results and their provenance as a JSON document; returns its path."""
        target = Path(path)
        write_document(target, "crunode-recipe-run", 1, self.to_dict())
        return target
