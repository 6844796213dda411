"""`murfet2020-rlct`: Table 2 and Figure 2 of Murfet et al. 2020, and what the numbers of that table are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crunode.core import need
from crunode.jobs import Cell, Expected, Recipe, Result, Row
from crunode_papers.murfet2020.tempered import baseline, global_phases, local_coefficient, table_slopes
from crunode_papers.murfet2020.two_layer import true_network

__all__ = ["PRINTED", "RECIPE"]

# λ, its standard deviation over data sets, and R², as Table 2 has them.
PRINTED = {
    (3, "relu"): (0.526301, 0.027181, 0.983850),
    (3, "silu"): (0.522393, 0.026342, 0.978770),
    (4, "relu"): (0.539590, 0.024774, 0.991241),
    (4, "silu"): (0.539387, 0.020769, 0.988495),
    (5, "relu"): (0.555303, 0.002344, 0.993092),
    (5, "silu"): (0.555630, 0.021184, 0.990971),
}
SCALES = (1.0, 3.0, 10.0, 50.0, 500.0)
_CODIM = "codimension of the true parameters, (3m + 1)/2"
_NOTES = """Table 2 is reproduced, but it is not the learning coefficient of the networks it names. With the prior
N(0, 50²) and n = 1000, at β near 1/log 20000 nearly all draws have every hidden unit dead at all examples: only the
output bias is left, and the slope is that of the constant model, 1/2. A straight line (R² near 1) does not tell that,
since any region of parameters gives one. Colder, the posterior passes through first-order transitions to more and more
live units, and ends near the true parameters, where the coefficient is (3m + 1)/2. Which number comes out in between is
a matter of the prior's scale and of the temperature."""


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each line of the table, each phase diagram, each true network and each scale of the prior."""
    toy = size == "toy"
    table = {"n": 1000, "hot": 14, "seed": seed, "compiled": not toy}
    table |= (
        {"sets": 1, "chains": 2, "draws": 40, "warmup": 40}
        if toy
        else {"sets": 30, "chains": 4, "draws": 1500, "warmup": 500}
    )
    local = {"n": 1000, "seed": seed, "compiled": not toy}
    local |= {"chains": 4, "draws": 60, "warmup": 60} if toy else {"chains": 16, "draws": 2000, "warmup": 500}
    phase = {"n": 1000, "sd": 50.0, "seed": seed, "compiled": True, "chains": 16, "draws": 3000, "warmup": 1000}
    phase |= {"hot": 14, "cold": 44, "coldest": 1e6}
    decades = [1e4, 3e4, 1e5, 3e5, 1e6]
    if toy:
        return [
            Cell("table m=3 relu", {"kind": "table", "m": 3, "activation": "relu", "sd": 50.0, **table}),
            Cell("local m=5 relu", {"kind": "local", "m": 5, "activation": "relu", "levels": decades[2:], **local}),
        ]
    found = [
        Cell(f"table m={m} {act}", {"kind": "table", "m": m, "activation": act, "sd": 50.0, **table})
        for m, act in PRINTED
    ]
    found += [Cell(f"phases m={m}", {"kind": "phases", "m": m, **phase}) for m in (3, 4, 5)]
    found += [
        Cell(f"local m={m} {act}", {"kind": "local", "m": m, "activation": act, "levels": levels, **local})
        for act, levels in (("relu", decades), ("silu", np.geomspace(1e3, 1e9, 13).tolist()))
        for m in (3, 4, 5)
    ]
    few = {**table, "sets": 8}
    return found + [
        Cell(f"prior sd={sd:g}", {"kind": "table", "m": 3, "activation": "relu", "sd": sd, **few})
        for sd in SCALES
        if sd != 50.0
    ]


def compute(cell: Cell) -> Mapping[str, Any]:
    """The results of a cell, by its kind."""
    settings = dict(cell.settings)
    kinds = {"table": table_slopes, "local": local_coefficient, "phases": global_phases}
    return kinds[settings["kind"]](settings)


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """The table's lines beside the printed ones, the constant model, true coefficients, transitions, and priors."""
    found: list[Row] = []
    for result in results:
        s = result.settings
        if s["kind"] == "table" and s["sd"] == 50.0:
            found += _table_rows(result)
        elif s["kind"] == "table":
            note = f"dead in {100 * result['dead']:.0f} % of draws, R² {result['r2']:.3f}"
            name = f"λ̂ of m = 3 with the prior N(0, {s['sd']:g}²)"
            found.append(Row(name, None, result["value"], result["se"], None, "shown", note))
        elif s["kind"] == "local":
            found += _local_rows(result)
        else:
            found += _phase_rows(result)
    return found


def _table_rows(result: Result) -> list[Row]:
    m, activation = result.settings["m"], result.settings["activation"]
    value, std, r2 = PRINTED[m, activation]
    name = f"m = {m} {activation}"
    # Printed errors are the scatter over data sets, of which the paper does not say how many there were.
    printed = Expected(value, 2 * std, "Table 2")
    constant = Expected(baseline(result.settings["n"], 50.0), 0.05, "constant model", exact=True)
    note = f"every unit dead in {100 * result['dead']:.1f} ± {100 * result['dead_se']:.1f} % of draws"
    if result["findings"]:
        note += (
            f"; {', '.join(result['findings'])}: R-hat {result['rhat']:.2f}, least swap rate {result['swap_rate']:.2f}"
        )
    return [
        printed.row(f"λ̂ of Algorithm 1, {name}", result["value"], se=result["se"], note=note),
        constant.row(f"the same against the constant model, {name}", result["value"], se=result["se"]),
        Row(f"R², {name}", r2, result["r2"], None, None, "shown", source="paper: Table 2"),
        Row(f"std over data sets, {name}", std, result["std"], None, None, "shown", source="paper: Table 2"),
    ]


def _local_rows(result: Result) -> list[Row]:
    m, activation = result.settings["m"], result.settings["activation"]
    truth, name = (3 * m + 1) / 2, f"s_{m} {activation}"
    last = result["curve"][-1]
    between = f"ranks leave {result['low']:g} to {result['high']:g}"
    if activation == "silu":
        shown = [
            Row(f"λ̂ at {name}, nβ = {p['nbeta']:.0e}", None, p["value"], p["se"], None, "shown", between)
            for p in result["curve"][:: 3 if len(result["curve"]) > 3 else 1]
        ]
        return shown
    # Units that are zero at s_m make it a crossing for m < 5, where ranks leave an interval for λ.
    least = Expected(result["low"], 0.05, "rank J/2", exact=True, relative=True, side="at least")
    most = Expected(result["high"], 0.05, "half a codimension near by", exact=True, relative=True, side="at most")
    rank = Expected(truth, 0.0, f"{_CODIM}; rank J/2 is at most λ", exact=True, side="at most")
    by_chains = f"λ at {name} by chains, nβ = {last['nbeta']:.0e}"
    return [
        least.row(by_chains, last["value"], se=last["se"], note=between),
        most.row(f"{by_chains}, from above", last["value"], se=last["se"], note=between),
        rank.row(f"rank J/2 at {name}", result["low"]),
    ]


def _phase_rows(result: Result) -> list[Row]:
    m, last = result.settings["m"], result["levels"][-1]
    truth = Expected((3 * m + 1) / 2, 0.05, _CODIM, exact=True, relative=True)
    most = int(np.argmax(last["live_units"]))
    ladder = f"least swap rate {min(result['swap_rate']):.2f}, round trips of the whole ladder {result['round_trips']}"
    found = [
        truth.row(f"global λ̂ of m = {m} at nβ = {last['nbeta']:.0e}", last["value"], se=last["se"], note=ladder),
        Row(f"live units there, m = {m}", None, float(most), None, None, "shown"),
    ]
    for change in result["transitions"]:
        name = f"m = {m}: nβ from {change['from']} to {change['to']} live units"
        sure = f"between {change['low']:.3g} and {change['high']:.3g}"
        if not change["sure"]:
            sure += "; not sure: replicas crossed it too seldom, or chains disagree"
        found.append(Row(name, None, change["nbeta"], None, None, "shown", sure))
    return found


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """The true functions, the phase diagrams, and λ̂ against nβ."""
    pyplot = need("matplotlib.pyplot", extra="plot")
    paths = []
    figure, axes = pyplot.subplots(1, 3, figsize=(10, 3))
    grid = torch.linspace(-1, 1, 80)
    x = torch.cartesian_prod(grid, grid)
    for axis, m in zip(axes, (3, 4, 5), strict=True):
        with torch.no_grad():
            values = true_network(m)(x).reshape(80, 80).T
        axis.imshow(values, origin="lower", extent=(-1, 1, -1, 1))
        axis.set_title(f"f(x, s_{m})")
    paths.append(_saved(pyplot, figure, folder / "truths.png"))
    curves = [(r.cell.name, r["curve"]) for r in results if r.settings["kind"] == "local"]
    curves += [(r.cell.name, r["levels"]) for r in results if r.settings["kind"] == "phases"]
    if curves:
        figure, axis = pyplot.subplots(figsize=(7, 4))
        for name, points in curves:
            cold = [p for p in points if p["nbeta"] >= 10]
            line = [[p[key] for p in cold] for key in ("nbeta", "value", "se")]
            axis.errorbar(line[0], line[1], yerr=line[2], label=name, lw=1)
        axis.set(xscale="log", xlabel="nβ", ylabel="nβ E[L − L(s_m)]")
        axis.legend(fontsize=6)
        paths.append(_saved(pyplot, figure, folder / "coefficients.png"))
    for result in (r for r in results if r.settings["kind"] == "phases"):
        figure, axis = pyplot.subplots(figsize=(6, 3.5))
        levels = result["levels"]
        for units in range(6):
            axis.plot([p["nbeta"] for p in levels], [p["live_units"][units] for p in levels], label=f"{units} live")
        axis.set(xscale="log", xlabel="nβ", ylabel="share of draws", title=result.cell.name)
        axis.legend(fontsize=7)
        paths.append(_saved(pyplot, figure, folder / f"{result.cell.name.replace(' ', '-').replace('=', '')}.png"))
    return paths


def _saved(pyplot: Any, figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path


RECIPE = Recipe(
    name="murfet2020-rlct",
    title="Table 2: learning coefficients of two-layer ReLU and SiLU networks, and the phases behind them",
    paper="Murfet et al. 2020, Deep Learning is Singular, and That's Good, arXiv:2010.11560",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes=_NOTES,
)
