"""Information criteria and Bayes losses from draws that kept the loss of every example.

With p_i(w) = exp(−ℓ_i(w)) and draws of the posterior at inverse temperature β = nβ/n, all per example:

    Gibbs training loss     (1/n) Σ E_w[ℓ_i]
    Bayes training loss     T = −(1/n) Σ log E_w[p_i]
    functional variance     V = Σ Var_w[ℓ_i]
    WAIC                    T + (β/n) V
    cross-validation        −(1/n) Σ log( E_w[p_i^(1−β)] / E_w[p_i^(−β)] )
    singular fluctuation    ν = β V / 2
    WBIC                    n E_w[L_n] at β = 1/log n

WAIC and cross-validation both estimate the Bayes generalisation loss; at β = 1 they differ by O(n^−2). The losses have
to be −log p for this: constants that do not depend on w, such as (d/2) log 2π of the Gaussian, shift all of them alike.

Monte-Carlo errors come from the influence of each draw: the derivative of the criterion by the weight of that draw is a
scalar along the chains, and its mean has the criterion's error.

References:
    Watanabe 2010, JMLR 11, 3571; Watanabe 2013, JMLR 14, 867 (WBIC); Watanabe 2018, chapter 3; Vehtari et al. 2024.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crunode.core.result import Draws, Estimate, Finding
from crunode.errors import InputError
from crunode.estimators.chains import chain_findings, chosen_level
from crunode.sampling.diagnostics import ess, mcse_mean, split_rhat
from crunode.sampling.pareto import smoothed_log_weights

__all__ = [
    "bayes_training_loss",
    "functional_variance",
    "gibbs_training_loss",
    "loo",
    "singular_fluctuation",
    "waic",
    "wbic",
    "with_parts",
]

Array = NDArray[np.float64]

_HEAVY = 0.7
# Numbers in memory at a time, in double precision.
_BLOCK = 1 << 22


@dataclass
class _Part:
    """A mean over examples: its value for each example, and the influence of each draw on the mean."""

    values: Array
    influence: Array
    exponents: Array | None = None


def waic(draws: Draws, *, nbeta: float | None = None) -> Estimate:
    """The widely applicable information criterion, T + (β/n) V, per example: an estimate of the generalisation loss.

    Args:
        draws: Draws of a posterior, sampled with keep=("pointwise",).
        nbeta: Which level of nbeta, where there are several.

    Returns:
        The estimate. `diagnostics["data_se"]` is how far it would move with other data, from the scatter of examples.

    Example:
        >>> import torch
        >>> from crunode.core.landscape import Landscape
        >>> from crunode.sampling.metropolis import HMC
        >>> from crunode.sampling.posterior import Gaussian, Posterior
        >>> from crunode.sampling.run import sample
        >>> x = torch.randn(50, 1, generator=torch.Generator().manual_seed(0))
        >>> land = Landscape(torch.nn.Linear(1, 1), (x, x), "gaussian")
        >>> posterior = Posterior(land, land.n, Gaussian(1.0, mean="origin"))
        >>> draws = sample(posterior, HMC(), chains=4, draws=200, keep=("pointwise",))
        >>> est = waic(draws)
        >>> est.ok, abs(est.value - loo(draws).value) < 0.01
        (True, True)
    """
    return _estimate("waic", draws, nbeta, _waic)


def loo(draws: Draws, *, nbeta: float | None = None, smooth: bool = True) -> Estimate:
    """Leave-one-out cross-validation loss per example, by importance sampling from the full posterior.

    Leaving example i out of a posterior at inverse temperature β takes weights p_i^(−β). Their largest are smoothed
    (`crunode.sampling.pareto`), and examples whose exponent k exceeds 0.7 are reported.

    Args:
        draws: Draws of a posterior, sampled with keep=("pointwise",).
        nbeta: Which level of nbeta, where there are several.
        smooth: False takes the weights as they are.

    Example:
        >>> import torch
        >>> from crunode.core.result import Draws
        >>> losses = np.random.default_rng(0).chisquare(1, (4, 500, 20)) / 20
        >>> arrays = {"excess": losses.mean(2), "distance2": losses.mean(2), "pointwise": losses}
        >>> draws = Draws(arrays, {}, np.full(4, 20.0), {"n": 20, "asked": {"seed": 0}})
        >>> round(loo(draws).value - loo(draws, smooth=False).value, 3)
        0.0
    """
    return _estimate("loo", draws, nbeta, _smoothed_loo if smooth else _plain_loo)


def bayes_training_loss(draws: Draws, *, nbeta: float | None = None) -> Estimate:
    """The Bayes training loss −(1/n) Σ log E_w[p_i].

    Args:
        draws: Draws of a posterior, sampled with keep=("pointwise",).
        nbeta: Which level of nbeta, where there are several.

    Example:
        >>> losses = np.full((2, 100, 5), 0.25)
        >>> arrays = {"excess": losses[..., 0], "distance2": losses[..., 0], "pointwise": losses}
        >>> bayes_training_loss(Draws(arrays, {}, np.full(2, 5.0), {"n": 5, "asked": {"seed": 0}})).value
        0.25
    """
    return _estimate("bayes_training_loss", draws, nbeta, _bayes)


def gibbs_training_loss(draws: Draws, *, nbeta: float | None = None) -> Estimate:
    """The Gibbs training loss (1/n) Σ E_w[ℓ_i].

    Args:
        draws: Draws of a posterior, sampled with keep=("pointwise",).
        nbeta: Which level of nbeta, where there are several.

    Example:
        >>> losses = np.arange(1000.0).reshape(2, 100, 5)
        >>> arrays = {"excess": losses[..., 0], "distance2": losses[..., 0], "pointwise": losses}
        >>> gibbs_training_loss(Draws(arrays, {}, np.full(2, 5.0), {"n": 5, "asked": {"seed": 0}})).value
        499.5
    """
    return _estimate("gibbs_training_loss", draws, nbeta, _gibbs)


def functional_variance(draws: Draws, *, nbeta: float | None = None) -> Estimate:
    """The functional variance V = Σ Var_w[ℓ_i], a sum over examples.

    Args:
        draws: Draws of a posterior, sampled with keep=("pointwise",).
        nbeta: Which level of nbeta, where there are several.

    Example:
        >>> losses = np.random.default_rng(0).standard_normal((4, 1000, 30)) * 0.1
        >>> arrays = {"excess": losses.mean(2), "distance2": losses.mean(2), "pointwise": losses}
        >>> round(functional_variance(Draws(arrays, {}, np.full(4, 30.0), {"n": 30, "asked": {"seed": 0}})).value, 1)
        0.3
    """
    return _estimate("functional_variance", draws, nbeta, _variance, factor=lambda beta, n: float(n))


def singular_fluctuation(draws: Draws, *, nbeta: float | None = None) -> Estimate:
    """The singular fluctuation ν(β) = β V / 2, which with λ gives generalisation and training losses.

    n E[G − S] → (λ − ν)/β + ν for the Bayes generalisation loss G. In a regular model that realises the truth ν = d/2.

    Args:
        draws: Draws of a posterior, sampled with keep=("pointwise",).
        nbeta: Which level of nbeta, where there are several.

    Example:
        >>> losses = np.random.default_rng(0).standard_normal((4, 1000, 30)) * 0.1
        >>> arrays = {"excess": losses.mean(2), "distance2": losses.mean(2), "pointwise": losses}
        >>> draws = Draws(arrays, {}, np.full(4, 30.0), {"n": 30, "asked": {"seed": 0}})
        >>> round(singular_fluctuation(draws).value / functional_variance(draws).value, 6)
        0.5
    """
    return _estimate("singular_fluctuation", draws, nbeta, _variance, factor=lambda beta, n: beta * n / 2)


def wbic(draws: Draws, *, nbeta: float | None = None) -> Estimate:
    """WBIC = n E_w[L_n] at nβ = n / log n: the free energy −log Z up to terms of order √log n.

    Args:
        draws: Draws of a posterior, sampled with nbeta="wbic" and keep=("pointwise",); others are refused.
        nbeta: Which level of nbeta, where there are several.

    Example:
        >>> losses = np.full((2, 100, 8), 0.5)
        >>> arrays = {"excess": losses[..., 0], "distance2": losses[..., 0], "pointwise": losses}
        >>> wbic(Draws(arrays, {}, np.full(2, 8 / np.log(8)), {"n": 8, "asked": {"seed": 0}})).value
        4.0
    """
    level = chosen_level(draws, nbeta)
    n = int(draws.spec["n"])
    wanted = n / math.log(max(n, 3))
    if not 0.99 < level / wanted < 1.01:
        raise InputError(
            f"expected draws at nbeta = n / log n = {wanted:.4g} for WBIC, got {level:.4g}; sample with nbeta='wbic'"
        )
    return _estimate("wbic", draws, nbeta, _gibbs, factor=lambda beta, n: float(n))


def _estimate(
    name: str,
    draws: Draws,
    nbeta: float | None,
    part: Callable[[Array, float, float], _Part],
    factor: Callable[[float, int], float] = lambda beta, n: 1.0,
) -> Estimate:
    return _evaluated(name, draws, nbeta, part, factor)[0]


def _evaluated(
    name: str,
    draws: Draws,
    nbeta: float | None,
    part: Callable[[Array, float, float], _Part],
    factor: Callable[[float, int], float] = lambda beta, n: 1.0,
) -> tuple[Estimate, Array]:
    """The estimate and its values for each example."""
    if not isinstance(draws, Draws) or "pointwise" not in draws.arrays:
        raise InputError(
            "expected Draws with the loss of every example, got none; sample with keep=('pointwise',), and with a loss "
            "that gives one value per example"
        )
    level = chosen_level(draws, nbeta)
    n = int(draws.spec["n"])
    beta, scale = level / n, factor(level / n, n)
    whole, gibbs = _over_examples(draws, level, part)
    values, exponents, rows = whole.values, whole.exponents, len(whole.values)
    estimate = Estimate(
        name,
        scale * float(values.mean()),
        se=abs(scale) * mcse_mean(whole.influence),
        findings=(*chain_findings(draws, {level: gibbs}), *_findings(draws, exponents)),
        spec=draws.spec,
        seed=draws.spec["asked"]["seed"],
        diagnostics={
            "nbeta": level,
            "beta": beta,
            "rhat": split_rhat(gibbs),
            "ess": ess(gibbs),
            "data_se": abs(scale) * float(values.std(ddof=1)) / math.sqrt(rows) if rows > 1 else math.nan,
            **({} if exponents is None else {"pareto_k": [float(k) for k in exponents]}),
        },
        provenance=draws.provenance,
        draws=draws,
    )
    return estimate, values


def with_parts(draws: Draws, criterion: str) -> tuple[Estimate, Array]:
    """The estimate of "waic" or "loo", and its values for each example.

    Args:
        draws: Draws of a posterior at one level of nbeta, sampled with keep=("pointwise",).
        criterion: "waic" or "loo".

    Example:
        >>> losses = np.random.default_rng(0).chisquare(1, (4, 500, 20)) / 20
        >>> arrays = {"excess": losses.mean(2), "distance2": losses.mean(2), "pointwise": losses}
        >>> draws = Draws(arrays, {}, np.full(4, 20.0), {"n": 20, "asked": {"seed": 0}})
        >>> est, values = with_parts(draws, "waic")
        >>> bool(abs(values.mean() - est.value) < 1e-12)
        True
    """
    known: dict[str, Callable[[Array, float, float], _Part]] = {"waic": _waic, "loo": _smoothed_loo}
    if criterion not in known:
        raise InputError(f"expected a criterion among {', '.join(known)}, got {criterion!r}")
    return _evaluated(criterion, draws, None, known[criterion])


def _over_examples(draws: Draws, level: float, part: Callable[[Array, float, float], _Part]) -> tuple[_Part, Array]:
    """A criterion over all examples, and the mean loss along the chains."""
    losses = draws.at(level)["pointwise"]
    chains, count, rows = losses.shape
    if not np.isfinite(losses).all():
        raise InputError("expected finite losses of all examples and draws, got some that are not; look at the draws")
    gibbs = losses.mean(axis=2, dtype=np.float64)
    efficiency = min(max(ess(gibbs) / (chains * count), 1e-3), 1.0) if count >= 4 else 1.0
    beta = level / int(draws.spec["n"])
    parts = [part(block, beta, efficiency) for block in _blocks(losses)]
    values = np.concatenate([p.values for p in parts])
    influence = sum((p.influence * (len(p.values) / rows) for p in parts), np.zeros((chains, count)))
    tails = [p.exponents for p in parts if p.exponents is not None]
    return _Part(values, influence, np.concatenate(tails) if tails else None), gibbs


def _findings(draws: Draws, exponents: Array | None) -> Iterator[Finding]:
    prior = draws.prior
    if isinstance(prior, Mapping) and prior.get("mean") == "center":
        yield Finding.of("CRIT702", f"precision {draws.spec.get('precision') or prior['precision']:.3g}")
    if exponents is not None and (exponents > _HEAVY).any():
        worst = float(exponents.max())
        yield Finding.of("CRIT701", f"{int((exponents > _HEAVY).sum())} of {len(exponents)}, the worst k {worst:.2f}")


def _blocks(losses: NDArray[np.floating]) -> Iterator[Array]:
    """Losses (chain, draw, example) in double precision, as many examples at a time as fit the memory."""
    step = max(1, _BLOCK // (losses.shape[0] * losses.shape[1]))
    for start in range(0, losses.shape[2], step):
        yield losses[:, :, start : start + step].astype(np.float64)


def _log_mean(logs: Array) -> tuple[Array, Array]:
    """The logarithm of E[exp] over draws for each example, and exp relative to its mean."""
    top = logs.max(axis=(0, 1))
    scaled = np.exp(logs - top)
    mean = scaled.mean(axis=(0, 1))
    return np.log(mean) + top, scaled / mean


def _bayes(losses: Array, *_: float) -> _Part:
    value, share = _log_mean(-losses)
    return _Part(-value, -share.mean(axis=2))


def _gibbs(losses: Array, *_: float) -> _Part:
    return _Part(losses.mean(axis=(0, 1)), losses.mean(axis=2))


def _variance(losses: Array, *_: float) -> _Part:
    square = (losses - losses.mean(axis=(0, 1))) ** 2
    count = losses.shape[0] * losses.shape[1]
    return _Part(square.sum(axis=(0, 1)) / max(count - 1, 1), square.mean(axis=2))


def _waic(losses: Array, beta: float, *_: float) -> _Part:
    training, spread = _bayes(losses), _variance(losses)
    return _Part(training.values + beta * spread.values, training.influence + beta * spread.influence)


def _plain_loo(losses: Array, beta: float, *_: float) -> _Part:
    above, gain = _log_mean((beta - 1) * losses)
    below, weight = _log_mean(beta * losses)
    return _Part(below - above, (weight - gain).mean(axis=2))


def _smoothed_loo(losses: Array, beta: float, efficiency: float) -> _Part:
    chains, count, rows = losses.shape
    values, exponents = np.empty(rows), np.empty(rows)
    influence = np.zeros((chains, count))
    for i in range(rows):
        flat = losses[:, :, i].reshape(-1)
        logs, exponents[i] = smoothed_log_weights(beta * flat, efficiency=efficiency)
        joint = logs - flat
        top = joint.max()
        gain = np.exp(joint - top)
        total = gain.sum()
        values[i] = -(top + math.log(total))
        influence += (np.exp(logs) - gain / total).reshape(chains, count) * (chains * count)
    return _Part(values, influence / rows, exponents)
