"""Generalisation losses of draws, where the truth is known.

With p̂(y|x) = E_w[p(y|x, w)] over draws of a posterior,

    Bayes generalisation loss   G = −E_x E_y log p̂(y|x),    G − S = E_x KL(q ‖ p̂)
    Gibbs generalisation loss   E_w[−E_x E_y log p(y|x, w)] = S + E_w[K(w)]

Both are taken as S plus the excess over it, point by point on a test set: what the truth itself finds hard cancels.
Classes are summed over; Gaussian y are taken in pairs on both sides of their mean, so that the part of the excess that
is linear in the noise, by far the largest, cancels too. The Gibbs loss is then exact in y.

There are two errors, from the draws and from the test set. That of the draws comes from the influence of each draw, as
for the criteria.

References:
    Watanabe 2009, chapters 1 and 6; Watanabe 2018, chapter 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crunode.core.result import Draws, Estimate, Finding
from crunode.core.rng import derived_seed
from crunode.errors import InputError
from crunode.estimators.chains import chain_findings, chosen_level
from crunode.estimators.triples import Triple
from crunode.sampling.diagnostics import ess, mcse_mean, split_rhat

__all__ = ["Excess", "bayes_excess", "bayes_generalization_loss", "gibbs_generalization_loss"]

Array = NDArray[np.float64]
Test = int | tuple[Tensor, Tensor]

_TEST = 2000
_FEWEST = 8
_STREAM = 45
# Numbers in memory at a time, in double precision.
_BLOCK = 1 << 22


@dataclass(frozen=True)
class Excess:
    """A generalisation loss less the entropy.

    Attributes:
        points: Its value at each test input, exact in or averaged over y.
        influence: Of each draw (chain, draw) on the mean.
        losses: Mean loss above the truth's of each draw (chain, draw).
        entropy: That of y at each test input.
        level: nbeta of the draws.
    """

    points: Array
    influence: Array
    losses: Array
    entropy: Array
    level: float

    @property
    def value(self) -> float:
        """The mean over test inputs."""
        return float(self.points.mean())


@dataclass(frozen=True)
class _Column:
    """Test inputs with some values of y each: their weights, and log q(y|x); all (point, value)."""

    x: Tensor
    losses: Callable[[Tensor], Tensor]
    weights: Array
    logs: Array


def bayes_generalization_loss(
    draws: Draws, triple: Triple, *, test: Test = _TEST, seed: int = 0, nbeta: float | None = None
) -> Estimate:
    """The Bayes generalisation loss −E log E_w[p(y|x, w)] of draws, which WAIC and cross-validation estimate.

    Args:
        draws: Draws of a posterior of the triple, sampled with keep=("positions",).
        triple: Model, truth and prior.
        test: Number of test inputs, or a test set (x, y) from the truth.
        seed: Of the test inputs.
        nbeta: Which level of nbeta, where there are several.

    Returns:
        The estimate. `diagnostics` has the excess over the entropy S with its error, which is far less than that of the
        loss on a test set alone, and the parts of the error from draws and test set.

    Example:
        >>> from crunode.sampling.metropolis import HMC
        >>> from crunode.sampling.run import sample
        >>> triple = Triple(torch.nn.Linear(1, 1), lambda x: 0.5 * x, "normal", features=1)
        >>> draws = sample(triple.posterior(100), HMC(leaps=4), chains=4, draws=200, keep=("positions",))
        >>> est = bayes_generalization_loss(draws, triple)
        >>> est.ok, 0 < 100 * est.diagnostics["excess"] < 5  # near λ = 1 on average over data sets
        (True, True)
    """
    return _estimate("bayes_generalization_loss", draws, triple, test, seed, nbeta, bayes=True)


def gibbs_generalization_loss(
    draws: Draws, triple: Triple, *, test: Test = _TEST, seed: int = 0, nbeta: float | None = None
) -> Estimate:
    """The Gibbs generalisation loss S + E_w[K(w)] of draws.

    Args:
        draws: Draws of a posterior of the triple, sampled with keep=("positions",).
        triple: Model, truth and prior.
        test: Number of test inputs, or a test set (x, y) from the truth.
        seed: Of the test inputs.
        nbeta: Which level of nbeta, where there are several.

    Example:
        >>> from crunode.sampling.metropolis import HMC
        >>> from crunode.sampling.run import sample
        >>> triple = Triple(torch.nn.Linear(1, 1), lambda x: 0.5 * x, "normal", features=1)
        >>> draws = sample(triple.posterior(100), HMC(leaps=4), chains=4, draws=200, keep=("positions",))
        >>> bool(gibbs_generalization_loss(draws, triple).value > bayes_generalization_loss(draws, triple).value)
        True
    """
    return _estimate("gibbs_generalization_loss", draws, triple, test, seed, nbeta, bayes=False)


def bayes_excess(draws: Draws, triple: Triple, *, test: Test = _TEST, seed: int = 0) -> Excess:
    """G − S with all its parts.

    Args:
        draws: Draws at one level of nbeta, sampled with keep=("positions",).
        triple: Model, truth and prior.
        test: Number of test inputs, or a test set (x, y) from the truth.
        seed: Of the test inputs.

    Example:
        >>> triple = Triple(torch.nn.Linear(1, 1, bias=False), lambda x: x, "normal", features=1)
        >>> places = np.ones((2, 50, 1))
        >>> arrays = {"excess": places[..., 0], "distance2": places[..., 0], "positions": places}
        >>> abs(bayes_excess(Draws(arrays, {}, np.full(2, 9.0), {"n": 9, "asked": {"seed": 0}}), triple).value) < 1e-12
        True
    """
    return _excess(draws, triple, test, seed, None, bayes=True)


def _estimate(
    name: str, draws: Draws, triple: Triple, test: Test, seed: int, nbeta: float | None, *, bayes: bool
) -> Estimate:
    found = _excess(draws, triple, test, seed, nbeta, bayes=bayes)
    whole, count = found.entropy + found.points, len(found.points)
    draw_se = mcse_mean(found.influence)
    test_se = float(whole.std(ddof=1)) / math.sqrt(count)
    findings: tuple[Finding, ...] = tuple(chain_findings(draws, {found.level: found.losses}))
    return Estimate(
        name,
        float(whole.mean()),
        se=math.hypot(draw_se, test_se),
        findings=findings,
        spec=draws.spec,
        seed=seed,
        diagnostics={
            "nbeta": found.level,
            "beta": found.level / int(draws.spec["n"]),
            "rhat": split_rhat(found.losses),
            "ess": ess(found.losses),
            "entropy": float(found.entropy.mean()),
            "excess": found.value,
            "excess_se": math.hypot(draw_se, float(found.points.std(ddof=1)) / math.sqrt(count)),
            "draw_se": draw_se,
            "test_se": test_se,
            "test_points": count,
        },
        provenance=draws.provenance,
        draws=draws,
    )


def _excess(draws: Draws, triple: Triple, test: Test, seed: int, nbeta: float | None, *, bayes: bool) -> Excess:
    if not isinstance(triple, Triple):
        raise InputError(f"expected a Triple, got {type(triple).__name__}")
    level = chosen_level(draws, nbeta)
    places = triple.positions(draws, level)
    chains, count, _ = places.shape
    if count < _FEWEST:
        raise InputError(f"expected {_FEWEST} draws a chain or more, got {count}; their error would not be known")
    if not torch.isfinite(places).all():
        raise InputError("expected finite positions of all draws, got some that are not; look at the draws")
    x, y = _tested(triple, test, seed)
    points: list[Array] = []
    influence, losses = np.zeros((chains, count)), np.zeros((chains, count))
    for column in _columns(triple, x, y, max(1, _BLOCK // (chains * count * _values(triple, y))), seed):
        with torch.no_grad():
            parts = torch.split(places.reshape(chains * count, -1), max(1, _BLOCK // (16 * len(column.x))))
            given = torch.cat([column.losses(triple.outputs(part, column.x).double()) for part in parts])
        block = given.cpu().numpy().reshape(chains, count, *column.weights.shape)
        if not np.isfinite(block).all():
            raise InputError("expected finite losses of all draws on the test set, got some that are not")
        above = (column.weights * (block + column.logs)).sum(3)
        share = len(column.x) / len(x)
        losses += above.mean(2) * share
        if bayes:
            least = block.min((0, 1))
            scaled = np.exp(least - block)
            mean = scaled.mean((0, 1))
            points.append((column.weights * (column.logs + least - np.log(mean))).sum(1))
            influence -= (column.weights * scaled / mean).sum(3).mean(2) * share
        else:
            points.append(above.mean((0, 1)))
    entropy = triple.loss.entropy(triple.expected(x).double()).cpu().numpy()
    return Excess(np.concatenate(points), influence if bayes else losses, losses, entropy, level)


def _tested(triple: Triple, test: Test, seed: int) -> tuple[Tensor, Tensor | None]:
    if isinstance(test, int) and not isinstance(test, bool):
        if test < 2:
            raise InputError(f"expected test as two inputs or more, got {test}")
        return triple.points(test, derived_seed(seed, _STREAM)), None
    try:
        x, y = test  # type: ignore[misc]
        triple.empirical_entropy((x, y))
    except (TypeError, ValueError) as error:
        raise InputError(f"expected test as a number of inputs or as (x, y) of this triple, got {error}") from error
    if len(x) < 2:
        raise InputError(f"expected a test set of two examples or more, got {len(x)}")
    return x, y


def _values(triple: Triple, y: Tensor | None) -> int:
    """How many values of y each input is taken with."""
    if y is not None:
        return 1
    return triple.expected(triple.points(1)).shape[1] if triple.likelihood == "categorical" else 2


def _columns(triple: Triple, x: Tensor, y: Tensor | None, size: int, seed: int) -> Iterator[_Column]:
    """Test inputs in blocks, each with values of y whose weighted mean is that over q(y|x)."""
    truth = triple.expected(x).double()
    classes = triple.likelihood == "categorical"
    generator = torch.Generator().manual_seed(derived_seed(seed, _STREAM, 1))
    noise = None
    if y is None and not classes:
        noise = triple.loss.drawn(torch.zeros_like(truth).cpu(), generator).to(truth)
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        here = truth[rows]
        if y is None and classes:
            logs = here.log_softmax(1)
            yield _Column(x[rows], lambda out: -out.log_softmax(2), logs.exp().cpu().numpy(), logs.cpu().numpy())
            continue
        if noise is None:
            assert y is not None
            targets = [y[rows] if classes else y[rows].double().reshape(here.shape)]
        else:
            targets = [here + noise[rows], here - noise[rows]]
        found = torch.stack([-triple.loss(here, target) for target in targets], 1).cpu().numpy()
        yield _Column(x[rows], _on(triple, targets), np.full(found.shape, 1 / len(targets)), found)


def _on(triple: Triple, targets: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """Losses (draw, point, value) of outputs (draw, point, ...)."""

    def losses(outputs: Tensor) -> Tensor:
        flat = outputs.flatten(0, 1)
        count = len(outputs)
        each = [triple.loss(flat, t.repeat(count, *[1] * (t.ndim - 1))).view(count, -1) for t in targets]
        return torch.stack(each, 2)

    return losses
