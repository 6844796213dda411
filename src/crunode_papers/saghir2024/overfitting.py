"""`saghir2024-overfitting`: λ̂, Tr H and WBIC of networks that overfit (appendix A, Figs. 7 and 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crunode.jobs import Cell, Recipe, Result, Row
from crunode_papers.claims.rows import QUANTITIES, by_seed, claim_row, measured, tested
from crunode_papers.saghir2024.optimizers import PAPER
from crunode_papers.saghir2024.pictures import draw_curves
from crunode_papers.saghir2024.plans import FULL, TOY, ffnn, repeated
from crunode_papers.saghir2024.trajectories import trajectory

__all__ = ["RECIPE", "cells", "compute", "figures", "rows"]

_SETTINGS = {"data": "fashion-mnist", "lr": 1e-2, "alpha": 1e-1, "epsilon": 1e-10}
_SOURCES = {"llc": "Fig. 7", "own": "Fig. 7", "trace": "Fig. 7", "wbic": "Fig. 8"}
_PLANS: dict[str, dict[str, Any]] = {
    "toy": {
        **TOY,
        "examples": 200,
        "lr": 5e-2,
        "repeats": 2,
        "epochs": 20,
        "measure": [5, 10, 20],
        "net": ffnn(1, 16),
        "optimizers": ("sgd", "kaldi", "empirical"),
    },
    "paper": {
        **FULL,
        "examples": 10_000,
        "repeats": 4,
        "epochs": 40,
        "measure": [1, 3, 6, 10, 15, 20, 30, 40],
        "net": ffnn(2, 256),
        "optimizers": ("sgd", "kaldi", "empirical"),
    },
    "full": {
        **FULL,
        "repeats": 10,
        "epochs": 60,
        "measure": [1, 3, 6, 10, 15, 20, 30, 40, 50, 60],
        "net": ffnn(2, 256),
        "optimizers": ("sgd", "kaldi", "plain", "empirical"),
    },
}


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each optimizer and seed."""
    plan = dict(_PLANS[size])
    repeats, optimizers = plan.pop("repeats"), plan.pop("optimizers")
    return repeated([(o, {**_SETTINGS, **plan, "optimizer": o}) for o in optimizers], repeats, seed)


def compute(cell: Cell) -> dict[str, Any]:
    """A training that goes on for too long, with what was measured on the way."""
    return trajectory(cell.settings)


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Changes from the epoch of the least validation loss to the last one, and correlations with that loss."""
    found: list[Row] = []
    for optimizer in dict.fromkeys(r.settings["optimizer"] for r in results):
        some = by_seed(results, optimizer=optimizer)
        for key in ("validation_loss", "llc", "own", "trace", "wbic"):
            test, note = tested(some, lambda r, k=key: _change(r, k))  # type: ignore[misc]
            what = QUANTITIES.get(key, "the validation loss")
            name = f"{optimizer}: change of {what} from the least validation loss to the last epoch"
            source = _SOURCES.get(key, "appendix A.3, what overfitting means")
            note = note.replace("diverged", "diverged or did not overfit")
            found.append(claim_row(name, test, source, above=True, size=size, note=note))
        for key in ("llc", "own", "trace", "wbic"):
            test, note = tested(some, lambda r, k=key: _correlation(r, k))  # type: ignore[misc]
            name = f"{optimizer}: correlation of {QUANTITIES[key]} and validation loss over epochs"
            found.append(claim_row(name, test, "appendix A.3", above=True, size=size, note=note))
    return found


def _points(result: Result) -> list[Mapping[str, Any]]:
    return [] if result["diverged"] is not None else list(result["points"])


def _change(result: Result, key: str) -> float | None:
    """Last value less the one at the least validation loss; None where that is the last."""
    points = _points(result)
    if not points:
        return None
    least = min(range(len(points)), key=lambda k: points[k]["validation_loss"])
    first, last = (measured(points[k], key) for k in (least, -1))
    if least == len(points) - 1 or first is None or last is None:
        return None
    return last - first


def _correlation(result: Result, key: str) -> float | None:
    pairs = [(p["validation_loss"], measured(p, key)) for p in _points(result)]
    kept = [(a, b) for a, b in pairs if b is not None]
    if len(kept) < 3 or any(np.ptp([p[k] for p in kept]) == 0 for k in (0, 1)):
        return None
    return float(np.corrcoef(*np.array(kept).T)[0, 1])


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Figs. 7 and 8: λ̂, Tr H, WBIC and validation loss by epoch."""
    return [draw_curves(results, folder / "overfitting.png", ("llc", "own", "trace", "wbic"), "overfitting")]


RECIPE = Recipe(
    name="saghir2024-overfitting",
    title="λ̂, Tr H and WBIC of networks that overfit",
    paper=f"{PAPER}; appendix A.3, Figs. 7 and 8",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    sizes=("toy", "paper", "full"),
    notes="Overfitting begins where the validation loss is least. At paper size 10 000 of the 60 000 images are "
    "trained on, so that it comes within few epochs; full size has them all. WBIC is E[n L_n(w)] over chains near "
    "the weights at β = 1/log n, which is n L_n(w*) + λ̂ log n: as n L_n(w*) falls with training, it rises only "
    "where λ̂ rises by more than that over log n.",
)
