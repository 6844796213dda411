"""What the valley of minima says of the learning coefficient: a limit that sampling approaches but may not reach."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from crunode.core.landscape import Landscape
from crunode.curvature.valley import Valley, valley

__all__ = ["Limit", "valley_limit"]

# How far around the center its own valley is looked at, and how far a basin reaches, relative to the weights.
_AROUND = {"local": (0.1, 0.1, 0.03, 0.03, 0.01, 0.003), "basin": (1.0, 1.0, 0.3, 0.3)}
_CLOSE = 0.02
_MANY_STARTS, _SMALL = 4, 500
# Ranks whose uncertain part is larger than this are not resolved.
_RESOLVED = 0.015
# The pieces of the valley that are met have a little more than the least rank.
_TYPICAL = 0.015


@dataclass(frozen=True)
class Limit:
    """Half the rank of the Jacobian at smooth points of the valley.

    Attributes:
        value: The limit: the typical one close to the center; for a basin the least that was met.
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
        >>> from crunode.recipes.toys import reduced_rank
        >>> valley_limit(reduced_rank(6, 4, 6, rank=2)).value  # exact: 27/2
        13.5
    """
    shares = _AROUND[target]
    again = _MANY_STARTS if land.dim <= _SMALL else 1
    found = valley(land, around=shares, starts=again, seed=seed)
    if found is None or not found.ranks:
        return None
    points = tuple(rank / 2 for rank in found.ranks)
    lowest, groups = found.here / 2, _by_distance(found, shares)
    if target == "basin":
        value, scatter, smooth = min(points), 0.0, False
    else:
        value, scatter = _closest_resolved(found, groups)
        smooth = _is_smooth(found, groups)
    unclear = statistics.median(found.errors) / 2
    if smooth:
        value, scatter = lowest, 0.0
    return Limit(
        value,
        math.hypot(unclear, scatter, 0.0 if smooth else _TYPICAL * value),
        scatter,
        lowest,
        smooth,
        points,
        found.gradients,
        found.examples,
        found.method,
    )


def _by_distance(found: Valley, shares: Sequence[float]) -> dict[float, list[int]]:
    """The points that were met, by how far away their start was, the farthest first."""
    groups: dict[float, list[int]] = {share: [] for share in sorted(set(shares), reverse=True)}
    for k, distance in enumerate(found.distances):
        groups[min(groups, key=lambda share: abs(math.log(max(distance, 1e-12) / share)))].append(k)
    return {share: members for share, members in groups.items() if members}


def _closest_resolved(found: Valley, groups: Mapping[float, list[int]]) -> tuple[float, float]:
    """Half the typical rank as close to the center as it can be told, and how far ranks scatter there.

    Closer to the center fewer pieces of the valley are in reach, so that ranks can only rise; where they fall, singular
    values have become too small to be told from zero. The median rather than the least, since single points may have
    stopped short of a smooth one.
    """
    value, members = 0.0, [0]
    for group in groups.values():
        typical = statistics.median(found.ranks[k] for k in group) / 2
        clear = all(found.errors[k] <= _RESOLVED * found.ranks[k] for k in group)
        if value and (typical < value or not clear):
            break
        value, members = typical, group
    ranks = [found.ranks[k] / 2 for k in members]
    return value, statistics.stdev(ranks) if len(ranks) > 1 else 0.0


def _is_smooth(found: Valley, groups: Mapping[float, list[int]]) -> bool:
    """Whether ranks close by are that of the center, and not only because what differs is too small there."""
    close = [found.ranks[k] for share, group in groups.items() if share < _CLOSE for k in group]
    apart = [found.ranks[k] for share, group in groups.items() if share > _CLOSE for k in group]
    same = bool(close) and all(abs(rank - found.here) < 1 for rank in close)
    return same and (not apart or min(apart) < found.here + 1)
