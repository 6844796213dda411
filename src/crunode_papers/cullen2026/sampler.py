"""`cullen2026-sampler`: how λ̂ depends on the step and the precision of SGLD (Fig. 6)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crunode import llc
from crunode.core import derived_seed, need
from crunode.curvature import function_trace, ggn
from crunode.exact import quadratic_modular_addition
from crunode.jobs import Cell, Expected, Recipe, Result, Row, place
from crunode_papers.cullen2026.constructed import own_truth
from crunode_papers.cullen2026.lines import claimed_sign, fit_line
from crunode_papers.cullen2026.runs.langevin import ChainSettings, excess_losses
from crunode_papers.cullen2026.runs.plans import BASELINE, PAPER, TOY
from crunode_papers.cullen2026.runs.quadratic import QuadraticPoints
from crunode_papers.grokking.batched import train_many
from crunode_papers.grokking.settings import TrainingSettings
from crunode_papers.grokking.tasks import ModularTask

__all__ = ["RECIPE", "cells", "compute", "figures", "predicted_share", "rows"]

_STEPS = (1e-2, 1e-3, 1e-4)
_PRECISIONS = (1.0, 5.0, 25.0, 125.0, 625.0)
_NBETA = 30.0
_BASELINE = (1e-4, 5.0)
_WHERE = {"first": "initial weights", "last": "trained weights"}
_PLANS: dict[str, dict[str, Any]] = {
    "toy": {**TOY, "modulus": 7, "width": 12, "epochs": 500, "batch": None, "probes": 16},
    "paper": {**BASELINE, "epochs": 2000, "rates": [1e-3], "probes": 2},
}
_NEAR, _ANHARMONIC, _STRONG = 0.05, 0.15, 125.0
_FAR = 0.5
_LOG_LINEAR = "paper: Fig. 6: a log-linear relationship"
# Ranks of larger networks take longer than all the rest.
_RANKED = 20_000


def predicted_share(
    curvature: np.ndarray, step: float, precision: float, nbeta: float, warmup: int, draws: int, every: int
) -> np.ndarray:
    """What a direction adds to 2λ̂ where the loss is quadratic: nβ h times its variance, averaged over the draws.

    SGLD from the center has variance ε(1 − r^2k)/(1 − r²) after k steps, r = 1 − ε(nβ h + γ)/2. At rest, with small
    steps, the share is nβ h/(nβ h + γ).

    Args:
        curvature: h of each direction.
        step: ε.
        precision: γ.
        nbeta: nβ.
        warmup: Steps before draws.
        draws: Steps after that.
        every: Each so many of them a loss is taken.

    Example:
        >>> settings = {"step": 1e-4, "precision": 5.0, "nbeta": 30.0, "warmup": 10**6, "draws": 1, "every": 1}
        >>> predicted_share(np.array([0.0, 1 / 6, 1e3]), **settings).round(2)
        array([0. , 0.5, 4. ])
    """
    h = np.maximum(np.asarray(curvature, dtype=np.float64), 0.0)
    square = (1 - step * (nbeta * h + precision) / 2) ** 2
    counts = warmup + np.arange(every, draws + 1, every)
    with np.errstate(over="ignore"):
        grown = (1 - square[..., None] ** counts).mean(-1)
    shares: np.ndarray = nbeta * h * step * grown / (1 - square)
    return shares


def cells(size: str, seed: int) -> list[Cell]:
    """One cell: a network that is trained once, then measured with all settings."""
    plan = {**_PLANS[size], "steps": list(_STEPS), "precisions": list(_PRECISIONS), "nbeta": _NBETA}
    lengths = {"warmup": 50, "draws": 200} if size == "toy" else {"warmup": 100, "draws": 600}
    chains = {"chains": 3, **lengths, "every": 10, "batch": plan["batch"]}
    return [Cell("one network", {**plan, "chains": chains, "seed": seed})]


def compute(cell: Cell) -> dict[str, Any]:
    """λ̂ at initial and at trained weights for all steps and precisions, what curvature says, and our estimate."""
    s = cell.settings
    task = ModularTask(s["modulus"], fraction=s["fraction"], seed=derived_seed(s["seed"], 1))
    settings = TrainingSettings(
        task,
        width=s["width"],
        rate=s["rates"][0],
        weight_decay=s["weight_decays"][0],
        batch=s["batch"],
        seed=derived_seed(s["seed"], 2),
    )
    ends = {"first": 0, "last": s["epochs"]}
    (run,) = train_many([settings], epochs=s["epochs"], at=[*ends.values()], keep=[*ends.values()], device=place())
    points = {labels: QuadraticPoints([run], list(ends.values()), labels) for labels in ("given", "own")}
    grid = []
    for step in s["steps"]:
        for precision in s["precisions"]:
            chains = ChainSettings(
                step=step * s["nbeta"], resolution=precision / s["nbeta"], nbeta=s["nbeta"], **s["chains"]
            )
            row: dict[str, Any] = {"step": step, "precision": precision}
            for labels, target in points.items():
                row[labels] = dict(zip(ends, _measured(target, chains, derived_seed(s["seed"], 3)), strict=True))
            grid.append(row)
    pairs = task.pairs[task.training].tolist()
    exact = quadratic_modular_addition(s["modulus"], s["width"], centred=True, pairs=pairs)
    inputs = task.data("training")[0]
    ours: dict[str, Any] = {}
    sizes: dict[str, float] = {}
    for name, epoch in ends.items():
        first, second = (w.to(place()) for w in run.weights[epoch])
        land = own_truth(first, second, inputs.to(place()), True, n=10_000)
        ours[name] = None if land.dim > _RANKED else _numbers(llc(land, seed=s["seed"]))
        sizes[name] = float(land.center.square().mean().sqrt())
        _predict(grid, name, ggn(land), s)
    accuracies = {key: float(getattr(run, key)[-1]) for key in ("training_accuracy", "validation_accuracy")}
    return {"grid": grid, "ours": ours, "exact": float(exact), "dim": land.dim, "sizes": sizes, **accuracies}


def _measured(target: QuadraticPoints, chains: ChainSettings, seed: int) -> list[dict[str, float | None]]:
    """λ̂ at each point. Its error is from differences between chains: losses that still rise would fool their series."""
    (excess,) = chains.scale(target.n) * excess_losses(target, chains, [seed])
    found: list[dict[str, float | None]] = []
    for means in excess.mean(-1):
        good = bool(np.isfinite(means).all())
        se = float(means.std(ddof=1)) / math.sqrt(len(means)) if good else None
        found.append({"value": float(means.mean()) if good else None, "se": se})
    return found


def _predict(grid: Sequence[dict[str, Any]], name: str, matrix: Any, s: Mapping[str, Any]) -> None:
    """½ Σ of `predicted_share` over the spectrum of the Gauss-Newton matrix, added to the rows of the grid."""
    chains = {key: s["chains"][key] for key in ("warmup", "draws", "every")}
    for row in grid:
        row.setdefault("predicted", {})[name] = None
        if row["own"][name]["value"] is None or not _near(name, row["step"], row["precision"]):
            continue
        at = {"step": row["step"], "precision": row["precision"], "nbeta": s["nbeta"], **chains}
        shares = functools.partial(predicted_share, **at)
        found = function_trace(matrix, shares, probes=s["probes"], seed=s["seed"])
        row["predicted"][name] = {"value": found.value / 2, "error": found.error / 2}


def _near(name: str, step: float, precision: float) -> bool:
    """Where the loss is quadratic as far as chains go: around small initial weights only with a strong prior."""
    if name == "first":
        return step == _BASELINE[0] and precision >= _STRONG
    return step == _BASELINE[0] or precision == _BASELINE[1]


def _numbers(estimate: Any) -> dict[str, Any]:
    return {"value": estimate.value, "se": estimate.se, "error": estimate.error}


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Dependence on the precision and the step, what curvature predicts, and the coefficient beside them."""
    found: list[Row] = []
    for result in results:
        for name, where in _WHERE.items():
            found += _dependence(result, name, where)
            found += _beside(result, name, where)
    return found


def _dependence(result: Result, name: str, where: str) -> list[Row]:
    found, grid = [], result["grid"]
    for step in result.settings["steps"]:
        here = [(row["precision"], row["given"][name]) for row in grid if row["step"] == step]
        kept = [(g, v["value"], max(v["se"], 1e-9)) for g, v in here if v["value"] is not None and v["se"] is not None]
        what = f"{where}, step {step:g}: {{}}, given labels"
        if len(kept) < 3:
            missing = what.format("λ̂ against γ")
            found.append(Row(missing, None, None, None, None, "shown", "chains diverge at this step"))
            continue
        (weak, high, high_se), (strong, low, low_se) = kept[0], kept[-1]
        # The paper's claim is about trained weights; before, chains find lower losses.
        fall = what.format(f"λ̂ at γ = {weak:g} less that at γ = {strong:g}")
        source, judged = "Fig. 6: falls with γ", name == "last"
        found.append(claimed_sign(fall, high - low, math.hypot(high_se, low_se), source, above=True, judged=judged))
        for law, value in _straightness(kept).items():
            found.append(Row(what.format(f"R² of {law}"), None, value, None, None, "shown", source=_LOG_LINEAR))
    values = [row["given"][name]["value"] for row in grid]
    sizes = sorted(v for v in values if v is not None and v > 0)
    factor = sizes[-1] / sizes[0] if sizes else None
    orders = Expected(10.0, 0.0, "appendix B.2: estimates vary in orders of magnitude", side="at least")
    found.append(orders.row(f"{where}: largest λ̂ over the smallest, over all settings", factor))
    return found


def _straightness(points: Sequence[tuple[float, float, float]]) -> dict[str, float | None]:
    """R² of the laws that "log-linear" may mean, with equal weights; logarithms need values above 0."""
    gammas, values = [g for g, _, _ in points], [v for _, v, _ in points]
    logs, even = [math.log(g) for g in gammas], [1.0] * len(points)
    found: dict[str, float | None] = {"λ̂ in log γ": fit_line(logs, values, even).r2}
    heights = [math.log(v) for v in values] if min(values) > 0 else None
    for law, places in (("log λ̂ in log γ", logs), ("log λ̂ in γ", gammas)):
        found[law] = None if heights is None else fit_line(places, heights, even).r2
    return found


def _beside(result: Result, name: str, where: str) -> list[Row]:
    found, grid = [], result["grid"]
    at = {(row["step"], row["precision"]): row for row in grid}
    for (step, precision), row in at.items():
        predicted, measured = row["predicted"][name], row["own"][name]
        if predicted is None or measured["value"] is None:
            continue
        expected = Expected(predicted["value"], _ANHARMONIC, "curvature alone", exact=True, relative=True)
        se = math.hypot(measured["se"], predicted["error"])
        label = f"{where}, step {step:g}, γ = {precision:g}: λ̂, own labels"
        found.append(expected.row(label, measured["value"], se=se, why=_too_far(result, name, step, precision)))
    exact = Expected(result["exact"], _NEAR, "corrected closed form at generic weights", exact=True, relative=True)
    base = at[_BASELINE]["own"][name]
    why = (
        "at nβ = 30 and γ = 5 directions of curvature below 1/6 do not count in full, and so few steps of 1e-4 do not "
        "let them spread"
    )
    found.append(exact.row(f"{where}: λ̂ at the baseline, own labels", base["value"], se=base["se"], why=why))
    ours = result["ours"][name]
    if ours is not None:
        why = "" if name == "first" else "trained weights are not generic: units have died or share their features"
        found.append(exact.row(f"{where}: llc, nothing set by hand", ours["value"], se=ours["se"], why=why))
    return found


def _too_far(result: Result, name: str, step: float, precision: float) -> str:
    """Why curvature may not be all: chains go so far that the loss is no longer quadratic; empty where they do not."""
    steps = result.settings["chains"]["warmup"] + result.settings["chains"]["draws"]
    moved, size = math.sqrt(min(1 / precision, step * steps)), result["sizes"][name]
    if moved < _FAR * size:
        return ""
    return f"chains move free weights by {moved:.2g}, which have a size of {size:.2g}: the loss is not quadratic there"


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """λ̂ against γ for each step, with what curvature predicts and the coefficient."""
    pyplot = need("matplotlib.pyplot", extra="plot")
    paths = []
    for result in results:
        figure, axes = pyplot.subplots(1, len(_WHERE), figsize=(9, 3.6), squeeze=False)
        for axis, (name, where) in zip(axes[0], _WHERE.items(), strict=True):
            for number, step in enumerate(result.settings["steps"]):
                here = [row for row in result["grid"] if row["step"] == step]
                places = [row["precision"] for row in here]
                for labels, marker in (("given", "o"), ("own", "s")):
                    heights = [
                        math.nan if row[labels][name]["value"] is None else row[labels][name]["value"] for row in here
                    ]
                    axis.plot(
                        places, heights, marker, ms=4, color=f"C{number}", label=f"step {step:g}, {labels} labels"
                    )
                lines = [row["predicted"][name] for row in here]
                axis.plot(places, [math.nan if v is None else v["value"] for v in lines], lw=0.8, color=f"C{number}")
            axis.axhline(result["exact"], color="black", lw=0.8, ls="--")
            axis.set(xscale="log", yscale="log", xlabel="γ", ylabel="λ̂", title=where)
        axes[0, 0].legend(fontsize=6)
        path = folder / "figure6.png"
        figure.savefig(path, dpi=150, bbox_inches="tight")
        pyplot.close(figure)
        paths.append(path)
    return paths


RECIPE = Recipe(
    name="cullen2026-sampler",
    title="How the estimated coefficient depends on the settings of SGLD",
    paper=f"{PAPER}; appendix B.2 and H.1, Fig. 6",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="One network is trained and measured at its first and last weights with SGLD at steps 1e-2, 1e-3 and 1e-4 "
    "and precisions γ from 1 to 625; the baseline is step 1e-4, β = 30/n, γ = 5, 3 chains, 100 steps of burn-in, 600 "
    "draws. The paper lays the dependence on γ to volumes that grow exponentially. Around a quadratic minimum it "
    "follows from curvature alone: SGLD gives λ̂ = ½ Σ nβ h_i Var_i, and the variance of a direction is 1/(nβ h + γ) at "
    "rest and smaller before. That is what chains do while γ keeps them near the weights. With γ = 5 and nβ = 30 they "
    "move the weights of a wide network by more than their size, and λ̂ is how high the loss is out there. Where nβ h "
    "is far above γ for all directions that count, λ̂ does not depend on γ, and that is where llc goes by itself.\n\n"
    "With its own outputs for labels a network is at an exact minimum; with the given ones λ̂ also has the slope that "
    "training has left, and is negative where chains find a lower loss.",
)
