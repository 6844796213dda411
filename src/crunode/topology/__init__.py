"""The shape of a landscape: critical points, the zero-loss manifold, paths between solutions, pictures.

Names are resolved when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crunode._lazy import resolver

if TYPE_CHECKING:
    from crunode.topology.alignment import Alignment, align
    from crunode.topology.barriers import Barrier, barrier
    from crunode.topology.connectivity import Connection, connect
    from crunode.topology.critical import CriticalPoint, CriticalPoints, critical_points
    from crunode.topology.directions import (
        Plane,
        eigenvector_plane,
        line_between,
        plane_through,
        random_directions,
        trajectory_plane,
    )
    from crunode.topology.manifold import SolutionDimension, Walk, solution_dimension, walk
    from crunode.topology.merging import MergeTree, merge_tree
    from crunode.topology.paths import Path
    from crunode.topology.surfaces import Surface, nonconvex_share, profile, surface

_HOMES = {
    "alignment": (
        "Alignment",
        "align",
    ),
    "barriers": (
        "Barrier",
        "barrier",
    ),
    "connectivity": (
        "Connection",
        "connect",
    ),
    "merging": (
        "MergeTree",
        "merge_tree",
    ),
    "paths": ("Path",),
    "critical": (
        "CriticalPoint",
        "CriticalPoints",
        "critical_points",
    ),
    "directions": (
        "Plane",
        "eigenvector_plane",
        "line_between",
        "plane_through",
        "random_directions",
        "trajectory_plane",
    ),
    "manifold": (
        "SolutionDimension",
        "Walk",
        "solution_dimension",
        "walk",
    ),
    "surfaces": (
        "Surface",
        "nonconvex_share",
        "profile",
        "surface",
    ),
}

__all__ = [
    "Alignment",
    "Barrier",
    "Connection",
    "CriticalPoint",
    "CriticalPoints",
    "MergeTree",
    "Path",
    "Plane",
    "SolutionDimension",
    "Surface",
    "Walk",
    "align",
    "barrier",
    "connect",
    "critical_points",
    "eigenvector_plane",
    "line_between",
    "merge_tree",
    "nonconvex_share",
    "plane_through",
    "profile",
    "random_directions",
    "solution_dimension",
    "surface",
    "trajectory_plane",
    "walk",
]

__getattr__ = resolver("crunode.topology", _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
