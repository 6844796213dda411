"""`cullen2026-toys`: the three landscapes of Fig. 5, with exact and estimated learning coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import crunode as cr
from crunode import Landscape, llc, multi_temperature
from crunode.core import derived_seed, need
from crunode.exact import LearningCoefficient
from crunode.jobs import Cell, Expected, Recipe, Result, Row

__all__ = ["POINTS", "RECIPE", "cells", "compute", "exact_value", "figures", "potential", "rows"]

POINTS: dict[str, tuple[str, tuple[float, float], float | None]] = {
    "x² + y² at (0, 0)": ("bowl", (0.0, 0.0), 1.0),
    "x⁴ + y⁴ at (0, 0)": ("quartic", (0.0, 0.0), 0.5),
    "x²y⁴ at (1, 0)": ("crossing", (1.0, 0.0), 0.25),
    "x²y⁴ at (0, 0)": ("crossing", (0.0, 0.0), 0.25),
    "x²y⁴ at (0, 1)": ("crossing", (0.0, 1.0), None),
}
"""Landscape, point, and the value that Fig. 5 prints; it prints λ(x, 0), and nothing for the other line of minima."""

_PLANS: dict[str, dict[str, Any]] = {
    "toy": {"chains": 64, "draws": 100, "warmup": 80, "n": 10_000},
    "paper": {"chains": None, "draws": None, "warmup": None, "n": 100_000},
}
_NEAR = 0.05
# With a weak prior chains leave a point of the line x = 0 for the lower coefficient at the crossing.
_PRECISION = {"x²y⁴ at (0, 1)": 100.0}


def potential(name: str) -> Any:
    """The landscape as a function of (x, y).

    Example:
        >>> float(potential("crossing")(torch.tensor([3.0, 2.0])))
        144.0
    """
    return {"bowl": _bowl, "quartic": _quartic, "crossing": _crossing}[name]


def _bowl(w: Tensor) -> Tensor:
    return w.square().sum()


def _quartic(w: Tensor) -> Tensor:
    return w.square().square().sum()


def _crossing(w: Tensor) -> Tensor:
    return w[0] ** 2 * w[1] ** 4


def exact_value(name: str, at: Sequence[float]) -> LearningCoefficient:
    """λ and m at a minimum: a coordinate that is not zero there is a unit in front of the other.

    Example:
        >>> print(exact_value("crossing", (1.0, 0.0)))
        λ = 1/4, m = 1 (exact) [Watanabe 2009, ...]
    """
    if name == "bowl":
        return cr.exact.regular(2)
    if name == "quartic":
        return cr.exact.sum_of(cr.exact.normal_crossing([2]), cr.exact.normal_crossing([2]))
    return cr.exact.normal_crossing([0 if x else k for x, k in zip(at, (1, 2), strict=True)])


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each landscape and point."""
    return [
        Cell(
            name,
            {
                "seed": derived_seed(seed, k),
                "potential": kind,
                "at": list(at),
                **_PLANS[size],
                "precision": _PRECISION.get(name),
            },
        )
        for k, (name, (kind, at, _)) in enumerate(POINTS.items())
    ]


def compute(cell: Cell) -> dict[str, Any]:
    """The coefficient by `llc` and by regression on 1/log nβ, from the same draws."""
    s = cell.settings
    land = Landscape.of_function(potential(s["potential"]), torch.tensor(s["at"]), n=s["n"])
    line = multi_temperature(land, **{name: s[name] for name in ("chains", "draws", "warmup", "precision", "seed")})
    assert line.draws is not None
    plain = llc(line.draws)
    found = {"llc": _numbers(plain), "line": _numbers(line), "levels": line.diagnostics["levels"]}
    return {**found, "slope": line.diagnostics["slope"], "slope_se": line.diagnostics["slope_se"]}


def _numbers(estimate: Any) -> dict[str, Any]:
    return {
        "value": estimate.value,
        "se": estimate.se,
        "error": estimate.error,
        "findings": [f.code for f in estimate.findings if f.severity != "info"],
    }


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """What the figure prints against the exact value, and the estimates against it."""
    found = []
    for result in results:
        name = result.cell.name
        kind, at, printed = POINTS[name]
        exact = exact_value(kind, at)
        if printed is not None:
            found.append(Expected(printed, 0.0, "Fig. 5").row(f"{name}: exact", float(exact)))
        for key, what in (("llc", "llc"), ("line", "regression on 1/log nβ")):
            numbers = result[key]
            expected = Expected(float(exact), _NEAR, exact.citation, exact=True, relative=True)
            note = "findings " + ", ".join(numbers["findings"]) if numbers["findings"] else ""
            found.append(expected.row(f"{name}: {what}", numbers["value"], se=numbers["error"], note=note))
    return found


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """λ̂ against 1/log nβ at each point, with the exact value at 0."""
    pyplot = need("matplotlib.pyplot", extra="plot")
    figure, axis = pyplot.subplots(figsize=(6, 4))
    for number, result in enumerate(results):
        x = [1 / np.log(row["nbeta"]) for row in result["levels"]]
        y, error = ([row[key] for row in result["levels"]] for key in ("value", "se"))
        axis.errorbar(x, y, yerr=error, fmt="o", ms=3, color=f"C{number}", label=result.cell.name)
        ends = np.array([0.0, max(x)])
        axis.plot(ends, result["line"]["value"] + result["slope"] * ends, lw=0.8, color=f"C{number}")
        kind, at, _ = POINTS[result.cell.name]
        axis.plot(0, float(exact_value(kind, at)), "x", color=f"C{number}")
    axis.set(xlabel="1/log nβ", ylabel="λ̂")
    axis.legend(fontsize=7)
    path = folder / "temperatures.png"
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot.close(figure)
    return [path]


RECIPE = Recipe(
    name="cullen2026-toys",
    title="Learning coefficients of three toy landscapes, exact and estimated",
    paper="Cullen et al. 2026, Grokking as a Phase Transition between Competing Basins, arXiv:2603.01192; Fig. 5",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="Each value is estimated twice from the same draws: by llc, which weighs several laws of how the estimate "
    "depends on nβ, and as the intercept of λ̂ against 1/log nβ (appendix B). The minima of x²y⁴ are two lines. The "
    "figure gives λ(x, 0) = 1/4, which holds at the crossing as well; on the other line, at (0, y) with y ≠ 0, it is "
    "1/2, and chains stay there only with a strong prior.",
)
