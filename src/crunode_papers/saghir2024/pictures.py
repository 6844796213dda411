"""Pictures of the recipes: by network, by epoch, by smoothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crunode.core import need
from crunode.jobs import Result
from crunode_papers.claims.rows import QUANTITIES, measured
from crunode_papers.saghir2024.plans import net_name

__all__ = ["draw_against_width", "draw_curves", "draw_sweep"]


def draw_against_width(results: Sequence[Result], path: Path, keys: Sequence[str]) -> Path:
    """Means over seeds at the last epoch, by data set and network, for each optimizer."""
    labels = list(dict.fromkeys(f"{r.settings['data']}\n{net_name(r.settings['net'])}" for r in results))
    pyplot = need("matplotlib.pyplot", extra="plot")
    figure, axes = pyplot.subplots(len(keys), 1, figsize=(7, 2.6 * len(keys)), sharex=True, squeeze=False)
    for axis, key in zip(axes[:, 0], keys, strict=True):
        optimizers = list(dict.fromkeys(r.settings["optimizer"] for r in results))
        for shift, optimizer in enumerate(optimizers):
            heights, errors = [], []
            for label in labels:
                values = [
                    measured(r["points"][-1], key)
                    for r in results
                    if r.settings["optimizer"] == optimizer
                    and f"{r.settings['data']}\n{net_name(r.settings['net'])}" == label
                    and r["points"]
                ]
                mean, se = _mean([v for v in values if v is not None])
                heights.append(mean)
                errors.append(se)
            places = np.arange(len(labels)) + 0.12 * (shift - len(optimizers) / 2)
            axis.errorbar(places, heights, yerr=errors, fmt="o", ms=4, label=optimizer)
        axis.set_ylabel(QUANTITIES[key])
    axes[-1, 0].set_xticks(range(len(labels)), labels, fontsize=6)
    axes[0, 0].legend(fontsize=7)
    return _saved(pyplot, figure, path)


def draw_curves(
    results: Sequence[Result],
    path: Path,
    keys: Sequence[str],
    title: str,
    label: Callable[[Result], str] = lambda r: str(r.settings["optimizer"]),
) -> Path:
    """Means over seeds of what was measured, and of the validation loss and update norms, by epoch."""
    pyplot = need("matplotlib.pyplot", extra="plot")
    panels = [*keys, "validation_loss", "update_norm"]
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(6, 2 * len(panels)), sharex=True)
    for axis, key in zip(axes, panels, strict=True):
        for name in dict.fromkeys(label(r) for r in results):
            some = [r for r in results if label(r) == name]
            source = "curve" if key in panels[-2:] else "points"
            epochs = sorted({row["epoch"] for r in some for row in r[source]})
            found = [_at(some, source, epoch, key) for epoch in epochs]
            axis.errorbar(epochs, [m for m, _ in found], yerr=[s for _, s in found], marker=".", lw=1, label=name)
        axis.set_ylabel(QUANTITIES.get(key, key.replace("_", " ")), fontsize=8)
    axes[-1].set_xlabel("epoch")
    axes[0].set_title(title, fontsize=9)
    axes[0].legend(fontsize=7)
    return _saved(pyplot, figure, path)


def draw_sweep(results: Sequence[Result], path: Path, name: str, keys: Sequence[str]) -> Path:
    """Means over seeds at the last epoch against a smoothing constant, for each optimizer; SGD as lines."""
    pyplot = need("matplotlib.pyplot", extra="plot")
    figure, axes = pyplot.subplots(1, len(keys), figsize=(4 * len(keys), 3.2), squeeze=False)
    for axis, key in zip(axes[0], keys, strict=True):
        for optimizer in dict.fromkeys(r.settings["optimizer"] for r in results):
            some = [r for r in results if r.settings["optimizer"] == optimizer and r["points"]]
            values = sorted({r.settings[name] for r in some if r.settings.get("sweep") == name})
            if not values:
                mean, _ = _mean([v for r in some if (v := measured(r["points"][-1], key)) is not None])
                axis.axhline(mean, ls="--", color="gray" if optimizer == "sgd" else "silver", label=optimizer)
                continue
            found = [
                _mean(
                    [
                        v
                        for r in some
                        if r.settings.get("sweep") == name
                        and r.settings[name] == value
                        and (v := measured(r["points"][-1], key)) is not None
                    ]
                )
                for value in values
            ]
            axis.errorbar(values, [m for m, _ in found], yerr=[s for _, s in found], marker="o", ms=4, label=optimizer)
        axis.set(xscale="log", xlabel=name, ylabel=QUANTITIES[key])
    axes[0, 0].legend(fontsize=7)
    return _saved(pyplot, figure, path)


def _at(results: Sequence[Result], source: str, epoch: int, key: str) -> tuple[float, float]:
    values = [measured(row, key) for r in results for row in r[source] if row["epoch"] == epoch]
    return _mean([v for v in values if v is not None])


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error; nan, which draws nothing, without values."""
    if not values:
        return float("nan"), 0.0
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


def _saved(pyplot: Any, figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path
