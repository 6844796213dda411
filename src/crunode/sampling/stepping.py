"""How unadjusted kernels step: what a step adds to the estimate, rungs at half the step to measure it, and lengths.

Around a quadratic minimum with curvatures a = nβh + γ and minibatch noise of covariance C in ∇U, the positions of a
Langevin kernel have variance

    (1 + εC/(4α)) / (a (1 − εa/(4(2 − α)))),

where α is the friction of SGHMC and 1 for SGLD: both parts of the error, discretisation and heating, are of first order
in the step. Where the landscape is not quadratic, its thin arms add a part that falls faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.rng import derived_seed
from crunode.sampling.metropolis import HMC
from crunode.sampling.pilot import pilot
from crunode.sampling.posterior import Posterior, Rung

__all__ = [
    "Explored",
    "accepted_share",
    "bounded",
    "calming",
    "explore",
    "friction_of",
    "half_steps",
    "lengths_for",
    "noise_away",
    "predicted",
    "steps_of",
]

# Predicted share of discretisation and heating in an estimate above which the step is made smaller.
_MOST = 0.2
# Microseconds that sampling may take: for a chain's step, and for an example times a parameter of its gradient.
_TIME, _EACH, _PER_WORK = 8e6, 10.0, 1e-3
_FEWEST, _LONGEST = 2500, 40_000
# Of trajectories that look for what chains will meet, and examples times parameters up to which they are made.
_TRAJECTORIES, _EXPLORED_WORK = 60, 1e6
# The largest ε times the curvature of the potential at typical points.
_STIFFEST = 0.7


def steps_of(kernel: Any, levels: int) -> tuple[float, ...]:
    """The step at each level of nbeta."""
    return kernel.step if isinstance(kernel.step, tuple) else (kernel.step,) * levels


def friction_of(kernel: Any) -> float:
    """α of the formula above: that of SGHMC, the first one of SGNHT, and 1 for kernels without momentum.

    Args:
        kernel: A kernel, or its fields as they are stored.

    Example:
        >>> from crunode.sampling.stochastic import SGHMC, SGLD
        >>> friction_of(SGLD()), friction_of({"name": "SGHMC", "friction": 0.1})
        (1.0, 0.1)
    """
    fields = kernel if isinstance(kernel, Mapping) else vars(kernel)
    return float(fields.get("friction", fields.get("diffusion", 1.0)))


def predicted(
    step: float,
    nbeta: float,
    *,
    trace: float,
    noise: float,
    batch: float,
    friction: float = 1.0,
) -> tuple[float, float]:
    """What discretisation and heating add to λ̂ to first order: ε nβ Tr(H)/(8(2 − α)) and ε (nβ)² Tr(Σ)/(8Bα).

    Args:
        step: ε.
        nbeta: Inverse temperature times n.
        trace: Tr(H) of the loss.
        noise: Tr(Σ), the trace of the covariance of single-example gradients.
        batch: Examples in a batch B, infinite for all data.
        friction: α.

    Example:
        >>> predicted(0.01, 100.0, trace=8.0, noise=8.0, batch=100)
        (1.0, 1.0)
    """
    heat = step * nbeta**2 * noise / (8 * batch * friction)
    return step * nbeta * max(trace, 0.0) / (8 * (2 - friction)), heat


def accepted_share(accept: float, directions: float) -> float:
    """ε a/4, what discretisation adds to a Langevin estimate, from the acceptance that MALA has with the same step.

    In d directions of curvature a the acceptance is 2Φ(−√(d (εa)³)/8) for large d.

    Args:
        accept: Mean acceptance.
        directions: d, twice the learning coefficient.

    Example:
        >>> round(accepted_share(0.9, 20.0), 3)
        0.092

    References:
        Roberts & Rosenthal 1998.
    """
    quantile = NormalDist().inv_cdf(1 - min(max(accept, 1e-3), 0.999) / 2)
    return 0.25 * math.pow(64 * quantile**2 / max(directions, 1.0), 1 / 3)


def calming(shares: Sequence[float]) -> list[float]:
    """Factors for steps so that no predicted share of their errors in an estimate exceeds a fifth.

    Example:
        >>> calming([0.1, 0.4])
        [1.0, 0.5]
    """
    return [min(1.0, _MOST / share) if share > 0 else 1.0 for share in shares]


def bounded(
    steps: Sequence[float], levels: Sequence[float], largest: Sequence[float], precision: float
) -> tuple[float, ...]:
    """Steps no larger than 0.7 over the largest curvature of the potential; Langevin steps above 4 over it diverge.

    Args:
        steps: ε at each level.
        levels: The levels of nbeta.
        largest: The largest curvature of the loss at points that chains reach at each level.
        precision: γ.

    Example:
        >>> [round(e, 3) for e in bounded([0.1, 0.1], [10.0, 100.0], [0.5, 0.5], 20.0)]
        [0.028, 0.01]
    """
    each = zip(steps, levels, largest, strict=True)
    return tuple(min(e, _STIFFEST / (t * h + precision)) if h > 0 else e for e, t, h in each)


@dataclass(frozen=True)
class Explored:
    """Curvature of the loss at points that chains will reach, for each level of nbeta.

    Attributes:
        largest: Largest eigenvalue of the Hessian, the mean over points.
        trace: Its trace.
        square: The trace of its square.
        noise: Trace of the covariance of single-example gradients.
        controlled: The same, less the gradients at the center of the same examples.
        gradients: What it took, of one chain on the landscape's examples.
    """

    largest: tuple[float, ...]
    trace: tuple[float, ...]
    square: tuple[float, ...]
    noise: tuple[float, ...]
    controlled: tuple[float, ...]
    gradients: int


def explore(posterior: Posterior, *, seed: int, layout: str, chains: int = 2) -> Explored | None:
    """Look for the curvature away from the center, with short Hamiltonian trajectories on a part of the examples.

    Langevin chains take many steps to the ends of the valleys of singular landscapes. Curvatures there are higher than
    at the center, and steps that suit the center are too large.

    Args:
        posterior: The target with all levels, on few examples.
        seed: Seed of the trajectories alone.
        layout: "batched" or "sequential".
        chains: Points per level.

    Returns:
        What was found; None where trajectories would cost more than the chains that they are for.
    """
    land = posterior.landscape
    if land.data.rows * land.dim > _EXPLORED_WORK:
        return None
    found = pilot(posterior, HMC(), chains=chains, target=0.8, seed=seed, layout=layout, iterations=_TRAJECTORIES)
    batch = next(iter(land.passes()))
    generator = torch.Generator().manual_seed(derived_seed(seed, 16))
    rows = []
    for w in found.ends:
        radius = 1e-3 * max(float(w.double().square().mean()) ** 0.5, 0.01)
        v = torch.randn(land.dim, generator=generator).to(w)
        largest = 0.0
        for _ in range(8):
            v = _product(land, w, v / v.norm(), radius, batch)
            largest = float(v.norm())
            if not largest > 0:
                break
        sign = torch.randint(0, 2, w.shape, generator=generator).to(w) * 2 - 1
        product = _product(land, w, sign, radius, batch).double()
        traces = float(product @ sign.double()), float(product @ product)
        rows.append((largest, *traces, *noise_away(land, w, generator)))
    table = torch.tensor(rows, dtype=torch.float64).view(len(posterior.levels), chains, 5).mean(1)
    columns = [tuple(column.tolist()) for column in table.T]
    return Explored(columns[0], columns[1], columns[2], columns[3], columns[4], found.gradients)


def noise_away(
    land: Landscape, w: Tensor, generator: torch.Generator, batches: int = 8, size: int = 32
) -> tuple[float, float]:
    """Traces of the covariances of g_i(w), and of g_i(w) − g_i(w*), the noise that a control variate leaves.

    The latter is the smaller one near the center only: far along a curved valley the gradients have little in common.

    Args:
        land: The landscape.
        w: A point.
        generator: Examples are chosen by it.
        batches: Number of batches to compare.
        size: Examples in each.
    """
    plain, controlled, count = [], [], min(size, land.data.rows)
    for _ in range(batches):
        index = torch.randperm(land.data.rows, generator=generator)[:count].to(land.device)
        batch = land.data.take(index)
        count = leaves(batch)[0].shape[0]  # in a list of batches, that of the batch
        plain.append(land.batch_gradient(w, batch))
        controlled.append(plain[-1] - land.batch_gradient(land.center, batch))
    first, second = (count * float(torch.stack(rows).var(0).double().sum()) for rows in (plain, controlled))
    return first, second


def _product(land: Landscape, w: Tensor, v: Tensor, radius: float, batch: Any) -> Tensor:
    ends = [land.batch_gradient(w + sign * radius * v, batch) for sign in (1, -1)]
    return (ends[0] - ends[1]) / (2 * radius)


def half_steps(levels: Sequence[float], precision: float, kernel: Any) -> tuple[Rung, ...]:
    """A rung at half the step beside each level.

    Example:
        >>> from crunode.sampling.stochastic import SGLD
        >>> half_steps([100.0], 1.0, SGLD(step=0.2, batch=10))
        (Rung(nbeta=100.0, precision=1.0, step=0.1, role='step'),)
    """
    steps = steps_of(kernel, len(levels))
    return tuple(Rung(t, precision, e / 2, "step") for t, e in zip(levels, steps, strict=True))


def lengths_for(kernel: Any, precision: float, *, levels: int, rungs: int, work: float) -> tuple[int, int, int, float]:
    """Chains per rung, kept draws, warm-up, and the steps in which directions that only the prior holds forget.

    Along these a chain with half the step forgets in 4α/(εγ) steps. Warm-up is three times and the rest ten times as
    long, if that does not take too much time.

    Args:
        kernel: The kernel with its steps.
        precision: γ; 0 without a prior.
        levels: Number of levels of nbeta.
        rungs: Number of rungs.
        work: Examples times parameters in a gradient.

    Example:
        >>> from crunode.sampling.stochastic import SGLD
        >>> lengths_for(SGLD(step=0.01, batch=10), 1.0, levels=1, rungs=2, work=100.0)
        (4, 4000, 1200, 400.0)
    """
    chains = 4
    slow = 4 * friction_of(kernel) / (min(steps_of(kernel, levels)) * precision) if precision > 0 else math.inf
    most = int(min(max(_TIME / (_EACH + _PER_WORK * work) / (chains * rungs), _FEWEST), _LONGEST))
    warmup = int(min(max(3 * slow, 500), most // 4))
    return chains, int(min(max(10 * slow, 2000), most - warmup)), warmup, slow
