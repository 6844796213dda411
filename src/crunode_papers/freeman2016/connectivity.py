"""`freeman2016-connectivity`: components of sublevel sets, barriers against width, and the energy gap of Venturi."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from crunode import Landscape
from crunode.core import derived_seed
from crunode.curvature import width_exponent
from crunode.examples import scalar_chain, units_potential
from crunode.jobs import Cell, Expected, Recipe, Result, Row
from crunode.reporting import STYLE, level_colors, new_figure, plain_axes
from crunode.topology import Adam, Heights, barrier, examine_path, merge_tree

__all__ = ["RECIPE", "cells", "compute", "figures", "half_path", "rows"]

_SIZES: Mapping[str, dict[str, Any]] = {
    "toy": {
        "linear": ((3, 4, 2), (2, 3, 3, 2)),
        "solutions": 3,
        "orthants": (1, 2),
        "strings": 2,
        "gap": dict.fromkeys((2, 3), (16, 32, 64, 128)),
        "nets": 12,
        "points": 512,
        "pairs": 1,
    },
    "paper": {
        "linear": ((3, 4, 2), (2, 3, 3, 2), (4, 8, 8, 4), (6, 4, 4, 4, 3)),
        "solutions": 6,
        "orthants": (1, 2, 3),
        "strings": 6,
        "gap": dict.fromkeys((2, 3, 4), (16, 32, 64, 128, 256, 512)),
        "nets": 24,
        "points": 4096,
        "pairs": 5,
    },
}
_TOLERANCE, _TRAINING = 0.02, 800
SCALAR, UNITS = (1, 2, 4), (2, 3, 6, 12)
"""Widths of the two families with known barriers."""


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each network: linear chains, linear nets, adversarial data, widths, and energy gaps."""
    plan = _SIZES[size]
    found: list[tuple[str, dict[str, Any]]] = []
    searched = {"pairs": plan["pairs"], "strings": 2 + plan["strings"]}
    found += [(f"chain {m}", {"kind": "chain", "width": m, **searched}) for m in SCALAR]
    found += [(f"units {m}", {"kind": "units", "width": m, **searched}) for m in UNITS]
    found += [
        (f"linear {'-'.join(map(str, d))}", {"kind": "linear", "dims": list(d), "solutions": plan["solutions"]})
        for d in plan["linear"]
    ]
    found += [
        (f"orthants {n}", {"kind": "orthants", "inputs": n, "strings": plan["strings"]}) for n in plan["orthants"]
    ]
    for n, widths in plan["gap"].items():
        for m in widths:
            settings = {"kind": "gap", "inputs": n, "width": m, "nets": plan["nets"], "points": plan["points"]}
            found.append((f"gap {n} {m}", settings))
    return [Cell(name, settings | {"seed": derived_seed(seed, k)}) for k, (name, settings) in enumerate(found)]


def compute(cell: Cell) -> dict[str, Any]:
    """Barriers, numbers of components or energy gaps of one network."""
    settings = cell.settings
    return _KINDS[settings["kind"]](settings)


def _chain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """From a solution to its negative."""
    m = settings["width"]
    ends = []
    for k in range(settings["pairs"]):
        w = _normal(derived_seed(settings["seed"], k), 2 * m)
        w[0] = w[0].sign() * w[0].abs().clamp_min(0.3)
        w[m] += (1 - (w[:m] * w[m:]).sum()) / w[0]
        ends.append((w, -w))
    return _barriers(scalar_chain(m), ends, settings)


def _units(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Between solutions with the first two units in exchanged roles, the others at random."""
    m = settings["width"]
    ends = []
    for k in range(settings["pairs"]):
        pair = []
        for turn, sign in enumerate((1.0, -1.0)):
            w = _normal(derived_seed(settings["seed"], k, turn), 2 * m)
            a, v = w[:m], w[m:]
            v[0], v[1] = sign * v[0].abs().clamp_min(0.3), -sign * v[1].abs().clamp_min(0.3)
            for unit, side in ((0, sign), (1, -sign)):
                rest = 1 - (a * torch.relu(side * v)).sum()
                a[unit] += rest / v[unit].abs()
            pair.append(w)
        ends.append((pair[0], pair[1]))
    return _barriers(units_potential(m, 1), ends, settings)


def _barriers(
    loss: Callable[[Tensor], Tensor], ends: Sequence[tuple[Tensor, Tensor]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for k, (a, b) in enumerate(ends):
        land = Landscape.of_function(loss, a)
        seed = derived_seed(settings["seed"], 7, k)
        one = barrier(land, a, b, tolerance=_TOLERANCE, strings=settings["strings"], seed=seed)
        found.append({"value": one.height.value, "error": one.height.error, "line": one.bounds["line"]})
        if not k:
            found[0]["path"] = {"positions": one.path.positions.tolist(), "losses": one.path.losses.tolist()}
    return {"pairs": found}


def _linear(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Solutions of a linear network from random starts, and how many components they are in."""
    dims = settings["dims"]
    layers = [nn.Linear(i, o, bias=False).double() for i, o in itertools.pairwise(dims)]
    x, y = (
        _normal(derived_seed(settings["seed"], 0, k), 32 * d).view(32, d) for k, d in enumerate((dims[0], dims[-1]))
    )
    land = Landscape(nn.Sequential(*layers), (x, y), nn.functional.mse_loss)
    heights = Heights(land)
    count, scale = settings["solutions"], max(dims) ** -0.5
    w = scale * _normal(derived_seed(settings["seed"], 1), count * land.dim).view(count, land.dim)
    adam = Adam(0.05, _TRAINING)
    for _ in range(_TRAINING):
        w = w + adam.step(heights.slopes(w)[1])
    # No network of these widths fits better than least squares.
    best = float((x @ torch.linalg.lstsq(x, y).solution - y).square().mean())
    zero = float(y.square().mean())
    tree = merge_tree(land, list(w), tolerance=0.01, seed=derived_seed(settings["seed"], 2))
    level = best + 0.02 * (zero - best)
    return {
        "excess": float(tree.losses.max()) - best,
        "level": level,
        "components": int(tree.components([level])[0]),
        "line": float(max(examine_path(heights, torch.stack([w[0], v])).largest for v in w[1:])),
        "joined": float(tree.levels.max()) - best,
        "range": zero - best,
    }


def _orthants(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All sign patterns of two units on ±e_k → 1."""
    n = settings["inputs"]
    solutions = []
    for k, signs in enumerate(itertools.product((1.0, -1.0), repeat=n)):
        v = torch.tensor(signs, dtype=torch.float64)
        a = 0.7 + 0.6 * torch.rand(2, generator=_generator(derived_seed(settings["seed"], k)), dtype=torch.float64)
        solutions.append(torch.cat([a, v / a[0], -v / a[1]]))
    land = Landscape.of_function(units_potential(2, n), solutions[0])
    seed = derived_seed(settings["seed"], 99)
    tree = merge_tree(land, solutions, tolerance=_TOLERANCE, strings=settings["strings"], depth=6, seed=seed)
    exact = 1 / (2 * n)
    return {
        "below": int(tree.components([0.98 * exact])[0]),
        "above": int(tree.components([1.15 * exact])[0]),
        "lowest": min(m.level for m in tree.merges),
        "highest": max(m.level for m in tree.merges),
        "merges": [[m.level, list(m.left), list(m.right)] for m in tree.merges],
        "searched": tree.spec["searched"],
    }


def half_path(features: tuple[Tensor, Tensor], outer: tuple[Tensor, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Corners of a path between two networks Σ aᵢ relu(wᵢ·x) by way of half of their units.

    One network gives its outputs to the first half of its units, by least squares; the other half, which does not
    count, takes the weights of the other network; outputs go over to these; and the first half follows. Every piece
    changes output weights alone, in which the loss is convex, or weights of units without output: the largest loss is
    at a corner (the construction of Freeman & Bruna 2016 and Venturi et al. 2018).

    Args:
        features: Hidden weights of the two, each of shape (units, inputs).
        outer: Output weights of the two.
        x: Inputs.
        y: Targets.
    """
    (v, w), half = features, len(features[0]) // 2
    mixed = torch.cat([v[:half], w[half:]])
    zero = torch.zeros_like(outer[0])
    left, right = zero.clone(), zero.clone()
    left[:half] = _fitted(v[:half], x, y)
    right[half:] = _fitted(w[half:], x, y)
    stops = ((v, outer[0]), (v, left), (mixed, left), (mixed, right), (w, right), (w, outer[1]))
    return torch.stack([torch.cat([hidden.flatten(), a]) for hidden, a in stops])


def _fitted(hidden: Tensor, x: Tensor, y: Tensor) -> Tensor:
    solved: Tensor = torch.linalg.lstsq(torch.relu(x @ hidden.T), y[:, None], driver="gelsd").solution[:, 0]
    return solved


class _TwoLayers(nn.Module):
    def __init__(self, width: int, inputs: int) -> None:
        super().__init__()
        self.hidden = nn.Parameter(torch.zeros(width, inputs, dtype=torch.float64))
        self.outer = nn.Parameter(torch.zeros(width, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.hidden.T) @ self.outer


def _gap(settings: Mapping[str, Any]) -> dict[str, Any]:
    """How far the loss rises between networks that are best for their random hidden weights."""
    n, m = settings["inputs"], settings["width"]
    # The same half sphere and target at all widths: on a whole sphere networks without biases fit even functions only.
    x = _directions(derived_seed(17, n), settings["points"], n)
    x[:, 0] = x[:, 0].abs()
    y = 4 * (x[:, 1] - 0.3).abs()
    land = Landscape(_TwoLayers(m, n), (x, y), nn.functional.mse_loss)
    heights = Heights(land)
    gaps, exact = [], 0.0
    for k in range(settings["nets"]):
        pair = tuple(_directions(derived_seed(settings["seed"], k, turn), m, n) for turn in (0, 1))
        outer = tuple(_fitted(w, x, y) for w in pair)
        corners = half_path((pair[0], pair[1]), (outer[0], outer[1]), x, y)
        path = examine_path(heights, corners)
        values = heights.values(corners)
        gaps.append(path.largest - float(torch.maximum(values[0], values[-1])))
        exact = max(exact, path.largest - float(values.max()))
    return {"gaps": gaps, "over_corners": exact, "loss": float(values[0])}


def _directions(seed: int, count: int, n: int) -> Tensor:
    drawn = _normal(seed, count * n).view(count, n)
    return drawn.div(drawn.norm(dim=1, keepdim=True))


def _normal(seed: int, count: int) -> Tensor:
    return torch.randn(count, generator=_generator(seed), dtype=torch.float64)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


_KINDS = {"chain": _chain, "units": _units, "linear": _linear, "orthants": _orthants, "gap": _gap}

_ONE = "Freeman & Bruna 2016, theorem for linear networks: one component if all hidden widths exceed min(n₀, n_L)"
_SIGNS = "below 1/(2n) both units are needed at each ±e_k, so that no entry of their weights can change its sign"
_UPPER = "found from above: an upper bound, within the tolerance of the bisection"


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Barriers and components against what is known, and the exponent of the energy gap."""
    table = []
    for result in results:
        settings = result.settings
        if settings["kind"] in ("chain", "units"):
            table.append(_barrier_row(result))
        elif settings["kind"] == "linear":
            table += _linear_rows(result)
        elif settings["kind"] == "orthants":
            table += _orthant_rows(result)
    for n in sorted({r.settings["inputs"] for r in results if r.settings["kind"] == "gap"}):
        table += _gap_rows(n, [r for r in results if r.settings["kind"] == "gap" and r.settings["inputs"] == n])
    return table


def _barrier_row(result: Result) -> Row:
    m, kind = result.settings["width"], result.settings["kind"]
    highest = max(result["pairs"], key=lambda pair: pair["value"])
    tolerance = 2 * _TOLERANCE * highest["line"]
    if kind == "chain":
        value = 1.0 if m == 1 else 0.0
        reason = "w₁ or w₂ has to pass zero" if m == 1 else "solutions with two or more units are connected"
        name = f"(w₂·w₁ − 1)², width {m}: barrier"
    else:
        value = 0.5 if m == 2 else 0.0
        reason = "a unit has to pass zero" if m == 2 else "a third unit can stand in for each of the two"
        name = f"Σ aᵢ relu(wᵢx) on ±1 → 1, width {m}: barrier"
    return Expected(value, tolerance, reason, _UPPER, exact=True).row(name, highest["value"])


def _linear_rows(result: Result) -> list[Row]:
    name = "linear " + "-".join(map(str, result.settings["dims"]))
    note = f"at a level 2% of the way up from the least loss; straight lines rise to {result['line']:.3g}"
    one = Expected(1, 0, _ONE, exact=True).row(f"{name}: components", result["components"], note=note)
    share = result["joined"] / result["range"]
    low = Expected(0.0, 0.02, _ONE, "as a share of the way from the least loss to that of zero weights", exact=True)
    return [one, low.row(f"{name}: all joined at", share)]


def _orthant_rows(result: Result) -> list[Row]:
    n = result.settings["inputs"]
    name, exact = f"two ReLU units on ±e_k → 1, {n} inputs", 1 / (2 * n)
    lowest = Expected(exact, 0.0, _SIGNS, "no path can be lower", exact=True, side="at least")
    highest = Expected(exact, 0.1 * exact + _TOLERANCE, _SIGNS, _UPPER, exact=True)
    return [
        Expected(2**n, 0, _SIGNS, exact=True).row(f"{name}: components below 1/(2n)", result["below"]),
        Expected(1, 0, "sign by sign, at a loss of 1/(2n)", exact=True).row(f"{name}: above", result["above"]),
        lowest.row(f"{name}: lowest level that joins two", result["lowest"]),
        highest.row(f"{name}: level that joins all", result["highest"]),
    ]


def _gap_rows(n: int, mine: Sequence[Result]) -> list[Row]:
    if len(mine) < 3:
        return []
    slope = width_exponent({r.settings["width"]: r["gaps"] for r in mine}, "energy gap exponent")
    source = "Tanner, lecture 9; Venturi et al. 2018: a path below max(λ, m^(-1/n))"
    bound = Expected(-1 / n, 0.0, source, "one standard error and the systematic one included", side="at most")
    name = f"{n} inputs: exponent of the energy gap in the width"
    corners = Expected(0.0, 1e-9, "the loss is convex in output weights", exact=True, side="at most")
    widest = max(mine, key=lambda r: r.settings["width"])
    mean = sum(widest["gaps"]) / len(widest["gaps"])
    return [
        Row(name, None, slope.value, slope.error, None, "shown", "fitted over all widths"),
        bound.row(f"{name}, upper end", slope.value + slope.error),
        Expected(widest.settings["width"] ** (-1 / n), 0.0, source, side="at most").row(
            f"{n} inputs, width {widest.settings['width']}: energy gap", mean
        ),
        corners.row(f"{n} inputs: loss between corners above them", max(r["over_corners"] for r in mine)),
    ]


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Losses along paths, barriers against width, and energy gaps against width."""
    figure = new_figure(12.0, 3.8)
    left, middle, right = figure.subplots(1, 3)
    shown = [r for r in results if r.settings["kind"] == "units"]
    for result, color in zip(shown, level_colors(len(shown)), strict=True):
        path = result["pairs"][0]["path"]
        left.plot(path["positions"], path["losses"], color=color, label=f"width {result.settings['width']}")
    left.axhline(0.5, color=STYLE["answer"], linewidth=1, linestyle=":")
    left.legend(fontsize=8, frameon=False)
    plain_axes(left, "ReLU units on ±1 → 1", "share of the path", "loss")
    for kind, marker in (("chain", "o"), ("units", "s")):
        mine = [r for r in results if r.settings["kind"] == kind]
        tops = [max(pair["value"] for pair in r["pairs"]) for r in mine]
        middle.plot([r.settings["width"] for r in mine], tops, marker + "-", label=kind)
    middle.legend(fontsize=8, frameon=False)
    plain_axes(middle, "Barrier, from above", "width", "barrier")
    gaps = [r for r in results if r.settings["kind"] == "gap"]
    inputs = sorted({r.settings["inputs"] for r in gaps})
    for n, color in zip(inputs, level_colors(len(inputs)), strict=True):
        mine = [r for r in gaps if r.settings["inputs"] == n]
        widths = [r.settings["width"] for r in mine]
        right.loglog(widths, [sum(r["gaps"]) / len(r["gaps"]) for r in mine], "o-", color=color, label=f"n = {n}")
        right.loglog(widths, [m ** (-1 / n) for m in widths], ":", color=color)
    right.legend(fontsize=8, frameon=False)
    plain_axes(right, "Energy gap; dotted: m^(-1/n)", "width m", "rise of the loss")
    path = folder / "connectivity.png"
    figure.savefig(path, dpi=math.floor(figure.dpi))
    return [path]


RECIPE = Recipe(
    name="freeman2016-connectivity",
    title="linear nets have one component, ReLU nets on adversarial data several, and width closes barriers",
    paper="Freeman & Bruna 2016, Topology and geometry of half-rectified network optimization (arXiv:1611.01540); "
    "Venturi, Bandeira & Bruna 2018, Spurious valleys in two-layer neural network optimization landscapes; as in "
    "Tanner, lecture 9 of Theories of Deep Learning, University of Oxford",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="All barriers and levels are upper bounds, each proven by a path whose loss was checked on a zooming grid; "
    "numbers of components are upper bounds too. Where an argument gives the exact value, rows hold against it.\n\n"
    "Two ReLU units on the inputs ±e_k with targets 1 have 2ⁿ components at every level below 1/(2n): each of f(e_k) "
    "and f(−e_k) has to be above 0, which takes two units with positive output weight and opposite signs of their k-th "
    "entry. At 1/(2n) one example is given up and signs can be exchanged one after the other.\n\n"
    "The energy gap is that of the construction in the proofs: networks with random hidden weights and the best output "
    "weights, joined by way of half of their units. The bound m^(-1/n) is for the worst case; the gap falls faster.",
)
