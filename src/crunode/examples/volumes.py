"""`toy-volumes`: learning coefficients of nine closed-form potentials, from how fast volumes around them shrink."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from crunode.core.rng import derived_seed
from crunode.estimators.volume import volume_scaling
from crunode.jobs.recipe import Cell, Expected, Recipe, Result, Row

__all__ = ["RECIPE", "Case", "cells", "compute", "rows"]


@dataclass(frozen=True)
class Case:
    """A potential K whose λ and multiplicity at the origin are known.

    Attributes:
        title: K in words.
        potential: K on points, shape (points, dim).
        dim: Number of parameters.
        value: λ.
        multiplicity: m.
    """

    title: str
    potential: Callable[[Tensor], Tensor]
    dim: int
    value: Fraction
    multiplicity: int = 1


CASES: Mapping[str, Case] = {
    "regular": Case("x² + y²", lambda w: w.square().sum(1), 2, Fraction(1)),
    "quartic": Case("x⁴ + y⁴", lambda w: (w**4).sum(1), 2, Fraction(1, 2)),
    "crossing": Case("x²y²", lambda w: w.prod(1) ** 2, 2, Fraction(1, 2), 2),
    "uneven": Case("x²y⁴", lambda w: w[:, 0] ** 2 * w[:, 1] ** 4, 2, Fraction(1, 4)),
    "planes": Case("x²y²z²", lambda w: w.prod(1) ** 2, 3, Fraction(1, 2), 3),
    "lines": Case("(xy(x − y))²", lambda w: (w.prod(1) * (w[:, 0] - w[:, 1])) ** 2, 2, Fraction(1, 3)),
    "axes": Case("(xy)² + (yz)² + (zx)²", lambda w: (w * w.roll(1, 1)).square().sum(1), 3, Fraction(3, 4)),
    "crossed-lines": Case("x² + y²z²", lambda w: w[:, 0] ** 2 + w[:, 1:].prod(1) ** 2, 3, Fraction(1), 2),
    "two-crossings": Case("x²y² + z²w²", lambda w: w[:, :2].prod(1) ** 2 + w[:, 2:].prod(1) ** 2, 4, Fraction(1), 3),
}
"""The potentials by name."""

_SEEN = 0.05  # what the fit may leave to a true multiplicity of 3 at toy size, where few levels are followed
_SETTINGS = {
    "toy": {"levels": 40, "particles": 192, "replicas": 8, "moves": 8},
    "paper": {"levels": 90, "particles": 768, "replicas": 24, "moves": 24},
}


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each potential."""
    return [
        Cell(name, {"case": name, "seed": derived_seed(seed, index), **_SETTINGS[size]})
        for index, name in enumerate(CASES)
    ]


def compute(cell: Cell) -> dict[str, Any]:
    """λ of a potential from its volumes, and the probability of each multiplicity."""
    settings = dict(cell.settings)
    case = CASES[settings.pop("case")]
    found = volume_scaling(case.potential, torch.zeros(case.dim, dtype=torch.float64), **settings)
    return {"value": found.value, "error": found.error, "weights": found.diagnostics["weights"]}


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """λ of each potential, and the probability that the fit gives to its multiplicity."""
    table = []
    for result in results:
        case = CASES[result.settings["case"]]
        known = Expected(float(case.value), 0.0, "resolution of singularities", exact=True)
        table.append(known.row(f"{case.title}: λ", result["value"], se=result["error"]))
        weight = result["weights"].get(str(case.multiplicity), 0.0)
        held = Expected(_SEEN, 0.0, "not ruled out by the fit", side="at least", exact=True)
        table.append(held.row(f"{case.title}: probability of m = {case.multiplicity}", weight))
    return table


RECIPE = Recipe(
    name="toy-volumes",
    title="How fast volumes around known singularities shrink",
    paper="Watanabe 2009, Algebraic Geometry and Statistical Learning Theory, theorem 7.1",
    cells=cells,
    compute=compute,
    rows=rows,
    notes="The volume of {K < t} around a minimum of K shrinks as t^λ (−log t)^(m−1). Each cell follows it through "
    "halvings of t for a potential whose λ and multiplicity m are known in closed form.",
)
