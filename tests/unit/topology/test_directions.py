"""Lines and planes: filter norms, solutions, trainings, eigenvectors; what is refused."""

import math

import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.topology.directions import (
    Plane,
    eigenvector_plane,
    line_between,
    plane_through,
    random_directions,
    trajectory_plane,
)
from crunode.training.checkpoints import save_checkpoint


def landscape(net, *shape):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*shape, generator=generator)
    return Landscape(net, (x, net(x).detach() + 1), "gaussian")


class Filters(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.turned = nn.ConvTranspose2d(3, 4, 2)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.turned(torch.relu(self.conv(x))).mean((2, 3)))


def test_filters_have_the_norms_of_the_weights():
    land = landscape(Filters(), 6, 2, 5, 5)
    plane = random_directions(land, seed=2)
    weights = land.packing.unravel(land.center)
    for direction in plane.directions:
        parts = land.packing.unravel(direction)
        for name, axes in (("conv.weight", (1, 2, 3)), ("turned.weight", (0, 2, 3)), ("out.weight", (1,))):
            sizes = [t.square().sum(axes) for t in (parts[name], weights[name])]
            torch.testing.assert_close(*sizes)
        for name in ("conv.bias", "turned.bias", "out.bias"):
            assert not parts[name].any()
    assert plane.recipe["at_zero"] == ["conv.bias", "out.bias", "turned.bias"]
    # A direction of normal numbers, only scaled: the first filter keeps its proportions.
    raw = land.packing.unravel(random_directions(land, normalize="none", seed=2).directions[0])["out.weight"][0]
    scaled = land.packing.unravel(plane.directions[0])["out.weight"][0]
    torch.testing.assert_close(scaled / scaled.norm(), raw / raw.norm())


def test_rescaling_layers_rescales_directions_alike():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = Landscape(net, (x, x[:, :2]), "gaussian")
    with torch.no_grad():
        for p, factor in zip(net.parameters(), (3.0, 3.0, 1 / 3, 1.0), strict=True):
            p.mul_(factor)
    after = before.at(net)
    here, there = (random_directions(land, seed=4) for land in (before, after))
    for c in ([0.5, -1.0], [2.0, 0.1]):
        assert float(after.loss(there.at(c))) == pytest.approx(float(before.loss(here.at(c))), rel=1e-12)


def test_directions_depend_on_the_seed_alone():
    land = landscape(nn.Linear(3, 2), 9, 3)
    one = random_directions(land, 2, seed=5)
    torch.manual_seed(9)
    assert torch.equal(one.directions, random_directions(land, 2, seed=5).directions)
    assert torch.equal(one.directions[:1], random_directions(land, 1, seed=5).directions)
    assert not torch.equal(one.directions, random_directions(land, 2, seed=6).directions)


def test_stored_statistics_are_refused_and_other_norm_layers_found():
    stored = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).eval()
    with pytest.raises(InputError, match="BatchNorm1d"):
        random_directions(landscape(stored, 9, 3))
    assert random_directions(landscape(stored, 9, 3), normalize="none").count == 2
    layer = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    found = random_directions(landscape(layer, 9, 3))
    assert [f.code for f in found.findings] == ["TOPO1142"]
    assert "LayerNorm" in found.findings[0].message


@pytest.mark.parametrize(
    ("options", "message"),
    [({"count": 3}, "1 or 2"), ({"normalize": "layer"}, "'filter' or 'none'"), ({"seed": -1}, "from 0 up")],
)
def test_bad_settings(options, message):
    with pytest.raises(InputError, match=message):
        random_directions(landscape(nn.Linear(3, 2), 9, 3), **options)


def test_nothing_to_normalize():
    with pytest.raises(InputError, match="two axes or more"):
        random_directions(Landscape.of_function(lambda w: w.square().sum(), torch.ones(3)))
    zero = nn.Linear(3, 2)
    nn.init.zeros_(zero.weight)
    with pytest.raises(InputError, match="not all zero"):
        random_directions(landscape(zero, 9, 3))


@pytest.mark.parametrize(
    ("directions", "message"),
    [
        (torch.tensor([[1.0, 2.0, 0.0], [-2.0, -4.0, 0.0]]), "parallel"),
        (torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]), "length above 0"),
        (torch.tensor([[1.0, math.inf, 0.0]]), "finite"),
        (torch.eye(3), "one or two"),
        (torch.eye(2), "rows of d"),
    ],
)
def test_planes_that_are_none(directions, message):
    with pytest.raises(InputError, match=message):
        Plane(torch.zeros(3), directions)


def bowl(dim=4):
    return Landscape.of_function(lambda w: w.square().sum(), torch.zeros(dim, dtype=torch.float64))


def test_solutions_are_where_they_should_be():
    land = bowl()
    a, b, c = torch.randn(3, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    line = line_between(land, a, b)
    torch.testing.assert_close(line.at([1.0]), b)
    plane = plane_through(land, a, b, c)
    for point, name in ((a, "a"), (b, "b"), (c, "c")):
        torch.testing.assert_close(plane.at(plane.marks[name][0]), point)
    one, other = plane.directions
    assert abs(float(one @ other)) < 1e-12
    assert float(one.norm()) == pytest.approx(float(other.norm()))
    with pytest.raises(InputError, match="parallel"):
        plane_through(land, a, b, a + 3 * (b - a))
    with pytest.raises(InputError, match="equal"):
        plane_through(land, a, b, a)
    with pytest.raises(InputError, match="length above 0"):
        line_between(land, a, a)


def test_networks_of_other_shapes_and_statistics_are_refused():
    land = landscape(nn.Linear(3, 2), 9, 3)
    with pytest.raises(InputError, match="shape"):
        line_between(land, nn.Linear(3, 2), nn.Linear(4, 2))
    norm = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    other(torch.randn(20, 3))
    with pytest.raises(InputError, match="batch statistics"):
        line_between(landscape(norm.eval(), 9, 3), norm, other)


def test_trajectory_plane_is_that_of_a_singular_value_decomposition():
    land = bowl(6)
    points = torch.randn(5, 6, generator=torch.Generator().manual_seed(7), dtype=torch.float64).cumsum(0)
    plane = trajectory_plane(land, list(points))
    centered = points - points.mean(0)
    _, s, v = torch.linalg.svd(centered)
    explained = s.square() / s.square().sum()
    assert plane.recipe["explained"] == pytest.approx(explained[:2].tolist(), rel=1e-9)
    torch.testing.assert_close((plane.directions @ v[:2].T).abs(), torch.eye(2, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(plane.origin, points[-1])
    torch.testing.assert_close(plane.marks["path"], plane.place(points))
    assert (plane.marks["path"][0] >= 0).all()
    left = (points - torch.stack([plane.at(c) for c in plane.marks["path"]])).norm(dim=1)
    assert plane.recipe["off_plane"] == pytest.approx(left.tolist(), abs=1e-9)


def test_random_walks_are_told():
    """In 4000 dimensions the two first components of a long walk explain 0.608 and 0.152."""
    land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(4000))
    walk = torch.randn(60, 4000, generator=torch.Generator().manual_seed(1)).cumsum(0)
    plane = trajectory_plane(land, list(walk))
    assert plane.recipe["explained"] == pytest.approx(plane.recipe["random_walk"], abs=0.02)
    noise = torch.randn(20, 4000, generator=torch.Generator().manual_seed(2))
    assert [f.code for f in trajectory_plane(land, list(noise)).findings] == ["TOPO1143"]


def test_trajectories_from_a_folder_and_bad_ones(tmp_path):
    net = nn.Linear(3, 2)
    land = landscape(net, 9, 3)
    kept = []
    for step in range(4):
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(step)))
        save_checkpoint(tmp_path, step, net)
        kept.append({k: v.clone() for k, v in net.state_dict().items()})
    assert torch.equal(trajectory_plane(land, tmp_path).directions, trajectory_plane(land, kept).directions)
    with pytest.raises(InputError, match="three checkpoints"):
        trajectory_plane(land, kept[:2])
    with pytest.raises(InputError, match="on a line"):
        trajectory_plane(land, [k * land.center for k in (1.0, 2.0, 3.0)])
    with pytest.raises(InputError, match="a sequence of weights"):
        trajectory_plane(land, net)


def test_eigenvectors_are_those_of_the_dense_hessian():
    matrix = torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = matrix @ matrix.T
    land = Landscape.of_function(lambda w: 0.5 * w @ matrix @ w, torch.zeros(5, dtype=torch.float64))
    plane = eigenvector_plane(land, seed=1)
    values, vectors = torch.linalg.eigh(matrix)
    assert plane.recipe["eigenvalues"] == pytest.approx(values.flip(0)[:2].tolist(), rel=1e-8)
    overlap = (plane.directions @ vectors.flip(1)[:, :2]).abs()
    torch.testing.assert_close(overlap, torch.eye(2, dtype=torch.float64), atol=1e-6, rtol=0)
    assert eigenvector_plane(land, 1).count == 1
    with pytest.raises(InputError, match="1 or 2"):
        eigenvector_plane(land, 3)
