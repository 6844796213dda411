"""Hamiltonian Monte Carlo for many small posteriors at once: data sets × chains are one batch.

Hundreds of posteriors of 9 or 18 parameters are wanted, each with data of its own. `crunode.sample_each` needs as many
examples in all of them; here data sets differ in length, and energies are sums over a few statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from crunode import InputError
from crunode.core import derived_seed

__all__ = ["Energy", "Posterior", "hamiltonian"]

Energy = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Takes parameters (data set, chain, parameter); gives minus the log posterior (data set, chain), and its gradient."""

_DIVERGED = 1000.0
_TARGET = 0.8


class Posterior(NamedTuple):
    """Draws from the posteriors of all data sets.

    Attributes:
        draws: (data set, chain, draw, parameter).
        energy: Minus the log posterior up to a constant, (data set, chain, draw).
        divergent: Share of kept transitions whose energy error was above 1000, for each data set.
        accepted: Mean probability of acceptance, for each data set.
    """

    draws: Tensor
    energy: Tensor
    divergent: Tensor
    accepted: Tensor


def hamiltonian(
    energy: Energy, start: Tensor, *, draws: int, warmup: int, leaps: int, seed: int, step: float = 0.05
) -> Posterior:
    """Draw from many posteriors side by side.

    The step of each data set is found by dual averaging of the acceptance over its chains (target 0.8), and the scale
    of each parameter from the draws of all its chains, at a quarter and at half of the warm-up. Steps per transition
    vary evenly from half of `leaps` to one and a half times it, so that no orbit closes on itself.

    Args:
        energy: Minus the log posteriors, and their gradients.
        start: Where chains start, (data set, chain, parameter).
        draws: Kept draws per chain.
        warmup: Transitions before them.
        leaps: Mean number of leapfrog steps.
        seed: All randomness comes from it; on another device other numbers are drawn.
        step: The first step tried.

    Returns:
        The draws.

    References:
        Hoffman & Gelman 2014, The No-U-Turn sampler, section 3.2 (dual averaging).

    Example:
        >>> def normal(w):
        ...     return w.square().sum(-1) / 2, w
        >>> found = hamiltonian(normal, torch.zeros(3, 4, 2), draws=200, warmup=100, leaps=8, seed=0)
        >>> found.draws.shape
        torch.Size([3, 4, 200, 2])
        >>> bool((found.draws.var((1, 2)) - 1).abs().max() < 0.3)
        True
    """
    if draws < 1 or warmup < 20 or leaps < 1:
        raise InputError(f"expected draws from 1, warmup from 20 and leaps from 1 up, got {draws}, {warmup}, {leaps}")
    sets, chains, size = start.shape
    generator = torch.Generator(device=start.device).manual_seed(derived_seed(seed, 0))
    lengths = torch.randint(
        max(1, leaps // 2), leaps + leaps // 2 + 1, (warmup + draws,), generator=torch.Generator().manual_seed(seed)
    ).tolist()

    def normal() -> Tensor:
        return torch.randn(start.shape, generator=generator, device=start.device, dtype=start.dtype)

    place = start.clone()
    level, slope = energy(place)
    scale = torch.ones(sets, 1, size, device=start.device, dtype=start.dtype)
    rate = _Rate(torch.full((sets, 1, 1), step, device=start.device, dtype=start.dtype))
    windows = {warmup // 4, warmup // 2}
    seen: list[Tensor] = []
    kept = torch.empty(sets, chains, draws, size, device=start.device, dtype=start.dtype)
    levels = torch.empty(sets, chains, draws, device=start.device, dtype=start.dtype)
    divergent = torch.zeros(sets, device=start.device)
    accepted = torch.zeros(sets, device=start.device)
    for k in range(warmup + draws):
        if k in windows:
            scale = _spread(torch.stack(seen[len(seen) // 3 :], 2), scale)
            rate.restart()
            seen = []
        size_now = rate.now if k < warmup else rate.settled
        ahead = scale * size_now
        push = normal()  # in units in which the mass is one
        old = level + push.square().sum(-1) / 2
        new_place, new_slope = place, slope
        push = push - 0.5 * ahead * new_slope
        for leap in range(lengths[k]):
            new_place = new_place + ahead * push
            new_level, new_slope = energy(new_place)
            push = push - (0.5 if leap == lengths[k] - 1 else 1.0) * ahead * new_slope
        change = new_level + push.square().sum(-1) / 2 - old
        change = torch.where(change.isfinite(), change, math.inf)
        chance = torch.exp(-change.clamp(min=0.0))
        dice = torch.rand(chance.shape, generator=generator, device=start.device)
        take = (dice < chance)[..., None]
        place = torch.where(take, new_place, place)
        slope = torch.where(take, new_slope, slope)
        level = torch.where(take[..., 0], new_level, level)
        if k < warmup:
            rate.learn(chance.mean(1)[:, None, None])
            if k < warmup // 2:
                seen.append(place)
        else:
            kept[:, :, k - warmup] = place
            levels[:, :, k - warmup] = level
            divergent += (change > _DIVERGED).float().mean(1)
            accepted += chance.mean(1)
    return Posterior(kept, levels, divergent / draws, accepted / draws)


def _spread(seen: Tensor, scale: Tensor) -> Tensor:
    """Scales of the parameters, pulled a little toward equal ones so that few draws do no harm."""
    flat = seen.flatten(1, 2)
    count = seen.shape[2]
    variance = flat.var(1, keepdim=True)
    variance = (count * variance + 5 * variance.mean(-1, keepdim=True)) / (count + 5)
    good = variance.isfinite() & (variance > 0)
    return torch.where(good, variance, scale.square()).sqrt()


class _Rate:
    """Dual averaging of the log step, one for each data set."""

    def __init__(self, step: Tensor) -> None:
        self.now = self.settled = step
        self.restart()

    def restart(self) -> None:
        self._aim = torch.log(10 * self.now)
        self._error = torch.zeros_like(self.now)
        self._mean = torch.log(self.now)
        self._count = 0

    def learn(self, chance: Tensor) -> None:
        self._count += 1
        share = 1.0 / (self._count + 10)
        self._error = (1 - share) * self._error + share * (_TARGET - chance)
        log = self._aim - math.sqrt(self._count) / 0.05 * self._error
        fade = self._count**-0.75
        self._mean = fade * log + (1 - fade) * self._mean
        self.now, self.settled = log.exp(), self._mean.exp()
