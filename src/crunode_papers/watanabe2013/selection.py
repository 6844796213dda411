"""`model-selection`: the free energy, WBIC and λ log n against BIC and WAIC, on nested reduced rank regressions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crunode import exact, free_energy, waic, wbic
from crunode.core import derived_seed, need
from crunode.jobs import Cell, Expected, Recipe, Result, Row
from crunode.sampling import wbic_nbeta
from crunode_papers.bilinear.posteriors import best_loss, draw_posteriors, simulate

__all__ = ["RECIPE", "cells", "compute", "figures", "ladder", "rows"]

Array = NDArray[np.float64]

WIDTH = 4
TRUE_RANK = 2
SIZES = (1, 2, 3, 4)
STRENGTHS = {"strong": (2.0, 1.5), "weak": (1.5, 0.45)}
"""Singular values of the true map. The weak second one is worth more than (λ₂ − λ₁) log n and less than BIC's price."""

_HOTTEST, _RATIO, _PRECISION = 0.01, 2.2, 1.0
_PICKERS = {"free": "F", "wbic": "WBIC", "law": "λ log n", "bic": "BIC", "waic": "WAIC"}

_PLANS: Mapping[str, dict[str, Any]] = {
    "toy": {"weak": (200,), "strong": (200, 3200), "blocks": 1, "sets": 10, "chains": 2, "draws": 100, "warmup": 30},
    "paper": {
        "weak": (100, 200, 400, 800),
        "strong": (200, 800, 3200, 12800, 51200),
        "blocks": 10,
        "sets": 20,
        "chains": 4,
        "draws": 400,
        "warmup": 100,
    },
}


def cells(size: str, seed: int) -> list[Cell]:
    """Data sets in blocks: all sizes of the model on weak data, those that contain the truth on strong data."""
    plan = dict(_PLANS[size])
    sizes = {kind: plan.pop(kind) for kind in STRENGTHS}
    blocks = plan.pop("blocks")
    found = []
    for kind, ns in sizes.items():
        for n in ns:
            for hidden in SIZES if kind == "weak" else SIZES[TRUE_RANK - 1 :]:
                for block in range(blocks):
                    # Models of different size see the same data.
                    settings = {"truth": kind, "n": n, "hidden": hidden, **plan, "seed": derived_seed(seed, n, block)}
                    found.append(Cell(f"{kind} n={n} H={hidden} block {block}", settings))
    return found


def ladder(n: int) -> list[float]:
    """Levels of nβ from where the prior hardly feels the loss to n, by way of n / log n.

    Example:
        >>> levels = ladder(200)
        >>> levels[0], levels[-1], round(max(b / a for a, b in zip(levels, levels[1:])), 1)
        (0.01, 200.0, 2.1)
    """
    count = math.ceil(math.log(n / _HOTTEST) / math.log(_RATIO))
    levels = [_HOTTEST * (n / _HOTTEST) ** (k / count) for k in range(count)]
    return sorted({*levels, wbic_nbeta(n), float(n)})


def compute(cell: Cell) -> dict[str, Any]:
    """Criteria of one model on each data set, all less n L_n at the truth."""
    settings = cell.settings
    n, hidden, weak = settings["n"], settings["hidden"], settings["truth"] == "weak"
    truth = np.zeros((WIDTH, WIDTH))
    truth[range(TRUE_RANK), range(TRUE_RANK)] = STRENGTHS[settings["truth"]]
    data = simulate(truth.tolist(), n, [derived_seed(settings["seed"], k) for k in range(settings["sets"])])
    options = {name: settings[name] for name in ("chains", "draws", "warmup")}
    seed = derived_seed(settings["seed"], 1000, hidden)
    drawn = draw_posteriors(data, hidden, ladder(n), precision=_PRECISION, seed=seed, **options)
    at_truth = (n * data.true_losses().mean(1)).tolist()
    rank = min(hidden, TRUE_RANK)
    fits = {width: (n * best_loss(data, width)).tolist() for width in (hidden, rank, TRUE_RANK)}
    known = exact.reduced_rank(WIDTH, hidden, WIDTH, rank=rank)
    price = float(known) * math.log(n) - ((known.multiplicity or 1) - 1) * math.log(math.log(n))
    found: dict[str, list[float]] = {name: [] for name in ("free", "free_se", "wbic", "law", "bic", "waic", "fit")}
    for k, base in enumerate(at_truth):
        draws = drawn.of(k, pointwise=weak)
        estimate = free_energy(draws)
        found["free"].append(estimate.value)
        found["free_se"].append(estimate.se)
        found["bic"].append(fits[hidden][k] - base + _parameters(hidden) / 2 * math.log(n))
        found["law"].append(fits[rank][k] - base + price)
        found["fit"].append(fits[TRUE_RANK][k] - base)
        if weak:
            found["wbic"].append(wbic(draws, nbeta=wbic_nbeta(n)).value - base)
            found["waic"].append(n * waic(draws, nbeta=float(n)).value - base)
    return found


def _parameters(hidden: int) -> int:
    return hidden * 2 * WIDTH


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Growth of F, distances from F, and how often each criterion finds the true size."""
    return [*_growth(results, size), *_distances(results, size), *_picks(results, size)]


def _gathered(results: Sequence[Result], kind: str, n: int, hidden: int) -> dict[str, Array]:
    wanted = {"truth": kind, "n": n, "hidden": hidden}
    blocks = [r for r in results if {k: r.settings[k] for k in wanted} == wanted]
    names = ("free", "free_se", "law", "bic", "fit", *(("wbic", "waic") if kind == "weak" else ()))
    return {name: np.concatenate([np.asarray(r[name], dtype=float) for r in blocks]) for name in names}


def _growth(results: Sequence[Result], size: str) -> list[Row]:
    """F less n L_n at the best fit of the true rank, from the smallest to the largest n."""
    table = []
    low, high = min(_PLANS[size]["strong"]), max(_PLANS[size]["strong"])
    width = math.log(high / low)
    for hidden in SIZES[TRUE_RANK - 1 :]:
        seen = [_gathered(results, "strong", n, hidden) for n in (low, high)]
        grown = [each["free"] - each["fit"] for each in seen]
        slope = float(grown[1].mean() - grown[0].mean()) / width
        se = math.hypot(*(float(g.std(ddof=1)) / math.sqrt(len(g)) for g in grown)) / width
        known = exact.reduced_rank(WIDTH, hidden, WIDTH, rank=TRUE_RANK)
        bend = ((known.multiplicity or 1) - 1) * math.log(math.log(high) / math.log(low)) / width
        law = "λ" if not bend else "λ less the term in log log n"
        # The constant is reached only as some power of n: a few hundredths of λ at these n.
        expected = Expected(float(known) - bend, 0.03, f"{law}, λ = {known.value}", exact=True, relative=True)
        where = f"H = {hidden}, strong truth: slope of F in log n, n = {low} to {high}"
        table.append(expected.row(where, slope, se=se))
    return table


def _distances(results: Sequence[Result], size: str) -> list[Row]:
    """How far WBIC, λ log n and BIC are from F, for models that contain the truth."""
    n = max(_PLANS[size]["weak"])
    table = []
    for hidden in SIZES[TRUE_RANK - 1 :]:
        seen = _gathered(results, "weak", n, hidden)
        gaps = {name: np.abs(seen[name] - seen["free"]) for name in ("wbic", "law", "bic")}
        nats = ", ".join(f"E|{_PICKERS[name]} − F| = {float(gap.mean()):.2g}" for name, gap in gaps.items())
        for name, source in (("wbic", "WBIC − F = O(√log n)"), ("law", "F − n L_n − λ log n = O(log log n)")):
            # A ratio of means, its error from the deviations of the two together.
            ratio = float(gaps[name].mean() / gaps["bic"].mean())
            off = (gaps[name] - ratio * gaps["bic"]) / gaps["bic"].mean()
            se = float(off.std(ddof=1) / math.sqrt(len(off)))
            bound = Expected(0.5, 0.0, source, exact=True, side="at most")
            title = f"H = {hidden}, weak truth, n = {n}: E|{_PICKERS[name]} − F| / E|BIC − F|"
            table.append(bound.row(title, ratio, se=se, note=f"H = {hidden}, in nats: {nats}"))
        over = Expected(0.0, 0.0, "λ < d/2", exact=True, side="at least")
        excess = seen["bic"] - seen["free"]
        error = float(excess.std(ddof=1) / math.sqrt(len(excess)))
        table.append(over.row(f"H = {hidden}, weak truth, n = {n}: E[BIC − F]", float(excess.mean()), se=error))
    return table


def _picks(results: Sequence[Result], size: str) -> list[Row]:
    table = []
    for n in _PLANS[size]["weak"]:
        seen = [_gathered(results, "weak", n, hidden) for hidden in SIZES]
        right = {}
        for name, label in _PICKERS.items():
            picked = np.array(SIZES)[np.argmin(np.stack([each[name] for each in seen]), axis=0)]
            right[name] = (picked == TRUE_RANK).astype(float)
            small, large = (float((sign * picked > sign * TRUE_RANK).mean()) for sign in (-1, 1))
            note = f"{label} at n = {n}: too small in {100 * small:.0f} %, too large in {100 * large:.0f} %"
            share, se = float(right[name].mean()), _share_error(right[name])
            table.append(Row(f"weak truth, n = {n}: right by {label}", None, share, se, None, "shown", note))
        gain = right["wbic"] - right["bic"]
        se = float(gain.std(ddof=1) / math.sqrt(len(gain)))
        better = Expected(0.0, 0.0, "λ log n is the price, not (d/2) log n", exact=True, side="at least")
        title = f"weak truth, n = {n}: right by WBIC less right by BIC"
        table.append(better.row(title, float(gain.mean()), se=se))
    return table


def _share_error(right: Array) -> float:
    count, successes = len(right), float(right.sum())
    share = (successes + 1) / (count + 2)  # never 0 or 1, where the plain error would be nothing
    return math.sqrt(share * (1 - share) / count)


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Means of all criteria over the size of the model, at each n."""
    sizes = sorted({r.settings["n"] for r in results if r.settings["truth"] == "weak"})
    figure = need("matplotlib.figure", extra="plot").Figure(figsize=(4 * len(sizes), 4), layout="constrained")
    axes = figure.subplots(1, len(sizes), squeeze=False)[0]
    for axis, n in zip(axes, sizes, strict=True):
        seen = [_gathered(results, "weak", n, hidden) for hidden in SIZES]
        for name, label in _PICKERS.items():
            axis.plot(SIZES, [float(each[name].mean()) for each in seen], marker="o", label=label)
        axis.set_title(f"n = {n}, true size {TRUE_RANK}")
        axis.set_xlabel("H")
        axis.set_xticks(SIZES)
    axes[0].set_ylabel("criterion less n L_n at the truth")
    axes[0].legend()
    path = folder / "selection.png"
    figure.savefig(path, dpi=120)
    return [path]


RECIPE = Recipe(
    name="model-selection",
    title="the free energy, WBIC and λ log n against BIC and WAIC",
    paper="Watanabe 2013, A widely applicable Bayesian information criterion, JMLR 14:867; Drton & Plummer 2017, A "
    "Bayesian information criterion for singular models, JRSS B 79:323",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="Reduced rank regressions 4-H-4 with H = 1 to 4 and a true map of rank 2. The free energy F = −log Z is "
    "taken from a ladder of temperatures and is the standard the others are held against. It grows as λ log n with "
    "the exact λ of Aoyagi & Watanabe, not as (d/2) log n, so BIC overrates the price of every model here. The row "
    "λ log n is n L_n at the best fit of the true rank plus λ log n − (m−1) log log n: it takes the truth as known.\n\n"
    "That shows where the second singular value of the truth is weak: worth more than (λ₂ − λ₁) log n but less than "
    "what BIC asks for eight more parameters, so that BIC picks a model that is too small. With strong signals, or at "
    "larger n, BIC is right too: it is consistent, only late. WAIC estimates the error of predictions, not F, and "
    "takes models that are too large in a share of cases that does not vanish with n.",
)
