"""What the valley of minima says of the learning coefficient: a limit that sampling approaches but may not reach."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.curvature.valley import valley
from crunode.estimators.cooled_chain import FACTOR, MOVES, CooledChain

__all__ = ["Limit", "valley_limit"]

# How far around the center its own valley is looked at, and how far a basin reaches, relative to the weights.
_AROUND = {"local": (0.03, 0.1), "basin": (0.3, 1.0)}
_STARTS, _MANY_STARTS, _SMALL, _HUGE = 3, 6, 500, 200_000
# In directions that matrices of low rank do not have, larger networks are looked at from this far.
_REACH = 0.5
# From this size on a chain settles where to look from as well: examples to begin with, levels, and the most gradients.
_SETTLED, _EXAMPLES, _LEVELS, _GRADIENTS = 6000, 128, 2, 20_000
# The pieces of the valley that are met have a little more than the least rank.
_TYPICAL, _SCATTER = 0.015, 0.03
# What is lost from sight on the way may or may not lead to the center: two errors allow for either.
_ASTRAY = 0.6


@dataclass(frozen=True)
class Limit:
    """Half the rank of the Jacobian at smooth points of the valley.

    Attributes:
        value: The limit: the least that was met.
        error: Uncertainty of it: points that differ, singular values near zero, pieces that were not met.
        spread: How far other random points would move it.
        lowest: Half the rank at the center itself, a lower bound of the coefficient there.
        smooth: The center is a smooth point itself: the ranks agree, and the limit is the coefficient.
        points: Half the rank at each point.
        gradients: Passes over the examples it took.
        examples: Examples of each pass.
        method: "dense" or "krylov".
    """

    value: float
    error: float
    spread: float
    lowest: float
    smooth: bool
    points: tuple[float, ...]
    gradients: int
    examples: int
    method: str

    def summary(self) -> dict[str, Any]:
        """As JSON-able values."""
        return {**asdict(self), "points": list(self.points)}

    @classmethod
    def from_summary(cls, content: Mapping[str, Any] | None) -> Limit | None:
        """Inverse of `summary`."""
        return None if content is None else cls(**{**content, "points": tuple(content["points"])})


def valley_limit(land: Landscape, target: str = "local", *, seed: int = 0) -> Limit | None:
    """The coefficient at smooth points of the valley around the center of a landscape without label noise.

    λ(w*) is at most half the rank of the Jacobian at smooth points of {f(w) = f(w*)} close to w*, and it is that where
    the pieces that meet at w* cross mildly: always in deep linear networks.

    Args:
        land: A landscape whose labels are the model's predictions at the center.
        target: "local" looks close around the center, "basin" as far as the weights are large.
        seed: Points come from it.

    Returns:
        The limit; None where the valley cannot be seen.

    Example:
        >>> from crunode.examples.toys import reduced_rank
        >>> valley_limit(reduced_rank(6, 4, 6, rank=2)).value  # exact: 27/2
        13.5
    """
    starts = _MANY_STARTS if land.dim <= _SMALL else _STARTS
    around: tuple[float, ...] = _AROUND[target]
    if land.dim > _HUGE:  # pieces of the valley are all alike there
        around = around[-1:]
    spent = 0

    def settled() -> Iterator[Tensor]:
        nonlocal spent
        for share, reach in MOVES[::-1] if target == "local" else MOVES[:1]:
            chain = CooledChain(land, share, reach, seed, _GRADIENTS, _EXAMPLES)
            t = chain.first()
            for k in range(_LEVELS if t > 0 else 0):
                if chain.level(t * FACTOR**k, first=k == 0) is None:
                    break
            spent += chain.seen
            yield chain.moved

    found = valley(
        land,
        around=around,
        starts=starts,
        reach=0.0 if land.dim <= _SMALL else _REACH,
        seed=seed,
        offsets=settled if land.dim >= _SETTLED and land.data.stacked else None,
    )
    if found is None or not found.ranks:
        return None
    points = tuple(rank / 2 for rank in found.ranks)
    value, lowest = min(points), found.here / 2
    if starts == _MANY_STARTS and target == "local":
        # Farther out the least rank can only fall. Where it rises instead, and not for want of points, directions of
        # higher order were too weak closer by.
        apart = math.sqrt(math.prod(_AROUND[target]))
        near, far = (
            [p for p, d in zip(points, found.distances, strict=True) if (d < apart) is close] for close in (True, False)
        )
        value = max(min(near, default=0.0), min(far, default=0.0))
    smooth = found.smooth and target == "local"
    # How far the least of other points would be from this one: half of how far the next one is.
    others = sorted(points)[1:2]
    scatter = min((others[0] - value) / 2, _SCATTER * value) if others and others[0] > value else 0.0
    unclear = statistics.median(found.errors) / 2
    return Limit(
        value,
        math.hypot(unclear, scatter, 0.0 if smooth else _TYPICAL * value, _ASTRAY * found.beyond / 2),
        scatter,
        lowest,
        smooth,
        points,
        found.gradients + spent // found.examples,
        found.examples,
        found.method,
    )
