"""`ladder()`: levels of nbeta between which replicas swap at an even rate, found by short runs of replica exchange."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from crunode.core.result import Draws
from crunode.core.rng import derived_seed
from crunode.errors import EstimationError, InputError
from crunode.sampling.exchange import Exchange, exchange_report
from crunode.sampling.metropolis import HMC
from crunode.sampling.posterior import Posterior, positive
from crunode.sampling.run import sample

__all__ = ["ladder", "rate_of", "separation"]

# Below this rate a rung is put in between, as the measured length of such a gap is only a lower bound.
_GAP = 0.15
_CHAINS, _DRAWS, _WARMUP = 4, 80, 60
_ROUNDS, _MOST, _LONGER = 10, 96, 4
_FIRST_RATIO = 3.0


def separation(rate: float) -> float:
    r"""Thermodynamic length between two rungs with this swap rate: $\Lambda = 2\,\mathrm{erfc}^{-1}(r)$.

    Losses of two neighbouring rungs that are normal with the same standard deviation $\sigma$, and means apart by
    $\sigma^2 \Delta t$, as the fluctuation relation $-dE_t[L]/dt = \sigma_t^2$ has it, swap at the rate
    $\mathrm{erfc}(\sigma \Delta t / 2)$. So $\Lambda = \int \sigma_t\,dt$, which adds up along the ladder.

    References:
        Predescu et al. 2004; Crooks 2007.

    Example:
        >>> round(separation(rate_of(1.3)), 6)
        1.3
    """
    return -math.sqrt(2) * NormalDist().inv_cdf(0.5 * rate)


def rate_of(length: float) -> float:
    """The swap rate at a thermodynamic length: erfc(Λ/2).

    Example:
        >>> round(rate_of(1.32), 2)
        0.35
    """
    return math.erfc(0.5 * length)


def ladder(
    posterior: Posterior,
    hottest: float,
    coldest: float,
    *,
    swap: float = 0.35,
    seed: int = 0,
    kernel: Any = None,
) -> tuple[float, ...]:
    r"""Levels of nbeta from `hottest` to `coldest` whose neighbours swap at about the same rate.

    Beginning with levels in geometric progression, short runs of `Exchange` measure the swap rate $r$ of each pair and
    the standard deviation $\sigma_t$ of the loss at each level. A pair is $\Lambda = 2\,\mathrm{erfc}^{-1}(r)$ apart,
    or $\int \sigma_t\,dt$ where rates are too low or too high to tell; the levels of the next round divide the sum of
    these lengths evenly. Where the rate is below 0.15, as at first-order transitions, where the loss changes abruptly,
    lengths are lower bounds, and the next round has a level in between. A ladder is good when no pair is below the
    larger of 0.15 and half the rate asked for, in a round four times as long too. The first has 80 draws of 4 chains.

    Rates are those of short chains, which start at the center. Where a mode was not found, or a transition has not
    settled, they are rates within what was found: look at `exchange_report` of the run itself.

    Args:
        posterior: The target; its nbeta is not used.
        hottest: Smallest nbeta: one at which chains get around by themselves.
        coldest: Largest nbeta.
        swap: Swap rate to aim for. About a fifth to a half is best; it is flat there.
        seed: Seed of the runs.
        kernel: The inner kernel, or Exchange around it; None for HMC with a diagonal metric.

    Returns:
        The levels, ascending, both ends included.

    Raises:
        InputError: The ends are not in order, or the rate is not between 0.15 and 0.9.
        EstimationError: No such ladder was found within 96 levels; `partial` has the last one.

    References:
        Predescu et al. 2004; Kofke 2002; Syed et al. 2022.

    Example:
        >>> import torch
        >>> from crunode.core.landscape import Landscape
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(8), n=1000)
        >>> levels = ladder(Posterior(land), hottest=10.0, coldest=100.0, kernel=HMC(leaps=4))
        >>> levels[0], levels[-1], 4 <= len(levels) <= 6
        (10.0, 100.0, True)
    """
    hottest, coldest = (positive(n, v, "give it") for n, v in (("hottest", hottest), ("coldest", coldest)))
    if not hottest < coldest:
        raise InputError(
            f"expected hottest below coldest, got {hottest:g} and {coldest:g}; nbeta is larger when colder"
        )
    if not (isinstance(swap, int | float) and _GAP < swap < 0.9):
        raise InputError(f"expected swap as a rate between {_GAP} and 0.9, got {swap!r}; 0.35 suits most ladders")
    kernel = None if kernel is None else kernel.core
    exchange = Exchange(HMC(metric="diagonal") if kernel is None else replace(kernel, step=None))
    count = max(2, math.ceil(math.log(coldest / hottest) / math.log(_FIRST_RATIO)))
    levels = tuple(float(t) for t in np.geomspace(hottest, coldest, count + 1))
    longer, least = 1, max(_GAP, 0.5 * swap)
    for turn in range(_ROUNDS):
        levels = (hottest, *levels[1:-1], coldest)  # exactly
        rates, lengths = _measure(posterior, levels, exchange, longer, derived_seed(seed, 21, turn))
        even = max(math.ceil(sum(lengths) / separation(swap) - 0.25), 1)
        if min(rates) >= least and len(rates) <= even + 1:
            if longer > 1:
                return levels
            longer = _LONGER
            continue
        levels = _respaced(levels, rates, lengths, even)
        if len(levels) > _MOST:
            break
    raise EstimationError(
        f"no ladder from nbeta {hottest:g} to {coldest:g} with swap rates from {least:.2g} up was found in {turn + 1} "
        f"rounds, the last one with {len(levels)} levels; begin hotter, or give levels that are closer together",
        partial=levels,
    )


def _measure(
    posterior: Posterior, levels: tuple[float, ...], exchange: Exchange, longer: int, seed: int
) -> tuple[list[float], list[float]]:
    """Swap rate and length of each pair."""
    at = replace(posterior, nbeta=levels)
    draws = sample(at, exchange, chains=_CHAINS, draws=longer * _DRAWS, warmup=longer * _WARMUP, seed=seed)
    rates = exchange_report(draws)["swap_rate"]
    spread = _spreads(draws, levels)
    lengths = []
    for k, (a, b) in enumerate(itertools.pairwise(levels)):
        between = 0.5 * (a * spread[k] + b * spread[k + 1]) * math.log(b / a)  # ∫σ dt = ∫ tσ d(log t)
        seen = separation(max(rates[k], 0.01))
        # Rates in the middle are the better measure; others say only that a pair is close together, or far apart.
        lengths.append(seen if _GAP <= rates[k] <= 0.9 else max(seen, between) if rates[k] < _GAP else between)
    return rates, lengths


def _spreads(draws: Draws, levels: tuple[float, ...]) -> list[float]:
    return [float(draws.at(level)["excess"].std(dtype=np.float64)) for level in levels]


def _respaced(levels: tuple[float, ...], rates: list[float], lengths: list[float], parts: int) -> tuple[float, ...]:
    """Levels that divide the sum of the lengths evenly, and one more in each gap that they leave undivided."""
    place = np.concatenate([[0.0], np.cumsum(np.maximum(lengths, 1e-6))])
    new = np.exp(np.interp(np.linspace(0, place[-1], parts + 1), place, np.log(levels)))
    for rate, (a, b) in zip(rates, itertools.pairwise(levels), strict=True):
        if rate < _GAP and not ((new > a * (1 + 1e-9)) & (new < b * (1 - 1e-9))).any():
            new = np.append(new, math.sqrt(a * b))
    return tuple(float(t) for t in np.sort(new))
