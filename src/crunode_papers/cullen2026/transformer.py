"""`cullen2026-transformer`: losses and λ̂ along trainings of transformers on modular addition (Fig. 13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from crunode.jobs import Cell, Recipe, Result, Row, place
from crunode_papers.cullen2026.runs.curves import diverged, times_of
from crunode_papers.cullen2026.runs.langevin import PRINTED
from crunode_papers.cullen2026.runs.pictures import draw_trajectories
from crunode_papers.cullen2026.runs.plans import PAPER, curve_rows, seeds_of
from crunode_papers.cullen2026.runs.transformers import transformer_trainings

__all__ = ["RECIPE", "cells", "compute", "figures", "rows"]

_CHAINS = {
    "printed": ["given", asdict(PRINTED)],
    "local": ["own", {"nbeta": 1e5, "warmup": 400, "draws": 300, "batch": 128}],
}
_TOY_CHAINS = {
    "printed": ["given", {**asdict(PRINTED), "chains": 2, "warmup": 10, "draws": 30}],
    "local": ["own", {"nbeta": 1e5, "chains": 2, "warmup": 20, "draws": 30}],
}
_MEMORIZED = "none of these trainings generalizes: the validation loss rises while λ̂ falls with the training loss"
_TOY = {"modulus": 7, "layers": 2, "width": 16, "heads": 2, "batch": None, "rate": 1e-2, "records": 20, "points": 4}
_BASE = {"modulus": 53, "layers": 2, "width": 128, "heads": 4, "batch": 128, "rate": 1e-3, "records": 100, "points": 18}
_CONDITIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("baseline", {"fraction": 0.4, "optimizer": "adam", "weight_decay": 1e-5, "epochs": 600}),
    ("fraction 0.8", {"fraction": 0.8, "optimizer": "adam", "weight_decay": 1e-5, "epochs": 300}),
    ("AdamW, weight decay 1", {"fraction": 0.4, "optimizer": "adamw", "weight_decay": 1.0, "epochs": 1500}),
)


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each condition."""
    if size == "toy":
        plan = {**_TOY, "fraction": 0.7, "optimizer": "adamw", "weight_decay": 0.1, "epochs": 50}
        return [Cell("toy", {**plan, "seeds": seeds_of(seed, 2), "chains": _TOY_CHAINS, "condition": "toy"})]
    return [
        Cell(name, {**_BASE, **change, "seeds": seeds_of(seed, 5), "chains": _CHAINS, "condition": name})
        for name, change in _CONDITIONS
    ]


def compute(cell: Cell) -> dict[str, Any]:
    """Trainings of a condition with λ̂ along them."""
    return {"trainings": transformer_trainings(cell.settings), "device": place().type}


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Whether there is grokking, and correlations of λ̂ with the validation loss."""
    found: list[Row] = []
    for result in results:
        name, trainings = result.settings["condition"], result["trainings"]
        whole = [times_of(one) for one in trainings if not diverged(one)]
        for what in ("memorization", "generalization"):
            reached = [getattr(one, what) for one in whole if getattr(one, what) is not None]
            note = f"after {min(reached)} to {max(reached)} epochs" if reached else ""
            share = len(reached) / len(trainings)
            found.append(Row(f"{name}: part with {what}", None, share, None, None, "shown", note))
        generalized = any(one.generalization is not None for one in whole)
        rows_of = curve_rows(name, trainings, "Fig. 13, appendix H.3.1", size, late=False)
        found += rows_of if generalized else [_without_generalization(row) for row in rows_of]
    return found


def _without_generalization(row: Row) -> Row:
    """A claim about networks that come to generalize does not speak of those that only memorize."""
    return replace(row, verdict="explained", note=f"{_MEMORIZED}; {row.note}") if row.verdict == "differs" else row


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Losses, accuracies and λ̂ by epoch, one picture for each condition."""
    return [draw_trajectories(result, folder) for result in results]


RECIPE = Recipe(
    name="cullen2026-transformer",
    title="losses and λ̂ along trainings of two-layer transformers on modular addition",
    paper=f"{PAPER}; appendix H.3.1, Fig. 13",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="The paper says only that its transformer has several layers and p = 53. Here: two layers of width 128 with "
    "four heads, cross-entropy, and three trainings that differ in how they generalize. The claim is a correlation of "
    "λ̂ with the test error over the whole training.",
)
