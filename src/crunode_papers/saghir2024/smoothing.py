"""`saghir2024-smoothing`: λ̂ of networks trained by natural gradient as the Fisher matrix is smoothed more (Fig. 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crunode.jobs import Cell, Recipe, Result, Row
from crunode_papers.claims.rows import QUANTITIES, by_seed, claim_row, measured, pairs
from crunode_papers.claims.statistics import paired_test, trend_test
from crunode_papers.saghir2024.optimizers import PAPER
from crunode_papers.saghir2024.pictures import draw_sweep
from crunode_papers.saghir2024.plans import FULL, TOY, ffnn, net_name, repeated
from crunode_papers.saghir2024.trajectories import trajectory

__all__ = ["RECIPE", "cells", "compute", "figures", "rows"]

_ALPHA, _EPSILON, _RATE = 1e-2, 1e-10, 1e-2
_PANELS = {"alpha": "Fig. 3a", "epsilon": "Fig. 3b"}
_SIGNS = {"alpha": "α", "epsilon": "ε"}
_AGAINST = {"kaldi": "sgd", "empirical": "plain"}
# What a constant has to exceed to matter: for the online form the second moment of a coordinate of the gradient, some
# 1e-6; for that of eq. 7 the trace of F, some 10, and d/α times the largest eigenvalue.
_PLANS: dict[str, dict[str, Any]] = {
    "toy": {
        **TOY,
        "repeats": 2,
        "epochs": 2,
        "net": ffnn(1, 8),
        "sweeps": {
            "kaldi": {"alpha": (1e-2, 1e2), "epsilon": (1e-10, 1e-2)},
            "empirical": {"alpha": (1e-2, 1e2), "epsilon": (1e-10, 1e3)},
        },
    },
    "paper": {
        **FULL,
        "repeats": 4,
        "epochs": 6,
        "net": ffnn(2, 128),
        "sweeps": {
            "kaldi": {"alpha": (1e-2, 1e-1, 1e1), "epsilon": (1e-10, 1e-7, 1e-4)},
            "empirical": {"alpha": (1e-2, 1.0, 1e2), "epsilon": (1e-10, 1e2, 1e4)},
        },
    },
    "full": {
        **FULL,
        "repeats": 10,
        "epochs": 20,
        "net": ffnn(2, 256),
        "sweeps": {
            "kaldi": {
                "alpha": (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2),
                "epsilon": (1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-2),
            },
            "empirical": {
                "alpha": (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4),
                "epsilon": (1e-10, 1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6),
            },
        },
    },
}


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each kind of natural gradient, smoothing constant and seed; and SGD of both kinds."""
    plan = dict(_PLANS[size])
    sweeps, repeats = plan.pop("sweeps"), plan.pop("repeats")
    base = {**plan, "measure": [plan["epochs"]], "data": "fashion-mnist", "lr": _RATE}
    base |= {"alpha": _ALPHA, "epsilon": _EPSILON}
    each = [(optimizer, {**base, "optimizer": optimizer}) for optimizer in _AGAINST.values()]
    for optimizer, constants in sweeps.items():
        for name, values in constants.items():
            each += [
                (f"{optimizer} {name}={value:g}", {**base, "optimizer": optimizer, "sweep": name, name: value})
                for value in values
            ]
    return repeated(each, repeats, seed)


def compute(cell: Cell) -> dict[str, Any]:
    """A training, with what was measured at its end."""
    return trajectory(cell.settings)


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Slopes by the decade of a constant, over seeds; and how far the smoothest natural gradient is from SGD."""
    found: list[Row] = []
    for optimizer, sgd in _AGAINST.items():
        for name, panel in _PANELS.items():
            mine = [r for r in results if r.settings.get("sweep") == name and r.settings["optimizer"] == optimizer]
            values = sorted({r.settings[name] for r in mine})
            for key in ("llc", "own", "trace"):
                what = f"{optimizer}: {QUANTITIES[key]} by decade of {_SIGNS[name]}"
                found.append(_slope(what, results, optimizer, name, values, key, panel, size))
            if not values:
                continue
            most = by_seed(results, optimizer=optimizer, sweep=name, **{name: values[-1]})
            plain = by_seed(results, optimizer=sgd)
            for key in ("llc", "own"):
                a, b, _ = pairs(most, plain, lambda r, k=key: _last(r, k))  # type: ignore[misc]
                if a:
                    gap = paired_test(a, b)
                    title = f"{QUANTITIES[key]} of {optimizer} at {_SIGNS[name]} = {values[-1]:g} less that of {sgd}"
                    se = gap.se if math.isfinite(gap.se) else None
                    found.append(Row(title, 0.0, gap.value, se, None, "shown", source=f"paper: {panel}, the limit"))
    return found


def _slope(
    what: str,
    results: Sequence[Result],
    optimizer: str,
    name: str,
    values: Sequence[float],
    key: str,
    panel: str,
    size: str,
) -> Row:
    series, lost = [], []
    by_value = [by_seed(results, optimizer=optimizer, sweep=name, **{name: value}) for value in values]
    for repeat in sorted({k for found in by_value for k in found}):
        line = [_last(found[repeat], key) if repeat in found else None for found in by_value]
        kept = [x for x in line if x is not None]
        lost += [f"{value:g}" for value, x in zip(values, line, strict=True) if x is None]
        if len(kept) == len(line) and len(line) > 1:
            series.append(kept)
    note = f"no value at {_SIGNS[name]} = {', '.join(dict.fromkeys(lost))} for some seeds" if lost else ""
    if not series:
        return claim_row(what, None, panel, above=False, size=size, note=note)
    return claim_row(
        what, trend_test([math.log10(v) for v in values], series), panel, above=False, size=size, note=note
    )


def _last(result: Result, key: str) -> float | None:
    return None if result["diverged"] is not None or not result["points"] else measured(result["points"][-1], key)


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Fig. 3: λ̂ and Tr H against α and ε."""
    title = net_name(results[0].settings["net"]).replace(" ", "").replace("×", "x")
    return [
        draw_sweep(results, folder / f"figure3-{title}-{name}.png", name, ("llc", "own", "trace")) for name in _PANELS
    ]


RECIPE = Recipe(
    name="saghir2024-smoothing",
    title="Does λ̂ of networks trained by natural gradient fall as the Fisher matrix is smoothed?",
    paper=f"{PAPER}; section 3.2, Fig. 3",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    sizes=("toy", "paper", "full"),
    notes="κ = (α/d) max(tr F, ε) is proportional to α; ε has a part in it only where it exceeds tr F. The more "
    "smoothing, the nearer NGD is to SGD with rate η/κ, which is not SGD with rate η: for κ < 1 it is faster, and for "
    "a κ that outweighs F slower than NGD. λ̂ then moves with the rate too, and not with the geometry alone. The online "
    "form rescales its direction to the length of the gradient, so that it does tend to SGD with the same rate.",
)
