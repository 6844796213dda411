"""`cooper2021-dimension`: the zero-loss manifold of ten architectures, its dimension and walks along it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from crunode import Landscape
from crunode.core import derived_seed, need, preserved_rng
from crunode.jobs import Cell, Expected, Recipe, Result, Row
from crunode.topology import critical_points, solution_dimension, walk

__all__ = ["ARCHITECTURES", "RECIPE", "Architecture", "cells", "compute", "figures", "landscape", "rows"]


@dataclass(frozen=True)
class Architecture:
    """One kind of network.

    Attributes:
        title: What it is.
        build: Makes one, with any weights.
        inputs: Shape of an input.
        outputs: Number of outputs r.
        smooth: Whether the theorem covers its activations.
        ease: Equations that are asked for, relative to the other networks: steps get stuck where units have kinks.
    """

    title: str
    build: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    outputs: int
    smooth: bool = True
    ease: float = 1.0


class _Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


class _Skip(nn.Module):
    """A layer whose input is added to its output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = torch.tanh(self.layer(x))
        return x + moved


def _mlp(widths: Sequence[int], activation: Callable[[], nn.Module], bias: bool = True) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for first, second in pairwise(widths):
            layers += [nn.Linear(first, second, bias=bias), activation()]
        return nn.Sequential(*layers[:-1])

    return build


def _convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2))


def _signal() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 6, 3, bias=False), nn.Softplus(), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(18, 3, bias=False)
    )


ARCHITECTURES: Mapping[str, Architecture] = {
    "tanh": Architecture("tanh, one hidden layer", _mlp((2, 12, 1), nn.Tanh), (2,), 1),
    "sigmoid": Architecture("sigmoid, two hidden layers, 2 outputs", _mlp((3, 8, 8, 2), nn.Sigmoid), (3,), 2),
    "gelu": Architecture("GELU, four hidden layers", _mlp((4, 7, 7, 7, 7, 1), nn.GELU), (4,), 1),
    "softplus": Architecture("softplus without biases, 3 outputs", _mlp((3, 14, 3), nn.Softplus, False), (3,), 3),
    "sine": Architecture("sine without biases, 4 outputs", _mlp((5, 12, 4), _Sine, False), (5,), 4),
    "silu": Architecture("SiLU, widening layers", _mlp((3, 5, 10, 20, 2), nn.SiLU), (3,), 2),
    "skip": Architecture(
        "tanh with skip connections",
        lambda: nn.Sequential(nn.Linear(3, 8), _Skip(8), _Skip(8), nn.Linear(8, 1)),
        (3,),
        1,
    ),
    "images": Architecture("convolutions of images, tanh", _convolution, (1, 5, 5), 2),
    "signals": Architecture("convolution of signals, softplus, pooled", _signal, (2, 8), 3),
    "relu": Architecture("ReLU, one hidden layer", _mlp((4, 40, 1), nn.ReLU), (4,), 1, smooth=False, ease=1 / 3),
}
"""Ten kinds of networks: depths, widths, activations, with and without biases, one to four outputs."""

_LINEAR = Architecture("linear network", _mlp((3, 6, 2), nn.Identity, False), (3,), 2, smooth=False)
_OTHERS = {
    "linear": "linear network",
    "repeated": "tanh, every example twice",
}
# Equations as shares of the parameters; repeats of each; steps of a walk; and starts until one ends at zero loss.
_SIZES: Mapping[str, dict[str, Any]] = {
    "toy": {"shares": (0.3,), "repeats": 1, "steps": 40},
    "paper": {"shares": (0.1, 0.2, 0.3, 0.4), "repeats": 5, "steps": 1000},
}
_STARTS = 10
_PAPER = "Cooper 2021: d − r·m"


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each architecture, and two of networks that the theorem does not cover."""
    plan = _SIZES[size]
    common = {"shares": list(plan["shares"]), "repeats": plan["repeats"], "steps": plan["steps"], "seed": seed}
    return [Cell(name, common) for name in (*ARCHITECTURES, *_OTHERS)]


def landscape(name: str, examples: int, seed: int) -> Landscape:
    """A network of that name with random weights, on random inputs and targets, all normal.

    Weights have the variance 1/fan-in. Targets of the linear network are a linear map of the inputs; those of repeated
    examples are the same for both copies.

    Args:
        name: One of `ARCHITECTURES`, "linear" or "repeated".
        examples: How many.
        seed: Weights and data come from it.

    Example:
        >>> land = landscape("tanh", 10, seed=0)
        >>> land.dim, land.n
        (49, 10)
    """
    kind = _LINEAR if name == "linear" else ARCHITECTURES["tanh" if name == "repeated" else name]
    generator = torch.Generator().manual_seed(derived_seed(seed, 1))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    with preserved_rng():
        net = kind.build().double()
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(normal(*weight.shape) / math.sqrt(weight[0].numel()))
    x, y = normal(examples, *kind.inputs), normal(examples, kind.outputs)
    if name == "linear":
        y = x @ normal(kind.inputs[0], kind.outputs)
    if name == "repeated":
        x, y = torch.cat([x, x]), torch.cat([y, y])
    return Landscape(net, (x, y), "gaussian")


def compute(cell: Cell) -> dict[str, Any]:
    """Dimensions at each number of examples, and one walk."""
    plan, number = cell.settings, (*ARCHITECTURES, *_OTHERS).index(cell.name)
    found: list[dict[str, Any]] = []
    for k, share in enumerate(plan["shares"]):
        for repeat in range(plan["repeats"]):
            found.append(_measured(cell.name, share, derived_seed(plan["seed"], number, k, repeat)))
    middle = next(row for row in found if row["share"] == plan["shares"][len(plan["shares"]) // 2])
    land = landscape(cell.name, middle["examples"], middle["seed"])
    path = walk(land, plan["steps"], seed=derived_seed(plan["seed"], number) % 2**31)
    return {
        "dimensions": found,
        "walk": {
            "examples": middle["examples"],
            "largest": path.largest.value,
            "length": path.length.value,
            "distance": path.distance.value,
            "points": len(path.path),
            "dimensions": sorted(set(path.dimensions.tolist())),
            "losses": path.losses.tolist(),
            "weights": float(path.path[0].norm()),
        },
    }


def _measured(name: str, share: float, seed: int) -> dict[str, Any]:
    """The dimension at the first point of zero loss, from up to ten random starts."""
    kind = _LINEAR if name == "linear" else ARCHITECTURES.get(name, ARCHITECTURES["tanh"])
    with preserved_rng():
        dim = sum(p.numel() for p in kind.build().parameters())
    examples = max(2, round(kind.ease * share * dim / kind.outputs))
    if name == "linear":
        examples = 3 * kind.inputs[0]
    for start in range(_STARTS):
        chosen = derived_seed(seed, start) % 2**31
        land = landscape(name, examples, chosen)
        found = solution_dimension(land)
        if math.isfinite(found.dimension.value):
            break
    solved = math.isfinite(found.dimension.value)
    points = critical_points(land, found.weights[None]).points if solved else ()
    return {
        "share": share,
        "examples": examples,
        "seed": chosen,
        "starts": start + 1,
        "parameters": found.parameters,
        "equations": found.equations,
        "inputs": math.prod(kind.inputs),
        "outputs": kind.outputs,
        "dimension": found.dimension.value,
        "error": found.dimension.systematic,
        "loss": found.loss.value,
        "hessian": points[0].degenerate.value if points else None,
        "index": points[0].index.value if points else None,
    }


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Dimension of each network, by the Jacobian and by the Hessian, and its walk."""
    table: list[Row] = []
    for result in results:
        name = result.cell.name
        title = ARCHITECTURES[name].title if name in ARCHITECTURES else _OTHERS[name]
        for share in result.settings["shares"]:
            same = [row for row in result["dimensions"] if row["share"] == share]
            table += _dimension_rows(name, title, same)
        table += _walk_rows(title, result["walk"], result["dimensions"])
    printed = next((r for r in results if r.cell.name == "tanh"), None)
    if printed is not None:
        row = printed["dimensions"][0]
        slide = Expected(row["examples"] - row["outputs"] * row["inputs"], 0.0, "lecture 9: m − r·n")
        why = "the slide's letters are mixed up: of the d parameters each of the r·m equations takes one, d − r·m"
        table.append(slide.row("tanh, one hidden layer: dimension as printed", row["dimension"], why=why))
    return table


def _dimension_rows(name: str, title: str, same: Sequence[Mapping[str, Any]]) -> list[Row]:
    first = same[0]
    dim, equations = first["parameters"], first["equations"]
    kept, note, source = equations, "", _PAPER
    if name == "linear":
        kept, source = first["outputs"] * first["inputs"], "rank of a linear map from n to r numbers: d − r·n"
    elif name == "repeated":
        kept, source = equations // 2, "equations that differ: d − r·m/2"
    elif not ARCHITECTURES[name].smooth:
        note = "not smooth, so that the theorem holds for the piece around the point only"
    label = f"{title}, d = {dim}, r·m = {equations}"
    exact = Expected(dim - kept, 0.0, source, note, exact=True)
    # Of several repeats the one that is furthest off is shown.
    worst = max(same, key=lambda row: abs(row["dimension"] - exact.value) if math.isfinite(row["dimension"]) else 1e9)
    table = [exact.row(f"{label}: dimension", worst["dimension"])]
    flat = [row["hessian"] if row["hessian"] is not None else math.nan for row in same]
    off = max(flat, key=lambda value: abs(value - exact.value) if math.isfinite(value) else 1e9)
    table.append(exact.row(f"{label}: null space of the Hessian", off))
    if kept != equations:
        theorem = Expected(dim - equations, 0.0, _PAPER)
        why = "the equations depend on each other: outputs are linear in 3 inputs, or examples are the same"
        table.append(theorem.row(f"{label}: dimension by the theorem", worst["dimension"], why=why))
    return table


def _walk_rows(title: str, path: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> list[Row]:
    bound = Expected(1e-10, 0.0, "a walk along the manifold", side="at most")
    if not math.isfinite(path["length"]):
        return [bound.row(f"{title}: largest loss on a walk", None, note="no point of zero loss to begin at")]
    dimension = next(row["dimension"] for row in found if row["examples"] == path["examples"])
    same = Expected(dimension, 0.0, "the dimension at its beginning", exact=True)
    off = max(path["dimensions"], key=lambda value: abs(value - dimension))
    length = path["length"] / path["weights"]
    shown = Row(f"{title}: length of the walk over that of the weights", None, length, None, None, "shown")
    return [
        bound.row(f"{title}: largest loss on a walk of {path['points'] - 1} steps", path["largest"]),
        same.row(f"{title}: dimension along the walk", off),
        shown,
    ]


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Dimension against equations, and the losses along the walks."""
    figure = need("matplotlib.figure", extra="plot").Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for result in results:
        if result.cell.name not in ARCHITECTURES:
            continue
        found = sorted(result["dimensions"], key=lambda row: row["equations"])
        shares = [row["equations"] / row["parameters"] for row in found]
        left.plot(shares, [row["dimension"] / row["parameters"] for row in found], "o", label=result.cell.name)
        right.semilogy([max(value, 1e-36) for value in result["walk"]["losses"]], label=result.cell.name)
    left.plot([0, 1], [1, 0], "k:", label="1 − r·m/d")
    left.set(xlabel="r·m/d", ylabel="dimension/d")
    left.legend(fontsize="x-small")
    right.axhline(1e-10, color="k", linestyle=":")
    right.set(xlabel="step of the walk", ylabel="loss")
    path = folder / "dimensions.png"
    figure.savefig(path, dpi=120)
    return [path]


RECIPE = Recipe(
    name="cooper2021-dimension",
    title="the zero-loss manifold has dimension d − r·m, on ten architectures, and can be walked along",
    paper="Cooper, Global minima of overparameterized neural networks, SIAM Journal on Mathematics of Data Science "
    "3(2):676-691, 2021 (doi 10.1137/19M1308943); as in Tanner, Theories of Deep Learning, lecture 9",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="Networks with d parameters are fitted to m random examples with r random targets each, by "
    "Levenberg-Marquardt steps, to a loss at the rounding of doubles. The rank of the Jacobian there, and the null "
    "space of the Hessian found apart from it, give the dimension of the set of zero loss around the point: d − r·m "
    "for ten architectures. A walk goes along the null space of the Jacobian, with Gauss-Newton corrections, and stays "
    "at zero loss over lengths of the order of the weights themselves.\n\n"
    "Where equations depend on each other the theorem does not apply: a linear network on more examples than inputs "
    "has the dimension d − r·n, and data in which every example is there twice d − r·m/2. ReLU networks are not "
    "smooth; the count holds for the piece around the point.\n\n"
    "The slide of the lecture prints m − r·n as the dimension, a submanifold of a space of d dimensions: its letters "
    "are mixed up, and d − r·m is meant.",
)
