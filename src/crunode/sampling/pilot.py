"""Short chains that find the step of each temperature from the Metropolis acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crunode.core.rng import NoiseStream, derived_seed
from crunode.errors import EstimationError
from crunode.sampling.engine import Engine
from crunode.sampling.kernel import Kernel
from crunode.sampling.posterior import Posterior

__all__ = ["Pilot", "pilot"]


@dataclass(frozen=True)
class Pilot:
    """What short chains showed at each level of nbeta.

    Attributes:
        nbeta: The levels.
        steps: Steps found.
        accept: Mean acceptance over the second half.
        signal: nβ times the mean excess loss over the second half: a rough learning coefficient.
        last: Last positions of the chains at the first level.
        gradients: What it took, of one chain on the landscape's examples.
        ends: Last positions of the chains at all levels.
    """

    nbeta: tuple[float, ...]
    steps: tuple[float, ...]
    accept: tuple[float, ...]
    signal: tuple[float, ...]
    last: Tensor
    gradients: int
    ends: Tensor


def pilot(
    posterior: Posterior,
    kernel: Kernel,
    *,
    chains: int,
    target: float,
    seed: int,
    layout: str,
    start: Sequence[float] | None = None,
    iterations: int = 120,
) -> Pilot:
    """Adapt the step of each level towards the acceptance `target` by stochastic approximation (Robbins–Monro).

    The logarithm of the step moves by (acceptance − target) times a gain that falls off as k^-0.6, averaged over
    the chains of a level; the step returned is the average of the second half (Polyak).

    Args:
        posterior: The target, levels of nbeta included.
        kernel: A Metropolis kernel; its step is ignored.
        chains: Chains per level.
        target: Acceptance aimed for.
        seed: Seed of the pilot alone.
        layout: "batched" or "sequential".
        start: First guess of the steps.
        iterations: Length of the chains.

    Raises:
        EstimationError: No step is small enough to be accepted.
    """
    land, levels = posterior.landscape, posterior.levels
    count = chains * len(levels)
    engines = _engines(posterior, count, chains, seed, layout)
    place: dict[str, Any] = {"device": land.device, "dtype": land.packing.dtype}
    normal = NoiseStream(seed, range(count), land.dim, stream=2, **place)
    width = kernel.uniforms
    uniform = NoiseStream(seed, range(count), width, stream=3, kind="uniform", **place)
    guess = [first_step(posterior, level, seed) for level in levels] if start is None else start
    log_step = torch.tensor(guess, dtype=torch.float64).log()
    state = _Joint(engines, kernel, land.center.expand(count, -1).clone())
    half = iterations // 2
    steps, accepts, signals = [], [], []
    for k in range(iterations):
        step = log_step.exp().repeat_interleave(chains).to(**place)[:, None]
        row = state.advance(step, normal.at(k), uniform.at(k))
        accept = row["accept"].double().cpu().view(len(levels), chains).mean(1)
        log_step = log_step + 6.0 / (k + 5) ** 0.6 * (accept - target)
        if k >= half:
            steps.append(log_step)
            accepts.append(accept)
            signals.append(row["excess"].double().cpu().view(len(levels), chains).mean(1))
    accept = torch.stack(accepts).mean(0)
    if bool((accept < 0.02).any()) or not torch.isfinite(log_step).all():
        raise EstimationError(
            "no step is small enough for a proposal to be accepted: the loss may be discontinuous or non-finite close "
            "to the center. Check the loss near the weights, or give a kernel with a step"
        )
    found = torch.stack(steps).mean(0).exp()
    signal = torch.stack(signals).mean(0) * torch.tensor(levels, dtype=torch.float64)
    last = state.w[:chains]
    spent = count * (1 + iterations * kernel.leaps)
    return Pilot(levels, tuple(found.tolist()), tuple(accept.tolist()), tuple(signal.tolist()), last, spent, state.w)


class _Joint:
    """Chains under one engine or, where the model does not batch, under one each."""

    def __init__(self, engines: list[Engine], kernel: Kernel, w: Tensor) -> None:
        self.engines, self.kernel, self.w = engines, kernel, w
        self.rows = [slice(None)] if len(engines) == 1 else [slice(k, k + 1) for k in range(len(engines))]
        self.states = [{"w": w[r], **kernel.init(w[r], e)} for r, e in zip(self.rows, engines, strict=True)]

    def advance(self, step: Tensor, noise: Tensor, uniform: Tensor) -> dict[str, Tensor]:
        parts = [
            self.kernel.advance(s, e, step[r], noise[r], uniform[r], True)
            for s, e, r in zip(self.states, self.engines, self.rows, strict=True)
        ]
        return {name: torch.cat([p[name] for p in parts]) for name in parts[0]}


def _engines(posterior: Posterior, count: int, chains: int, seed: int, layout: str) -> list[Engine]:
    nbeta = torch.tensor(posterior.levels, dtype=torch.float64).repeat_interleave(chains)
    if layout == "batched":
        return [Engine(posterior, range(count), nbeta, seed=seed, batch=None, layout=layout)]
    return [Engine(posterior, [k], nbeta[k : k + 1], seed=seed, batch=None, layout="sequential") for k in range(count)]


def first_step(posterior: Posterior, nbeta: float, seed: int) -> float:
    """A first guess of the step: a tenth of the inverse largest curvature of the potential, by power iteration."""
    land, precision = posterior.landscape, posterior.stiffness
    generator = torch.Generator().manual_seed(derived_seed(seed, 14))
    v = torch.randn(land.dim, generator=generator).to(land.center)
    radius = 1e-2 * max(float(land.center.double().square().mean()) ** 0.5, 0.1)
    batch = next(iter(land.data.passes(min(256, land.data.rows))))
    origin = land.batch_gradient(land.center, batch)
    curvature = 0.0
    for _ in range(6):
        v = v / v.norm()
        v = (land.batch_gradient(land.center + radius * v, batch) - origin) / radius
        curvature = float(v.norm())
        if not curvature > 0:
            break
    return 0.1 / (nbeta * curvature + max(precision, 1e-3))
