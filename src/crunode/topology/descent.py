"""Descent of many points at once: to a target with a step of their own each, and by Adam."""

from __future__ import annotations

import torch
from torch import Tensor

from crunode.topology.heights import Heights

__all__ = ["Adam", "lowered"]

_GROW, _SHRINK, _LARGEST = 1.5, 0.3, 2.0
# Descent ends where these many steps bring less than this share of what is left to the target.
_STALL_STEPS, _STALL_SHARE = 10, 0.02


class Adam:
    """Steps of Adam with a rate that falls linearly to zero (Kingma & Ba 2015).

    The optimizer of torch takes seconds to be imported, which is longer than most searches take.

    Args:
        rate: The rate at first.
        steps: Number of steps.

    Example:
        >>> adam, w = Adam(0.1, 100), torch.ones(2)
        >>> for _ in range(100):
        ...     w = w + adam.step(2 * w)
        >>> bool(w.norm() < 0.05)
        True
    """

    def __init__(self, rate: float, steps: int) -> None:
        self._rate, self._steps, self._done = rate, steps, 0
        self._mean: Tensor | float = 0.0
        self._square: Tensor | float = 0.0

    def step(self, gradient: Tensor) -> Tensor:
        """The step to take for a gradient."""
        rate = self._rate * (1 - self._done / self._steps)
        self._done += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.99 * self._square + 0.01 * gradient.square()
        mean = self._mean / (1 - 0.9**self._done)
        return -rate * mean / ((self._square / (1 - 0.99**self._done)).sqrt() + 1e-12)


def lowered(
    heights: Heights,
    points: Tensor,
    targets: Tensor,
    floors: Tensor,
    reach: Tensor,
    steps: int,
    across: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Descent of many points by conjugate gradients, each with its own step, until it is at its target.

    A step goes as far as a loss that is linear would need to be at the floor, (L − floor)/‖∇L‖² for a step along the
    gradient (Polyak 1969), times a factor that grows with every step that goes down and shrinks with every one that
    does not. Directions are those of Polak & Ribière (1969).

    Args:
        heights: The loss.
        points: Where to begin, shape (points, dim).
        targets: Losses to stop at.
        floors: Losses that are known to be reached somewhere.
        reach: The longest step of each, shape (points, 1).
        steps: Most steps.
        across: Unit vectors that points do not move along.

    Example:
        >>> from crunode.core.landscape import Landscape
        >>> heights = Heights(Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2)))
        >>> here, target, floor = torch.tensor([[3.0, 4.0]]), torch.tensor([0.1]), torch.zeros(1)
        >>> float(lowered(heights, here, target, floor, torch.ones(1, 1), 50)[1]) <= 0.1
        True
    """

    def look(at: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        found, slope = heights.slopes(at)
        if across is not None:
            slope = slope - (slope * across[index]).sum(1, keepdim=True) * across[index]
        return found, slope

    points = points.double().clone()
    live = torch.arange(len(points), device=points.device)
    values, slopes = look(points, live)
    ways = -slopes
    factor, before = torch.ones_like(values), torch.full_like(values, torch.inf)
    for step in range(steps):
        active = (values[live] > targets[live]) & (slopes[live].abs().amax(1) > 0)
        if step % _STALL_STEPS == 0:
            active &= before[live] - values[live] > _STALL_SHARE * (values[live] - targets[live])
            before = values.clone()
        live = live[active]
        if not len(live):
            break
        way, slope = ways[live], slopes[live]
        falling = -(way * slope).sum(1, keepdim=True)
        length = (factor[live] * (values[live] - floors[live]))[:, None] / falling
        step_by = way * torch.minimum(length, reach[live] / way.norm(dim=1, keepdim=True))
        found, fresh = look(points[live] + step_by, live)
        down = found < values[live]
        won = live[down]
        turn = (fresh * (fresh - slope)).sum(1, keepdim=True) / slope.square().sum(1, keepdim=True)
        turned = turn.clamp_min(0) * way - fresh
        # A way that goes up, or hardly down, is of no use; nor is one along which no step went down.
        good = -(turned * fresh).sum(1) > 0.1 * turned.norm(dim=1) * fresh.norm(dim=1)
        points[won], values[won], slopes[won] = (points[live] + step_by)[down], found[down], fresh[down]
        ways[live] = torch.where((down & good)[:, None], turned, torch.where(down[:, None], -fresh, -slope))
        factor[live] = torch.where(down, (factor[live] * _GROW).clamp_max(_LARGEST), factor[live] * _SHRINK)
    return points, values
