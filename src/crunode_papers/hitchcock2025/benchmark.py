"""`hitchcock2025-benchmark`: `llc` with defaults only, and plain SGLD, on networks with a known coefficient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from crunode.core import derived_seed
from crunode.jobs import Cell, Expected, Recipe, Result, Row
from crunode_papers.hitchcock2025.methods import estimate_row
from crunode_papers.hitchcock2025.metrics import summarize
from crunode_papers.hitchcock2025.problems import problems_of

__all__ = ["RECIPE", "cells", "compute", "rows"]

_METHODS = ("crunode", "sgld")
_OF_THE_RUN = ("seconds", "peak_memory")  # what another run of the same cell would have otherwise
_TOY: dict[str, Any] = {"count": 2, "examples": 200, "steps": 300}
# A choice: the medians on record for these sizes are 0 to 1.5 % (docs/accuracy.md, docs/benchmark.md).
_MEDIAN = Expected(0.05, 0.0, "the exact coefficients", exact=True, side="at most")
_COVERED = Expected(0.95, 0.0, "95 % intervals", exact=True, side="at least")


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each network with a known coefficient and method; seed 0 has those the command has by default."""
    kind, count = ("1K", _TOY["count"]) if size == "toy" else (size, None)
    first = 5000 if seed == 0 else derived_seed(seed, 0) % 10**6
    found = problems_of(kind, count=count, first_seed=first)
    settings = {"kind": kind, "count": count, "first_seed": first, "examples": _TOY["examples"] if count else None}
    return [
        Cell(f"{problem.name} {method}", {**settings, "index": k, "method": method, "options": _options(size, method)})
        for k, problem in enumerate(found)
        if problem.truth("local") is not None
        for method in _METHODS
    ]


def _options(size: str, method: str) -> dict[str, int]:
    return {"steps": _TOY["steps"]} if size == "toy" and method == "sgld" else {}


def compute(cell: Cell) -> dict[str, Any]:
    """The row of a network and a method: value, errors, exact coefficient, cost."""
    asked = cell.settings
    problem = problems_of(asked["kind"], count=asked["count"], first_seed=asked["first_seed"])[asked["index"]]
    row = estimate_row(problem.with_examples(asked["examples"]), asked["method"], options=asked["options"])
    plain = (bool, int, float, type(None))
    told = {name: value for name, value in row.items() if name not in _OF_THE_RUN}
    return {name: value if isinstance(value, plain) else str(value) for name, value in told.items()}


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Median error, order and coverage of each method; those of SGLD are shown beside."""
    found = []
    for entry in summarize([{**(result.value or {}), "seconds": result.seconds} for result in results]):
        runs, ours = entry["runs"], entry["method"] == "crunode"
        chance = math.sqrt(_COVERED.value * (1 - _COVERED.value) / runs)  # of the share in so many networks
        for name, key, expected, se in (
            ("median relative error", "median_relative_error", _MEDIAN if ours else None, None),
            ("share of pairs in order", "order_preserved", None, None),
            ("share within the stated 95 % interval", "coverage", _COVERED if ours else None, chance),
        ):
            label, value, note = f"{entry['method']}: {name}", entry[key], f"{runs} networks"
            shown = Row(label, None, value, None, None, "shown", note)
            found.append(expected.row(label, value, se=se, note=note) if expected is not None else shown)
    return found


RECIPE = Recipe(
    name="hitchcock2025-benchmark",
    title="learning coefficients of random deep linear networks, estimated and exact",
    paper="Hitchcock & Hoogland 2025, From Global to Local: A Scalable Benchmark for Local Posterior Sampling, "
    "arXiv:2507.21449; networks as in Lau et al. 2023",
    cells=cells,
    compute=compute,
    rows=rows,
    sizes=("toy", "1K", "10K", "100K", "reference", "families"),
    notes="`python -m crunode_papers.hitchcock2025` runs the same with other methods, counts, examples and devices, "
    "and keeps a record. Errors are relative to the exact local coefficient; a run that failed is infinitely far off.",
)
