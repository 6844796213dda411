"""Surfaces, lines and planes whose losses, curvatures and shares are known exactly."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.topology import plane_losses as module
from crunode.topology.directions import Plane, eigenvector_plane, line_between, plane_through, trajectory_plane
from crunode.topology.plane_losses import plane_losses
from crunode.topology.surfaces import Surface, nonconvex_share, profile, surface


def rows(*points):
    return torch.tensor(points, dtype=torch.float64)


def land(function, dim=2):
    return Landscape.of_function(function, torch.zeros(dim, dtype=torch.float64))


def plane(marks=None, count=2):
    return Plane(torch.zeros(2).double(), torch.eye(2, dtype=torch.float64)[:count], marks=marks or {})


def test_curvatures_are_the_eigenvalues_of_a_quadratic_on_an_uneven_grid():
    matrix = np.array([[3.0, 1.0], [1.0, -2.0]])
    given = torch.from_numpy(matrix)
    seen = surface(land(lambda w: w @ given @ w / 2), plane(), points=(9, 7), extent=((-1, 3), (-0.5, 0.1)))
    for stride in (1, 2):
        low, high = seen.curvatures(stride)
        expected = np.linalg.eigvalsh(matrix)
        assert low.shape == (9 - 2 * stride, 7 - 2 * stride)
        np.testing.assert_allclose(low, expected[0], rtol=1e-9)
        np.testing.assert_allclose(high, expected[1], rtol=1e-9)
    np.testing.assert_array_equal(seen.curvatures()[0], seen.curvatures(1)[0])
    line = profile(land(lambda w: 5 * w[0] ** 3), plane(count=1), points=9, extent=(0.0, 2.0))
    for stride in (1, 2):
        low, high = line.curvatures(stride)
        np.testing.assert_allclose(low, 30 * line.coordinates[0][stride:-stride], atol=1e-9)
        np.testing.assert_array_equal(low, high)


def test_nonconvex_share_of_a_cubic_is_the_part_on_the_left():
    line = profile(land(lambda w: w[0] ** 3), plane(count=1), points=42, extent=(-1.0, 2.0))
    share = nonconvex_share(line)
    inner = line.coordinates[0][1:-1]
    assert share.value == pytest.approx((inner < 0).mean(), abs=1e-12)
    wide = (line.coordinates[0][2:-2] < 0).mean()
    assert share.terms["differences"] == pytest.approx(abs(share.value - wide), abs=1e-12)
    assert share.terms["rounding"] == 0
    assert share.systematic == pytest.approx(abs(share.value - wide))
    assert share.findings == ()


@pytest.mark.parametrize("extent", [((-1, 1), (-4, 4)), ((-4, 4), (-1, 1))])
def test_curvatures_below_rounding_have_no_sign(extent):
    """Eight roundings of a loss of one over the squared step of 0.1."""
    unit = torch.finfo(torch.float64).eps
    for curved, told in ((12.0, False), (5.0, True)):
        seen = surface(land(lambda w: w[0] * 0), plane(), points=21, extent=extent)
        step = min(float(c[1] - c[0]) for c in seen.coordinates)
        level = -curved * unit / step**2
        bent = Surface(seen.coordinates, np.ones((21, 21)), spec=seen.spec)
        object.__setattr__(bent, "curvatures", lambda stride=1, v=level: (np.full((21 - 2 * stride,) * 2, v),) * 2)
        share = nonconvex_share(bent)
        assert ("TOPO1145" in [f.code for f in share.findings]) == told
        assert share.value == (0.0 if told else 1.0)
        assert share.terms["rounding"] == (0.5 if told else 0.0)


def test_extent_has_a_margin_of_a_quarter_around_all_marks():
    marks = {"a": rows([1.0, 2.0]), "b": rows([3.0, 2.0], [2.0, 6.0])}
    seen = surface(land(lambda w: w.sum()), plane(marks), points=3)
    assert seen.coordinates[0].tolist() == [0.5, 2.0, 3.5]
    assert seen.coordinates[1].tolist() == [1.0, 4.0, 7.0]
    flat = surface(land(lambda w: w.sum()), plane({"a": rows([0.0, 1.0], [4.0, 1.0])}), points=3)
    assert flat.coordinates[1].tolist() == [0.0, 1.0, 2.0]  # on a line the other axis gets the same room
    for marked in ({"a": rows([2.0, 5.0])}, {}):
        around = surface(land(lambda w: w.sum()), plane(marked), points=3)
        middle = [2, 5] if marked else [0, 0]
        assert [c.tolist() for c in around.coordinates] == [[m - 1, m, m + 1] for m in middle]


def test_spec_says_what_was_evaluated():
    net = nn.Linear(2, 1).double()
    here = Landscape(net, (torch.ones(5, 2).double(), torch.ones(5, 1).double()), "gaussian")
    seen = surface(here, points=(3, 4), extent=((-1, 2), (-3, 5)), probes={"one": lambda at: 1.0})
    spec = seen.spec
    assert [spec[k] for k in ("dim", "n", "loss", "dtype", "device")] == [3, 5, here.loss_name, "float64", "cpu"]
    assert (spec["extent"], spec["points"], spec["probes"]) == ([[-1, 2], [-3, 5]], [3, 4], ["one"])
    assert spec["landscape"] == here.fingerprint() != spec["directions"]
    assert (seen.axes, seen.ok, str(seen).startswith("surface of 3 × 4 points")) == (2, True, True)


def test_surface_axes_are_in_the_order_of_the_directions():
    seen = surface(land(lambda w: w[0] + 100 * w[1]), plane(), points=(3, 5), extent=((0, 2), (0, 4)))
    np.testing.assert_array_equal(seen.losses, np.arange(3)[:, None] + 100 * np.arange(5)[None])
    assert seen.coordinates[0][0] == 0.0
    middle = surface(land(lambda w: w[0]), plane(), points=41, extent=0.7)
    assert middle.coordinates[0][20] == 0.0


def test_number_and_holes_of_probes():
    probes = {"root": lambda at: math.inf if at.center[0] > 2 else 2.0}
    seen = profile(land(lambda w: w[0]), plane(count=1), points=4, extent=(0, 3), probes=probes)
    np.testing.assert_array_equal(seen.values["root"], [2, 2, 2, np.nan])
    np.testing.assert_array_equal(seen.errors["root"], [0, 0, 0, np.nan])
    assert [f.code for f in seen.findings] == ["TOPO1144"]
    assert "root at 1 of 4" in seen.findings[0].message
    assert list(seen.diagnostics["probe_errors"]) == ["root"]


def net(inputs=6, width=5):
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 1)).double()


def data(count=64, inputs=6):
    x = torch.randn(count, inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Landscape(net(inputs), (x, x[:, :1]), "gaussian")


def test_layout_follows_from_sizes(monkeypatch):
    here = data()
    at = torch.randn(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    directions = torch.randn(2, here.dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    plain = [float(here.loss(here.center + c @ directions)) for c in at]

    def told(points=at):
        losses, how = plane_losses(here, here.center, directions, points)
        np.testing.assert_allclose(losses, plain[: len(points)], rtol=1e-10)
        return how

    few = told(at[:3])
    assert (few["name"], few["points"], few["why"]) == ("sequential", 1, "few points")
    many = told()
    assert (many["name"], many["points"], many["rows"]) == ("affine", 5, 64)
    assert "several together" in many["why"]
    monkeypatch.setattr(module, "_SEVERAL", 1)
    alone = told()
    assert (alone["name"], alone["points"]) == ("affine", 1)
    assert "point by point" in alone["why"]
    monkeypatch.setattr(module, "_SEVERAL", 3 * (64 * 6 + here.dim))  # room for three points
    assert told()["points"] == 3
    monkeypatch.setattr(module, "_ONE", 16 * 6)  # and for sixteen examples of a width of 5 + 1
    assert told()["rows"] == 16


def test_marks_and_lengths_of_lines_and_planes():
    here = land(lambda w: w.sum(), 3)
    a, b, c = rows([1, 0, 0], [4, 4, 0], [1, 5, 2])
    line = line_between(here, a, b)
    assert (line.marks["a"].tolist(), line.marks["b"].tolist()) == ([[0.0]], [[1.0]])
    torch.testing.assert_close(line.at([0.25]), a + 0.25 * (b - a))
    across = plane_through(here, a, b, c)
    assert across.recipe["length"] == 5
    for name, point in (("a", a), ("b", b), ("c", c)):
        torch.testing.assert_close(across.at(across.marks[name][0]), point)
    assert float(across.directions[0] @ across.directions[1]) == pytest.approx(0, abs=1e-12)
    assert across.directions.norm(dim=1).tolist() == pytest.approx([5, 5])


def test_trajectory_states_shares_and_distances_of_a_flat_path():
    here = land(lambda w: w.sum(), 4)
    path = list(rows([4, 0, 0, 0], [2, 2, 0, 0], [0, 0, 0, 1e-3], [-1, 1, 0, 0]))
    found = trajectory_plane(here, path)
    assert found.recipe["checkpoints"] == 4
    assert sum(found.recipe["explained"]) == pytest.approx(1, abs=1e-5)
    assert found.recipe["random_walk"] == pytest.approx([0.608, 0.152], abs=5e-4)
    assert max(found.recipe["off_plane"]) < 2e-3
    assert found.findings == ()
    assert found.marks["end"].tolist() == [[0.0, 0.0]]
    assert len(found.labels) == 2
    assert found.directions.norm(dim=1).tolist() == pytest.approx([1, 1])


def test_eigenvectors_point_to_where_their_largest_entry_is_positive():
    axes = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).Q
    matrix = axes @ torch.diag(torch.tensor([9.0, 5, 1, 0.5, 0.1], dtype=torch.float64)) @ axes.T
    found = eigenvector_plane(land(lambda w: w @ matrix @ w / 2, 5), seed=2)
    assert found.recipe["eigenvalues"] == pytest.approx([9, 5], rel=1e-8)
    assert max(found.recipe["residuals"]) < 1e-3
    for direction, axis in zip(found.directions, axes.T, strict=False):
        expected = axis * axis[axis.abs().argmax()].sign()
        torch.testing.assert_close(direction, expected, atol=1e-6, rtol=0)
