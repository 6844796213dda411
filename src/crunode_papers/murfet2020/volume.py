"""`murfet2020-volume`: how fast the volume of almost true parameters shrinks (Murfet et al. 2020, section 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crunode import exact, volume_scaling
from crunode.core import derived_seed, need
from crunode.jobs import Cell, Expected, Recipe, Result, Row

__all__ = ["RECIPE", "Case", "cells", "compute", "figures", "rows"]

Potential = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """An example: its potential K, the point, and what is known.

    Attributes:
        title: K in words.
        potential: K on points, shape (points, parameters).
        at: The true parameter v_0 to look at.
        half: λ, exactly.
        source: Where λ is from.
        multiplicity: m.
        radius: Half the side of the box around v_0.
        printed: What the paper says λ is, where that is something else.
        why: Why it is.
    """

    title: str
    potential: Potential
    at: tuple[float, ...]
    half: Fraction
    source: str
    multiplicity: int = 1
    radius: float = 1.0
    printed: Fraction | None = None
    why: str = ""


def _spread(w: Tensor) -> Tensor:
    return 9 * w[:, 0] ** 2 + w[:, 1] ** 2


def _regular(w: Tensor) -> Tensor:
    return w.square().sum(1)


def _product(w: Tensor, hidden: int, inputs: int, target: Tensor) -> Tensor:
    """‖B A − B_0 A_0‖² with B square, as in appendix A.2."""
    b = w[:, : hidden * hidden].reshape(-1, hidden, hidden)
    a = w[:, hidden * hidden :].reshape(-1, hidden, inputs)
    return (b @ a - target.to(w)).square().sum((1, 2))


def _minimally_singular(w: Tensor) -> Tensor:
    return _product(w, 2, 2, torch.eye(2))


def _true_map_of_rank_zero(w: Tensor) -> Tensor:
    return _product(w, 2, 2, torch.zeros(2, 2))


def _relu_shift(w: Tensor) -> Tensor:
    """Example A.4 with N = 2: ∫ (ReLU(x − b) − ReLU(x))² dx over [−N, N]."""
    b = w[:, 0]
    return 2 * b**2 - torch.where(b > 0, 2 / 3, 1 / 3) * b**3


def _relu_scaling(w: Tensor) -> Tensor:
    """The unit a ReLU(b x) against ReLU(x), on x uniform over [−1, 1]; K is ((ab)₊ − 1)²/6 for b > 0."""
    return (w[:, 0] * w[:, 1] - 1) ** 2 / 6


def _crossing(w: Tensor) -> Tensor:
    return (w[:, 0] * w[:, 1]) ** 2


def _cusp(w: Tensor) -> Tensor:
    return (w[:, 0] ** 2 - w[:, 1] ** 3) ** 2


def _tanh_pair(w: Tensor) -> Tensor:
    """∫ (Σ_j a_j tanh(b_j x))² q(x) dx for two units, q uniform over four points of [0, 1]."""
    x = torch.linspace(0.25, 1.0, 4, dtype=w.dtype)
    return torch.einsum("pj,pjx->px", w[:, :2], torch.tanh(w[:, 2:, None] * x)).square().mean(1)


_OFF = (
    "appendix A.2 gives W_0 as {det B ≠ 0, A = B⁻¹ B_0 A_0}; where B_0 A_0 has not full rank, singular B solve B A = "
    "B_0 A_0 too, W_0 is no manifold, and the model is not minimally singular there"
)

CASES: Mapping[str, Case] = {
    "regular": Case("w₁² + w₂² + w₃²", _regular, (0.0,) * 3, exact.regular(3).bounds[0], "eq. 4 with d' = d = 3"),
    "minimal": Case("9 w₁² + w₂² of 4", _spread, (0.0,) * 4, Fraction(1), "eq. 4 with d' = 2, d = 4"),
    "reduced-rank": Case(
        "‖BA − I‖², 2×2, at B = I",
        _minimally_singular,
        (1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0),
        exact.reduced_rank(2, 2, 2, rank=2).bounds[0],
        "A.2: d' = HM = 4 of 8",
        radius=0.4,
    ),
    "reduced-rank-zero": Case(
        "‖BA‖², 2×2, at B = A = 0",
        _true_map_of_rank_zero,
        (0.0,) * 8,
        exact.reduced_rank(2, 2, 2, rank=0).bounds[0],
        "Aoyagi & Watanabe 2005",
        printed=Fraction(2),
        why=_OFF,
    ),
    "relu-shift": Case("ReLU(x − b) against ReLU(x)", _relu_shift, (0.0,), Fraction(1, 2), "example A.4: C² suffices"),
    "relu-scaling": Case(
        "a ReLU(bx) against ReLU(x)", _relu_scaling, (1.0, 1.0), Fraction(1, 2), "lemma A.1: one symmetry", radius=0.5
    ),
    "crossing": Case("(xy)²", _crossing, (0.0, 0.0), exact.normal_crossing([1, 1]).bounds[0], "normal crossing", 2),
    "cusp": Case("(x² − y³)²", _cusp, (0.0, 0.0), Fraction(5, 12), "2λ = 5/6 is no whole number"),
    "tanh": Case(
        "two tanh units, zero truth",
        _tanh_pair,
        (0.0,) * 4,
        exact.tanh_zero_truth(2).bounds[0],
        "Aoyagi & Watanabe 2005",
    ),
}
"""The examples by name."""

_SETTINGS = {
    "toy": {"levels": 40, "particles": 192, "replicas": 10, "moves": 16},
    "paper": {"levels": 90, "particles": 1536, "replicas": 24, "moves": 24},
}
_SPAN = 16


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each example."""
    return [
        Cell(name, {"case": name, "seed": derived_seed(seed, index), **_SETTINGS[size]})
        for index, name in enumerate(CASES)
    ]


def compute(cell: Cell) -> dict[str, Any]:
    """λ of an example from its volumes, and the curve of volumes."""
    settings = dict(cell.settings)
    case = CASES[settings.pop("case")]
    point = torch.tensor(case.at, dtype=torch.float64)
    found = volume_scaling(case.potential, point, radius=case.radius, **settings)
    seen = found.diagnostics
    return {
        "value": found.value,
        "error": found.error,
        "multiplicity": seen["multiplicity"],
        "findings": [f.code for f in found.findings],
        "t": seen["t"],
        "log_volume": seen["log_volume"],
        "log_volume_se": seen["log_volume_se"],
    }


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """λ by the fit, 2λ by eq. 6 as it stands, and the constant of eq. 5."""
    table = []
    for result in results:
        case = CASES[result.settings["case"]]
        name = f"{case.title}: "
        known = Expected(float(case.half), 0.0, case.source, exact=True)
        table.append(known.row(f"{name}λ", result["value"], se=result["error"]))
        if case.printed is not None:
            said = Expected(float(case.printed), 0.0, "appendix A.2, λ = HM/2")
            table.append(said.row(f"{name}λ as the paper has it", result["value"], se=result["error"], why=case.why))
        ratio, se = _by_ratio(result)
        why = "eq. 6 is for m = 1; with m = 2 it approaches 2λ only as 1/log t" if case.multiplicity > 1 else ""
        twice = Expected(2 * float(case.half), 0.0, f"eq. 6, a = 2^{_SPAN}", exact=True)
        table.append(twice.row(f"{name}2λ by eq. 6", ratio, se=se, why=why))
    by_name = {result.settings["case"]: result for result in results}
    if "minimal" in by_name:
        flat = by_name["minimal"]
        # In a box of side 2 the share of {Σ c_i w_i² < t} is π t / (4 √(c₁c₂)).
        constant = flat["log_volume"][-1] - math.log(flat["t"][-1])
        law = Expected(math.log(math.pi / 4 / 3), 0.0, "eq. 5 in full: log π/(4√(c₁c₂))", exact=True)
        table.append(law.row("9 w₁² + w₂² of 4: log V − log t", constant, se=flat["log_volume_se"][-1]))
    return table


def _by_ratio(result: Result) -> tuple[float, float]:
    """2 log(V(at)/V(t)) / log a at the smallest t, and a bound on its error."""
    logs, se = result["log_volume"], result["log_volume_se"]
    width = _SPAN * math.log(2)
    # Errors add up from level to level, so those of the two volumes have the same sign for the greater part.
    noise = math.hypot(se[-1], se[-1 - _SPAN])
    return 2 * (logs[-1 - _SPAN] - logs[-1]) / width, 2 * noise / width


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Volumes of all examples over t."""
    figure = need("matplotlib.figure", extra="plot").Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    for result in results:
        case = CASES[result.settings["case"]]
        logs = [math.log10(t) for t in result["t"]]
        axes.plot(logs, [v / math.log(10) for v in result["log_volume"]], label=f"{case.title}, λ = {case.half}")
    axes.set(xlabel="log₁₀ t", ylabel="log₁₀ V(t)")
    axes.legend(fontsize="small")
    path = folder / "volumes.png"
    figure.savefig(path, dpi=120)
    return [path]


RECIPE = Recipe(
    name="murfet2020-volume",
    title="volumes of almost true parameters shrink as t^λ",
    paper="Murfet, Wei, Gong, Li, Gell-Redman & Quella 2020, Deep Learning is Singular, and That's Good, section 4 "
    "(eq. 4-6) and appendices A.1, A.2; arXiv:2010.11560",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="The volume V(t) of {K < t} around a true parameter shrinks as t^λ, so 2λ counts the effective parameters: "
    "all of a regular model, the normal directions of a minimally singular one, and not even a whole number otherwise. "
    "Volumes are followed through halvings of t by multilevel splitting; no posterior is involved.\n\n"
    "Three points where the text is to be read with care. After eq. 6 the limit is said to equal λ; with the factor 2 "
    "on its right side it equals 2λ. The law V = c t^λ holds for multiplicity m = 1; in general it is c t^λ "
    "(−log t)^(m−1), which eq. 6 sees as a slow drift. And the set W_0 of appendix A.2 is as stated only where "
    "B_0 A_0 has full rank.",
)
