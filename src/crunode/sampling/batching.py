"""Minibatch and step of unadjusted kernels, from what the gradients of single examples and the curvature say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.rng import derived_seed
from crunode.sampling.control import affordable
from crunode.sampling.kernel import has_setting
from crunode.sampling.pilot import Pilot
from crunode.sampling.posterior import wbic_nbeta
from crunode.sampling.stepping import Explored, bounded, calming, friction_of, noise_away, predicted, steps_of

__all__ = ["fill_batch", "gradient_noise", "measure_noise", "smaller_steps"]

_SMALLEST = 256
# Heating, as a share of the estimate, from which batches are made larger, and from which a control variate is worth it.
_HOT, _WARM = 0.05, 0.005
_MOST_FRICTION = 0.9
# The share of the noise that a control variate may leave.
_BETTER = 0.6


def gradient_noise(land: Landscape, seed: int, batches: int = 8, size: int = 32) -> float:
    """Trace of the covariance of single-example gradients at the center, from a few small batches."""
    size = min(size, land.data.rows)
    generator = torch.Generator().manual_seed(derived_seed(seed, 12))
    rows = []
    for _ in range(batches):
        index = torch.randperm(land.data.rows, generator=generator)[:size].to(land.device)
        batch = land.data.take(index)
        size = leaves(batch)[0].shape[0]  # in a list of batches, that of the batch
        rows.append(land.batch_gradient(land.center, batch) * math.sqrt(size))
    return float(torch.stack(rows).var(0).double().sum())


def measure_noise(
    land: Landscape,
    levels: tuple[float, ...],
    first: Pilot | None,
    found: Explored | None,
    measures: dict[str, Any],
    seed: int,
) -> None:
    """Record the noise of gradients at the center, and curvature and noise at points that chains reach at each level.

    Without such points the curvature is that at the center, and the noise that of the pilot's; what a control variate
    leaves of it falls as 1/nβ.
    """
    measures["gradient_noise"] = gradient_noise(land, seed)
    if found is not None:
        measures["away"] = {name: list(value) for name, value in vars(found).items() if isinstance(value, tuple)}
        return
    plain, controlled = measures["gradient_noise"], 0.0
    if first is not None:
        generator = torch.Generator().manual_seed(derived_seed(seed, 15))
        each = [noise_away(land, w, generator) for w in first.last]
        plain, controlled = (sum(column) / len(each) for column in zip(*each, strict=True))
    start, trace = levels[0] if first is None else first.nbeta[0], abs(measures["curvature_trace"])
    columns = {"trace": trace, "square": measures["curvature_square"], "noise": plain}
    measures["away"] = {name: [value] * len(levels) for name, value in columns.items()}
    measures["away"]["controlled"] = [controlled * start / t for t in levels]


def fill_batch(
    land: Landscape,
    levels: tuple[float, ...],
    kernel: Any,
    first: Pilot | None,
    measures: Mapping[str, Any],
    reasons: dict[str, str],
) -> Any:
    """Fill in the batch, and whether minibatch noise at the center is taken away (unless the step was given).

    Heating goes as 1/(Bα), and so do the steps in which flat directions forget as α: where it takes a larger batch B
    to keep heating low, less friction α would gain nothing. So the batch is that of Langevin steps, and the friction of
    a kernel that was not asked for is what heating allows.
    """
    rows, away = land.data.rows, measures["away"]
    size = signal(first, measures)
    base = min(range(len(levels)), key=lambda j: abs(math.log(levels[j] / wbic_nbeta(land.n))))
    step = steps_of(kernel, len(levels))[base]
    free = has_setting(kernel, "friction") and reasons["kernel"] != "as asked"
    friction = 1.0 if free else friction_of(kernel)

    def heating(batch: int, control: bool) -> float:
        here, most = away["controlled" if control else "noise"][base], batch if batch < rows else math.inf
        return predicted(step, levels[base], trace=0.0, noise=here, batch=most, friction=friction)[1]

    batch = min(_SMALLEST if kernel.batch is None else kernel.batch, rows)
    control = kernel.control
    if has_setting(kernel, "control") and control is None and reasons["step"] != "as asked":
        better = heating(batch, True) < _BETTER * heating(batch, False)
        control = better and heating(batch, False) > _WARM * size and affordable(land, batch)
        yes, no = "minibatch noise at the center is taken away", "minibatch noise is small, or not that at the center"
        reasons["control"] = yes if control else no if affordable(land, batch) else "it would take too much memory"
    if kernel.batch is not None:
        reasons["batch"] = "as asked"
    else:
        while batch < rows and heating(batch, bool(control)) > _HOT * size:
            batch = min(2 * batch, rows)
        reasons["batch"] = "256" if batch == 256 else f"{batch}, so that minibatch noise heats by less than 5 %"
    if free:
        needed = heating(batch, bool(control)) / (_HOT * size)
        if needed > kernel.friction:
            kernel = replace(kernel, friction=min(needed, _MOST_FRICTION))
            reasons["friction"] = f"{kernel.friction:.2g}, so that minibatch noise heats by less than 5 %"
    return replace(kernel, batch=batch, **({"control": control} if has_setting(kernel, "control") else {}))


def smaller_steps(
    land: Landscape,
    levels: tuple[float, ...],
    kernel: Any,
    first: Pilot | None,
    precision: float,
    measures: dict[str, Any],
    reasons: dict[str, str],
) -> Any:
    """Smaller steps where curvature is high away from the center, or where they are predicted to add much."""
    away, start = measures["away"], steps_of(kernel, len(levels))
    steps = bounded(start, levels, away.get("largest", [0.0] * len(levels)), precision)
    noise = away["controlled" if kernel.control else "noise"]
    options = {"batch": kernel.batch if kernel.batch < land.data.rows else math.inf, "friction": friction_of(kernel)}
    added = [
        sum(predicted(e, t, trace=h, noise=c, **options))
        for e, t, h, c in zip(steps, levels, away["trace"], noise, strict=True)
    ]
    factors = calming([b / signal(first, measures) for b in added])
    steps = tuple(e * f for e, f in zip(steps, factors, strict=True))
    measures["step_factors"] = [e / s for e, s in zip(steps, start, strict=True)]
    if min(measures["step_factors"]) < 1:
        reasons["step"] += ", and smaller where that is too large for what chains meet away from the center"
    return replace(kernel, step=steps if isinstance(kernel.step, tuple) else steps[0])


def signal(first: Pilot | None, measures: Mapping[str, Any]) -> float:
    """A rough learning coefficient.

    The pilot's may be low, since the center is no minimum of its few examples; the number of directions that carry the
    curvature bounds it from below.
    """
    trace, square = measures["curvature_trace"], measures["curvature_square"]
    return max(0.5 * trace**2 / square if square > 0 else 0.0, 1.0, *(first.signal if first is not None else ()))
