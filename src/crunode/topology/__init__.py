"""The shape of a landscape: critical points, the zero-loss manifold, paths between solutions, pictures.

Names are resolved when first used.
"""

from typing import TYPE_CHECKING

from crunode._lazy import exports

if TYPE_CHECKING:
    from crunode.topology.alignment import Alignment as Alignment
    from crunode.topology.alignment import align as align
    from crunode.topology.barriers import Barrier as Barrier
    from crunode.topology.barriers import barrier as barrier
    from crunode.topology.connectivity import Connection as Connection
    from crunode.topology.connectivity import connect as connect
    from crunode.topology.critical import CriticalPoint as CriticalPoint
    from crunode.topology.critical import CriticalPoints as CriticalPoints
    from crunode.topology.critical import critical_points as critical_points
    from crunode.topology.descent import Adam as Adam
    from crunode.topology.directions import Plane as Plane
    from crunode.topology.directions import eigenvector_plane as eigenvector_plane
    from crunode.topology.directions import line_between as line_between
    from crunode.topology.directions import plane_through as plane_through
    from crunode.topology.directions import random_directions as random_directions
    from crunode.topology.directions import trajectory_plane as trajectory_plane
    from crunode.topology.heights import Heights as Heights
    from crunode.topology.manifold import SolutionDimension as SolutionDimension
    from crunode.topology.manifold import Walk as Walk
    from crunode.topology.manifold import solution_dimension as solution_dimension
    from crunode.topology.manifold import walk as walk
    from crunode.topology.merging import MergeTree as MergeTree
    from crunode.topology.merging import merge_tree as merge_tree
    from crunode.topology.paths import Path as Path
    from crunode.topology.paths import examine_path as examine_path
    from crunode.topology.surfaces import Surface as Surface
    from crunode.topology.surfaces import nonconvex_share as nonconvex_share
    from crunode.topology.surfaces import profile as profile
    from crunode.topology.surfaces import surface as surface
else:
    __getattr__, __dir__, __all__ = exports(__name__)
