"""The learning coefficient as the slope of the mean loss in the temperature.

For the posterior at inverse temperature β, with any prior,

    E_β[n L_n(w)] = n L_n(w_0) + λ/β + U_n √(λ/(2β)) + O(1),   E[U_n] = 0,

so that λ is the slope of E_β[n L_n] in 1/β, without need of a baseline: Algorithm 1 of Murfet et al. 2020, with an
average over data sets. Levels of a ladder are independent, so that generalised least squares has a diagonal covariance,
unless chains exchanged states between levels: then the covariance of the levels' means is that of batches of draws.

A straight line does not mean that λ is that of the true parameters: it is that of the region which holds the posterior
at these temperatures, and any region gives a straight line.

References:
    Watanabe 2013, JMLR 14, 867, theorem 4; Murfet et al. 2020, appendix A.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crunode.core.result import Draws, Estimate, Finding
from crunode.errors import InputError
from crunode.estimators.chains import chain_findings
from crunode.estimators.covariance import combination_se, exchanged, finite_losses, means_covariance
from crunode.estimators.extrapolate import digamma
from crunode.sampling.diagnostics import mcse_mean, split_rhat

__all__ = ["line_weights", "rlct"]

Array = NDArray[np.float64]

_FEWEST, _LINE = 3, 0.9
# Rounds in which a slope and what its multiplicity takes away come to agree, and the least slope in that.
_ROUNDS, _LEAST = 8, 0.1
# What a multiplicity of two would take away is within 1.96 of these.
_DOUBLE = 0.55
_SHIFT = 1.5


@dataclass(frozen=True)
class _Line:
    """The slope of one data set's ladder, its Monte-Carlo error, how well the line fits, and how much it bends.

    The bend is the slope of the colder half less that of the hotter half, with its error.
    """

    slope: float
    se: float
    r2: float
    bend: float
    bend_se: float
    rhat: float


def rlct(draws: Draws | Sequence[Draws], *, multiplicity: int | None = None) -> Estimate:
    """The learning coefficient by regression of E_β[n L_n] on 1/β, averaged over data sets.

    Args:
        draws: Draws on a ladder of three levels of nbeta or more, or several of them, one for each data set.
        multiplicity: m where it is known: (m − 1) / (β (log nβ − ψ(λ))) is then added to the means, which is what it
            takes away from them. None leaves that to the systematic error.

    Returns:
        The estimate. Its `se` is Monte Carlo for a single data set, and the scatter over data sets for several. The
        systematic error has two parts: half of what the slope changes by along the ladder, as far as that is more than
        chance, and 0.55 / (log nβ − ψ(λ)) at the hottest level, since a multiplicity of two would lower the slope by
        1 / (log nβ − ψ(λ)) and hardly bend it.
        `diagnostics["r2"]` has the fit of each line.

    Raises:
        InputError: There are fewer than three levels, or the multiplicity is no whole number from 1 up.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> levels = [100.0, 140.0, 200.0, 280.0, 400.0]  # L = |w|²/2 in five dimensions: λ = 5/2
        >>> losses = np.concatenate([rng.chisquare(5, (2, 5000)) / (2 * t) for t in levels])
        >>> spec = {"n": 1000, "asked": {"seed": 0}}
        >>> est = rlct(Draws({"excess": losses, "distance2": losses}, {}, np.repeat(levels, 2), spec))
        >>> est.ok, bool(abs(est.value - 2.5) < 4 * est.se)
        (True, True)
    """
    sets = [draws] if isinstance(draws, Draws) else list(draws)
    if not sets or not all(isinstance(d, Draws) for d in sets):
        raise InputError("expected Draws on a ladder of nbeta, or a sequence of them, one for each data set")
    if multiplicity is not None and (type(multiplicity) is not int or multiplicity < 1):
        raise InputError(f"expected multiplicity as a whole number from 1 up, or None, got {multiplicity!r}")
    lines = [_line(d, (multiplicity or 1) - 1) for d in sets]
    slopes = np.array([line.slope for line in lines])
    value = float(slopes.mean())
    chance = math.sqrt(sum(line.se**2 for line in lines)) / len(lines)
    se = float(slopes.std(ddof=1)) / math.sqrt(len(lines)) if len(lines) > 1 else chance
    bend = float(np.mean([line.bend for line in lines]))
    unsure = math.sqrt(sum(line.bend_se**2 for line in lines)) / len(lines)
    # The hottest levels have the most leverage, since 1/β is largest there.
    hottest = min(d.levels()[0] for d in sets)
    far = max(math.log(hottest) - digamma(max(value, 0.5)), 1.0)
    # Where m is known, a shift of the logarithm is left: the scales of prior and loss.
    rest = _DOUBLE / far if multiplicity is None else _SHIFT * (multiplicity - 1) / far**2
    terms = {"law": math.sqrt(max(bend**2 - unsure**2, 0.0)) / 2, "multiplicity": rest}
    return Estimate(
        "rlct",
        value,
        se=max(se, chance),
        systematic=math.hypot(*terms.values()),
        findings=tuple(_findings(sets, lines)),
        spec=sets[0].spec,
        seed=sets[0].spec["asked"]["seed"],
        diagnostics={
            "slopes": slopes.tolist(),
            "r2": [line.r2 for line in lines],
            "rhat": max(line.rhat for line in lines),
            "mc_se": chance,
            "bend": bend,
            "levels": [_level(sets[0], t) for t in sets[0].levels()],
        },
        terms=terms,
        provenance=sets[0].provenance,
        draws=sets[0],
    )


def _level(draws: Draws, t: float) -> dict[str, Any]:
    scaled = t * draws.at(t)["excess"].astype(np.float64)
    return {"nbeta": t, "value": float(scaled.mean()), "se": mcse_mean(scaled)}


def _line(draws: Draws, extra: int = 0) -> _Line:
    """The line through the means at all levels; `extra` is the multiplicity less one."""
    levels = draws.levels()
    if len(levels) < _FEWEST:
        raise InputError(
            f"expected a ladder of {_FEWEST} levels of nbeta or more, got {levels}; sample with a tuple, as in "
            "Posterior(land, nbeta=(50.0, 100.0, 200.0))"
        )
    n, joint = draws.spec["n"], exchanged(draws)
    losses = finite_losses(draws)
    series = [n * x for x in losses]
    hot, means = n / np.array(levels), np.array([x.mean() for x in series])
    covariance = means_covariance(series, joint)
    if not (np.diag(covariance) > 0).all():
        raise InputError("expected losses that vary at all levels, got some that do not; look at the chains")
    weights, r2 = line_weights(hot, means, covariance)
    plain = means
    for _ in range(_ROUNDS if extra else 0):
        far = np.log(levels) - digamma(max(float(weights @ means), _LEAST))
        means = plain + extra * hot / np.maximum(far, 1.0)
        weights, r2 = line_weights(hot, means, covariance)
    half = len(levels) // 2
    bend = np.zeros(len(levels))
    for part, sign in ((slice(half + 1), -1.0), (slice(half, None), 1.0)):
        bend[part] += sign * line_weights(hot[part], means[part], covariance[part, part])[0]
    rhat = max(split_rhat(x) for x in losses)
    # Halves share the level in the middle, which their difference accounts for.
    errors = [combination_se(a, series, joint) for a in (weights, bend)]
    return _Line(float(weights @ means), errors[0], r2, float(bend @ means), errors[1], rhat)


def line_weights(x: Array, y: Array, covariance: Array) -> tuple[Array, float]:
    """Weights a with slope Σ a_k y_k of the line of generalised least squares, and R² of that line.

    Args:
        x: Places of the points.
        y: Their heights.
        covariance: Covariance of the heights.

    Example:
        >>> weights, r2 = line_weights(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]), np.eye(3))
        >>> float(weights @ [1.0, 3.0, 5.0]), r2
        (2.0, 1.0)
    """
    precision = np.linalg.inv(covariance)
    design = np.stack([np.ones_like(x), x - x.mean()], axis=1)
    pull = design.T @ precision
    both = np.linalg.solve(pull @ design, pull)
    rest = y - design @ (both @ y)
    around = y - float(pull[0] @ y) / float(pull[0].sum())
    whole = float(around @ precision @ around)
    return both[1], 1 - float(rest @ precision @ rest) / whole if whole > 0 else math.nan


def _findings(sets: Sequence[Draws], lines: Sequence[_Line]) -> Iterator[Finding]:
    seen: dict[str, Finding] = {}
    for draws in sets:
        losses = {t: draws.at(t)["excess"].astype(np.float64) for t in draws.levels()}
        for finding in (*draws.findings, *chain_findings(draws, losses)):
            seen.setdefault(finding.code, finding)
    yield from seen.values()
    least = float(np.min([line.r2 for line in lines]))  # which is none where one of them is none
    if not least > _LINE:
        yield Finding.of("LLC116", f"R² {least:.2f}")
