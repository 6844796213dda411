"""Are two solutions in one component of a sublevel set? *Connected*, with a path as proof, or *unknown*."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.result import Finding, provenance
from crunode.core.rng import derived_seed
from crunode.errors import InputError
from crunode.topology.heights import Heights, end_point
from crunode.topology.paths import Path
from crunode.topology.strings import Caps, Goal, Outcome, grow_strings

__all__ = ["Connection", "Request", "checked_caps", "connect", "join"]

# How far from the middle of the line detours begin, relative to the distance of the ends.
_DETOURS = (0.5, 1.0, 0.25, 2.0)


@dataclass(frozen=True)
class Connection:
    """Whether two points are joined below a level, as far as a search could tell.

    Attributes:
        answer: "connected" or "unknown". A search cannot show that two points are not connected.
        level: The level.
        path: The proof, where connected: on its grid no loss is above the level, and between grid points none is as
            far as second differences tell (`path.bound`).
        reason: Why it is unknown.
        losses: Losses at the two ends.
        findings: What was noticed.
        spec: Settings and counts.
        seed: Where all randomness came from.
        provenance: Versions and source state.
    """

    answer: str
    level: float
    path: Path | None
    reason: str
    losses: tuple[float, float]
    findings: tuple[Finding, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def connected(self) -> bool:
        """True where a path proves it; False means unknown."""
        return self.path is not None

    def __str__(self) -> str:
        if self.path is None:
            return f"unknown at level {self.level:.4g}: {self.reason}"
        path = self.path
        return (
            f"connected at level {self.level:.4g}: {len(path.points)} corners, largest loss {path.largest:.4g} of "
            f"{len(path.losses)} grid points at most {path.spacing:.2g} apart, {path.bound:.4g} between them"
        )


@dataclass(frozen=True)
class Request:
    """Two points to be joined below a level.

    Attributes:
        a: One end, a flat vector.
        b: The other.
        level: The level.
        floor: The lower of the losses at the ends.
        starts: Paths to begin with besides the straight line, as their corners.
    """

    a: Tensor
    b: Tensor
    level: float
    floor: float
    starts: tuple[Tensor, ...] = ()


def join(
    heights: Heights, requests: Sequence[Request], generator: torch.Generator, caps: Caps, strings: int
) -> list[Outcome]:
    """Join many pairs of points, all strings of all pairs side by side.

    The straight line and given paths come first. Pairs that they do not join get strings by way of random detours.

    Args:
        heights: The loss.
        requests: The pairs.
        generator: Where random numbers come from.
        caps: Where strings give up.
        strings: How many strings a pair has, given paths apart.
    """
    goals = [
        Goal(points, r.level, r.floor, k)
        for k, r in enumerate(requests)
        for points in (torch.stack([r.a, r.b]), *r.starts)
    ]
    best = _best(requests, goals, grow_strings(heights, goals, generator, caps))
    goals = []
    for k, r in enumerate(requests):
        if best[k].path is not None:
            continue
        for turn in range(strings - 1):
            noise = torch.randn(len(r.a), generator=generator, dtype=torch.float64).to(r.a)
            away = _DETOURS[turn % len(_DETOURS)] * (r.b - r.a).norm() * noise / noise.norm()
            goals.append(Goal(torch.stack([r.a, (r.a + r.b) / 2 + away, r.b]), r.level, r.floor, k))
    if not goals:
        return best
    further = _best(requests, goals, grow_strings(heights, goals, generator, caps))
    return [new if old.path is None and new.path is not None else old for old, new in zip(best, further, strict=True)]


def _best(requests: Sequence[Request], goals: Sequence[Goal], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Of each pair the outcome with a path, or else the first one."""
    found: dict[int, Outcome] = {}
    for goal, outcome in zip(goals, outcomes, strict=True):
        assert goal.group is not None
        old = found.get(goal.group)
        if old is None or (old.path is None and outcome.path is not None):
            found[goal.group] = outcome
    nothing = Outcome(None, "no string was begun", False, 0, 0)
    return [found.get(k, nothing) for k in range(len(requests))]


def connect(
    landscape: Landscape,
    a: Any,
    b: Any,
    level: float,
    *,
    strings: int = 8,
    beads: int = 96,
    depth: int = 10,
    seed: int = 0,
) -> Connection:
    """Search for a path from a to b on which the loss stays below a level (dynamic string sampling).

    Ω(L) = {w : L_n(w) ≤ L} is one component around a and b if a path γ has max_t L_n(γ(t)) ≤ L. The path is made of
    straight pieces. Each is looked at on a grid of 8 intervals, divided by 4 again and again where the loss between
    two grid points might pass the level; all pieces that do are divided in one batch, by beads that descend to half
    the level (above the lower end).

    Args:
        landscape: The loss; its center does not matter.
        a: Weights: a flat vector, named tensors or a module of the same kind.
        b: Weights to reach.
        level: L.
        strings: How many strings are tried: the straight line, and others by way of random detours.
        beads: Most beads on a string.
        depth: How often a piece may be divided again.
        seed: All randomness comes from it.

    Returns:
        "connected" with the path as proof, or "unknown" with a reason; never "disconnected".

    Raises:
        InputError: Weights of another shape, an end above the level, or numbers out of range.

    Example:
        >>> circle = Landscape.of_function(lambda w: (w.square().sum() - 1) ** 2, torch.tensor([1.0, 0.0]))
        >>> connect(circle, torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0]), 0.1).answer
        'connected'
        >>> wells = Landscape.of_function(lambda w: (w[0] ** 2 - 1) ** 2, torch.ones(1))
        >>> connect(wells, torch.tensor([-1.0]), torch.tensor([1.0]), 0.5).answer
        'unknown'

    References:
        Freeman & Bruna 2016, "Topology and geometry of half-rectified network optimization".
    """
    caps = checked_caps(strings, beads, depth, seed)
    if isinstance(level, bool) or not isinstance(level, int | float) or not math.isfinite(level):
        raise InputError(f"expected level as a finite number, got {level!r}; for example 0.01")
    ends = [end_point(landscape, weights, name) for weights, name in ((a, "a"), (b, "b"))]
    heights = Heights(landscape)
    losses = heights.values(torch.stack(ends)).tolist()
    for name, loss in zip("ab", losses, strict=True):
        if not loss <= level:
            raise InputError(
                f"expected both ends at or below the level {level:.6g}, got a loss of {loss:.6g} at {name}; raise the "
                "level, or train that network further (a level below all losses that can be reached has no solutions)"
            )
    request = Request(ends[0], ends[1], float(level), min(losses))
    generator = torch.Generator().manual_seed(derived_seed(seed, 0))
    (outcome,) = join(heights, [request], generator, caps, strings)
    findings = () if outcome.path is not None else (unknown_finding(outcome, float(level)),)
    spec = {"level": float(level), "strings": strings, "beads": beads, "depth": depth}
    counts = {"evaluations": heights.evaluations, "beads_used": outcome.beads, "depth_used": outcome.depth}
    return Connection(
        "unknown" if outcome.path is None else "connected",
        float(level),
        outcome.path,
        outcome.reason,
        (losses[0], losses[1]),
        findings,
        {**spec, **counts},
        seed,
        provenance(),
    )


def unknown_finding(outcome: Outcome, level: float) -> Finding:
    """What a search without success says about its level."""
    return Finding.of("TOPO1122" if outcome.cap else "TOPO1121", f"at level {level:.4g}, {outcome.reason}")


def checked_caps(strings: int, beads: int, depth: int, seed: int) -> Caps:
    """Caps of a search, once the numbers are known to be in range."""
    for name, value, least in (("strings", strings, 1), ("beads", beads, 3), ("depth", depth, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"expected {name} as a whole number from {least} up, got {value!r}")
    return Caps(beads, depth)
