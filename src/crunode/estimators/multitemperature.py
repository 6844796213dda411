"""The learning coefficient as the intercept of λ̂(nβ) in 1/log nβ.

At inverse temperature t = nβ the estimator is λ̂(t) = t (E_t[L_n] − L_n(w*)) = λ − (m − 1)/log t + o(1), so that a line
through λ̂(t_j) against 1/log t_j ends at λ, and its slope is −(m − 1). This removes the leading bias of a multiplicity
m > 1; where m = 1 there is none of this form, and the line should be level.

The line is the leading order only: constants in the loss and the prior shift the logarithm, λ − (m − 1)/(log t + c),
which bends it. How far a parabola, and lines in the shifted logarithm, end elsewhere is the systematic error.
`crunode.llc` averages over several such laws and over powers of t in place of it (`crunode.estimators.extrapolate`).

References:
    Cullen 2026, appendix B, eq. (10); Watanabe 2013.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crunode.core.execute import Executor
from crunode.core.landscape import Landscape
from crunode.core.result import Draws, Estimate, Finding
from crunode.errors import DiagnosticWarning, InputError
from crunode.estimators.chains import chain_findings
from crunode.estimators.covariance import combination_se, exchanged, finite_losses, means_covariance
from crunode.estimators.extrapolate import digamma
from crunode.estimators.richardson import StepBias, remove_step_bias, step_terms
from crunode.sampling.posterior import Gaussian, Posterior
from crunode.sampling.run import sample

__all__ = ["intercept_weights", "multi_temperature"]

Array = NDArray[np.float64]

_FEWEST = 3
# With three levels a parabola goes through all of them, so that nothing is left to tell noise from a bend.
_ENOUGH = 4
# The intercept may lie this many times the width of the levels away from their middle. Levels from t to t² are 1.5.
_FAR = 4.0
# Normal quantile of the chance at which a line that holds is doubted: one in 10⁴.
_SURE = 3.72
# How far the scales of prior and loss may shift the logarithm around −ψ(λ).
_SHIFT = 1.5
_LEAST = 0.02
# A level known too well would hide that the law is an approximation.
_ROUGH = 0.002


def multi_temperature(
    model: Landscape | Draws,
    *,
    levels: Sequence[float] | None = None,
    precision: float | None = None,
    kernel: Any = None,
    chains: int | None = None,
    draws: int | None = None,
    warmup: int | None = None,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
) -> Estimate:
    """λ as the intercept of λ̂(nβ_j) = nβ_j (E[L_n] − L_n(w*)) against 1/log nβ_j, with its error.

    The line is that of generalised least squares, weighted by Monte-Carlo errors. Chains of different levels are
    independent, unless they exchange states: then their correlations are accounted for.

    Args:
        model: A `Landscape`, or `Draws` on a ladder of nbeta.
        levels: Levels of nbeta, three or more, each above e. For a landscape None has four chosen, as `llc` does; for
            draws they are those to use, and None takes all.
        precision: Localisation γ; None to choose it.
        kernel: The sampler; None to choose one.
        chains: Chains per level.
        draws: Kept draws per chain.
        warmup: Steps before them.
        seed: All randomness comes from it.
        store: A run folder to write to, or to resume.
        executor: Where chains run.

    Returns:
        The estimate. `diagnostics["slope"]` is the slope in 1/log nβ, which is −(m − 1) where the law holds, with
        `diagnostics["slope_se"]`; `diagnostics["levels"]` has each λ̂(nβ_j), and `diagnostics["misfit"]` χ² per degree
        of freedom. `terms` has what the systematic error is made of: "bend", how far a parabola ends from the line
        beyond what noise explains; "shift", how far lines in a shifted logarithm do; and what the step of an unadjusted
        kernel may leave.

    Raises:
        InputError: Levels are too few, too small or not sampled, or settings are given beside draws.
        EstimationError: A chain diverged.

    Example:
        >>> rng, levels = np.random.default_rng(0), [1e2, 1e3, 1e4, 1e5]  # λ = 2, m = 2
        >>> losses = np.concatenate([rng.gamma(2 - 1 / np.log(t), 1 / t, (4, 5000)) for t in levels])
        >>> spec = {"n": 1000, "asked": {"seed": 0}}
        >>> est = multi_temperature(Draws({"excess": losses}, {}, np.repeat(levels, 4), spec))
        >>> est.ok, abs(est.value - 2) < 3 * est.se, abs(est.diagnostics["slope"] + 1) < 0.5
        (True, True, True)

    References:
        Cullen 2026, appendix B.1.
    """
    if isinstance(model, Draws):
        given = {"precision": precision, "kernel": kernel, "chains": chains, "draws": draws, "warmup": warmup}
        extra = [name for name, value in {**given, "store": store, "executor": executor}.items() if value is not None]
        if extra or seed != 0:
            raise InputError(f"expected no settings of chains beside Draws, got {', '.join(extra or ['seed'])}")
        drawn = model if levels is None else model.only(_checked(levels))
        _checked(drawn.levels())
    elif isinstance(model, Landscape):
        asked = None if levels is None else _checked(levels)
        options: dict[str, Any] = {"chains": chains, "draws": draws, "warmup": warmup, "seed": seed}
        posterior = Posterior(model, asked, Gaussian(precision))
        drawn = sample(posterior, kernel, store=store, executor=executor, checks=True, **options)
        _checked(drawn.levels())
    else:
        raise InputError(f"expected a Landscape or Draws on a ladder of nbeta, got {type(model).__name__}")
    return _announced(_estimate(drawn, model.findings if isinstance(model, Landscape) else ()))


def intercept_weights(x: Array, covariance: Array, degree: int = 1) -> tuple[Array, Array]:
    """Weights a, b with intercept Σ a_j y_j at x = 0 and slope Σ b_j y_j there, by generalised least squares.

    Args:
        x: Places of the points.
        covariance: Covariance of their heights y.
        degree: 1 for a line, 2 for a parabola.

    Example:
        >>> a, b = intercept_weights(np.array([0.1, 0.2, 0.3]), np.eye(3))
        >>> y = np.array([4.8, 4.6, 4.4])
        >>> round(float(a @ y), 9), round(float(b @ y), 9)
        (5.0, -2.0)
    """
    design = np.stack([x**k for k in range(degree + 1)], axis=1)
    root = np.linalg.cholesky(covariance)
    pull = np.linalg.pinv(np.linalg.solve(root, design)) @ np.linalg.inv(root)
    return pull[0], pull[1]


@dataclass(frozen=True)
class _Ladder:
    """Values y_j of λ̂ at levels t_j, their covariance, and the series behind them where errors come from those."""

    t: Array
    y: Array
    covariance: Array
    series: list[Array]
    joint: bool
    independent: bool

    def se(self, weights: Array) -> float:
        """Standard error of Σ a_j y_j."""
        if self.independent:  # values at step zero, which no single series has
            return math.sqrt(float(weights @ self.covariance @ weights))
        return combination_se(weights, self.series, self.joint)

    @property
    def wide(self) -> Array:
        """The covariance for weights: no level counts as known better than the law itself."""
        rough = _ROUGH * max(float(np.abs(self.y).max()), 1e-300)
        return self.covariance + rough**2 * np.eye(len(self.y))


def _ladder(draws: Draws, removed: StepBias | None) -> _Ladder:
    t = np.array(draws.levels())
    series = [level * x for level, x in zip(t, finite_losses(draws), strict=True)]
    joint = exchanged(draws)
    if removed is not None:
        return _Ladder(t, np.array(removed.values), np.diag(np.square(removed.se)), series, joint, True)
    covariance = means_covariance(series, joint)
    if not (np.diag(covariance) > 0).all():
        raise InputError("expected losses that vary at all levels, got some that do not; look at the chains")
    return _Ladder(t, np.array([x.mean() for x in series]), covariance, series, joint, False)


def _estimate(draws: Draws, findings: tuple[Finding, ...]) -> Estimate:
    removed = remove_step_bias(draws)
    ladder = _ladder(draws, removed)
    x, y = 1 / np.log(ladder.t), ladder.y
    line, slope = intercept_weights(x, ladder.wide)
    value, tilt = float(line @ y), float(slope @ y)
    rest = y - value - tilt * x
    misfit = float(rest @ np.linalg.solve(ladder.wide, rest)) / (len(y) - 2)
    stretch = math.sqrt(max(misfit, 1.0))  # levels that no line fits are worse known than they say (Birge ratio)
    terms = {"bend": _bend(ladder, x, line), "shift": _shifted(ladder, value)}
    if "measures" in draws.spec:
        terms |= step_terms(draws, draws.levels()[-1], removed)
    errors = np.sqrt(np.diag(ladder.covariance))
    rows = [
        {"nbeta": a, "value": b, "se": c}
        for a, b, c in zip(ladder.t.tolist(), y.tolist(), errors.tolist(), strict=True)
    ]
    se, slope_se = (stretch * ladder.se(a) for a in (line, slope))
    estimate = Estimate(
        "multi_temperature",
        value,
        se=se,
        systematic=math.hypot(*terms.values()),
        findings=(*findings, *_chains(draws), *_about_line(ladder.t, x, misfit, tilt, slope_se)),
        spec=draws.spec,
        seed=draws.spec["asked"]["seed"],
        diagnostics={"levels": rows, "slope": tilt, "slope_se": slope_se, "misfit": misfit},
        terms=terms,
        provenance=draws.provenance,
        draws=draws,
    )
    if value < -2 * estimate.error:
        estimate = estimate.with_findings(Finding.of("LLC101", f"{value:.3g} ± {estimate.error:.2g}"))
    return estimate


def _bend(ladder: _Ladder, x: Array, line: Array) -> float:
    """How far a parabola ends from the line, beyond the two standard errors that noise may give."""
    change = intercept_weights(x, ladder.wide, degree=2)[0] - line
    return max(abs(float(change @ ladder.y)) - 2 * ladder.se(change), 0.0)


def _shifted(ladder: _Ladder, value: float) -> float:
    """How far lines in 1/(log t + c) end from that in 1/log t: the largest for c around −ψ(λ), by its uncertainty."""
    middle = -digamma(max(value, _LEAST))
    ends = []
    for c in (middle - _SHIFT, middle, middle + _SHIFT):
        shifted = 1 / np.maximum(np.log(ladder.t) + c, 1.0)
        if np.ptp(shifted) > 0:
            ends.append(float(intercept_weights(shifted, ladder.wide)[0] @ ladder.y))
    return max((abs(end - value) for end in ends), default=0.0)


def _chains(draws: Draws) -> Iterator[Finding]:
    yield from chain_findings(draws, dict(zip(draws.levels(), finite_losses(draws), strict=True)))


def _about_line(t: Array, x: Array, misfit: float, slope: float, slope_se: float) -> Iterator[Finding]:
    lever = float(x.mean() / np.ptp(x))
    if len(t) < _ENOUGH or lever > _FAR:
        yield Finding.of(
            "LLC117", f"{len(t)} from {t[0]:.3g} to {t[-1]:.3g}; the intercept is {lever:.1f} times their width away"
        )
    if misfit > _limit(len(t) - 2):
        yield Finding.of("LLC118", f"chi-squared {misfit:.1f} per degree of freedom")
    if slope > 3 * slope_se:
        yield Finding.of("LLC119", f"slope {slope:.2g} ± {slope_se:.1g} in 1/log nbeta, where −(m − 1) is expected")


def _limit(dof: int) -> float:
    """χ² per degree of freedom that chance exceeds once in 10⁴ (Wilson & Hilferty)."""
    return (1 - 2 / (9 * dof) + _SURE * math.sqrt(2 / (9 * dof))) ** 3


def _checked(levels: Any) -> tuple[float, ...]:
    """Levels as ascending numbers, or an error."""
    listed = list(levels) if isinstance(levels, Sequence | np.ndarray) and not isinstance(levels, str | bytes) else []
    numbers = (t for t in listed if isinstance(t, int | float | np.integer | np.floating) and not isinstance(t, bool))
    good = [float(t) for t in numbers if math.e < t < math.inf]
    if len(good) < len(listed) or len(set(good)) < max(len(listed), _FEWEST):
        raise InputError(
            f"expected {_FEWEST} different levels of nbeta or more, all above e = 2.718, got {levels!r}; for example "
            "(1e2, 1e3, 1e4, 1e5)"
        )
    return tuple(sorted(good))


def _announced(estimate: Estimate) -> Estimate:
    doubts = [f for f in estimate.findings if f.severity != "info"]
    if doubts:
        warnings.warn("; ".join(str(f) for f in doubts), DiagnosticWarning, stacklevel=3)
    return estimate
