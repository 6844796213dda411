"""`cullen2026-trajectory`: losses, accuracies and λ̂ along trainings of quadratic networks (Figs. 3, 7–10)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crunode.jobs import Cell, Recipe, Result, Row, place
from crunode_papers.cullen2026.runs.curves import change_epochs, diverged, times_of
from crunode_papers.cullen2026.runs.pictures import draw_trajectories
from crunode_papers.cullen2026.runs.plans import BASELINE, PAPER, TOY, curve_rows, grokking_rows, seeds_of
from crunode_papers.cullen2026.runs.quadratic import quadratic_trainings

__all__ = ["RECIPE", "cells", "compute", "figures", "rows"]

_CONDITIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("baseline", "Fig. 3", {"weight_decays": [1e-4]}),
    ("p = 53", "Fig. 7", {}),
    ("p = 61", "Fig. 7", {"modulus": 61}),
    ("p = 71", "Fig. 7", {"modulus": 71}),
    ("K = 600", "Fig. 8", {"width": 600}),
    ("K = 800", "Fig. 8", {"width": 800}),
    ("K = 1000", "Fig. 8", {"width": 1000}),
    ("weight decay 5e-5", "Fig. 9", {"weight_decays": [5e-5]}),
    ("rate 1e-3", "Fig. 10", {"rates": [1e-3], "epochs": 2000}),
    ("rate 1e-2", "Fig. 10", {"rates": [1e-2], "epochs": 1000}),
)
_LONG = {"weight_decays": [1e-4], "epochs": 100_000, "points": 25, "records": 1000}


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each condition: its trainings are one batch, and so are all chains at all of their points."""
    if size == "toy":
        plan = {**TOY, "epochs": 500, "points": 9, "seeds": seeds_of(seed, 2)}
        return [Cell("toy", {**plan, "condition": "toy", "source": "Fig. 3"})]
    plan = {**BASELINE, "epochs": 4000, "points": 32}
    found = [
        Cell(name, {**plan, "seeds": seeds_of(seed, 10 if name == "baseline" else 4), **change} | _named(name, source))
        for name, source, change in _CONDITIONS
    ]
    long = {**plan, **_LONG, "seeds": seeds_of(seed, 2)} | _named("100 000 epochs", "Fig. 3 and appendix H.1")
    return [*found, Cell("100 000 epochs", long)]


def _named(condition: str, source: str) -> dict[str, Any]:
    return {"condition": condition, "source": source}


def compute(cell: Cell) -> dict[str, Any]:
    """Trainings of a condition with λ̂ along them."""
    return {"trainings": quadratic_trainings(cell.settings), "device": place().type}


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Grokking, correlations of λ̂ with the validation loss, and where λ̂ changes."""
    found: list[Row] = []
    for result in results:
        name, source = result.settings["condition"], result.settings["source"]
        found += grokking_rows(name, result["trainings"], source, size)
        found += curve_rows(name, result["trainings"], f"{source}, section 6.3", size)
        if name in ("baseline", "toy"):
            found.append(_change_row(name, result["trainings"]))
    return found


def _change_row(name: str, trainings: Sequence[dict[str, Any]]) -> Row:
    """How often λ̂ has a change to a lower stretch between memorization and twice the time of generalization."""
    hits, notes = 0, []
    for index, one in enumerate(trainings):
        times = None if diverged(one) else times_of(one)
        if times is None or times.memorization is None or times.generalization is None:
            continue
        within = [
            (low, high)
            for low, high in change_epochs(one, "local", index)
            if high >= times.memorization and low <= 2 * times.generalization
        ]
        hits += bool(within)
        notes += [f"{low} to {high}" for low, high in within[:1]]
    what = f"{name}: part of the trainings with a change of λ̂ (local chains) to a lower stretch between the two times"
    note = f"the first, in epochs: {', '.join(notes)}" if notes else ""
    return Row(what, None, hits / len(trainings), None, None, "shown", note)


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Losses, accuracies and λ̂ by epoch, one picture for each condition."""
    return [draw_trajectories(result, folder) for result in results]


RECIPE = Recipe(
    name="cullen2026-trajectory",
    title="losses, accuracies and λ̂ along trainings that grok modular addition",
    paper=f"{PAPER}; section 6.3, Figs. 3 and 7–10",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="λ̂ sees training pairs only. Two kinds of chains: 'printed' has the paper's settings, with which a chain "
    "forgets in 4000 steps and is stopped after 700, so that λ̂ is how far it has drifted; 'local' has own labels, is "
    "cold enough to stay near the weights and comes to rest, so that λ̂ is half the number of directions stiffer than "
    "its resolution. The exact coefficient of the training loss is half the rank of the Jacobian and need not change.",
)
