"""Paths of straight pieces through parameter space, and how high the loss rises along them.

Between two grid points of a piece the loss can be above both. How far is told by second differences: a function with a
constant second derivative, and one with a single kink, rise above the chord of an interval by at most half the larger
second difference at its two ends. Intervals in which that would pass a limit are divided further.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.topology.heights import Heights

__all__ = ["Path", "Pieces", "evenly_between", "examine_path", "examine_pieces"]

CELLS = 8
"""Intervals that each straight piece is divided into at first."""
ZOOM = 4
"""Into how many an interval is divided where the loss between its ends is in doubt."""
_ZOOMS, _MOST = 6, 4096


@dataclass(frozen=True)
class Path:
    """A path of straight pieces, and the loss along it.

    Attributes:
        points: Its corners, end points included, shape (corners, dim).
        positions: Where the loss was computed, as shares of the length, in order.
        losses: The loss there.
        largest: The largest of these.
        bound: What the loss between grid points stays below, as far as its second differences tell.
        spacing: The widest distance between neighboring grid points, in parameter space.

    Example:
        >>> from crunode.core.landscape import Landscape
        >>> land = Landscape.of_function(lambda w: (w[0] ** 2 - 1) ** 2, torch.zeros(1))
        >>> path = examine_path(Heights(land), torch.tensor([[-1.0], [1.0]]))
        >>> path.largest, path.bound - path.largest < 1e-4
        (1.0, True)
        >>> float(path.at(0.25)[0])
        -0.5
    """

    points: Tensor
    positions: np.ndarray
    losses: np.ndarray
    largest: float
    bound: float
    spacing: float

    @property
    def length(self) -> float:
        """Its length in parameter space."""
        return float(self.points.diff(dim=0).norm(dim=1).sum())

    def at(self, share: float) -> Tensor:
        """The point at a share of the length from the first end."""
        steps = self.points.diff(dim=0).norm(dim=1)
        ends = torch.cat([steps.new_zeros(1), steps.cumsum(0)])
        place = min(max(float(share), 0.0), 1.0) * float(ends[-1])
        piece = min(int((ends[1:] < place).sum()), len(steps) - 1)
        inside = (place - float(ends[piece])) / max(float(steps[piece]), 1e-300)
        return torch.lerp(self.points[piece], self.points[piece + 1], min(inside, 1.0))

    def to_dict(self) -> dict[str, Any]:
        """All but the corners, as JSON-able values."""
        return {
            "corners": len(self.points),
            "length": self.length,
            "positions": self.positions.tolist(),
            "losses": self.losses.tolist(),
            "largest": self.largest,
            "bound": self.bound,
            "spacing": self.spacing,
        }


@dataclass(frozen=True)
class Pieces:
    """What was seen along several straight pieces.

    Attributes:
        largest: The largest loss found on each, shape (pieces,).
        where: Its place, from 0 to 1.
        bound: What the loss on each stays below, as far as second differences tell.
        piece: Of which piece each grid point is.
        place: Its place on that piece.
        loss: The loss there.
    """

    largest: Tensor
    where: Tensor
    bound: Tensor
    piece: Tensor
    place: Tensor
    loss: Tensor


def examine_pieces(heights: Heights, starts: Tensor, ends: Tensor, limits: Tensor | None) -> Pieces:
    """The loss along straight pieces, on a grid that zooms in where it may pass a limit.

    Args:
        heights: The loss.
        starts: First ends of the pieces, shape (pieces, dim).
        ends: Their other ends.
        limits: For each piece the level that it should stay below; pieces that are found to pass it are left at that.
            None: the largest loss found on any piece, for a bound that is nearly reached.
    """
    count, device = len(starts), starts.device
    grid = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64, device=device)
    piece = torch.arange(count, device=device).repeat_interleave(CELLS + 1)
    place = grid.repeat(count)
    loss = heights.values(torch.lerp(starts[piece], ends[piece], place[:, None]))
    owner, low, high, bound = _intervals(piece, place.view(count, -1), loss.view(count, -1))
    largest = loss.view(count, -1).amax(1)
    for _ in range(_ZOOMS):
        if limits is None:
            # A bound within a thousandth of the rise is as good as any.
            top = largest.max()
            doubt = bound > top + 1e-3 * (top - largest.min()).clamp_min(1e-300)
        else:
            doubt = (bound > limits[owner]) & (largest[owner] <= limits[owner])
        index = doubt.nonzero().flatten()[:_MOST]
        if not len(index):
            break
        inner = torch.linspace(0, 1, ZOOM + 1, dtype=torch.float64, device=device)
        finer = low[index, None] + (high - low)[index, None] * inner
        mine = owner[index]
        spread = mine.repeat_interleave(ZOOM + 1)
        values = heights.values(torch.lerp(starts[spread], ends[spread], finer.reshape(-1, 1))).view(-1, ZOOM + 1)
        piece = torch.cat([piece, mine.repeat_interleave(ZOOM - 1)])
        place = torch.cat([place, finer[:, 1:-1].flatten()])
        loss = torch.cat([loss, values[:, 1:-1].flatten()])
        largest = largest.scatter_reduce(0, mine, values.amax(1), "amax")
        keep = torch.ones(len(owner), dtype=torch.bool, device=device)
        keep[index] = False
        new = _intervals(spread, finer, values)
        parts = zip((owner, low, high, bound), new, strict=True)
        owner, low, high, bound = (torch.cat([old[keep], fresh]) for old, fresh in parts)
    reach = torch.full_like(largest, -torch.inf).scatter_reduce(0, owner, bound, "amax")
    at_top = loss >= largest[piece]
    where = torch.zeros_like(largest).scatter_reduce(0, piece[at_top], place[at_top], "amax")
    return Pieces(largest, where, torch.maximum(reach, largest), piece, place, loss)


def _intervals(piece: Tensor, places: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Owner, ends and bound of the intervals of grids, one in each row."""
    second = values.diff(n=2, dim=1).abs().nan_to_num(nan=torch.inf)
    padded = torch.cat([second[:, :1], second, second[:, -1:]], dim=1)
    rise = torch.maximum(padded[:, :-1], padded[:, 1:]) / 2
    bound = torch.maximum(values[:, :-1], values[:, 1:]) + rise
    owner = piece.view(len(values), -1)[:, 1:]
    return owner.flatten(), places[:, :-1].flatten(), places[:, 1:].flatten(), bound.flatten()


def examine_path(heights: Heights, points: Tensor, limit: float | None = None) -> Path:
    """The loss along a path of straight pieces.

    Args:
        heights: The loss.
        points: Corners of the path, shape (corners, dim).
        limit: A level that it is to be held against; None for a bound near to the largest loss.
    """
    points = points.to(heights.device, torch.float64)
    limits = None if limit is None else torch.full((len(points) - 1,), limit, dtype=torch.float64, device=points.device)
    return assembled(points, examine_pieces(heights, points[:-1], points[1:], limits))


def assembled(points: Tensor, seen: Pieces) -> Path:
    """A path from what was seen on its pieces, in their order."""
    steps = points.diff(dim=0).norm(dim=1)
    before = torch.cat([steps.new_zeros(1), steps.cumsum(0)])
    total = before[-1].clamp_min(1e-300)
    positions = ((before[seen.piece] + seen.place * steps[seen.piece]) / total).cpu().numpy()
    order = np.lexsort((seen.place.cpu().numpy(), seen.piece.cpu().numpy()))
    positions, losses = positions[order], seen.loss.cpu().numpy()[order]
    widest = float(np.diff(positions).max(initial=0.0) * float(total))
    return Path(points, positions, losses, float(seen.largest.max()), float(seen.bound.max()), widest)


def evenly_between(a: Tensor, b: Tensor, corners: int) -> Tensor:
    """Points at equal distances on the straight line from a to b, both included.

    Example:
        >>> evenly_between(torch.zeros(1), torch.ones(1), 3).flatten()
        tensor([0.0000, 0.5000, 1.0000])
    """
    return torch.lerp(a, b, torch.linspace(0, 1, corners, dtype=a.dtype, device=a.device)[:, None])
