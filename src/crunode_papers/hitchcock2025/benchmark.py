"""`hitchcock2025-benchmark`: `llc` with defaults only, and plain SGLD, on networks with a known coefficient."""

from __future__ import annotations

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
_MEDIAN = Expected(0.0, 0.05, "the exact coefficients", exact=True, side="at most")
_COVERED = Expected(0.95, 0.0, "95 % intervals", exact=True, side="at least")


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each network and method; the networks of another seed are others."""
    kind, count = ("1K", _TOY["count"]) if size == "toy" else (size, None)
    first = 5000 if seed == 0 else derived_seed(seed, 0) % 10**6
    names = [problem.name for problem in problems_of(kind, count=count, first_seed=first)]
    settings = {"kind": kind, "count": len(names) if kind[0].isdigit() else None, "first_seed": first}
    settings["examples"] = _TOY["examples"] if size == "toy" else None
    return [
        Cell(f"{name} {method}", {**settings, "index": k, "method": method, "options": _options(size, method)})
        for k, name in enumerate(names)
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
        for name, key, expected in (
            ("median relative error", "median_relative_error", _MEDIAN),
            ("share of pairs in order", "order_preserved", None),
            ("share within the stated 95 % interval", "coverage", _COVERED),
        ):
            label, value = f"{entry['method']}: {name}", entry[key]
            judged = expected is not None and entry["method"] == "crunode" and (size != "toy" or key != "coverage")
            shown = Row(label, None, value, None, None, "shown", f"{entry['runs']} networks")
            found.append(expected.row(label, value) if expected is not None and judged else shown)
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
