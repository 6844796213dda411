"""Golden calls of paths, barriers, critical points, walks and pictures of landscapes."""

from __future__ import annotations

import torch

import crunode as cr
from crunode import topology
from golden_calls import call, landscapes, refused


def units() -> tuple[cr.Landscape, torch.Tensor, torch.Tensor]:
    """Two ReLU units on the inputs ±1 with targets 1, and two solutions with the units exchanged."""
    x = torch.tensor([1.0, -1.0], dtype=torch.float64)

    def loss(w: torch.Tensor) -> torch.Tensor:
        return ((torch.relu(torch.outer(x, w[2:])) @ w[:2]) - 1).square().mean()

    a = torch.tensor([1.0, 1.0, 1.0, -1.0], dtype=torch.float64)
    b = torch.tensor([1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    return cr.Landscape.of_function(loss, a), a, b


@call("connect")
def _() -> object:
    land, a, b = units()
    options = {"strings": 2, "beads": 24, "depth": 6}
    return [topology.connect(land, a, b, level, **options) for level in (0.3, 0.6)]


@call("barrier")
def _() -> object:
    land, a, b = units()
    options = {"strings": 2, "beads": 24, "depth": 6, "steps": 40}
    return [
        topology.barrier(land, a, b, method, **options)
        for method in ("line", "bezier", "polygon", "string", "band", "auto")
    ]


@call("barrier of a network")
def _() -> object:
    land = landscapes.bent()
    other = land.center.flip(0).clone()
    return topology.barrier(land, land.center, other, "bezier", steps=30)


@call("merge_tree")
def _() -> object:
    wells = cr.Landscape.of_function(lambda w: (w[0] ** 2 - 1) ** 2, torch.ones(1))
    tree = topology.merge_tree(wells, [torch.tensor([x]) for x in (-1.0, 1.0, 0.9)], strings=2, beads=24)
    return [tree, tree.components([0.01, 0.2, 1.1]), tree.labels(0.2)]


@call("align")
def _() -> object:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    land = cr.Landscape(net, (torch.randn(20, 2), torch.randn(20, 1)), "gaussian")
    return topology.align(land, land.center, land.center.flip(0) + 0.1)


@call("critical_points")
def _() -> object:
    starts = torch.randn(8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = topology.critical_points(landscapes.valley(), starts)
    return [found, found.losses, found.fractions]


@call("critical_points of a network")
def _() -> object:
    return topology.critical_points(landscapes.doubles(2), 3, steps=30)


@call("solution_dimension and walk")
def _() -> object:
    land = landscapes.doubles()
    return [topology.solution_dimension(land, steps=60), topology.walk(land, 6)]


@call("surface")
def _() -> object:
    def slope(there: cr.Landscape) -> torch.Tensor:
        (batch,) = there.passes()
        return there.batch_gradient(there.center, batch).norm()

    seen = topology.surface(landscapes.classes(), points=5, seed=1)
    other = topology.surface(landscapes.bent(), points=3, extent=0.2, probes={"slope": slope})
    return [seen, seen.curvatures(2), topology.nonconvex_share(seen), other]


@call("profile")
def _() -> object:
    land = landscapes.classes()
    line = topology.line_between(land, land.center, land.center + 0.3)
    return [topology.profile(land, points=7, extent=0.5), topology.profile(land, line, points=5)]


@call("planes")
def _() -> object:
    land = landscapes.classes()
    points = [land.center + 0.1 * k * torch.linspace(-1, 1, land.dim) ** k for k in range(4)]
    through = topology.plane_through(land, *points[1:])
    normalized = [topology.random_directions(land, normalize=how, seed=1) for how in ("filter", "none")]
    return [
        *normalized,
        topology.eigenvector_plane(land, 2),
        topology.trajectory_plane(land, points),
        through,
        through.at(torch.tensor([0.2, 0.3])),
        through.place(torch.stack(points)),
    ]


@call("topology: wrong input")
def _() -> object:
    land, a, b = units()
    return [
        refused(lambda: topology.connect(land, a, b, -1.0)),
        refused(lambda: topology.barrier(land, a, b, "tunnel")),
        refused(lambda: topology.merge_tree(land, [a])),
        refused(lambda: topology.surface(land, points=1)),
        refused(lambda: topology.plane_through(land, a, a, b)),
    ]
