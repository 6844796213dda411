"""Tempered posteriors of the two-layer networks of Murfet et al. 2020: what Table 2 measured, and what it did not.

Everything is sampled by replica exchange, since chains at one temperature do not get from one number of live units to
another. Results are JSON-able.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from crunode import (
    HMC,
    Draws,
    Exchange,
    Gaussian,
    Posterior,
    bounds,
    exchange_report,
    phases,
    rlct,
    sample,
    sample_each,
)
from crunode.jobs import place
from crunode.sampling import mcse_mean, split_rhat
from crunode_papers.murfet2020.two_layer import live_units, sampled

__all__ = [
    "FIVE",
    "baseline",
    "five_levels",
    "global_phases",
    "local_coefficient",
    "table_ladder",
    "table_slopes",
    "tempered_levels",
]

# The paper says that five inverse temperatures are "centered on" 1/log 20000 and not how far apart they are.
FIVE = (1.5, 1.25, 1.0, 0.75, 0.5)
_HOTTEST = 1e-4
_CENTER = math.log(20000)


def five_levels(n: int) -> tuple[float, ...]:
    """The five nβ of the table: 1/β = log 20000 times 1.5, 1.25, 1, 0.75 and 0.5.

    Example:
        >>> round(five_levels(1000)[2], 2)
        100.97
    """
    return tuple(n / (_CENTER * factor) for factor in FIVE)


def table_ladder(n: int, hot: int) -> tuple[float, ...]:
    """The levels of the table, with `hot` more down to where chains get around.

    With weights of size 50 losses are of the order 10⁶, so that the prior hardly feels them below nβ = 10⁻⁴.

    Example:
        >>> len(table_ladder(1000, 14))
        19
    """
    five = five_levels(n)
    return (*np.geomspace(_HOTTEST, five[0] / 1.3, hot).tolist(), *five)


def table_slopes(settings: dict[str, Any]) -> dict[str, Any]:
    """λ̂ by Algorithm 1 in the paper's own setting, over data sets, and how many units were alive.

    Args:
        settings: m, activation, n, sets, sd (of the prior), hot, chains, draws, warmup, seed.
    """
    n, levels = settings["n"], table_ladder(settings["n"], settings["hot"])
    lands = [
        sampled(settings["m"], n, activation=settings["activation"], seed=settings["seed"] + k, device=place())
        for k in range(settings["sets"])
    ]
    prior = Gaussian(settings["sd"] ** -2, mean="origin")
    drawn = sample_each(
        [Posterior(land, levels, prior) for land in lands],
        Exchange(HMC(metric="diagonal")),
        keep=("positions",),
        compiled=bool(settings.get("compiled")) and place().type == "cpu",
        **{key: settings[key] for key in ("chains", "draws", "warmup", "seed")},
    )
    five = five_levels(n)
    estimate = rlct([draws.only(five) for draws in drawn])
    alive = [live_units(land, draws.at(five[2])["positions"]) for land, draws in zip(lands, drawn, strict=True)]
    counts = np.bincount(np.concatenate([a.reshape(-1) for a in alive]), minlength=6)
    slopes, reports = estimate.diagnostics["slopes"], [exchange_report(draws) for draws in drawn]
    return {
        "value": estimate.value,
        "se": estimate.se,
        "std": statistics.stdev(slopes) if len(slopes) > 1 else None,
        "r2": statistics.fmean(estimate.diagnostics["r2"]),
        "slopes": slopes,
        "rhat": estimate.diagnostics["rhat"],
        "findings": [f.code for f in estimate.findings],
        "live_units": (counts / counts.sum()).tolist(),
        "dead": float(counts[0] / counts.sum()),
        "dead_se": math.hypot(*(mcse_mean((a == 0).astype(float)) for a in alive)) / len(alive),
        "swap_rate": min(min(report["swap_rate"]) for report in reports),
        "round_trips": sum(report["round_trips"] for report in reports),
    }


def baseline(n: int, sd: float) -> float:
    """The slope that a network whose units are all dead has: that of the constant model, in closed form.

    With the prior N(0, sd²) on the constant, E_β[nL_n] is ½ n / (nβ + sd⁻²) and a term that does not depend on β to
    first order in the prior.

    Example:
        >>> round(baseline(1000, 50.0), 3)
        0.5
    """
    levels = five_levels(n)
    hot = np.array([n / t for t in levels])
    means = np.array([0.5 * n / (t + sd**-2) for t in levels])
    return float(np.polyfit(hot, means, 1)[0])


def tempered_levels(draws: Draws, live: np.ndarray) -> list[dict[str, Any]]:
    """The estimator t E[L − L(s_m)], live units and their spread at each level."""
    found = []
    for t in draws.levels():
        scaled = t * draws.at(t)["excess"].astype(np.float64)
        counts = np.bincount(live[draws.nbeta == t].reshape(-1), minlength=6)
        found.append(
            {
                "nbeta": t,
                "value": float(scaled.mean()),
                "se": mcse_mean(scaled),
                "rhat": split_rhat(scaled),
                "live_units": (counts / counts.sum()).tolist(),
            }
        )
    return found


def global_phases(settings: dict[str, Any]) -> dict[str, Any]:
    """The phase diagram by live units without label noise, from the prior down to nβ = `coldest`.

    Args:
        settings: m, n, sd (of the prior), hot, cold, coldest, chains, draws, warmup, seed.
    """
    hot = np.geomspace(_HOTTEST, 50.0, settings["hot"])
    levels = (*hot.tolist(), *np.geomspace(60.0, settings["coldest"], settings["cold"]).tolist())
    land = sampled(settings["m"], settings["n"], noise=0.0, seed=settings["seed"], device=place())
    draws = sample(
        Posterior(land, levels, Gaussian(settings["sd"] ** -2, mean="origin")),
        Exchange(HMC(metric="diagonal")),
        keep=("positions",),
        compiled=bool(settings.get("compiled")) and place().type == "cpu",
        **{key: settings[key] for key in ("chains", "draws", "warmup", "seed")},
    )
    live = live_units(land, draws.arrays["positions"])
    arrays = {name: array for name, array in draws.arrays.items() if name != "positions"}
    draws = replace(draws, arrays={**arrays, "live": live})
    diagram = phases(draws.only([t for t in levels if t >= 10]), "live")
    report = exchange_report(draws)
    return {
        "levels": tempered_levels(draws, live),
        "diagram": diagram.to_dict(),
        "transitions": [
            {"from": x.before, "to": x.after, "nbeta": x.nbeta, "low": x.low, "high": x.high, "sure": x.sure}
            for x in diagram.transitions
        ],
        "swap_rate": report["swap_rate"],
        "round_trips": report["round_trips"],
    }


def local_coefficient(settings: dict[str, Any]) -> dict[str, Any]:
    """λ at s_m by chains held around it (γ = 1) on a ladder, and by ranks.

    Args:
        settings: m, activation, n, levels, chains, draws, warmup, seed.
    """
    what: dict[str, Any] = {"noise": 0.0, "dtype": torch.float64}
    what |= {key: settings[key] for key in ("activation", "seed")}
    land = sampled(settings["m"], settings["n"], device=place(), **what)
    levels: Sequence[float] = settings["levels"]
    draws = sample(
        Posterior(land, tuple(levels), Gaussian(1.0)),
        HMC(metric="diagonal"),
        compiled=bool(settings.get("compiled")) and place().type == "cpu",
        **{key: settings[key] for key in ("chains", "draws", "warmup", "seed")},
    )
    curve = []
    for t in draws.levels():
        scaled = t * draws.at(t)["excess"].astype(np.float64)
        curve.append({"nbeta": t, "value": float(scaled.mean()), "se": mcse_mean(scaled), "rhat": split_rhat(scaled)})
    found: dict[str, Any] = {"curve": curve}
    if len(levels) >= 3:
        slope = rlct(draws)
        found |= {"slope": slope.value, "slope_se": math.hypot(slope.se, slope.systematic)}
    low, high = bounds(sampled(settings["m"], settings["n"], **what), seed=settings["seed"]).bounds
    return found | {"low": float(low), "high": float(high)}
