"""`gauss-newton`: the Gauss-Newton step and descent on linearized networks (Tanner, lecture 9)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from crunode import Landscape
from crunode.core import derived_seed, need, preserved_rng
from crunode.curvature import gauss_newton_step, linearize, linearized_descent
from crunode.jobs import Cell, Expected, Recipe, Result, Row

__all__ = ["NETWORKS", "RECIPE", "cells", "compute", "figures", "landscape", "rows"]

NETWORKS: Mapping[str, tuple[str, Callable[[], nn.Module], tuple[int, ...], int]] = {
    "tanh": ("tanh", lambda: nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 1)), (4,), 1),
    "gelu": (
        "GELU, two hidden layers, 2 outputs",
        lambda: nn.Sequential(nn.Linear(3, 12), nn.GELU(), nn.Linear(12, 12), nn.GELU(), nn.Linear(12, 2)),
        (3,),
        2,
    ),
    "convolution": (
        "convolution, softplus",
        lambda: nn.Sequential(nn.Conv2d(1, 5, 3), nn.Softplus(), nn.Flatten(), nn.Linear(20, 1)),
        (1, 4, 4),
        1,
    ),
}
"""Networks by name: title, how to build one, shape of an input, outputs."""

EXAMPLES = 6
# How near the last example is to the one before: the condition number of the kernel grows as its inverse square.
_FAR = 2.0
_SIZES: Mapping[str, tuple[float, ...]] = {
    "toy": (_FAR, 0.5),
    "paper": (_FAR, 1.0, 0.5, 0.25, 0.125),
}
# Steps of descent are this many times the condition number, so that only the slowest parts of the residual are left.
_LONG, _MOST = 12.0, 300_000
# How many times smaller than the best a small rate is; other solutions to hold a step against; a loss that is reached.
_SMALLER = 4
_OTHERS = 200
_REACHED = 1e-6


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each network and distance of the two nearest examples."""
    return [
        Cell(f"{name} near={near}", {"network": name, "near": near, "seed": seed})
        for name in NETWORKS
        for near in _SIZES[size]
    ]


def landscape(name: str, near: float, seed: int) -> Landscape:
    """A network with random weights on six examples with targets ±1, the last at a distance from the one before.

    Args:
        name: One of `NETWORKS`.
        near: That distance, relative to the root mean square length of an input.
        seed: Weights and data come from it.

    Example:
        >>> landscape("tanh", 0.5, 0).dim
        121
    """
    _, build, shape, outputs = NETWORKS[name]
    generator = torch.Generator().manual_seed(derived_seed(seed, list(NETWORKS).index(name)))

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    with preserved_rng():
        net = build().double()
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(normal(*weight.shape) / math.sqrt(max(weight[0].numel(), 1)))
    x, way = normal(EXAMPLES, *shape), normal(*shape)
    x[-1] = x[-2] + near * way * math.sqrt(way.numel()) / way.norm()
    return Landscape(net, (x, normal(EXAMPLES, outputs).sign()), "gaussian")


def compute(cell: Cell) -> dict[str, Any]:
    """The step, how it compares with other solutions, and descent at several rates."""
    name, near, seed = (cell.settings[key] for key in ("network", "near", "seed"))
    land = landscape(name, near, seed)
    linear = linearize(land)
    step = gauss_newton_step(land)
    kappa = step.condition.value
    long = min(_MOST, max(200, math.ceil(_LONG * kappa)))
    best = linearized_descent(land, long)
    # Small steps need more of them; one distance shows what they do.
    slow = linearized_descent(land, _SMALLER * long, rate=best.rate / _SMALLER) if near == _FAR else None
    reached = np.flatnonzero(best.losses <= _REACHED * best.losses[0])
    moved = best.weights - linear.center
    assert linear.jacobian is not None
    jacobian = linear.jacobian.cpu().numpy()
    wanted = -linear.output_loss().slope.cpu().numpy()
    other = np.linalg.lstsq(jacobian, wanted, rcond=None)[0]
    own = step.step.cpu().numpy()
    return {
        "condition": kappa,
        "steps": long,
        "complete": long >= _LONG * kappa,
        "contraction": best.contraction.value,
        "measured": best.measured.value,
        "loss_factor": _loss_factor(best.losses),
        "slow": None if slow is None else slow.measured.value,
        "reached": int(reached[0]) if len(reached) else None,
        "over_bound": float((best.losses / best.bounds)[best.losses > 1e-20 * best.losses[0]].max()),
        "predicted": step.predicted.value,
        "least_squares": float(np.linalg.norm(own - other) / np.linalg.norm(other)),
        "shortest_other": _shortest_other(jacobian, own, derived_seed(seed, 9)),
        "limit": float((moved - step.step).norm() / step.step.norm()),
        "printed": float((linear.center + step.step).norm()) / _smallest(linear.center.cpu().numpy(), jacobian, own),
        "newton": _iterated(land),
    }


def _loss_factor(losses: np.ndarray) -> float:
    """By how much the last step that can be read changed the loss."""
    readable = np.flatnonzero(losses[1:] > 1e-18 * losses[0]) + 1
    last = int(readable[-1]) if len(readable) else 1
    return float(losses[last] / losses[last - 1])


def _shortest_other(jacobian: np.ndarray, step: np.ndarray, seed: int) -> float:
    """The shortest of many other solutions of J s = y − f, over the Gauss-Newton step."""
    noise = np.random.default_rng(seed).standard_normal((_OTHERS, len(step))) * float(np.abs(step).mean())
    noise -= np.linalg.lstsq(jacobian, jacobian @ noise.T, rcond=None)[0].T
    return float(np.linalg.norm(step + noise, axis=1).min() / np.linalg.norm(step))


def _smallest(center: np.ndarray, jacobian: np.ndarray, step: np.ndarray) -> float:
    """The least ‖θ‖ of all solutions of the linearized network."""
    target = center + step
    return float(np.linalg.norm(np.linalg.lstsq(jacobian, jacobian @ target, rcond=None)[0]))


def _iterated(land: Landscape) -> list[float]:
    """Losses of the network itself under repeated Gauss-Newton steps."""
    losses = [float(land.loss())]
    while len(losses) < 15 and losses[-1] > 1e-26 and math.isfinite(losses[-1]):
        step = gauss_newton_step(land)
        losses.append(step.loss.value)
        land = land.at(step.weights)
    return losses


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Rates against the condition number, and what holds for each step."""
    table: list[Row] = []
    for result in results:
        table += _rate_rows(result)
    for name, (title, *_) in NETWORKS.items():
        mine = [r for r in results if r.settings["network"] == name]
        if mine:
            table += _network_rows(title, mine)
    return table


def _rate_rows(result: Result) -> list[Row]:
    kappa = result["condition"]
    title = f"{NETWORKS[result.settings['network']][0]}, examples {result.settings['near']} apart, κ = {kappa:.4g}"
    # Parts of the residual that are not the slowest are still there, the more the fewer steps were taken.
    near = 1e-5 if result["complete"] else 0.1 / kappa
    best = (kappa - 1) / (kappa + 1)
    return [
        Expected(best, near, "(κ − 1)/(κ + 1)", exact=True).row(f"{title}: residual factor", result["measured"]),
        Expected(best**2, 2 * near, "((κ − 1)/(κ + 1))²", exact=True).row(
            f"{title}: loss factor", result["loss_factor"]
        ),
    ]


def _network_rows(title: str, mine: Sequence[Result]) -> list[Row]:
    def worst(key: str) -> float:
        return float(max(r[key] for r in mine))

    kappas = np.log([r["condition"] + 1 for r in mine])
    gaps = np.log([1 - r["measured"] for r in mine])
    needed = [(r["reached"], r["condition"]) for r in mine if r["reached"] is not None]
    bound = max(steps / (1 + math.log(1 / _REACHED) / 4 * (kappa + 1)) for steps, kappa in needed)
    orders = [_order(r["newton"]) for r in mine]
    known = [order for order in orders if order is not None]
    shortest = Expected(1.0, 0.0, "lecture 9: minimizes ‖θ − θ₀‖ amongst all solutions", exact=True, side="at least")
    printed = Expected(1.0, 1e-9, "lecture 9: the limit of descent has minimal ‖θ‖")
    kappa = mine[0]["condition"]
    source = "lecture 9: loss contracts by (κ − 1)/(κ + 1) if α < 2/(σ_max + σ_min)"
    printed_rate = Expected((kappa - 1) / (kappa + 1), 0.0, source, side="at most")
    return [
        Expected(1.0, 1e-9, "the contraction bounds every loss", exact=True, side="at most").row(
            f"{title}: largest loss over its bound", worst("over_bound")
        ),
        printed_rate.row(f"{title}, κ = {kappa:.4g}: loss factor at the best rate, as printed", mine[0]["loss_factor"]),
        Expected(1 - 2 / (kappa + 1) / _SMALLER, 1e-5, "1 − ασ_min", exact=True).row(
            f"{title}, κ = {kappa:.4g}: residual factor at a quarter of the best rate", mine[0]["slow"]
        ),
        printed_rate.row(
            f"{title}, κ = {kappa:.4g}: loss factor at a quarter of it, as printed",
            mine[0]["slow"] ** 2,
            why="the bound needs α = 2/(σ_max + σ_min); for small steps the factor tends to 1",
        ),
        Expected(-1.0, 1e-3, "1 − (κ − 1)/(κ + 1) = 2/(κ + 1)", exact=True).row(
            f"{title}: exponent of κ + 1 in the rate", float(np.polyfit(kappas, gaps, 1)[0])
        ),
        Expected(1.0, 0.0, "steps ≤ 1 + (κ + 1)/4 · log(10⁶)", exact=True, side="at most").row(
            f"{title}: steps to 10⁻⁶ of the loss, over their bound", bound
        ),
        Expected(0.0, 1e-20, "J₀ of full rank", exact=True).row(
            f"{title}: linearized loss after a step", worst("predicted")
        ),
        Expected(0.0, 1e-8, "least squares of another library", exact=True).row(
            f"{title}: step from that of minimal norm", worst("least_squares")
        ),
        shortest.row(f"{title}: shortest of {_OTHERS} other solutions", min(r["shortest_other"] for r in mine)),
        Expected(0.0, 1e-5, "descent ends at the solution nearest to θ₀", exact=True).row(
            f"{title}: limit of descent from the step", worst("limit")
        ),
        printed.row(
            f"{title}: ‖θ₁‖ over the least of all solutions",
            worst("printed"),
            why="of all solutions it is ‖θ − θ₀‖ that is least, which is ‖θ‖ only for θ₀ = 0",
        ),
        Expected(2.0, 0.35, "Newton's method on equations with a solution: second order").row(
            f"{title}: order of repeated Gauss-Newton steps", float(np.median(known)) if known else None
        ),
    ]


def _order(losses: Sequence[float]) -> float | None:
    """The order of convergence, log(r₃/r₂)/log(r₂/r₁), from the last residuals above rounding; None if it failed."""
    sizes = [math.sqrt(loss) for loss in losses if 1e-24 < loss < math.inf]
    if losses[-1] > 1e-20 or len(sizes) < 3:
        return None
    first, second, third = sizes[-3:]
    return math.log(third / second) / math.log(second / first) if third < second < first else None


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Measured rates over the condition number, and losses of repeated Gauss-Newton steps."""
    figure = need("matplotlib.figure", extra="plot").Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    every = sorted(r["condition"] for r in results)
    left.loglog(every, [2 / (kappa + 1) for kappa in every], "k:", label="2/(κ + 1)")
    for name, (title, *_) in NETWORKS.items():
        mine = sorted((r for r in results if r.settings["network"] == name), key=lambda r: float(r["condition"]))
        left.loglog([r["condition"] for r in mine], [1 - r["measured"] for r in mine], "o", label=title)
        if mine:
            right.semilogy([max(value, 1e-34) for value in mine[0]["newton"]], "o-", label=title)
    left.set(xlabel="condition number κ", ylabel="1 − residual factor")
    left.legend(fontsize="small")
    right.set(xlabel="Gauss-Newton step", ylabel="loss of the network")
    path = folder / "rates.png"
    figure.savefig(path, dpi=120)
    return [path]


RECIPE = Recipe(
    name="gauss-newton",
    title="descent on linearized networks at the rate of the condition number, and the step of minimal length",
    paper="Tanner, Topology of the loss landscape: global and local structures, lecture 9 of Theories of Deep Learning "
    "(C6.5), Mathematical Institute, University of Oxford; slides on the linearization of the neural network",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="Three networks are linearized at random weights, on six examples of which two come nearer and nearer, so "
    "that the condition number κ of the kernel JJᵀ grows as the inverse square of their distance. Descent on the "
    "linearized loss at the best rate shrinks the residual by (κ − 1)/(κ + 1) in each step and the loss by its square; "
    "it ends at the Gauss-Newton step θ₀ + J⁺(y − f(θ₀)), of all solutions the nearest to θ₀. Repeated on the network "
    "itself, the steps converge with order two.\n\n"
    "Two statements of the slides do not hold as printed: that the loss contracts by (κ − 1)/(κ + 1) at every smaller "
    "rate (at the best one it contracts by the square of that, at small ones by less), and that the limit of descent "
    "has minimal ‖θ‖ (it is ‖θ − θ₀‖ that is minimal).",
)
