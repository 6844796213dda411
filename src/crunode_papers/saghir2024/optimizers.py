"""`saghir2024-optimizers`: λ̂, WBIC and Tr H of networks trained by SGD and by natural gradient (Figs. 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crunode.jobs import Cell, Recipe, Result, Row
from crunode_papers.claims.rows import QUANTITIES, by_seed, claim_row, difference_row, equal_loss_row, measured
from crunode_papers.claims.statistics import trend_test
from crunode_papers.saghir2024.pictures import draw_against_width, draw_curves
from crunode_papers.saghir2024.plans import FULL, LENET, TOY, ffnn, net_name, repeated
from crunode_papers.saghir2024.trajectories import AS_RUN, OPTIMIZERS, trajectory

__all__ = ["PAPER", "RECIPE", "cells", "compute", "figures", "rows"]

PAPER = "Saghir et al. 2024, NGD converges to less degenerate solutions than SGD"
_DATA = {"fashion-mnist": "Fashion-MNIST", "mnist": "MNIST"}
_RATE, _EPSILON = 1e-2, 1e-10
# Smoothing α of the figure that a network stands in.
_FIGURES = {"Fig. 1": 1e-2, "Fig. 2": 1e-1}
_TEXT = ("sgd", "kaldi", "plain", "empirical")
_PLANS: dict[str, dict[str, Any]] = {
    "toy": {
        **TOY,
        "repeats": 2,
        "epochs": 4,
        "measure": [2, 4],
        "runs": [("fashion-mnist", "Fig. 1", ffnn(1, 8), tuple(OPTIMIZERS))],
    },
    "paper": {
        **FULL,
        "repeats": 4,
        "epochs": 6,
        "measure": [2, 6],
        "runs": [
            *(("fashion-mnist", "Fig. 1", ffnn(*shape), _TEXT) for shape in ((1, 32), (1, 128), (2, 32))),
            ("fashion-mnist", "Fig. 2", ffnn(2, 128), _TEXT),
            ("fashion-mnist", "Fig. 2", LENET, _TEXT),
            ("mnist", "Fig. 1", ffnn(1, 128), tuple(OPTIMIZERS)),
            ("mnist", "Fig. 1", ffnn(2, 128), _TEXT),
            ("mnist", "Fig. 2", LENET, _TEXT),
        ],
    },
    "full": {
        **FULL,
        "repeats": 10,
        "epochs": 20,
        "measure": [1, 2, 3, 5, 8, 12, 16, 20],
        "runs": [
            *(
                (data, "Fig. 1", ffnn(layers, width), tuple(OPTIMIZERS))
                for data in _DATA
                for layers in (1, 2)
                for width in (32, 64, 128, 256)
            ),
            *((data, "Fig. 2", net, tuple(OPTIMIZERS)) for data in _DATA for net in (ffnn(2, 256), LENET)),
        ],
    },
}


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each data set, network, optimizer and seed."""
    plan = dict(_PLANS[size])
    runs, repeats = plan.pop("runs"), plan.pop("repeats")
    each = []
    for data, figure, net, optimizers in runs:
        for optimizer in optimizers:
            settings = {**plan, "data": data, "figure": figure, "net": net, "optimizer": optimizer, "lr": _RATE}
            smoothing = {"alpha": _FIGURES[figure], "epsilon": _EPSILON}
            each.append((f"{data} {figure} {net_name(net)} {optimizer}", {**settings, **smoothing}))
    return repeated(each, repeats, seed)


def compute(cell: Cell) -> dict[str, Any]:
    """A training, with what was measured on the way."""
    return trajectory(cell.settings)


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """For each network and optimizer: is λ̂ higher than with SGD, and Tr H, at the end; does Tr H fall with epochs?"""
    found: list[Row] = []
    runs = list({_run(r): (r.settings["data"], r.settings["figure"], r.settings["net"]) for r in results}.values())
    for data, figure, net in runs:
        where = f"{net_name(net)} on {_DATA[data]}"
        source = f"{figure}, α = {_FIGURES[figure]:g}"
        for ngd, sgd in AS_RUN:
            one, other = (by_seed(results, data=data, figure=figure, net=net, optimizer=o) for o in (ngd, sgd))
            if one and other:
                found += [
                    difference_row(
                        f"{figure}, {where}: {QUANTITIES[key]} of NGD ({ngd}) less that of SGD ({sgd})",
                        one,
                        other,
                        lambda r, k=key: _last(r, k),  # type: ignore[misc]
                        source,
                        size,
                    )
                    for key in ("llc", "own", "trace")
                ]
                found += [
                    equal_loss_row(
                        f"{figure}, {where}: the same at equal training loss, {QUANTITIES[key]} ({ngd}, {sgd})",
                        one,
                        other,
                        key,
                        source,
                        size,
                    )
                    for key in ("own", "trace")
                ]
        if figure == "Fig. 2" or size == "toy":
            for optimizer in ("sgd", "kaldi"):
                one = by_seed(results, data=data, figure=figure, net=net, optimizer=optimizer)
                found.append(_falls(f"{figure}, {where}: slope of Tr H by epoch, {optimizer}", one, size))
    return found


def _run(result: Result) -> tuple[str, str, str]:
    s = result.settings
    return s["data"], s["figure"], net_name(s["net"])


def _last(result: Result, key: str) -> float | None:
    return None if result["diverged"] is not None or not result["points"] else measured(result["points"][-1], key)


def _falls(name: str, results: dict[int, Result], size: str) -> Row:
    good = [r["points"] for r in results.values() if r["diverged"] is None]
    if not good:
        return claim_row(name, None, "Fig. 2b", above=False, size=size)
    epochs = [p["epoch"] for p in good[0]]
    test = trend_test(epochs, [[p["trace"]["value"] for p in points] for points in good])
    return claim_row(name, test, "Fig. 2b", above=False, size=size)


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Fig. 1, λ̂ and Tr H by network; Fig. 2, λ̂ and Tr H by epoch."""
    paths = [draw_against_width(results, folder / "figure1.png", ("llc", "own", "trace"))]
    for run in dict.fromkeys(_run(r) for r in results):
        some = [r for r in results if _run(r) == run]
        path = folder / ("figure2-" + "-".join(run).replace(" ", "").replace("×", "x") + ".png")
        paths.append(draw_curves(some, path, ("llc", "own", "trace", "wbic"), " ".join(run)))
    return paths


RECIPE = Recipe(
    name="saghir2024-optimizers",
    title="Learning coefficient and Hessian trace of networks trained by SGD and by natural gradient",
    paper=f"{PAPER}; section 3.1, Figs. 1 and 2",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    sizes=("toy", "paper", "full"),
    notes="The paper finds λ̂ and Tr H higher with NGD than with SGD. It ran an online low-rank NGD whose direction is "
    "rescaled to the length of the gradient (here: kaldi), both optimizers with Nesterov momentum 0.9; its text "
    "describes NGD with the smoothed Fisher matrix of eq. 5-7 and no momentum (empirical, true), to be held against "
    "SGD as in eq. 4 (plain). Differences are tested over seeds that share initial weights and the order of "
    "examples.\n\n"
    "λ̂ is measured at weights that are no minimum, as in the paper, and is negative where chains find lower losses. "
    "With the model's own predictions for labels the weights are an exact minimum: that is the second λ̂.\n\n"
    "An optimizer that is further ahead has other values for that reason alone. So the two are also compared at the "
    "training loss that the slower one reached.",
)
