"""`saghir2024-escape`: SGD and natural gradient from one and the same state on (Figs. 4 to 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crunode.jobs import Cell, Recipe, Result, Row
from crunode_papers.claims.rows import (
    QUANTITIES,
    absence_row,
    by_seed,
    claim_row,
    difference_row,
    measured,
    tested,
)
from crunode_papers.saghir2024.optimizers import PAPER
from crunode_papers.saghir2024.pictures import draw_curves
from crunode_papers.saghir2024.plans import FULL, TOY, ffnn, repeated
from crunode_papers.saghir2024.trajectories import trajectory

__all__ = ["RECIPE", "cells", "compute", "figures", "rows"]

_SMOOTHING = {"alpha": 1e-2, "epsilon": 1e-10}
# Data, learning rate before the split, and optimizers with their rates after it.
_SCENES: Mapping[str, tuple[str, float, tuple[tuple[str, float], ...]]] = {
    "Fig. 4": ("fashion-mnist", 1e-2, (("sgd", 1e-2), ("kaldi", 1e-2), ("empirical", 1e-2))),
    "Fig. 5": (
        "mnist",
        1e-4,
        (
            ("sgd", 1e-4),
            ("sgd", 1e-2),
            *(("kaldi", lr) for lr in (1e-4, 1e-3, 1e-2)),
            *(("empirical", lr) for lr in (1e-4, 1e-3, 1e-2)),
        ),
    ),
}
_PLANS: dict[str, dict[str, Any]] = {
    "toy": {**TOY, "repeats": 2, "epochs": 2, "measure": [2], "net": ffnn(2, 8), "trunk": 2, "data": "fashion-mnist"},
    "paper": {**FULL, "repeats": 4, "epochs": 4, "measure": [2, 4], "net": ffnn(2, 256), "trunk": 8},
    "full": {
        **FULL,
        "repeats": 10,
        "epochs": 12,
        "measure": [1, 2, 3, 4, 6, 8, 10, 12],
        "net": ffnn(2, 256),
        "trunk": 20,
    },
}


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each scene, optimizer, learning rate and seed; all of a scene and seed share what came before."""
    plan = dict(_PLANS[size])
    repeats, before, everywhere = plan.pop("repeats"), plan.pop("trunk"), plan.pop("data", None)
    each = []
    for scene, (data, rate, branches) in _SCENES.items():
        for optimizer, lr in branches if size != "toy" else branches[:3]:
            trunk = {"optimizer": "sgd", "lr": rate, "epochs": before, "measure": [0]}
            if optimizer == "sgd" and lr == rate and before > 4:
                trunk["measure"] = [-(before // 2), 0]
            settings = {**plan, "scene": scene, "data": everywhere or data, "optimizer": optimizer, "lr": lr}
            each.append((f"{scene} {optimizer} lr={lr:g}", {**settings, **_SMOOTHING, "trunk": trunk}))
    return repeated(each, repeats, seed)


def compute(cell: Cell) -> dict[str, Any]:
    """Trunk and branch, with what was measured at the split and after."""
    return trajectory(cell.settings)


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Changes of λ̂ after the split, for each optimizer and rate, against each other and against none."""
    found: list[Row] = []
    for scene, (_, rate, branches) in _SCENES.items():
        branch = {(o, lr): by_seed(results, scene=scene, optimizer=o, lr=lr) for o, lr in branches}
        branch = {key: some for key, some in branch.items() if some}
        for (optimizer, lr), some in branch.items():
            for key in ("llc", "own"):
                test, note = tested(some, lambda r, k=key: _change(r, k))  # type: ignore[misc]
                name = f"{scene}: change of {QUANTITIES[key]} after the split, {optimizer} at {lr:g}"
                if optimizer == "sgd":
                    where = scene if lr == rate else "Fig. 6b"
                    found.append(absence_row(name, test, where, size=size, note=note))
                else:
                    found.append(claim_row(name, test, scene, above=True, size=size, note=note))
        for ngd in ("kaldi", "empirical"):
            rates = sorted(lr for o, lr in branch if o == ngd)
            if not rates or ("sgd", rate) not in branch:
                continue
            pair = branch[ngd, rates[-1]], branch["sgd", rate]
            found += [
                difference_row(
                    f"{scene}: change of {QUANTITIES[key]}, {ngd} at {rates[-1]:g} less SGD at {rate:g}",
                    *pair,
                    lambda r, k=key: _change(r, k),  # type: ignore[misc]
                    f"{scene}, section 3.3",
                    size,
                )
                for key in ("llc", "own")
            ]
            if len(rates) > 1:
                found += [
                    difference_row(
                        f"{scene}: change of {QUANTITIES[key]}, {ngd} at {rates[-1]:g} less {ngd} at {rates[0]:g}",
                        branch[ngd, rates[-1]],
                        branch[ngd, rates[0]],
                        lambda r, k=key: _change(r, k),  # type: ignore[misc]
                        "Fig. 5a and 5c",
                        size,
                    )
                    for key in ("llc", "own")
                ]
            found.append(
                difference_row(
                    f"{scene}: scatter of update norms over epochs, {ngd} at {rates[-1]:g} less SGD at {rate:g}",
                    *pair,
                    _scatter,
                    "section 3.3",
                    size,
                )
            )
            found.append(_shown_norm(f"{scene}: update norm of {ngd} at {rates[-1]:g} over that before", pair[0]))
        raised = next((lr for o, lr in branch if o == "sgd" and lr > rate), None)
        if raised is not None:
            test, note = tested(branch["sgd", raised], _validation_change)
            name = f"{scene}: change of the validation loss, sgd raised to {raised:g}"
            found.append(claim_row(name, test, "Fig. 6b", above=False, size=size, note=note))
    return found


def _point(result: Result, epoch: int | None) -> Mapping[str, Any] | None:
    """What was measured at an epoch, or at the last one; None where the training diverged before its end."""
    if result["diverged"] is not None:
        return None
    found = [p for p in result["points"] if epoch is None or p["epoch"] == epoch]
    return found[-1] if found else None


def _change(result: Result, key: str) -> float | None:
    first, last = _point(result, 0), _point(result, None)
    if first is None or last is None:
        return None
    a, b = measured(first, key), measured(last, key)
    return None if a is None or b is None else b - a


def _validation_change(result: Result) -> float | None:
    return _change(result, "validation_loss")


def _norms(result: Result, after: bool) -> list[float]:
    return [row["update_norm"] for row in result["curve"] if (row["epoch"] > 0) == after]


def _scatter(result: Result) -> float | None:
    """Standard deviation of the update norms over epochs after the split, relative to their mean."""
    norms = _norms(result, after=True)
    return None if result["diverged"] is not None else float(np.std(norms) / np.mean(norms))


def _shown_norm(name: str, results: Mapping[int, Result]) -> Row:
    ratios = [float(np.mean(_norms(r, True)) / _norms(r, False)[-1]) for r in results.values() if _norms(r, True)]
    if not ratios:
        return Row(name, None, None, None, None, "shown", "no seed got through an epoch")
    se = float(np.std(ratios, ddof=1) / len(ratios) ** 0.5) if len(ratios) > 1 else None
    return Row(name, None, float(np.mean(ratios)), se, None, "shown", "the last epoch of SGD before the split is 1")


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Figs. 4 to 6: λ̂, validation loss and update norms by epoch, the split at 0."""
    paths = []
    for scene in dict.fromkeys(r.settings["scene"] for r in results):
        some = [r for r in results if r.settings["scene"] == scene]
        path = folder / f"{scene.replace('. ', '').lower()}.png"
        paths.append(draw_curves(some, path, ("llc", "own", "trace"), scene, _label))
    return paths


def _label(result: Result) -> str:
    return f"{result.settings['optimizer']} {result.settings['lr']:g}"


RECIPE = Recipe(
    name="saghir2024-escape",
    title="SGD and natural gradient from the same state: does λ̂ rise with NGD alone?",
    paper=f"{PAPER}; section 3.3, Figs. 4 to 6",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    sizes=("toy", "paper", "full"),
    notes="SGD with momentum trains a network of two hidden layers; then SGD and natural gradient go on from there, "
    "each at its learning rate, with momentum from zero. Update norms are ‖Δw‖/lr. The online NGD that the paper ran "
    "is rescaled to the length of the gradient, so that its steps cannot grow at degenerate points, only turn; that of "
    "eq. 5-7 (empirical) is not.",
)
