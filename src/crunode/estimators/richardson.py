"""The error of the step of an unadjusted kernel, measured at half the step and removed.

At step ε times s an estimate is λ̂(s) = λ + (u D + v H) s/(1 − ρs) + r λ s + g s², where

- D is what discretisation adds to first order, as predicted from the curvature or from the acceptance of proposals,
- H is what minibatch noise adds to first order, as predicted from the scatter of gradients,
- ρ = ε (nβ Tr(H²)/Tr(H) + γ)/4 gives the next order on quadratics, exactly so if all curvatures are equal,
- r is a linear part that was not predicted, the same share at each level, and
- g is a quadratic one, from thin arms of singular landscapes.

λ of each level is free; u and v are 1, and r and g are 0, but for what s = 1 and s = 1/2 show at all levels together
(normal priors). For g alone this is Richardson extrapolation of second order, for r alone of first order.

References:
    Richardson 1911; Durmus et al. 2016 (for SGLD).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crunode.core.result import Draws
from crunode.sampling.diagnostics import mcse_mean
from crunode.sampling.stepping import accepted_share, friction_of, predicted

__all__ = ["StepBias", "Stepped", "remove_step_bias", "solve", "step_terms", "without_step_bias"]

# Standard deviations of u, v, r and g/λ beforehand, by how well theory fits the kernel.
_PREDICTED, _HEAT, _LINEAR, _SQUARE = 0.3, 0.5, 0.02, 0.3
_LOOSE = 1.0
# What the acceptance says of directions of equal curvature; with unequal ones discretisation adds less.
_FROM_ACCEPTANCE = 0.5
_LARGEST_RATIO = 0.9


@dataclass(frozen=True)
class Stepped:
    """Estimates of one level at the full and at half the step, with what theory says.

    Attributes:
        nbeta: The level.
        full: λ̂ at the step.
        full_se: Its Monte-Carlo error.
        half: λ̂ at half the step.
        half_se: Its Monte-Carlo error.
        discretisation: D.
        heating: H.
        ratio: ρ.
    """

    nbeta: float
    full: float
    full_se: float
    half: float
    half_se: float
    discretisation: float
    heating: float
    ratio: float = 0.0


@dataclass(frozen=True)
class StepBias:
    """Estimates without the error of the step.

    Attributes:
        values: λ at each level.
        se: Monte-Carlo errors.
        left: Standard deviation of what may be left of the error of the step.
        measured: λ̂ at the full step minus λ, the error removed.
        measured_se: Its error, all parts.
        heating: The part of it that minibatches make.
    """

    values: tuple[float, ...]
    se: tuple[float, ...]
    left: tuple[float, ...]
    measured: tuple[float, ...]
    measured_se: tuple[float, ...]
    heating: tuple[float, ...]

    def summary(self, levels: Sequence[float]) -> list[dict[str, float]]:
        """One row for each level, as JSON-able values."""
        names = ("value", "se", "left", "bias", "bias_se", "heating")
        columns = (self.values, self.se, self.left, self.measured, self.measured_se, self.heating)
        return [{"nbeta": t, **dict(zip(names, row, strict=True))} for t, *row in zip(levels, *columns, strict=True)]


def solve(levels: Sequence[Stepped], *, loose: bool = False, expected: float = 1.0) -> StepBias:
    """Estimates at step zero from those at a step and at half of it.

    All is linear and normal: the posterior mean is a linear map of the data, whose errors make the Monte-Carlo error;
    what the priors add is left as a systematic one.

    Args:
        levels: Estimates and predictions of each level.
        loose: Theory does not fit the kernel well (preconditioned, thermostat).
        expected: u and v beforehand.

    Example:
        >>> full, half = 10 / (1 - 0.1), 10 / (1 - 0.05)  # a quadratic, ε a = 0.4
        >>> found = solve([Stepped(100.0, full, 0.01, half, 0.01, 1.0, 0.0, 0.1)])
        >>> round(found.values[0], 2), round(found.measured[0], 2)
        (10.0, 1.11)
    """
    count = len(levels)
    scale = np.array([max(abs(level.half), 1e-12) for level in levels])
    first = np.array([[x.discretisation, x.heating] for x in levels])
    deviation = np.array(
        [_LOOSE if loose else _PREDICTED, _LOOSE if loose else _HEAT, _LINEAR, *[_SQUARE] * count], dtype=float
    )
    mean = np.array([expected, expected, 0.0, *[0.0] * count])
    rows, data, weight = [], [], []
    for j, level in enumerate(levels):
        for s, value, se in ((1.0, level.full, level.full_se), (0.5, level.half, level.half_se)):
            curved = s / (1 - s * min(level.ratio, _LARGEST_RATIO))
            square = np.eye(count)[j] * s**2 * scale[j]
            rows.append([*np.eye(count)[j], *(curved * first[j]), s * scale[j], *square])
            data.append(value)
            weight.append(1 / max(se, 1e-6 * scale[j]) ** 2)
    design, y, w = np.array(rows), np.array(data), np.array(weight)
    prior = np.diag([*[0.0] * count, *(1 / deviation**2)])
    covariance = np.linalg.inv(design.T @ (w[:, None] * design) + prior)
    gain = covariance @ (design.T * w)
    found = gain @ y + covariance @ prior @ np.concatenate([np.zeros(count), mean])
    sampled = gain @ np.diag(1 / w) @ gain.T
    leftover = covariance @ prior @ covariance
    full = design[::2]
    bias = full.copy()
    bias[:, :count] = 0.0
    only_heat = np.zeros_like(bias)
    only_heat[:, count + 1] = full[:, count + 1]
    second = full[:, count : count + 2].sum(1) * np.array([min(x.ratio, _LARGEST_RATIO) for x in levels])
    return StepBias(
        tuple(found[:count].tolist()),
        tuple(np.sqrt(np.diag(sampled)[:count]).tolist()),
        # The next order is known only as far as the landscape is quadratic.
        tuple(np.hypot(np.sqrt(np.diag(leftover)[:count]), second / 16).tolist()),
        tuple((bias @ found).tolist()),
        tuple(np.sqrt(np.diag(bias @ covariance @ bias.T)).tolist()),
        tuple((only_heat @ found).tolist()),
    )


def remove_step_bias(draws: Draws) -> StepBias | None:
    """Estimates at step zero from draws with rungs at half the step; None where there are none.

    Example:
        >>> import torch
        >>> from crunode.core.landscape import Landscape
        >>> from crunode.sampling.posterior import Posterior
        >>> from crunode.sampling.run import sample
        >>> from crunode.sampling.stochastic import SGLD
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(8))
        >>> drawn = sample(Posterior(land, nbeta="wbic"), SGLD(), chains=16, draws=1000, warmup=100, checks=True)
        >>> found = remove_step_bias(drawn)
        >>> abs(found.values[0] - 4) < 3 * found.se[0] < found.measured[0]
        True
    """
    roles = draws.spec.get("role_per_chain", ())
    if "step" not in roles:
        return None
    kernel, measures = draws.spec["kernel"], draws.spec["measures"]
    accepted = measures.get("pilot_acceptance") or [None] * len(draws.spec["nbeta"])
    levels = []
    for t in draws.levels():
        at = draws.spec["nbeta"].index(t)
        full, half = (t * draws.at(t, role)["excess"].astype(np.float64) for role in ("ladder", "step"))
        disc, heat = _predictions(draws.spec, at)
        value = float(half.mean())
        if accepted[at] is not None and value > 0:
            shrunk = measures.get("step_factors", [1.0] * len(accepted))[at]
            known = _FROM_ACCEPTANCE * value * accepted_share(accepted[at], 2 * value)
            disc = max(disc, shrunk * known / (2 - friction_of(kernel)))
        step = kernel["step"][at] if isinstance(kernel["step"], list) else kernel["step"]
        trace, square = (measures["away"][name][at] for name in ("trace", "square"))
        curvature = t * square / trace if trace > 0 else 0.0
        ratio = step * curvature / (4 * (2 - friction_of(kernel)))
        levels.append(
            Stepped(t, float(full.mean()), mcse_mean(full), value, mcse_mean(half), disc, heat, max(ratio, 0.0))
        )
    # A thermostat holds the mean over all directions, and with it most of what the step would add.
    thermostat = kernel["name"] == "SGNHT"
    return solve(levels, loose=thermostat or kernel["name"] == "PSGLD", expected=0.0 if thermostat else 1.0)


def without_step_bias(rows: list[dict[str, float]], removed: StepBias | None) -> list[dict[str, float]]:
    """Rows of levels with the value and error at step zero; "at_step" keeps the value at the step.

    Example:
        >>> without_step_bias([{"value": 2.0, "se": 0.1}], None)
        [{'value': 2.0, 'se': 0.1}]
    """
    if removed is None:
        return rows
    each = zip(rows, removed.values, removed.se, strict=True)
    return [{**row, "value": value, "se": se, "at_step": row["value"]} for row, value, se in each]


def step_terms(draws: Draws, nbeta: float, removed: StepBias | None = None) -> dict[str, float]:
    """Systematic errors "discretisation" and "heating" of the estimate at a level.

    Where the error of the step was measured and removed, what may be left of it, shared out as the error was; otherwise
    what is predicted, see `crunode.sampling.stepping.predicted`.
    """
    measures = draws.spec["measures"]
    if "gradient_noise" not in measures:
        return {}
    if removed is None:
        disc, heat = _predictions(draws.spec, draws.spec["nbeta"].index(nbeta))
        return {"discretisation": disc, "heating": heat}
    j = draws.levels().index(nbeta)
    share = min(max(removed.heating[j] / removed.measured[j], 0.0), 1.0) if removed.measured[j] > 0 else 0.0
    left = removed.left[j]
    return {"discretisation": left * math.sqrt(1 - share), "heating": left * math.sqrt(share)}


def _predictions(spec: Mapping[str, Any], at: int) -> tuple[float, float]:
    measures, kernel = spec["measures"], spec["kernel"]
    center = {"trace": abs(measures["curvature_trace"]), "noise": measures["gradient_noise"], "controlled": 0.0}
    away = measures.get("away", {name: [value] * (at + 1) for name, value in center.items()})
    rows = spec.get("rows", spec["n"])
    return predicted(
        kernel["step"][at] if isinstance(kernel["step"], list) else kernel["step"],
        spec["nbeta"][at],
        trace=away["trace"][at],
        noise=away["controlled" if kernel.get("control") else "noise"][at],
        batch=kernel["batch"] if kernel["batch"] < rows else math.inf,
        friction=friction_of(kernel),
    )
