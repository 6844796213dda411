"""Which solutions are joined at which level: merge trees, and numbers of components."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.core.result import Finding, provenance
from crunode.core.rng import derived_seed
from crunode.errors import InputError
from crunode.topology.barriers import bisected, checked_tolerance
from crunode.topology.connectivity import checked_caps
from crunode.topology.heights import Heights, end_point
from crunode.topology.paths import Path, examine_path

__all__ = ["Merge", "MergeTree", "merge_tree", "minimax"]


@dataclass(frozen=True)
class Merge:
    """Two groups of solutions that become one.

    Attributes:
        level: At which level.
        left: Solutions of the one group.
        right: Solutions of the other.
    """

    level: float
    left: tuple[int, ...]
    right: tuple[int, ...]


@dataclass(frozen=True)
class MergeTree:
    """At which levels solutions are known to be joined.

    Attributes:
        losses: The loss of each solution.
        levels: For each pair a level at which a path joins them, by way of others where that is lower; on the diagonal
            the losses. Each is an upper bound.
        merges: Groups in the order in which they become one.
        paths: Paths that were found, for pairs of solutions.
        findings: What was noticed.
        spec: Settings and counts.
        seed: Where all randomness came from.
        provenance: Versions and source state.
    """

    losses: np.ndarray
    levels: np.ndarray
    merges: tuple[Merge, ...]
    paths: Mapping[tuple[int, int], Path] = field(repr=False)
    findings: tuple[Finding, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def labels(self, level: float) -> np.ndarray:
        """For each solution the least index in its group at this level; −1 for those above it."""
        joined = (self.levels <= level) & (self.losses <= level)[:, None]
        return np.where(self.losses <= level, joined.argmax(1), -1)

    def components(self, levels: Sequence[float] | np.ndarray) -> np.ndarray:
        """N_λ: at how many components of the sublevel set the solutions are, at most, for each level.

        Solutions above a level do not count. Groups that are not joined may be in one component all the same, so that
        each number is an upper bound; components without any of the solutions are not seen.
        """
        wanted = np.atleast_1d(np.asarray(levels, dtype=np.float64))
        return np.array([len(np.unique(found[found >= 0])) for found in map(self.labels, wanted)])

    def __str__(self) -> str:
        words = ", ".join(f"{len(self.merges) - k} at {m.level:.4g}" for k, m in enumerate(self.merges))
        return f"{len(self.losses)} solutions, at most so many components: {len(self.losses)}, {words}"


def minimax(levels: np.ndarray) -> np.ndarray:
    """The lowest level at which two are joined by way of any others: max over the way, min over ways.

    Example:
        >>> minimax(np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 2.0], [9.0, 2.0, 0.0]]))[0].tolist()
        [0.0, 1.0, 2.0]
    """
    found = np.array(levels, dtype=np.float64)
    for k in range(len(found)):
        found = np.minimum(found, np.maximum(found[:, k : k + 1], found[k : k + 1]))
    return found


def merge_tree(
    landscape: Landscape,
    solutions: Sequence[Any],
    *,
    tolerance: float = 0.02,
    strings: int = 4,
    beads: int = 96,
    depth: int = 10,
    seed: int = 0,
) -> MergeTree:
    """At which levels many solutions become joined, by strings between pairs of them.

    Two solutions are joined at level λ if a chain of paths below λ leads from one to the other:
    M(i, j) = min over chains of max over their paths (single linkage). Pairs on the lowest tree are searched first, all
    in one batch; pairs that others already join as low as can be are left out.

    Args:
        landscape: The loss; its center does not matter.
        solutions: Two or more: flat vectors, named tensors or modules of the same kind.
        tolerance: Where bisection of a level ends, relative to the largest rise on a straight line between two.
        strings: Strings for each pair and level.
        beads: Most beads on a string.
        depth: How often a piece of a string may be divided again.
        seed: All randomness comes from it.

    Raises:
        InputError: Fewer than two solutions, other shapes, or arguments out of range.

    Example:
        >>> wells = Landscape.of_function(lambda w: (w[0] ** 2 - 1) ** 2, torch.ones(1))
        >>> tree = merge_tree(wells, [torch.tensor([x]) for x in (-1.0, 1.0, 0.9)])
        >>> tree.components([0.01, 0.2, 1.1]).tolist()
        [2, 2, 1]

    References:
        Freeman & Bruna 2016; Tanner, lecture 9 (N_λ); Carr, Snoeyink & Axen 2003 (merge trees).
    """
    checked_tolerance(tolerance)
    caps = checked_caps(strings, beads, depth, seed)
    if not isinstance(solutions, Sequence) or len(solutions) < 2:
        raise InputError("expected a list of two or more solutions, got fewer; merge_tree joins several")
    points = [end_point(landscape, weights, f"solution {k}") for k, weights in enumerate(solutions)]
    heights = Heights(landscape)
    losses = heights.values(torch.stack(points)).cpu().numpy()
    count = len(points)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    paths = {(i, j): examine_path(heights, torch.stack([points[i], points[j]])) for i, j in pairs}
    floor = np.maximum(losses[:, None], losses[None])
    rise = max(paths[p].bound - floor[p] for p in pairs)
    gap = float(max(tolerance * rise, 1e-12))
    generator = torch.Generator().manual_seed(derived_seed(seed, 4))
    searched: set[tuple[int, int]] = set()
    unknown = 0
    with Progress(len(pairs), "merge tree") as bar:
        while True:
            levels = minimax(_matrix(losses, paths))
            high = [p for p in pairs if p not in searched and levels[p] > floor[p] + gap]
            # Of the tree first: its pairs may join all others.
            tree = set(_spanning({p: paths[p].bound for p in pairs}, count))
            chosen = [p for p in high if p in tree] or high
            if not chosen:
                break
            for p in chosen:
                if levels[p] < paths[p].bound:  # others already join them lower: that way is where to begin
                    paths[p] = examine_path(heights, _way(p, tree, paths))
            given = [(points[i], points[j], paths[i, j], None, None) for i, j in chosen]
            ends = [(float(losses[i]), float(losses[j])) for i, j in chosen]
            for p, descent in zip(chosen, bisected(heights, given, ends, gap, generator, caps, strings), strict=True):
                paths[p] = descent.path
                unknown += descent.failed is not None
            searched |= set(chosen)
            bar.advance(len(chosen))
    findings: tuple[Finding, ...] = (Finding.of("TOPO1124", f"{unknown} of {len(searched)} searches ended unknown"),)
    spec = {"tolerance": tolerance, "gap": gap, "strings": strings, "beads": beads, "depth": depth}
    spec |= {"searched": len(searched), "pairs": len(pairs), "evaluations": heights.evaluations}
    return MergeTree(losses, levels, _merges(levels), paths, findings, spec, seed, provenance())


def _matrix(losses: np.ndarray, paths: Mapping[tuple[int, int], Path]) -> np.ndarray:
    found = np.diag(losses)
    for (i, j), path in paths.items():
        found[i, j] = found[j, i] = path.bound
    return found


def _spanning(bounds: Mapping[tuple[int, int], float], count: int) -> list[tuple[int, int]]:
    """Pairs of the lowest tree (Kruskal)."""
    group, found = list(range(count)), []
    for i, j in sorted(bounds, key=lambda p: bounds[p]):
        if group[i] != group[j]:
            found.append((i, j))
            group = [group[i] if g == group[j] else g for g in group]
    return found


def _way(pair: tuple[int, int], tree: set[tuple[int, int]], paths: Mapping[tuple[int, int], Path]) -> torch.Tensor:
    """Corners of the way from one solution to another along the tree."""
    ways = {pair[0]: [pair[0]]}
    while pair[1] not in ways:
        for i, j in tree:
            for here, there in ((i, j), (j, i)):
                if here in ways and there not in ways:
                    ways[there] = [*ways[here], there]
    parts = []
    for here, there in itertools.pairwise(ways[pair[1]]):
        points = paths[min(here, there), max(here, there)].points
        parts.append(points if here < there else points.flip(0))
    return torch.cat([parts[0], *(part[1:] for part in parts[1:])])


def _merges(levels: np.ndarray) -> tuple[Merge, ...]:
    count = len(levels)
    bounds = {(i, j): float(levels[i, j]) for i in range(count) for j in range(i + 1, count)}
    groups: dict[int, tuple[int, ...]] = {i: (i,) for i in range(count)}
    found = []
    for i, j in _spanning(bounds, count):
        left, right = groups[i], groups[j]
        found.append(Merge(bounds[i, j], left, right))
        for k in left + right:
            groups[k] = tuple(sorted(left + right))
    return tuple(found)
