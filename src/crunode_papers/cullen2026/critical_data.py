"""`cullen2026-critical-data`: validation accuracy against N/(M log M), and where the boundary is (Fig. 14)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crunode.jobs import Cell, Expected, Recipe, Result, Row, place
from crunode_papers.cullen2026.runs.curves import diverged, times_of
from crunode_papers.cullen2026.runs.pictures import draw_boundary
from crunode_papers.cullen2026.runs.plans import PAPER, TOY, seeds_of
from crunode_papers.cullen2026.runs.quadratic import quadratic_trainings
from crunode_papers.cullen2026.runs.statistics import Boundary, fit_boundary, jackknife
from crunode_papers.grokking.settings import TrainingSettings
from crunode_papers.grokking.tasks import ModularTask

__all__ = ["PRINTED_FRACTIONS", "RECIPE", "cells", "compute", "figures", "points_of", "rows"]

PRINTED_FRACTIONS = (0.1, 0.15, 0.3, 0.4, 0.9, 0.95)
"""Training fractions of Fig. 14; others lie between them, where the boundary is."""

_MODULI = (53, 67, 79, 83, 101, 103)
_BETWEEN = (0.12, 0.18, 0.21, 0.25)
_SOURCE = "appendix H.3.2, Fig. 14"
_PLAN: dict[str, Any] = {
    "width": 1024,
    "batch": 128,
    "rate": 1e-3,
    "weight_decay": 1e-4,
    "records": 60,
    "steps": 50_000,
}


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each group size M, with all fractions."""
    if size == "toy":
        toy = {"width": TOY["width"], "batch": None, "rate": 1e-2, "weight_decay": 1e-3, "records": 20, "steps": 400}
        plan = {**toy, "fractions": [0.2, 0.35, 0.5, 0.65, 0.8]}
        moduli: tuple[int, ...] = (13, 17, 23)
        return [Cell(f"M = {m}", {**plan, "modulus": m, "seeds": seeds_of(seed, 2)}) for m in moduli]
    fractions = sorted((*PRINTED_FRACTIONS, *_BETWEEN))
    return [
        Cell(f"M = {m}", {**_PLAN, "fractions": fractions, "modulus": m, "seeds": seeds_of(seed, 3)}) for m in _MODULI
    ]


def compute(cell: Cell) -> dict[str, Any]:
    """Trainings at all fractions, each for the same number of steps."""
    settings = dict(cell.settings)
    found = []
    for fraction in settings["fractions"]:
        task = ModularTask(settings["modulus"], fraction=fraction)
        each = TrainingSettings(task, width=settings["width"], batch=settings["batch"]).steps
        epochs = max(1, settings["steps"] // each)
        plan = {**settings, "fraction": fraction, "epochs": epochs, "points": 0, "chains": {}}
        plan |= {"rates": [settings["rate"]], "weight_decays": [settings["weight_decay"]]}
        for one in quadratic_trainings(plan):
            times = None if diverged(one) else times_of(one)
            found.append(
                {
                    "fraction": fraction,
                    "examples": len(task.training),
                    "seed": one["seed"],
                    "epochs": epochs,
                    "accuracy": one["validation_accuracy"][-1],
                    "early": _at(one, epochs / 4),
                    "training_accuracy": one["training_accuracy"][-1],
                    "memorization": None if times is None else times.memorization,
                    "generalization": None if times is None else times.generalization,
                }
            )
    return {"trainings": found, "device": place().type}


def _at(training: dict[str, Any], epoch: float) -> float | None:
    """The validation accuracy at the last record up to an epoch."""
    index = max(k for k, when in enumerate(training["epochs"]) if when <= epoch)
    value = training["validation_accuracy"][index]
    return None if value is None else float(value)


def points_of(result: Result, key: str = "accuracy", only: Sequence[float] | None = None) -> tuple[list[float], ...]:
    """N/(M log M) and the validation accuracy of the trainings of one M."""
    m = result.settings["modulus"]
    kept = [
        (one["examples"] / (m * math.log(m)), one[key])
        for one in result["trainings"]
        if one[key] is not None and (only is None or one["fraction"] in only)
    ]
    return [x for x, _ in kept], [y for _, y in kept]


def _pooled(
    results: Sequence[Result], key: str = "accuracy", only: Sequence[float] | None = None
) -> tuple[Boundary | None, float | None]:
    """The boundary of all M together, with its error by leaving out one M at a time."""

    def fitted(some: Sequence[Result]) -> Boundary | None:
        columns = [points_of(result, key, only) for result in some]
        return fit_boundary([x for c in columns for x in c[0]], [y for c in columns for y in c[1]])

    whole = fitted(results)
    if whole is None or len(results) < 3:
        return whole, None
    left = [fitted([*results[:k], *results[k + 1 :]]) for k in range(len(results))]
    known = [one.middle for one in left if one is not None]
    return whole, jackknife(known) if len(known) == len(left) else None


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """The boundary of all M and of each, whether it collapses, and how it depends on the length of training."""
    found, judged = [], size != "toy"
    pooled, se = _pooled(results)
    name = "boundary N/(M log M) of all M, where the validation accuracy is one half"
    if pooled is None:
        found.append(Row(name, None, None, None, None, "no value", "accuracies do not pass one half"))
    elif judged:
        expected = Expected(2.75, 0.25, f"{_SOURCE}: 2.5 to 3")
        found.append(expected.row(name, pooled.middle, se=se, note=f"width of the step {pooled.width:.3g} in log N"))
    else:
        found.append(
            Row(name, None, pooled.middle, se, None, "shown", "tables this small have a boundary of their own")
        )
    for key, only, text in (
        ("early", None, "after a quarter of the steps"),
        ("accuracy", PRINTED_FRACTIONS, "with the fractions of the paper alone"),
    ):
        other, error = _pooled(results, key, only)
        value = None if other is None else other.middle
        found.append(Row(f"boundary {text}", None, value, error, None, "shown"))
    each = [(result.settings["modulus"], fit_boundary(*points_of(result))) for result in results]
    for m, one in each:
        value, error = (None, None) if one is None else (one.middle, one.se)
        fraction = "" if one is None else f"a fraction of {one.middle * math.log(m) / m:.3g}"
        found.append(Row(f"boundary at M = {m}", None, value, error, None, "shown", fraction))
    found.append(_collapse_row([(m, one) for m, one in each if one is not None], judged))
    for result in results:
        found.append(_immediate_row(result))
    return found


def _collapse_row(each: Sequence[tuple[int, Boundary]], judged: bool) -> Row:
    """Whether N_c/(M log M) is the same for all M: the slope of its logarithm against log M."""
    name = "slope of log N_c/(M log M) against log M, 0 where the boundary collapses"
    if len(each) < 3:
        return Row(name, None, None, None, None, "shown", "fewer than three M have a boundary")
    x, y = np.log([m for m, _ in each]), np.log([one.middle for _, one in each])
    own = np.array([one.se / one.middle for _, one in each])
    away = x - x.mean()
    slope = float(away @ y / (away @ away))
    scatter = float(np.square(y - y.mean() - slope * away).sum()) / (len(each) - 2)
    # Steps sharper than the grid of fractions have errors of their own, which the scatter need not show.
    se = math.sqrt(max(scatter, float(np.mean(own**2))) / float(away @ away))
    constant = 1 - 1 / float(np.log([m for m, _ in each]).mean())
    note = f"a constant fraction would give {constant:.2f}"
    if not judged:
        return Row(name, 0.0, slope, se, None, "shown", note)
    return Expected(0.0, 0.0, f"{_SOURCE}, boundary at O(M log M)").row(name, slope, se=se, note=note)


def _immediate_row(result: Result) -> Row:
    """From which fraction on trainings generalize within twice the time of memorization."""
    done = [
        (one["fraction"], one["generalization"] <= 2 * max(one["memorization"], 1))
        for one in result["trainings"]
        if one["generalization"] is not None and one["memorization"] is not None
    ]
    kept = sorted({f for f, _ in done if all(at_once for g, at_once in done if g >= f)})
    m = result.settings["modulus"]
    value = kept[0] * m / math.log(m) if kept else None
    note = f"a fraction of {kept[0]}" if kept else "at no fraction that was tried"
    return Row(f"N/(M log M) of immediate generalization at M = {m}", None, value, None, None, "shown", note)


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Fig. 14, with the fitted step."""
    columns = {result.settings["modulus"]: points_of(result) for result in results}
    return [draw_boundary(columns, _pooled(results)[0], folder / "boundary.png")]


RECIPE = Recipe(
    name="cullen2026-critical-data",
    title="how many training pairs generalization takes: N/(M log M)",
    paper=f"{PAPER}; {_SOURCE}",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="M is the group size p, N the number of training pairs, and log the natural logarithm, with which the "
    "fractions of the paper lie on both sides of 2.5 to 3. All trainings have the same number of steps, since an epoch "
    "of a small part of the table has few; the boundary after a quarter of them is given beside the one at the end.",
)
