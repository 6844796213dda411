"""How far Markov chain averages can be trusted: R-hat, effective sample size, standard errors, drift.

Pure functions of one scalar recorded along the chains, shape (chain, draw); a vector is one chain. Values
never raise or warn: non-finite ones, and fewer than four draws, give nan.

References:
    Geyer (1992), Statistical Science 7, 473. Geweke (1992), Bayesian Statistics 4, 169.
    Mueller (2007), Journal of Econometrics 141, 1331. Wallace (1959), Ann. Math. Statistics 30, 1121.
    Vehtari, Gelman, Simpson, Carpenter, Buerkner (2021), Bayesian Analysis 16, 667; arXiv:1903.08008.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crunode.errors import InputError

__all__ = [
    "chain_means",
    "drift",
    "ess",
    "ess_bulk",
    "integrated_time",
    "mcse_mean",
    "mcse_variance",
    "split_rhat",
]

Array = NDArray[np.float64]
FREQUENCIES = 9  # of the drift test: low enough that 20 autocorrelation times look like white noise
_quantile = np.frompyfunc(NormalDist().inv_cdf, 1, 1)


def chain_means(x: ArrayLike) -> Array:
    """Mean of each chain.

    Args:
        x: values, shape (chain, draw).

    Returns:
        Shape (chain,); nan for a chain with a non-finite value or without draws.

    Example:
        >>> chain_means([[1, 2, 3], [4, 5, 9]])
        array([2., 6.])
    """
    a = _as_chains(x)
    good = np.isfinite(a).all(axis=1) & (a.shape[1] > 0)
    finite = np.where(good[:, None], a, 0.0)
    top = np.abs(finite).max(axis=1, initial=np.finfo(float).tiny)
    means = (finite / top[:, None]).sum(axis=1) / max(a.shape[1], 1) * top  # a plain sum may overflow
    return np.where(good, means, np.nan)


def split_rhat(x: ArrayLike) -> float:
    r"""Rank-normalized split R-hat: do halves of chains agree in location and in spread?

    Each chain is cut in half, and draws are replaced by normal scores $\Phi^{-1}((r - 3/8)/(S + 1/4))$ of
    their ranks $r$ among all $S$ draws. With $n$ draws a half, variance $B$ between the means of halves and
    $W$ within halves, $\hat R = \sqrt{(n-1)/n + B/W}$. The larger of the values for $x$ and for its distance
    from the median is returned; above 1.01 is doubtful (Vehtari et al. 2021).

    Args:
        x: values, shape (chain, draw). One chain is enough: its halves are compared.

    Returns:
        R-hat; 1 when all draws are equal, inf when chains are constant but differ, nan without an answer.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(4, 500))
        >>> round(split_rhat(x), 2), round(split_rhat(x + [[0], [0], [0], [2]]), 2)
        (1.0, 1.31)
    """
    y = _scaled(x)[0]
    if y is None:
        return math.nan
    return max(_rhat(_normal_scores(z)) for z in (_split(y), np.abs(_split(y) - np.median(_split(y)))))


def ess(x: ArrayLike) -> float:
    r"""Effective sample size of the mean: how many independent draws would give the same error.

    $\mathrm{ESS} = S / \tau$ for $S$ draws and $\tau = 1 + 2 \sum_{t \ge 1} \rho_t$, the autocorrelations
    pooled over the halves of all chains and counting the spread between halves. The sum ends where the pairs
    $\rho_{2k} + \rho_{2k+1}$ stop being positive, and they are made to decrease (Geyer 1992, Vehtari et al.
    2021). Below 10 draws only $\rho_1$ is used.

    Args:
        x: values, shape (chain, draw).

    Returns:
        ESS, at most $S \log_{10} S$ (antithetic chains exceed $S$); $S$ when all draws are equal.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(4, 1000))
        >>> 3500 < ess(x) < 4500, ess(np.repeat(x, 10, axis=1)) < 4500
        (True, True)
    """
    y = _scaled(x)[0]
    return math.nan if y is None else _ess(_split(y))


def ess_bulk(x: ArrayLike) -> float:
    """Effective sample size of the normal scores of ranks, for tails of any weight (Vehtari et al. 2021).

    Args:
        x: values, shape (chain, draw).

    Returns:
        ESS as `ess` gives it, of rank-normalized draws.

    Example:
        >>> x = np.random.default_rng(0).standard_cauchy(size=(4, 1000))
        >>> bool(np.isclose(ess_bulk(x), ess_bulk(np.arctan(x))))
        True
    """
    y = _scaled(x)[0]
    return math.nan if y is None else _ess(_normal_scores(_split(y)))


def integrated_time(x: ArrayLike) -> float:
    r"""Autocorrelation time $\tau = S / \mathrm{ESS}$: draws worth one independent draw (Geyer 1992).

    Args:
        x: values, shape (chain, draw).

    Returns:
        The time in draws; 1 for independent draws and for constant ones.

    Example:
        >>> 8 < integrated_time(np.random.default_rng(0).normal(size=(4, 1000)).repeat(10, axis=1)) < 12
        True
    """
    y = _scaled(x)[0]
    return math.nan if y is None else _split(y).size / _ess(_split(y))


def mcse_mean(x: ArrayLike) -> float:
    r"""Monte-Carlo standard error of the mean over all chains and draws.

    The larger of $s_w = \mathrm{sd}(x) / \sqrt{\mathrm{ESS}}$ and the spread of the $c$ chain means, $s_b =
    \mathrm{sd}(\bar x_c) / \sqrt c$, which needs no autocorrelations and sees slow modes hidden under fast
    noise. Where chains have not mixed, that is $\mathrm{ESS} < 3c$ or $(c-1) s_b^2 / s_w^2$ beyond the 99 %
    point of $\chi^2_{c-1}$, only $c$ values are left, and $s_b$ grows by the Student factor that makes ± one
    standard error cover 68 %: 1.84, 1.32, 1.20, 1.08 for 2, 3, 4, 8 chains.

    On autoregressive chains of 10 autocorrelation times or more, ± two standard errors cover 93-97 % with two
    chains or more, and the error is stated 10-20 % too large on average, the price of taking the larger. For
    chains that do not mix at all, they cover 75-80 % with 2 chains, 87-90 % with 4, 92-93 % with 8. One chain
    knows only what it has seen: 89 % at 10 times, less below.

    Args:
        x: values, shape (chain, draw).

    Returns:
        The standard error; 0 when all draws are equal.

    Example:
        >>> 0.009 < mcse_mean(np.random.default_rng(0).normal(size=(4, 2500))) < 0.015  # 1 / sqrt(10000)
        True
    """
    y, scale = _scaled(x)
    return math.nan if y is None else scale * _mcse(y)


def mcse_variance(x: ArrayLike) -> float:
    r"""Monte-Carlo standard error of the variance over all chains and draws: `mcse_mean` of $(x - \bar x)^2$.

    Args:
        x: values, shape (chain, draw).

    Returns:
        The standard error; 0 when all draws are equal.

    Example:
        >>> 0.013 < mcse_variance(np.random.default_rng(0).normal(size=(4, 2500))) < 0.020  # sqrt(2 / 10000)
        True
    """
    y, scale = _scaled(x)
    return math.nan if y is None else scale * (scale * _mcse((y - y.mean()) ** 2))


def drift(x: ArrayLike) -> float:
    r"""Score of a trend common to the chains: standard normal where there is none, positive where x rises.

    Each chain is projected on cosines $\sqrt{2/n} \cos(\pi k (t + \frac12)/n)$, $k = 1 \dots 9$. Without a
    trend, and with $n$ well beyond the autocorrelation time, the coefficients $a_{ck}$ are independent normal
    of one variance, whatever the autocorrelations (Mueller 2007). The trend is $-\bar a_1$, the mean over $c$
    chains; its variance comes from differences between chains, $\sum (a_{ck} - \bar a_k)^2$, and frequencies,
    $\frac c2 \sum_{j=1}^4 (\bar a_{2j} - \bar a_{2j+1})^2$, so that a smooth trend does not inflate its own
    error. The ratio, Student with $9(c-1) + 4$ degrees of freedom, becomes a normal score (Wallace 1959).

    On autoregressive chains |z| > 4 occurs in less than 0.1 % of runs of 20 autocorrelation times or more,
    and in less than 1 % of runs of 5. With one chain (4 degrees of freedom) only a strong trend reaches 4.
    First third against last half (Geweke 1992) alarms falsely more often and misses early transients.

    Args:
        x: values, shape (chain, draw).

    Returns:
        The score; 0 for constant chains.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(4, 400))
        >>> abs(drift(x)) < 3, drift(x + np.linspace(0, 1, 400)) > 4, drift(x - np.linspace(0, 1, 400)) < -4
        (True, True, True)
    """
    y = _scaled(x)[0]
    if y is None:
        return math.nan
    chains, draws = y.shape
    count = min(FREQUENCIES, draws - 1)
    pairs = (count - 1) // 2
    waves = np.cos(math.pi / draws * np.outer(np.arange(draws) + 0.5, np.arange(1, count + 1)))
    moves = np.ptp(y, axis=1, keepdims=True) > 0  # a constant chain shall leave no rounding error
    each = np.where(moves, y - y.mean(axis=1, keepdims=True), 0.0) @ waves
    each /= np.abs(each).max() or 1.0
    mean = each.mean(axis=0)
    steps = mean[1::2][:pairs] - mean[2::2][:pairs]
    square = float(((each - mean) ** 2).sum() + chains / 2 * (steps**2).sum())
    dof, trend = (chains - 1) * count + pairs, -float(mean[0]) * math.sqrt(chains)
    if square == 0:
        return math.copysign(math.inf, trend) if trend else 0.0
    score = (8 * dof + 1) / (8 * dof + 3) * math.sqrt(dof * math.log1p(trend**2 / square))
    return math.copysign(score, trend)


def _as_chains(x: ArrayLike) -> Array:
    a = np.atleast_2d(np.asarray(x, dtype=np.float64))
    if a.ndim != 2:
        raise InputError(f"expected shape (chain, draw), got {a.shape}; pass one scalar at a time")
    return a


def _scaled(x: ArrayLike) -> tuple[Array | None, float]:
    """Values over a power of two, so that no square overflows, and that power; None for no answer."""
    a = _as_chains(x)
    if len(a) == 0 or a.shape[1] < 4 or not np.isfinite(a).all():
        return None, math.nan
    exponent = math.frexp(float(np.abs(a).max()))[1] - 1
    return np.ldexp(a, -exponent), 2.0**exponent


def _split(y: Array) -> Array:
    """Halves of chains as chains; the middle draw of an odd number is left out."""
    half = y.shape[1] // 2
    return np.concatenate([y[:, :half], y[:, -half:]])


def _normal_scores(y: Array) -> Array:
    place, counts = np.unique(y, return_inverse=True, return_counts=True)[1:]
    half_ranks = 2 * np.cumsum(counts) - counts - 1  # ties share their mean rank
    return np.take(_scores(y.size), half_ranks[place]).reshape(y.shape)


@lru_cache(maxsize=4)
def _scores(size: int) -> Array:
    """Normal scores of the ranks 1, 3/2, ..., size, which depend on no draw."""
    return np.asarray(_quantile((np.arange(1.0, size + 0.25, 0.5) - 0.375) / (size + 0.25)), dtype=np.float64)


def _rhat(z: Array) -> float:
    within = float(np.where(np.ptp(z, axis=1) == 0, 0.0, z.var(axis=1, ddof=1)).mean())
    if within == 0:
        return 1.0 if z.max() == z.min() else math.inf
    return math.sqrt(1 - 1 / z.shape[1] + float(z.mean(axis=1).var(ddof=1)) / within)


def _ess(y: Array) -> float:
    """Effective sample size of chains that are already split."""
    if y.max() == y.min():
        return float(y.size)
    y = y / np.abs(y).max()  # the largest draw may have been the middle one
    draws, means = y.shape[1], y.mean(axis=1)
    spectrum = np.fft.rfft(y - means[:, None], 1 << (2 * draws - 1).bit_length(), axis=1)
    autocovariance = np.fft.irfft((np.abs(spectrum) ** 2).mean(axis=0))[:draws] / draws
    within = autocovariance[0] * draws / (draws - 1)
    rho = 1 - (within - autocovariance) / (autocovariance[0] + means.var(ddof=1))
    rho[0] = 1
    last = max((draws - 3) // 2, 0)
    even = rho[0 : 2 * last + 1 : 2]
    sums = even + rho[1 : 2 * last + 2 : 2]
    end = min(int(np.append(sums[1:] <= 0, True).argmax()) + 1, last)
    time = 2 * float(np.minimum.accumulate(sums[: max(end, 1)]).sum()) - 1
    time += max(float(even[end]), 0.0) if end else 0.0  # half of the pair that ended the sum
    return y.size / max(time, 1 / math.log10(y.size))


def _mcse(y: Array) -> float:
    if y.max() == y.min():
        return 0.0
    chains, size = len(y), _ess(_split(y))
    within = float(y.var(ddof=1)) / size
    if chains == 1:
        return math.sqrt(within)
    dof = chains - 1
    between = float(y.mean(axis=1).var(ddof=1)) / chains
    limit = (1 - 2 / (9 * dof) + 2.326 * math.sqrt(2 / (9 * dof))) ** 3  # 99 % point of chi-squared / dof
    if size < 3 * chains or between > limit * within:
        between *= dof * math.expm1(((8 * dof + 3) / (8 * dof + 1)) ** 2 / dof)
    return math.sqrt(max(within, between))
