"""The learning coefficient and its multiplicity from how the free energy grows.

With t = nβ, F(t) = −log ∫ exp(−t L_n(w)) φ(w) dw and w* a true parameter,

    F(t) − t L_n(w*) = λ log t − (m − 1) log log t + c + o(1).

The increments of F between neighbouring levels come from the draws of both by Bennett's rule, with their covariance,
as neighbours share a level. Several laws are fitted to those of the colder part of a ladder:

    F = λ log t − (m − 1) log(log t − ψ(λ) + s) − log(1 − q t^−p) + b t/n + c.

The logarithm is that of the Laplace transform of a density of states s^(λ−1) (log 1/s)^(m−1), with a shift s of order
one from the scales of prior and loss; λ + p is the next pole of the zeta function; b is what label noise does.
Beforehand a pole is simple rather than double, and no next one near is the likeliest; then come the distances that
powers have, 1/2 and 1 of squares before 1/4 of fourth powers and that before 1/3 and 1/6 of sixth ones.
The answer is the average over the laws by how well they fit, and their spread is the systematic error.

References:
    Bennett 1976, J. Comp. Phys. 22, 245; Watanabe 2009, theorem 6.7 and chapter 4 (the expansion); Jay & Neil 2021,
    Phys. Rev. D 103, 114502 (averages over laws and over where to begin).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crunode.core.result import Draws, Estimate, Finding
from crunode.errors import InputError
from crunode.estimators.chains import chain_findings
from crunode.estimators.covariance import exchanged, finite_losses, means_covariance
from crunode.estimators.extrapolate import digamma
from crunode.sampling.diagnostics import mcse_mean, split_rhat

__all__ = ["Increments", "coefficient_from_energy", "gap_findings", "increments"]

Array = NDArray[np.float64]

_OVERLAP, _NONE = 0.03, 1e-6
_FEWEST = 4
# Levels count from where t E_t[L] has come to this share of its largest value: hotter ones feel the prior's form.
_RISEN = 0.75
# How likely each multiplicity is beforehand; shifts s of the logarithm and their weights.
_MULTIPLICITY = {1: 0.6, 2: 0.3, 3: 0.1}
_SHIFTS = np.linspace(-3.0, 3.0, 13)
_SHIFT = 1.5
# Distances p to the next pole, likewise, and the share q that it may have at the hottest level used.
_POLES = {1: {0.0: 0.25, 1 / 6: 0.1, 0.25: 0.15, 1 / 3: 0.1, 0.5: 0.2, 1.0: 0.2}, 2: {0.0: 0.4, 0.5: 0.3, 1.0: 0.3}}
_SHARES = (-1.0, -0.5, -0.25, -0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
# A law is no better than this share of the coefficient, times the increment of log t.
_ROUGH = 0.005
_SURE, _MISFIT = 0.9, 4.0
# Repeats with added noise that show how far chance moves the average.
_REPEATS = 40


@dataclass(frozen=True)
class Increments:
    """Increments of F − t L_n(w*) between neighbouring levels.

    Attributes:
        nbeta: The levels t.
        change: The increments, one less than levels.
        covariance: Their covariance.
        overlap: How far the losses of each two neighbours overlap, from 0 to 1.
        integral: The increments by the trapezium of E_t[L] with its first correction, as a check.
    """

    nbeta: Array
    change: Array
    covariance: Array
    overlap: Array
    integral: Array


def increments(levels: Sequence[float], losses: Sequence[Array], *, joint: bool = False) -> Increments:
    """Increments of F by Bennett's rule, with the covariance that comes from shared levels.

    Args:
        levels: Levels t, ascending.
        losses: Losses above the center's at each level, shape (chain, draw).
        joint: Whether the same chain and draw of all levels belong together, as with replica exchange.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> found = increments([1.0, 2.0, 4.0], [rng.chisquare(2, (4, 1000)) / (2 * t) for t in (1.0, 2.0, 4.0)])
        >>> bool(np.abs(found.change - np.log(2)).max() < 0.1)  # L = |w|²/2 in the plane: F = log t + c
        True
    """
    rungs = list(zip(levels, losses, strict=True))
    steps = [_between(b - a, x, y) for (a, x), (b, y) in pairwise(rungs)]
    size = len(steps)
    covariance = np.zeros((size, size))
    if joint and size:
        covariance = means_covariance([step.hot + step.cold for step in steps], joint=True)
    elif size:
        for k in range(size + 1):  # level k has a part in the increments before and after it
            parts = [(j, steps[j].cold if j < k else steps[j].hot) for j in (k - 1, k) if 0 <= j < size]
            index = [j for j, _ in parts]
            covariance[np.ix_(index, index)] += means_covariance([x for _, x in parts], joint=True)
    covariance = covariance + np.diag([step.unknown**2 for step in steps])
    return Increments(
        np.asarray(levels, dtype=np.float64),
        np.array([step.change for step in steps]),
        covariance,
        np.array([step.overlap for step in steps]),
        np.array([step.integral for step in steps]),
    )


def coefficient_from_energy(draws: Draws, *, multiplicity: int | None = None) -> Estimate:
    """λ and multiplicity from the growth of the free energy, F(t) − t L_n(w*) = λ log t − (m − 1) log log t + c.

    Needs a ladder whose colder part spans a decade or more, with neighbours that overlap: a factor of two between them
    does for most models. It need not reach back to the prior, since only increments count.

    Args:
        draws: Draws on a ladder of nbeta around a center that is a true parameter.
        multiplicity: m where it is known; None averages over 1, 2 and 3 by how well they fit.

    Returns:
        The estimate of λ. `diagnostics["multiplicity"]` has the probability of each m, `diagnostics["curve"]` the
        increments of F and λ̂ = dF/d log t between levels, `diagnostics["from"]` the hottest level used. The systematic
        error is the spread between the laws.

    Raises:
        InputError: There are too few levels, or the multiplicity is no whole number from 1 up.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> levels = [2.0**k for k in range(4, 14)]  # L = |w|²/2 in five dimensions: λ = 5/2, m = 1
        >>> losses = np.concatenate([rng.chisquare(5, (4, 2000)) / (2 * t) for t in levels])
        >>> spec = {"n": 10_000, "asked": {"seed": 0}}
        >>> draws = Draws({"excess": losses, "distance2": losses}, {}, np.repeat(levels, 4), spec)
        >>> est = coefficient_from_energy(draws)
        >>> est.ok, bool(abs(est.value - 2.5) < 0.1), bool(est.diagnostics["multiplicity"]["1"] > 0.5)
        (True, True, True)
    """
    if not isinstance(draws, Draws):
        raise InputError(f"expected Draws on a ladder of nbeta, got {type(draws).__name__}")
    levels = draws.levels()
    if len(levels) < _FEWEST:
        raise InputError(
            f"expected a ladder of {_FEWEST} levels of nbeta or more, got {levels}; sample with a tuple, as in "
            "Posterior(land, nbeta=(100.0, 200.0, 400.0, 800.0, 1600.0))"
        )
    if multiplicity is not None and (type(multiplicity) is not int or multiplicity < 1):
        raise InputError(f"expected multiplicity as a whole number from 1 up, or None, got {multiplicity!r}")
    losses = finite_losses(draws)
    start = _cold(levels, losses)
    levels, losses = levels[start:], losses[start:]
    if any(mcse_mean(x) == 0 for x in losses):
        raise InputError("expected losses that vary at all levels, got some that do not; look at the chains")
    found = increments(levels, losses, joint=exchanged(draws))
    noisy = any(float((x < 0).mean()) > 0 for x in losses)
    # There are no more than coordinates to take part in a crossing.
    most = max(draws.spec.get("dim") or max(_MULTIPLICITY), 1)
    likely = {m: p for m, p in _MULTIPLICITY.items() if m <= most} if multiplicity is None else {multiplicity: 1.0}
    best = _averaged(found, draws.spec["n"], noisy, likely)
    growth = np.diff(np.log(found.nbeta))
    curve = [
        {"nbeta": [a, b], "value": float(d), "se": float(e), "slope": float(d / g), "overlap": float(o)}
        for (a, b), d, e, g, o in zip(
            pairwise(levels), found.change, np.sqrt(np.diag(found.covariance)), growth, found.overlap, strict=True
        )
    ]
    chances = {str(m): float(p) for m, p in best.multiplicity.items()}
    return Estimate(
        "coefficient_from_energy",
        best.value,
        se=best.se,
        systematic=best.spread,
        findings=tuple(_findings(draws, found, dict(zip(levels, losses, strict=True)), best)),
        spec=draws.spec,
        seed=draws.spec["asked"]["seed"],
        diagnostics={
            "multiplicity": chances,
            "curve": curve,
            "from": best.start,
            "misfit": best.misfit,
            "laws": best.laws,
            "rhat": max(split_rhat(x) for x in losses),
        },
        terms={"law": best.spread},
        provenance=draws.provenance,
        draws=draws,
    )


@dataclass(frozen=True)
class _Step:
    """An increment of F, and the series of draws whose means move it: of the hotter level and of the colder one.

    `unknown` is the error of an increment between levels without any overlap.
    """

    change: float
    hot: Array
    cold: Array
    overlap: float
    integral: float
    unknown: float = 0.0


def _between(width: float, hot: Array, cold: Array) -> _Step:
    """The increment of F over `width` in t, from draws at both ends."""
    one, two = width * hot, width * cold
    low, high = float(min(one.min(), two.min())), float(max(one.max(), two.max()))
    change = 0.5 * (low + high)
    while low < change < high:  # as long as there are numbers between them
        if _logistic(one - change).mean() > _logistic(change - two).mean():
            high = change
        else:
            low = change
        change = 0.5 * (low + high)
    forth, back = _logistic(one - change), _logistic(change - two)
    slope = max(float((forth * (1 - forth)).mean() + (back * (1 - back)).mean()), 1e-300)
    # The trapezium with its first correction, since the derivative of E_t[L] is −Var_t[L].
    integral = 0.5 * (one.mean() + two.mean()) + (two.var() - one.var()) / 12
    overlap = float(forth.mean() + back.mean())
    if overlap < _NONE:  # all that is known is that the increment lies between the two means
        nothing = np.zeros_like(hot)
        ends = float(one.mean()), float(two.mean())
        return _Step(0.5 * sum(ends), nothing, nothing, overlap, float(integral), abs(ends[0] - ends[1]) / 2)
    return _Step(change, -forth / slope, back / slope, overlap, float(integral))


def _logistic(x: Array) -> Array:
    """1 / (1 + exp(x)), without overflow."""
    return 0.5 * (1 - np.tanh(0.5 * x))


def _cold(levels: Sequence[float], losses: Sequence[Array]) -> int:
    """The first level of the colder part, with enough levels left."""
    scaled = np.array([t * x.mean() for t, x in zip(levels, losses, strict=True)])
    last = len(levels) - _FEWEST
    risen = np.flatnonzero(scaled < _RISEN * scaled.max())
    below = [k for k in risen.tolist() if k <= last and levels[k] < levels[int(scaled.argmax())]]
    first = max(below, default=-1) + 1
    # The logarithm of a logarithm means nothing before.
    return min(max(first, sum(t < math.e for t in levels)), last)


@dataclass(frozen=True)
class _Average:
    value: float
    se: float
    spread: float
    multiplicity: dict[int, float]
    misfit: float
    laws: list[dict[str, Any]]
    start: float


@dataclass(frozen=True)
class _Laws:
    """What each law adds to λ log t, as increments (law, increment), and how likely it is beforehand."""

    names: list[tuple[int, float]]
    added: Array
    log_prior: Array


@dataclass(frozen=True)
class _Cut:
    """All laws fitted to the increments from one level on.

    Attributes:
        start: That level.
        laws: The laws.
        values: λ of each (repeat, law); repeats after the first have noise of the increments' covariance added.
        scores: Log weight of each.
        misfit: χ² per increment of the law that fits best.
        unsure: Variance of λ from noise of labels.
    """

    start: float
    laws: _Laws
    values: Array
    scores: Array
    misfit: float
    unsure: float


def _averaged(found: Increments, n: int, noisy: bool, likely: Mapping[int, float]) -> _Average:
    growth = np.diff(np.log(found.nbeta))
    guess, stretch = max(float((found.change / growth)[-1]), 0.05), 1.0
    starts = range(max(len(growth) - _FEWEST, 0) + 1)
    shaken = found.change[None]
    cuts: list[_Cut] = []
    # The logarithm's shift depends on λ, so that the fit is repeated with the value it gave.
    for last in (False, False, False, False, True):
        if last:
            spread = np.linalg.cholesky(stretch * found.covariance + 1e-12 * np.diag(np.diag(found.covariance)))
            noise = np.random.default_rng(0).standard_normal((_REPEATS, len(growth))) @ spread.T
            # Around a smooth curve, since the increments have their own noise already.
            noise += _shares(cuts[0].scores[0]) @ (cuts[0].values[0][:, None] * growth + cuts[0].laws.added)
            shaken = np.concatenate([shaken, noise])
        wide = stretch * found.covariance + np.diag((_ROUGH * guess * growth) ** 2)
        if noisy:
            wide = wide + guess**2 * np.outer(*(2 * [np.diff(found.nbeta / n)]))
        plain = stretch * found.covariance + np.diag((_ROUGH * guess * growth) ** 2)
        cuts = [_cut(found.nbeta[k:], shaken[:, k:], wide[k:, k:], plain[k:, k:], guess, likely, k) for k in starts]
        misfit = stretch * min(cut.misfit for cut in cuts)
        # Increments that no law fits are worse known than they say (Birge ratio).
        stretch = max(1.0, misfit)
        scores, values = (np.concatenate([getattr(c, name) for c in cuts], axis=1) for name in ("scores", "values"))
        weights = _shares(scores)
        averages = (weights * values).sum(axis=1)
        guess = max(float(averages[0]), 0.02)
    sizes = [len(cut.laws.names) for cut in cuts]
    names = [name for cut in cuts for name in cut.laws.names]
    multiplicity = dict.fromkeys(sorted({m for m, _ in names}), 0.0)
    parts = dict.fromkeys(names, 0.0)
    for name, weight in zip(names, weights[0].tolist(), strict=True):
        multiplicity[name[0]] += weight
        parts[name] += weight
    between = weights[0] @ ((values[0] - averages[0]) ** 2 + np.repeat([cut.unsure for cut in cuts], sizes))
    return _Average(
        float(averages[0]),
        float(averages[1:].std(ddof=1)),
        math.sqrt(float(between)),
        multiplicity,
        misfit,
        [{"m": m, "next": p, "weight": w} for (m, p), w in sorted(parts.items(), key=lambda item: -item[1])],
        math.exp(float(weights[0] @ np.repeat([math.log(cut.start) for cut in cuts], sizes))),
    )


def _shares(scores: Array) -> Array:
    """Weights that add up to one, from their logarithms but for a constant."""
    shares: Array = np.exp(scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True))
    return shares


def _cut(
    t: Array, change: Array, wide: Array, plain: Array, guess: float, likely: Mapping[int, float], left_out: int
) -> _Cut:
    laws = _laws(t, guess, likely)
    factor = np.linalg.cholesky(wide)
    x = np.linalg.solve(factor, np.diff(np.log(t)))
    y = np.linalg.solve(factor, change.T).T[:, None] - np.linalg.solve(factor, laws.added.T).T
    square = float(x @ x)
    values = y @ x / square
    chi2 = ((y - values[..., None] * x) ** 2).sum(axis=-1)
    pull = np.linalg.solve(factor.T, x) / square
    # An increment left out costs as much as a parameter that fits it (Jay & Neil 2021).
    scores = laws.log_prior - 0.5 * chi2 - left_out
    unsure = max(1 / square - float(pull @ plain @ pull), 0.0)
    return _Cut(float(t[0]), laws, values, scores, float(chi2[0].min()) / (len(x) - 1), unsure)


def _laws(t: Array, guess: float, likely: Mapping[int, float]) -> _Laws:
    names, added, prior = [], [], []
    for m, before in likely.items():
        shifts = np.zeros(1) if m == 1 else _SHIFTS
        chance = np.exp(-0.5 * (shifts / _SHIFT) ** 2)
        for shift, part in zip(shifts, chance / chance.sum(), strict=True):
            logarithm = (m - 1) * np.log(np.maximum(np.log(t) - digamma(guess) + shift, 0.5))
            for p, weight in _POLES[min(m, 2)].items():
                shares = _SHARES if p else (0.0,)
                for q in shares:
                    names.append((m, p))
                    added.append(-np.diff(logarithm + np.log1p(-q * (t / t[0]) ** -p)))
                    prior.append(before * part * weight / len(shares))
    return _Laws(names, np.array(added), np.log(prior))


def gap_findings(levels: Sequence[float] | Array, overlap: Array) -> Iterator[Finding]:
    """Names the two neighbouring levels that overlap least, if they have less than 3 % in common.

    Example:
        >>> [finding.code for finding in gap_findings([1.0, 2.0, 100.0], np.array([0.5, 0.001]))]
        ['CRIT703']
    """
    if len(overlap) and overlap.min() < _OVERLAP:
        gap = int(overlap.argmin())
        where = f"{overlap[gap]:.2g} between nbeta {levels[gap]:.3g} and {levels[gap + 1]:.3g}"
        yield Finding.of("CRIT703", where)


def _findings(draws: Draws, found: Increments, losses: dict[float, Array], best: _Average) -> Iterator[Finding]:
    yield from chain_findings(draws, losses)
    yield from gap_findings(found.nbeta, found.overlap)
    if best.misfit > _MISFIT:
        yield Finding.of("CRIT707", f"chi-squared {best.misfit:.1f} per increment from nbeta {found.nbeta[0]:.3g} on")
    if max(best.multiplicity.values()) < _SURE:
        odds = ", ".join(f"m = {m}: {p:.2f}" for m, p in best.multiplicity.items())
        yield Finding.of("CRIT708", odds)
