"""Errors of what is put together from several levels of a ladder.

Chains of different levels are independent, unless they exchange their states: then the levels of a chain are one
ladder, whose draws belong together, and the means of two levels are correlated. The error of a given combination needs
no covariance matrix: it is that of the combined series of draws. Only the weights of a best combination do.

References:
    Schäfer & Strimmer 2005, Stat. Appl. Genet. Mol. Biol. 4, 32 (how far to shrink correlations).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from crunode.core.result import Draws
from crunode.errors import InputError
from crunode.sampling.diagnostics import ess, mcse_mean

__all__ = ["combination_se", "exchanged", "finite_losses", "means_covariance", "shrunk_correlation"]

Array = NDArray[np.float64]

_FEWEST_BATCHES = 4


def exchanged(draws: Draws) -> bool:
    """Whether the levels of a chain are one ladder, by replica exchange.

    Example:
        >>> exchanged(Draws({"excess": np.zeros((2, 5))}, {}, np.array([1.0, 2.0]), {"kernel": {"name": "Exchange"}}))
        True
    """
    kernel = draws.spec.get("kernel")
    return isinstance(kernel, dict) and kernel.get("name") == "Exchange"


def finite_losses(draws: Draws) -> list[Array]:
    """Losses (chain, draw) above that of the center at each level, in doubles.

    Raises:
        InputError: Some are not finite, or there are none.

    Example:
        >>> [x.shape for x in finite_losses(Draws({"excess": np.zeros((4, 5))}, {}, np.array([1.0, 1, 2, 2]), {}))]
        [(2, 5), (2, 5)]
    """
    losses = [draws.at(t)["excess"].astype(np.float64) for t in draws.levels()]
    if not losses or not all(x.size and np.isfinite(x).all() for x in losses):
        raise InputError("expected finite losses at all levels, got some that are not; look at the draws")
    return losses


def combination_se(weights: Sequence[float] | Array, series: Sequence[Array], joint: bool) -> float:
    """Standard error of Σ_k a_k (mean of series k).

    Args:
        weights: The a_k.
        series: Values (chain, draw) of each level.
        joint: Whether the same chain and draw of all series belong together.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(4, 500))
        >>> combination_se([1.0, -1.0], [x, x], joint=True)
        0.0
    """
    if joint:
        return mcse_mean(sum(a * x for a, x in zip(weights, series, strict=True)))
    return math.sqrt(sum((a * mcse_mean(x)) ** 2 for a, x in zip(weights, series, strict=True)))


def means_covariance(series: Sequence[Array], joint: bool) -> Array:
    """Covariance of the means of several series: Monte-Carlo errors, with correlations from batch means where joint.

    Args:
        series: Values (chain, draw) of each.
        joint: Whether the same chain and draw of all series belong together.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(4, 500))
        >>> found = means_covariance([x, 2 * x], joint=True)
        >>> bool(abs(found[0, 1] / found[0, 0] - 2) < 0.1)
        True
    """
    errors = np.array([_error(x) for x in series])
    if not joint:
        return np.diag(errors**2)
    batches = np.stack([_batch_means(x) for x in series], axis=1)
    return shrunk_correlation(batches) * np.outer(errors, errors)


def shrunk_correlation(samples: Array) -> Array:
    """The correlation matrix of columns, drawn toward the identity as far as its entries are noise.

    Args:
        samples: Independent rows, shape (sample, variable).

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(50, 3))
        >>> bool(np.abs(shrunk_correlation(rows) - np.eye(3)).max() < 0.2)
        True
    """
    count, size = samples.shape
    spread = samples.std(axis=0, ddof=1) if count >= _FEWEST_BATCHES else np.zeros(size)
    if not (spread > 0).all():
        return np.eye(size)
    z = (samples - samples.mean(axis=0)) / spread
    products = z[:, :, None] * z[:, None, :]
    r = products.sum(axis=0) / (count - 1)
    noise = count / (count - 1) ** 3 * ((products - products.mean(axis=0)) ** 2).sum(axis=0)
    off = ~np.eye(size, dtype=bool)
    square = float((r[off] ** 2).sum())
    share = min(max(float(noise[off].sum()) / square, 0.0), 1.0) if square > 0 else 1.0
    # Never all of it, so that the matrix can be inverted.
    return np.where(off, (1 - max(share, 1e-6)) * r, 1.0)


def _error(x: Array) -> float:
    """The error of a mean: by autocorrelations, unless chains disagree by more than chance.

    `mcse_mean` takes the larger of two errors, which is 10-20 % too large on average. Where many series are put
    together that would add up.
    """
    full, within = mcse_mean(x), float(x.std(ddof=1)) / math.sqrt(max(ess(x), 1.0))
    if len(x) == 1 or not within > 0:
        return full
    dof = len(x) - 1
    limit = (1 - 2 / (9 * dof) + 2.326 * math.sqrt(2 / (9 * dof))) ** 3  # 99 % point of chi-squared / dof
    return full if full**2 > limit * within**2 else within


def _batch_means(x: Array) -> Array:
    """Means of √draws successive batches of each chain, in one row."""
    chains, draws = x.shape
    count = max(1, math.isqrt(draws))
    length = draws // count
    return np.reshape(x[:, : count * length].reshape(chains, count, length).mean(axis=2), -1)
