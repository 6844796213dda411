"""`cullen2026-severity`: grokking severity and the maximum of λ̂ against the learning rate (Figs. 4, 11, 12)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crunode.jobs import Cell, Recipe, Result, Row, place
from crunode_papers.claims.rows import claim_row
from crunode_papers.cullen2026.runs.curves import curve_numbers, diverged, severity_of, times_of
from crunode_papers.cullen2026.runs.pictures import draw_rates
from crunode_papers.cullen2026.runs.plans import BASELINE, PAPER, TOY, seeds_of
from crunode_papers.cullen2026.runs.quadratic import quadratic_trainings
from crunode_papers.cullen2026.runs.statistics import fit_decay

__all__ = ["RECIPE", "cells", "compute", "figures", "rows", "table_of"]

_DECAYS = (0.0, 1e-4, 1e-5)
_FIGURES = {0.0: "a", 1e-4: "b", 1e-5: "c"}


def cells(size: str, seed: int) -> list[Cell]:
    """Cells of five learning rates each for every weight decay; all trainings of a cell are one batch."""
    if size == "toy":
        plan = {**TOY, "rates": [4e-3, 1e-2, 2.5e-2], "epochs": 500, "points": 7, "seeds": seeds_of(seed, 2)}
        return [Cell("toy", plan)]
    rates = [float(f"{rate:.3g}") for rate in np.geomspace(1e-4, 1e-2, 10)]
    plan = {**BASELINE, "epochs": 10_000, "records": 500, "points": 20, "seeds": seeds_of(seed, 5)}
    return [
        Cell(f"weight decay {decay:g}, {part} rates", {**plan, "weight_decays": [decay], "rates": some})
        for decay in _DECAYS
        for part, some in (("slow", rates[:5]), ("fast", rates[5:]))
    ]


def compute(cell: Cell) -> dict[str, Any]:
    """Trainings at several rates, with λ̂ along them."""
    return {"trainings": quadratic_trainings(cell.settings), "device": place().type}


def table_of(results: Sequence[Result], decay: float) -> tuple[list[float], dict[str, np.ndarray]]:
    """Rates, and for each quantity the values of each seed (rows) at each rate; nan where there is none.

    "gsm" is nan where a training did not generalize, since its severity of 0 would say that there was no delay.
    """
    found: dict[tuple[float, int], dict[str, float | None]] = {}
    for one in (t for r in results for t in r["trainings"] if t["weight_decay"] == decay):
        numbers: dict[str, float | None] = {"gsm": None, "delay": None, "done": 0.0}
        if not diverged(one):
            times = times_of(one)
            numbers["done"] = float(one["validation_accuracy"][-1] >= 0.95)
            numbers["gsm"] = severity_of(one) if numbers["done"] else None
            numbers["delay"] = None if times.delay is None else float(times.delay)
        for chains in (key for key in one["points"] if key != "epochs"):
            numbers[chains] = curve_numbers(one, chains)["max"]
        found[one["rate"], one["seed"]] = numbers
    rates, seeds = sorted({rate for rate, _ in found}), sorted({seed for _, seed in found})
    names = list(next(iter(found.values()))) if found else []
    return rates, {
        name: np.array([[found[rate, seed][name] for rate in rates] for seed in seeds], dtype=np.float64)
        for name in names
    }


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Slopes of log GSM and of log max λ̂, as power laws of the rate and as exponentials."""
    found: list[Row] = []
    for decay in dict.fromkeys(d for r in results for d in r.settings["weight_decays"]):
        rates, table = table_of(results, decay)
        panel = _FIGURES.get(decay, "a")
        name = f"weight decay {decay:g}"
        share = table["done"].mean(0)
        listed = ", ".join(f"{part:.2g} at {rate:g}" for rate, part in zip(rates, share, strict=True))
        found.append(Row(f"{name}: part that generalized", None, float(share.mean()), None, None, "shown", listed))
        found += _decay_rows(f"{name}: GSM", rates, table["gsm"], f"Figs. 4, 11{panel}", size)
        for chains in (key for key in table if key not in ("gsm", "delay", "done")):
            what = f"{name}: maximum of λ̂ ({chains} chains)"
            found += _decay_rows(what, rates, table[chains], f"Fig. 12{panel}", size)
    return found


def _decay_rows(name: str, rates: Sequence[float], values: np.ndarray, source: str, size: str) -> list[Row]:
    fit = fit_decay(rates, values.tolist())
    if fit is None:
        note = "no seed has three rates with a value"
        return [Row(f"{name} as a power of the rate", None, None, None, None, "shown", note, f"paper: {source}")]
    lost = f"; {fit.left_out} of {values.size} values left out" if fit.left_out else ""
    means = ", ".join(f"{m:.4g}" for m in _means(values))
    notes = [f"R² {r2:.3f}{lost}; means {means}" for r2 in (fit.power_r2, fit.exponential_r2)]
    found = [m for m in _means(values) if np.isfinite(m)]
    ratio = max(found) / min(found) if min(found) > 0 else None  # a severity may be 0
    most = Row(f"{name}: largest mean over smallest", None, ratio, None, None, "shown")
    return [
        claim_row(f"{name} as a power of the rate", fit.exponent, source, above=False, size=size, note=notes[0]),
        claim_row(f"{name} as an exponential in the rate", fit.rate, source, above=False, size=size, note=notes[1]),
        most,
    ]


def _means(values: np.ndarray) -> list[float]:
    return [float(column[np.isfinite(column)].mean()) if np.isfinite(column).any() else np.nan for column in values.T]


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """GSM and the maximum of λ̂ against the rate, by weight decay."""
    decays = dict.fromkeys(d for r in results for d in r.settings["weight_decays"])
    tables = {decay: table_of(results, decay) for decay in decays}
    return [draw_rates(tables, folder / "rates.png")]


RECIPE = Recipe(
    name="cullen2026-severity",
    title="grokking severity and the maximum of λ̂ fall with the learning rate",
    paper=f"{PAPER}; section 6.4, Figs. 4, 11 and 12",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="The paper calls the decay exponential; a power law is fitted beside it, and R² of both is given. A training "
    "that does not generalize has severity 0 by definition, as one without delay: such trainings are left out and "
    "counted. Severity is a mean over all T epochs and falls as 1/T, so that T is the same for all rates.",
)
