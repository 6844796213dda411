"""Nudged elastic bands: chains of points that slide down across their own direction, held apart by springs."""

from __future__ import annotations

import torch
from torch import Tensor

from crunode.topology.descent import Adam
from crunode.topology.heights import Heights
from crunode.topology.paths import Path, evenly_between, examine_path

__all__ = ["elastic_band"]

# The step of Adam relative to the distance of neighboring beads, and how far beads are moved at random at first.
_STEP, _NUDGE = 0.2, 0.02


def elastic_band(
    heights: Heights, a: Tensor, b: Tensor, generator: torch.Generator, *, beads: int = 17, steps: int = 200
) -> Path:
    """A low path by the nudged elastic band.

    Each inner bead feels −∇L across the path, and springs (the difference of the distances to its neighbors) along it.
    The direction of the path at a bead points to its higher neighbor (Henkelman & Jónsson 2000).

    Args:
        heights: The loss.
        a: One end, a flat vector in double precision.
        b: The other.
        generator: For a small random displacement, without which a band on a symmetric ridge would stay there.
        beads: Number of beads, ends included.
        steps: Steps of Adam, with a rate that falls to zero.

    Returns:
        The lowest of the paths after the last step and at the lowest highest bead.

    Example:
        >>> from crunode.core.landscape import Landscape
        >>> circle = Landscape.of_function(lambda w: (w.square().sum() - 1) ** 2, torch.tensor([1.0, 0.0]))
        >>> a, b = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
        >>> elastic_band(Heights(circle), a, b, torch.Generator().manual_seed(0)).largest < 0.01
        True

    References:
        Jónsson, Mills & Jacobsen 1998; Draxler et al. 2018, "Essentially no barriers in neural network energy
        landscape".
    """
    band = evenly_between(a, b, beads)
    spacing = float((b - a).norm()) / (beads - 1)
    noise = torch.randn(band[1:-1].shape, generator=generator, dtype=torch.float64).to(band)
    inner = band[1:-1] + _NUDGE * spacing * (beads - 1) * noise / noise.norm(dim=1, keepdim=True).clamp_min(1e-300)
    adam = Adam(_STEP * spacing / len(a) ** 0.5, steps)
    ends = heights.values(torch.stack([a, b]))
    lowest, best = torch.inf, inner
    for _ in range(steps):
        chain = torch.cat([a[None], inner, b[None]])
        values, slopes = heights.slopes(chain[1:-1])
        if float(values.max()) < lowest:
            lowest, best = float(values.max()), inner
        inner = inner + adam.step(-_force(chain, torch.cat([ends[:1], values, ends[1:]]), slopes))
    paths = [examine_path(heights, torch.cat([a[None], part, b[None]])) for part in (inner, best)]
    return min(paths, key=lambda path: path.bound)


def _force(chain: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
    after, before = chain[2:] - chain[1:-1], chain[1:-1] - chain[:-2]
    up, down = values[2:], values[:-2]
    rise, fall = (values[2:] - values[1:-1]).abs(), (values[1:-1] - values[:-2]).abs()
    more, less = torch.maximum(rise, fall)[:, None], torch.minimum(rise, fall)[:, None]
    higher = (up > down)[:, None]
    climbing = ((up > values[1:-1]) & (values[1:-1] > down))[:, None]
    sinking = ((up < values[1:-1]) & (values[1:-1] < down))[:, None]
    at_turn = torch.where(higher, after * more + before * less, after * less + before * more)
    along = torch.where(climbing, after, torch.where(sinking, before, at_turn))
    flat = along.norm(dim=1, keepdim=True) == 0
    along = torch.where(flat, after + before, along)
    along = along / along.norm(dim=1, keepdim=True).clamp_min(1e-300)
    across = slopes - (slopes * along).sum(1, keepdim=True) * along
    stretch = after.norm(dim=1, keepdim=True) - before.norm(dim=1, keepdim=True)
    # Springs as stiff as the loss is steep, so that neither rules over the other.
    stiffness = slopes.norm(dim=1).mean() / (chain.diff(dim=0).norm(dim=1).mean().clamp_min(1e-300))
    return torch.sub(stiffness * stretch * along, across)
