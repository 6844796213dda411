"""`pennington2017-spectrum`: spectra of the Hessian models beside those of networks (Pennington & Bahri 2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crunode.core import derived_seed, need
from crunode.jobs import Cell, Expected, Recipe, Result, Row
from crunode.spectra import (
    critical_energy,
    edge_energy,
    hessian_law,
    index,
    kolmogorov_distance,
    linear_network_residual,
    marchenko_pastur,
    random_spectrum,
    residual_law,
)
from crunode_papers.pennington2017.networks import (
    examples_of,
    hessian_parts,
    initial,
    inputs_of,
    landscape,
    trained,
)

__all__ = ["ENERGIES", "MODELS", "RATIOS", "RECIPE", "cells", "compute", "figures", "rows"]

MODELS = ("linear", "relu")
RATIOS = (0.25, 0.5, 0.75)
ENERGIES = (0.02, 0.1, 0.5, 2.0)

_SIZES: Mapping[str, dict[str, int]] = {
    "toy": {"size": 300, "width": 12, "nets": 4, "steps": 300},
    "paper": {"size": 2000, "width": 32, "nets": 16, "steps": 4000},
}
# Eigenvalues of networks below this share of the largest are zeros to rounding; and shares that are kept for pictures.
_ZERO = 1e-9
_KEPT = np.linspace(0.005, 0.995, 100)


def cells(size: str, seed: int) -> list[Cell]:
    """Random matrices, untrained and trained networks, for each model and ratio."""
    plan, found = _SIZES[size], []
    for i, model in enumerate(MODELS):
        for k, ratio in enumerate(RATIOS):
            shared = {"model": model, "ratio": ratio}
            for j, kind in enumerate(("random", "untrained", "trained")):
                names = ("size",) if kind == "random" else ("width", "nets", *(["steps"] if kind == "trained" else []))
                settings = shared | {"kind": kind, "seed": derived_seed(seed, i, k, j)}
                found.append(Cell(f"{kind} {model} {ratio:g}", settings | {name: plan[name] for name in names}))
    return found


def compute(cell: Cell) -> dict[str, Any]:
    """Distances between spectra and laws, moments, shares of negative eigenvalues."""
    return {"random": _random, "untrained": _untrained, "trained": _trained}[cell.settings["kind"]](cell.settings)


def _random(settings: Mapping[str, Any]) -> dict[str, Any]:
    model, ratio, size = settings["model"], settings["ratio"], settings["size"]
    found = []
    for k, energy in enumerate(ENERGIES):
        law = hessian_law(energy, ratio, model)
        values = random_spectrum(law, size, derived_seed(settings["seed"], k))
        found.append(
            {
                "energy": energy,
                "distance": kolmogorov_distance(values, law),
                "negative": float((values < 0).mean()),
                "index": float(index(energy, ratio, model)),
                "quantiles": np.quantile(values, _KEPT).tolist(),
            }
        )
    critical = critical_energy(ratio, model)
    edge = edge_energy(lambda e: hessian_law(e, ratio, model), 0.1 * critical, 10 * critical)
    return {"energies": found, "critical": critical, "edge": edge}


def _untrained(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Networks at their first weights, with residuals drawn at random: H = H0 + √ε H1(1) at any energy ε."""
    model, ratio, width = settings["model"], settings["ratio"], settings["width"]
    examples = examples_of(width, ratio)
    parts = []
    for k in range(settings["nets"]):
        generator = torch.Generator().manual_seed(derived_seed(settings["seed"], k))
        net, x = initial(model, width, generator), inputs_of(width, examples, generator)
        residuals = inputs_of(width, examples, generator)
        residuals *= math.sqrt(2) / residuals.square().mean().sqrt()
        with torch.no_grad():
            parts.append(hessian_parts(landscape(net, x, net(x) + residuals)))
    first, second = (np.stack([np.linalg.eigvalsh(pair[j]) for pair in parts]) for j in range(2))
    real = linear_network_residual(1.0, ratio) if model == "linear" else residual_law(1.0, ratio, model)
    found = []
    for energy in ENERGIES:
        law = hessian_law(energy, ratio, model)
        values = np.concatenate([np.linalg.eigvalsh(h0 + math.sqrt(energy) * h1) for h0, h1 in parts])
        found.append(
            {
                "energy": energy,
                "distance": kolmogorov_distance(values, law),
                "negative": float((values < -_ZERO * np.abs(values).max()).mean()),
                "index": float(index(energy, ratio, model)),
                "quantiles": np.quantile(values, _KEPT).tolist(),
            }
        )
    return {
        "energies": found,
        "h0_mean": first.mean(1).tolist(),
        "h0_square": (first**2).mean(1).tolist(),
        "h0_zeros": float((np.abs(first) < _ZERO * first.max()).mean()),
        "h0_distance": kolmogorov_distance(first.ravel(), marchenko_pastur(ratio), _ZERO),
        "h0_quantiles": np.quantile(first, _KEPT).tolist(),
        "h1_square": (second**2).mean(1).tolist(),
        "h1_distance": kolmogorov_distance(second.ravel(), real),
        "h1_model": kolmogorov_distance(second.ravel(), residual_law(1.0, ratio, model)),
        "h1_quantiles": np.quantile(second, _KEPT).tolist(),
    }


def _trained(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Networks trained on random targets, and the model at the energy that they reach."""
    model, ratio, width, many = settings["model"], settings["ratio"], settings["width"], settings["nets"]
    generator = torch.Generator().manual_seed(settings["seed"])
    shape = many, examples_of(width, ratio), width
    x, y = (inputs_of(width, shape[0] * shape[1], generator).reshape(shape) for _ in range(2))
    ends, energies = trained(model, [initial(model, width, generator) for _ in range(many)], x, y, settings["steps"])
    first, second, values = [], [], []
    for k, net in enumerate(ends):
        h0, h1 = hessian_parts(landscape(net, x[k], y[k]))
        first.append(float(np.trace(h0)) / len(h0))
        second.append(float((h1**2).sum()) / len(h1))
        values.append(np.linalg.eigvalsh(h0 + h1))
    energy, variance = float(energies.mean()), float(np.mean(first))
    spectrum = np.concatenate(values)
    return {
        "energy": energy,
        "h0_mean": variance,
        "h1_square": float(np.mean(second)),
        "distance": kolmogorov_distance(spectrum, hessian_law(energy, ratio, model, variance)),
        # Searches end near minima, not at them: what is left of the gradient makes eigenvalues of this size.
        "negative": float((spectrum < -1e-6 * spectrum.max()).mean()),
        "index": float(index(energy, ratio, model, variance)),
        "quantiles": np.quantile(spectrum, _KEPT).tolist(),
    }


_KRONECKER = "H0 of a network is no Wishart matrix: JᵀJ is a sum of Kronecker products, with much heavier tails"
_ZEROS = "W₂W₁ is unchanged along n² directions of the 2n² weights, so that half of the eigenvalues of H0 are 0"


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Random matrices against the laws; then H0, H1 and H of networks against them."""
    table = []
    for result in results:
        model, ratio = result.settings["model"], result.settings["ratio"]
        make = {"random": _random_rows, "untrained": _untrained_rows, "trained": _trained_rows}
        table += make[result.settings["kind"]](result, model, ratio)
    return table


def _random_rows(result: Result, model: str, ratio: float) -> list[Row]:
    name, size = f"{model} model, φ = {ratio:g}", result.settings["size"]
    law = "R-transforms add"
    # Counts of eigenvalues below a point vary by the order of log(size)/π, so that they are off by a few at most.
    near = Expected(0.0, 6 / size, law, exact=True, side="at most")
    worst = max(one["distance"] for one in result["energies"])
    closed = Expected(result["critical"], 1e-6, "closed forms of ε_c", exact=True)
    off = max(abs(one["negative"] - one["index"]) for one in result["energies"])
    return [
        near.row(f"{name}: distance of random matrices, at most", worst),
        near.row(f"{name}: index of random matrices off by at most", off),
        closed.row(f"{name}: ε_c where the edge of the law crosses 0", result["edge"]),
    ]


def _untrained_rows(result: Result, model: str, ratio: float) -> list[Row]:
    name, width = f"untrained {model} network, φ = {ratio:g}", result.settings["width"]

    def mean(key: str) -> tuple[float, float]:
        values = np.array(result[key])
        return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))

    table = []
    value, se = mean("h0_mean")
    scale = Expected(
        1.0, 1 / width, "weights and inputs of variance 1/n and 1, twice that for ReLU weights", exact=True
    )
    table.append(scale.row(f"{name}: mean eigenvalue of H0", value, se=se))
    value, se = mean("h0_square")
    wishart = Expected(1 + ratio, 0.05, "H0 modelled as Wishart matrix", relative=True)
    table.append(wishart.row(f"{name}: mean square of eigenvalues of H0", value, se=se, why=_KRONECKER))
    if model == "linear":
        half = Expected(0.5, 0.0, _ZEROS, exact=True)
        table.append(half.row(f"{name}: share of zero eigenvalues of H0", result["h0_zeros"]))
    value, se = mean("h1_square")
    real = ratio if model == "linear" else ratio / 2
    formula = "φ: EXᵀ/m has entries of variance 2ε/m" if model == "linear" else "φ/2, from R(z) = εφz/(2 − εφ²z²)"
    second = Expected(real, 1 / width, formula, "finite width is allowed for", exact=True, relative=True)
    table.append(second.row(f"{name}: mean square of H1 over ε", value, se=se))
    if model == "linear":
        why = "the variance 2ε of the semicircle is a choice of the model; residuals free of the inputs give εφ"
        printed = Expected(2.0, 0.1, "semicircle of variance 2ε")
        table.append(printed.row(f"{name}: mean square of H1 over ε, as modelled", value, se=se, why=why))
    # n (linear) or n² (ReLU) different singular values: distances of the order of 1/n from finite width.
    law = Expected(0.0, 1 / width, "jumps ±φ√(ε/2)", exact=True, side="at most")
    table.append(law.row(f"{name}: distance of H1 from its law", result["h1_distance"]))
    if model == "linear":
        table.append(_shown(f"{name}: distance of H1 from the semicircle of variance 2ε", result["h1_model"]))
    table.append(_shown(f"{name}: distance of H0 from Marchenko-Pastur", result["h0_distance"]))
    for one in result["energies"]:
        at = f"{name}, ε = {one['energy']:g}"
        table.append(_shown(f"{at}: distance of H from the model", one["distance"]))
        table.append(_shown(f"{at}: index, {one['index']:.3f} in the model", one["negative"]))
    return table


def _trained_rows(result: Result, model: str, ratio: float) -> list[Row]:
    name = f"trained {model} network, φ = {ratio:g}"
    over = result["h1_square"] / result["energy"]
    real = ratio if model == "linear" else ratio / 2
    return [
        _shown(f"{name}: energy", result["energy"]),
        _shown(f"{name}: mean square of H1 over ε, {real:g} for residuals free of the inputs", over),
        _shown(f"{name}: distance of H from the model at that energy", result["distance"]),
        _shown(f"{name}: index, {result['index']:.3f} in the model", result["negative"]),
    ]


def _shown(name: str, value: float) -> Row:
    return Row(name, None, float(value), None, None, "shown")


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Figure 1 of the paper with random matrices, and the same with networks."""
    made = []
    for kind in ("random", "untrained", "trained"):
        mine = [r for r in results if r.settings["kind"] == kind]
        if not mine:
            continue
        figure = need("matplotlib.figure", extra="plot").Figure(figsize=(12, 7), layout="constrained")
        axes = figure.subplots(len(MODELS), len(RATIOS), squeeze=False)
        for result in mine:
            model, ratio = result.settings["model"], result.settings["ratio"]
            panel = axes[MODELS.index(model), RATIOS.index(ratio)]
            _drawn(panel, result, kind)
            panel.set_title(f"{kind}, {model}, φ = {ratio:g}")
            panel.set_xlabel("eigenvalue")
        axes[0, 0].legend(fontsize="small")
        path = folder / f"{kind}.png"
        figure.savefig(path, dpi=120)
        made.append(path)
    return made


def _drawn(panel: Any, result: Result, kind: str) -> None:
    """Laws as lines, spectra as dots: shares of eigenvalues below a point."""
    model, ratio = result.settings["model"], result.settings["ratio"]
    trained_only = {name: result[name] for name in ("energy", "h0_mean", "quantiles")} if kind == "trained" else {}
    shown = [trained_only] if kind == "trained" else result["energies"]
    for one in shown:
        law = hessian_law(one["energy"], ratio, model, one.get("h0_mean", 1.0))
        x = np.linspace(law.edges.min() - 0.2, law.edges.max() + 0.2, 400)
        (line,) = panel.plot(x, law.cdf(x), label=f"ε = {one['energy']:.3g}")
        panel.plot(one["quantiles"], _KEPT, ".", color=line.get_color(), markersize=3)
        panel.set_xlim(-4, 6)


RECIPE = Recipe(
    name="pennington2017-spectrum",
    title="Hessian spectra: Wishart + Wigner models, random matrices, and networks with one hidden layer",
    paper="Pennington & Bahri 2017, Geometry of neural network loss surfaces via random matrix theory (ICML), Figure "
    "1; Tanner, Topology of the loss landscape, lecture 9 of Theories of Deep Learning (C6.5), University of Oxford",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="The laws are those of large random matrices, to the last digit that matrices of this size can show. "
    "Networks differ from the model where its assumptions do not hold.\n\n"
    "H1 with residuals that do not depend on the inputs has the law of jumps ±φ√(ε/2): at rates 1/(2φ) for ReLU, as in "
    "the paper, and at rates 1/φ for a linear network. Its variance in the linear network is εφ; the 2ε of the paper's "
    "model (and of the lecture) is a choice, not what the network has.\n\n"
    "H0 is no Wishart matrix. In a linear network half of its eigenvalues are 0, as W₂W₁ does not change along n² of "
    "the 2n² directions, and in both kinds its tails are much heavier, since JᵀJ is made of Kronecker products. "
    "The share of negative eigenvalues of untrained networks differs from the model accordingly. At trained networks "
    "residuals are nearly orthogonal to the inputs, and H1 is smaller than at random residuals of the same energy.",
)
