"""`pennington2017-index`: index and energy of critical points (Figure 6 of Pennington & Bahri 2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crunode import InputError
from crunode.core import derived_seed, need
from crunode.jobs import Cell, Expected, Recipe, Result, Row
from crunode.spectra import critical_energy, fit_index, hessian_law, index, index_prefactor, random_spectrum
from crunode.topology import critical_points
from crunode_papers.pennington2017.networks import examples_of, initial, inputs_of, landscape, trained

__all__ = ["RATIOS", "RECIPE", "best_fit", "cells", "compute", "figures", "linear_minimum", "rows"]

RATIOS = (0.25, 0.5, 0.75)
_UNITS = ("linear", "tanh", "relu")

_SIZES: Mapping[str, dict[str, Any]] = {
    "toy": {
        "matrices": {"size": 200, "matrices": 8},
        "minimizers": {"width": 10, "nets": 8, "steps": 400},
        "critical": {"width": 4, "starts": 32, "steps": 100, "sets": 1},
        "ratios": (0.75,),
    },
    "paper": {
        "matrices": {"size": 1000, "matrices": 40},
        "minimizers": {"width": 16, "nets": 64, "steps": 10_000},
        "critical": {"width": 8, "starts": 64, "steps": 400, "sets": 1},
        "ratios": RATIOS,
    },
}
# Energies of random matrices over ε_c; levels between the energy of minimizers (0) and that of no output at all (1).
_EXCESS = np.array([0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0])
_LEVELS = (0.15, 0.4, 0.7)
# The most that eigenvalues without a sign may make of the index of a point that is counted.
_UNSURE = 0.02


def best_fit(ratio: float) -> float:
    """½(1 − φ)²: what the paper finds for the energy of minimizers of tanh networks."""
    return 0.5 * (1 - ratio) ** 2


def linear_minimum(width: int, examples: int) -> float:
    """½(1 − n/m) = ½(1 − φ/2): the mean least energy of a linear network on normal targets."""
    return 0.5 * (1 - min(1.0, width / examples))


def cells(size: str, seed: int) -> list[Cell]:
    """Random matrices, minimizers of each kind of network, and critical points of tanh networks."""
    plan, found = _SIZES[size], []
    for k, ratio in enumerate(RATIOS):
        for i, model in enumerate(("linear", "relu")):
            settings = {"kind": "matrices", "model": model, "ratio": ratio, "seed": derived_seed(seed, 0, i, k)}
            found.append(Cell(f"matrices {model} {ratio:g}", settings | plan["matrices"]))
        for i, units in enumerate(_UNITS):
            settings = {"kind": "minimizers", "units": units, "ratio": ratio, "seed": derived_seed(seed, 1, i, k)}
            found.append(Cell(f"minimizers {units} {ratio:g}", settings | plan["minimizers"]))
        if ratio in plan["ratios"]:
            settings = {"kind": "critical", "units": "tanh", "ratio": ratio, "seed": derived_seed(seed, 2, 0, k)}
            found.append(Cell(f"critical tanh {ratio:g}", settings | plan["critical"]))
    return found


def compute(cell: Cell) -> dict[str, Any]:
    """Pairs of energy and index, or energies of minimizers."""
    made = {"matrices": _matrices, "minimizers": _minimizers, "critical": _critical}
    return made[cell.settings["kind"]](cell.settings)


def _matrices(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Index of random matrices that have the law of the model, and the 3/2 law fitted to it."""
    model, ratio, size = settings["model"], settings["ratio"], settings["size"]
    critical = critical_energy(ratio, model)
    energies = critical * (1 + _EXCESS)
    shares = []
    for k, energy in enumerate(energies):
        law = hessian_law(float(energy), ratio, model)
        seeds = [derived_seed(settings["seed"], k, j) for j in range(settings["matrices"])]
        shares.append([float((random_spectrum(law, size, s) < 0).mean()) for s in seeds])
    measured = np.array(shares)
    # Counts are whole numbers: their error is not below that of rounding, even where all matrices agree.
    spread = np.maximum(measured.std(1, ddof=1), 0.3 / size) / math.sqrt(settings["matrices"])
    near = critical * (1 + np.geomspace(1e-4, 2e-3, 20))
    exact = fit_index(near, index(near, ratio, model))
    return {
        "energy": energies.tolist(),
        "index": measured.mean(1).tolist(),
        "se": spread.tolist(),
        "model": index(energies, ratio, model).tolist(),
        "critical": critical,
        "prefactor": index_prefactor(ratio, model),
        "near": {name: [e.value, e.error] for name, e in vars(exact).items()},
    }


def _minimizers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Energies that training ends at, on normal targets."""
    units, width, many = settings["units"], settings["width"], settings["nets"]
    generator = torch.Generator().manual_seed(settings["seed"])
    shape = many, examples_of(width, settings["ratio"]), width
    x, y = (inputs_of(width, shape[0] * shape[1], generator).reshape(shape) for _ in range(2))
    _, energies = trained(units, [initial(units, width, generator) for _ in range(many)], x, y, settings["steps"])
    return {"energies": energies.tolist(), "examples": shape[1]}


def _critical(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Critical points of networks on normal targets, by the gradient norm, from starts at several levels."""
    width, ratio = settings["width"], settings["ratio"]
    examples = examples_of(width, ratio)
    energies: list[float] = []
    indices: list[float] = []
    outcomes: list[str] = []
    unsure = 0
    for k in range(settings["sets"]):
        seed = derived_seed(settings["seed"], k)
        generator = torch.Generator().manual_seed(seed)
        x, y = (inputs_of(width, examples, generator) for _ in range(2))
        land = landscape(initial(settings["units"], width, generator), x, y)
        for level in _LEVELS:
            low = best_fit(ratio)
            found = critical_points(
                land,
                settings["starts"],
                level=width * (low + level * (0.5 - low)),
                steps=settings["steps"],
                tolerance=1e-6,
                seed=seed % (1 << 31),
            )
            outcomes += found.outcomes
            for point in found:
                if point.fraction.systematic > _UNSURE:
                    unsure += 1
                    continue
                energies.append(point.loss.value / width)
                indices.append(point.fraction.value)
    return {
        "energy": energies,
        "index": indices,
        "unsure": unsure,
        "outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes))},
        "fits": _fits(energies, indices),
    }


def _fits(energies: Sequence[float], indices: Sequence[float]) -> dict[str, Any]:
    """ε_c with the exponent 3/2, and the exponent left free, from the lower half of the indices."""
    x, y = np.array(energies), np.array(indices)
    low = y <= np.median(y) if len(y) else np.array([], dtype=bool)
    try:
        fixed, free = fit_index(x[low], y[low], exponent=1.5), fit_index(x[low], y[low])
    except InputError:  # too few points
        return {}
    return {
        "critical": [fixed.critical_energy.value, fixed.critical_energy.error],
        "exponent": [free.exponent.value, free.exponent.error],
    }


_PRINTED = "½(1 − φ): Figure 6, caption"
_TWICE = (
    "n² of the 2n² weights are enough for all maps W₂W₁, so that n of m dimensions are fitted and with φ = 2n/m the "
    "least energy is ½(1 − φ/2)"
)
_BY_FIT = "a fit to networks of one size; energies depend on width and on how long is trained"


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """The index of random matrices, energies of minimizers (Figure 6b), and critical points (Figure 6a)."""
    table = []
    for result in results:
        make = {"matrices": _matrices_rows, "minimizers": _minimizers_rows, "critical": _critical_rows}
        table += make[result.settings["kind"]](result, result.settings["ratio"])
    return table


def _matrices_rows(result: Result, ratio: float) -> list[Row]:
    name, size = f"{result.settings['model']} model, φ = {ratio:g}", result.settings["size"]
    off = np.array(result["index"]) - np.array(result["model"])
    # The mean number of eigenvalues below a point is off by less than 1 at any size.
    near = Expected(0.0, 1 / size, "closed form of the distribution function", exact=True, side="at most")
    exponent, error = result["near"]["exponent"]
    found, spread = result["near"]["critical_energy"]
    critical = Expected(result["critical"], 0.0, "closed form", exact=True)
    far = result["model"][-1] / result["prefactor"]
    return [
        near.row(f"{name}: index of random matrices off by at most", float(np.abs(off).max()), se=max(result["se"])),
        Expected(1.5, 0.0, "3/2 law", exact=True).row(f"{name}: exponent within 0.2% of ε_c", exponent, se=error),
        critical.row(f"{name}: ε_c from the same fit", found, se=spread),
        Row(f"{name}: index at 2ε_c over the 3/2 law", None, far, None, None, "shown"),
    ]


def _minimizers_rows(result: Result, ratio: float) -> list[Row]:
    units, width = result.settings["units"], result.settings["width"]
    energies = np.array(result["energies"])
    value, se = float(energies.mean()), float(energies.std(ddof=1) / math.sqrt(len(energies)))
    name = f"{units} network, φ = {ratio:g}: energy of minimizers"
    if units == "linear":
        exact = Expected(linear_minimum(width, result["examples"]), 0.005, "½(1 − n/m)", exact=True)
        printed = Expected(0.5 * (1 - ratio), 0.005, _PRINTED)
        return [exact.row(name, value, se=se), printed.row(f"{name}, as printed", value, se=se, why=_TWICE)]
    if units == "tanh":
        return [
            Expected(best_fit(ratio), 0.02, "½(1 − φ)²: best fit of Figure 6b").row(name, value, se=se, why=_BY_FIT)
        ]
    return [Row(name, None, value, se, None, "shown")]


def _critical_rows(result: Result, ratio: float) -> list[Row]:
    name = f"tanh network, φ = {ratio:g}"
    x, y = np.array(result["energy"]), np.array(result["index"])
    tried = sum(result["outcomes"].values())
    note = f"of {tried} starts; {result['unsure']} more have eigenvalues without a sign"
    table = [Row(f"{name}: critical points found", None, float(len(x)), None, None, "shown", note)]
    if len(x) >= 5 and x.std() > 0 and y.std() > 0:
        grows = Expected(0.5, 0.0, "index grows with energy: Figure 6a", side="at least")
        table.append(grows.row(f"{name}: correlation of energy and index", float(np.corrcoef(x, y)[0, 1])))
    for key, words in (("critical", "ε_c fitted with the exponent 3/2"), ("exponent", "exponent fitted")):
        if result["fits"]:
            value, error = result["fits"][key]
            table.append(Row(f"{name}: {words}", None, value, error, None, "shown", "the lower half of the indices"))
    return table


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Index over energy (6a), in networks and in the models, and energies of minimizers over φ (6b)."""
    figure = need("matplotlib.figure", extra="plot").Figure(figsize=(15, 4.5), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for result in results:
        kind, ratio = result.settings["kind"], result.settings["ratio"]
        if kind == "critical":
            left.plot(result["energy"], result["index"], ".", label=f"tanh, φ = {ratio:g}")
        elif kind == "matrices":
            over = np.array(result["energy"]) / result["critical"]
            (line,) = middle.plot(over, result["model"], label=f"{result.settings['model']}, φ = {ratio:g}")
            middle.errorbar(over, result["index"], result["se"], fmt=".", color=line.get_color())
        else:
            mark = {"linear": "s", "tanh": "o", "relu": "^"}[result.settings["units"]]
            right.plot(ratio, np.mean(result["energies"]), mark, color="k", label=result.settings["units"])
    phi = np.linspace(0, 1, 100)
    right.plot(phi, 0.5 * (1 - phi) ** 2, label="½(1 − φ)²")
    right.plot(phi, 0.5 * (1 - phi / 2), label="½(1 − φ/2)")
    right.plot(phi, 0.5 * (1 - phi), "--", label="½(1 − φ), as printed")
    named = dict(reversed(list(zip(*right.get_legend_handles_labels()[::-1], strict=True))))
    right.legend(named.values(), named.keys(), fontsize="small")
    for axes, label in ((left, "ε"), (middle, "ε/ε_c"), (right, "φ")):
        axes.set(xlabel=label, ylabel="energy of minimizers" if axes is right else "index α")
    left.legend(fontsize="small")
    middle.legend(fontsize="small")
    path = folder / "index.png"
    figure.savefig(path, dpi=120)
    return [path]


RECIPE = Recipe(
    name="pennington2017-index",
    title="index against energy at critical points; energies of minimizers against the ratio of parameters to data",
    paper="Pennington & Bahri 2017, Geometry of neural network loss surfaces via random matrix theory (ICML), Figure "
    "6; Tanner, Topology of the loss landscape, lecture 9 of Theories of Deep Learning (C6.5), University of Oxford",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="Random matrices that have the law of the model follow the closed form of the index. Its 3/2 law is seen "
    "within a small part of ε_c only: at 2ε_c the index is about 0.6 of it, and a power fitted over a wide range comes "
    "out lower.\n\n"
    "Minimizers of tanh networks on normal targets have energies near ½(1 − φ)², as Figure 6b has it. For linear "
    "networks the caption says ½(1 − φ); with φ = 2n/m it is ½(1 − φ/2), since n² of the 2n² weights are enough "
    "for all maps.\n\n"
    "Critical points of tanh networks are looked for by minimizing the gradient norm, from starts at several energies. "
    "Many searches end where the gradient norm has a minimum that is not zero, or run along flat ways of saturated "
    "units; only points that converged, and whose eigenvalues have signs, count. What is found depends on where the "
    "search begins: it is no fair sample of all critical points.",
)
