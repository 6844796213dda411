"""Paths, bands, curves, searches and walks where their results are known, and what is recorded of them."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.topology import (
    align,
    barrier,
    connect,
    critical_points,
    merge_tree,
    profile,
    solution_dimension,
    surface,
    walk,
)
from crunode.topology.bands import elastic_band
from crunode.topology.barriers import Descent, _height, thinned
from crunode.topology.critical import _rank
from crunode.topology.curves import basis, trained_curve
from crunode.topology.descent import Adam, lowered
from crunode.topology.directions import Plane, eigenvector_plane, random_directions, trajectory_plane
from crunode.topology.heights import Heights
from crunode.topology.newton import PointBatch, search
from crunode.topology.paths import Path, assembled, evenly_between, examine_path, examine_pieces
from crunode.topology.strings import Outcome
from crunode.topology.surfaces import nonconvex_share


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def potential(function, dim):
    return Landscape.of_function(function, torch.zeros(dim, dtype=torch.float64))


def circle(w):
    return (w.square().sum() - 1) ** 2


def wells(w):
    return (w[0] ** 2 - 1) ** 2 + w[1] ** 2


def generator():
    return torch.Generator().manual_seed(0)


# Paths


def test_places_on_a_path_are_shares_of_its_length():
    corners = torch.stack([vector(0, 0), vector(3, 0), vector(3, 1)])
    path = examine_path(Heights(potential(lambda w: w[0] + 10 * w[1], 2)), corners)
    assert path.length == 4
    for share, point in ((0, (0, 0)), (0.5, (2, 0)), (0.75, (3, 0)), (0.875, (3, 0.5)), (1, (3, 1)), (2, (3, 1))):
        assert path.at(share).tolist() == pytest.approx(point)
    here = np.array([path.at(x).tolist() for x in path.positions])
    np.testing.assert_allclose(path.losses, here[:, 0] + 10 * here[:, 1], atol=1e-12)
    assert path.largest == pytest.approx(13)
    assert path.bound == pytest.approx(13)  # a linear loss has no second differences
    assert path.spacing == pytest.approx(3 / 8)
    assert len(path.losses) == 2 * 9
    assert path.to_dict()["corners"] == 3
    assert path.to_dict()["length"] == 4


def test_a_parabola_stays_below_its_bound_and_is_nearly_as_high():
    heights = Heights(potential(lambda w: 1 - (w[0] - 0.37) ** 2, 1))
    seen = examine_pieces(heights, vector(0)[None], vector(1)[None], None)
    assert float(seen.largest) <= 1 <= float(seen.bound) <= 1 + 1e-3
    assert float(seen.where) == pytest.approx(0.37, abs=0.02)
    seen = examine_pieces(heights, vector(0)[None], vector(1)[None], torch.full((1,), 0.5).double())
    assert len(seen.loss) == 9  # beyond its limit already, which is all that is asked
    # Half the second difference above the higher end of an interval of an eighth.
    assert float(seen.bound) == pytest.approx(1 - 0.005**2 + 1 / 64, abs=2e-4)


def test_pieces_are_held_against_limits_of_their_own():
    heights = Heights(potential(lambda w: w.abs().sum(), 2))
    starts, ends = torch.stack([vector(1, 0), vector(0, 2)]), torch.stack([vector(-1, 0), vector(0, 3)])
    seen = examine_pieces(heights, starts, ends, torch.tensor([1.0, 3.0]).double())
    assert seen.largest.tolist() == [1, 3]
    assert seen.bound.tolist() == pytest.approx([1, 3], abs=0.13)
    assert seen.where.tolist() == [1, 1]
    path = assembled(torch.stack([vector(1, 0), vector(-1, 0)]), examine_pieces(heights, starts[:1], ends[:1], None))
    assert (np.diff(path.positions) >= 0).all()


def test_long_paths_are_thinned_to_twenty_four_corners():
    points = evenly_between(vector(0, 0), vector(1, 1), 100)
    assert len(thinned(points)) == 24
    assert torch.equal(thinned(points)[[0, -1]], points[[0, -1]])
    assert thinned(points[:24]) is not None
    assert torch.equal(thinned(points[:24]), points[:24])


# Adam, bands and curves


def test_adam_is_that_of_torch_with_a_rate_that_falls_to_zero():
    w = vector(1, -2, 3).requires_grad_()
    theirs = torch.optim.Adam([w], lr=0.1, betas=(0.9, 0.99), eps=1e-12)
    rates = torch.optim.lr_scheduler.LinearLR(theirs, 1.0, 0.0, total_iters=20)
    adam, v = Adam(0.1, 20), vector(1, -2, 3)
    for _ in range(20):
        theirs.zero_grad()
        (w**4).sum().backward()
        theirs.step()
        rates.step()
        v = v + adam.step(4 * v**3)
        torch.testing.assert_close(v, w.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["bezier", "polygon"])
def test_a_basis_adds_up_to_one_and_follows_a_line(kind):
    times = torch.linspace(0, 1, 13, dtype=torch.float64)
    weights = basis(kind, 5, times)
    torch.testing.assert_close(weights.sum(1), torch.ones(13).double())
    torch.testing.assert_close(weights @ torch.linspace(0, 1, 5, dtype=torch.float64), times)
    assert weights[0].tolist() == [1, 0, 0, 0, 0]


METHODS = {
    "band": lambda h, a, b, **k: elastic_band(h, a, b, generator(), **k),
    "bezier": lambda h, a, b, **k: trained_curve(h, a, b, generator(), **k),
    "polygon": lambda h, a, b, **k: trained_curve(h, a, b, generator(), kind="polygon", **k),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_path_scales_with_the_landscape_and_is_the_same_for_a_multiple_of_the_loss(name):
    find, ends = METHODS[name], (vector(1, 0), vector(-1, 0))
    plain = find(Heights(potential(circle, 2)), *ends, steps=30).points
    wide = find(Heights(potential(lambda w: circle(w / 10), 2)), *(10 * e for e in ends), steps=30).points
    torch.testing.assert_close(wide, 10 * plain, rtol=1e-6, atol=1e-6)
    steep = find(Heights(potential(lambda w: 50 * circle(w), 2)), *ends, steps=30).points
    torch.testing.assert_close(steep, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "corners", "each"), [("band", 17, 15), ("bezier", 33, 16), ("polygon", 5, 16)])
def test_corners_and_losses_that_a_path_takes(name, corners, each):
    used = []
    for options in ({"steps": 200}, {}, {"steps": 1}):
        heights = Heights(potential(circle, 2))
        path = METHODS[name](heights, vector(1, 0), vector(-1, 0), **options)
        assert len(path.points) == corners
        # What is left are the losses of the paths that are looked at in the end.
        used.append(heights.evaluations)
    assert used[0] == used[1]
    if name == "polygon":
        heights = Heights(potential(lambda w: w[0] ** 2, 2))  # looked at with as many losses, however it is bent
        trained_curve(heights, vector(1, 0), vector(-1, 0), generator(), kind=name, steps=1)
    assert used[0] - used[2] > 150 * each


def test_a_band_on_a_flat_landscape_stays_evenly_spaced_and_nearly_straight():
    path = elastic_band(Heights(potential(lambda w: 0 * w.sum(), 2)), vector(1, 0), vector(-1, 0), generator())
    assert float(path.points[:, 1].abs().max()) <= 0.04 + 1e-9  # a fiftieth of the distance is the nudge
    assert float(path.points[:, 1].abs().max()) > 0.001


def test_a_band_finds_the_valley_and_its_pass():
    # The valley is the parabola y = x² − 1, with a pass of height 1 at its bottom.
    def valley(w):
        return (1 - w[0] ** 2) ** 2 + 20 * (w[1] - w[0] ** 2 + 1) ** 2

    path = elastic_band(Heights(potential(valley, 2)), vector(-1, 0), vector(1, 0), generator())
    assert path.largest == pytest.approx(1, abs=0.05)
    assert float((path.points[:, 1] - path.points[:, 0] ** 2 + 1).abs().max()) < 0.1


# Descent


def test_one_step_down_a_slope_ends_at_the_floor_or_as_far_as_it_may_go():
    heights = Heights(potential(lambda w: 3 * w[0] + 4 * w[1], 2))
    start, target, floor = vector(2, 1)[None], vector(1), vector(0)
    points, values = lowered(heights, start, target, floor, vector(9)[:, None], 1)
    # 10 above the floor with a slope of 5: two lengths along −(3, 4)/5.
    assert points[0].tolist() == pytest.approx([2 - 1.2, 1 - 1.6])
    assert float(values) == pytest.approx(0, abs=1e-12)
    points, _ = lowered(heights, start, target, floor, vector(0.5)[:, None], 1)
    assert points[0].tolist() == pytest.approx([2 - 0.3, 1 - 0.4])
    across = vector(0, 1)[None]
    points, _ = lowered(heights, start, target, floor, vector(0.5)[:, None], 1, across)
    assert points[0].tolist() == pytest.approx([1.5, 1])


def test_points_at_their_target_and_points_without_slope_stay():
    heights = Heights(potential(lambda w: w.square().sum(), 2))
    start = torch.stack([vector(1, 0), vector(0, 0), vector(2, 0)])
    points, values = lowered(heights, start, vector(1, -1, 1), vector(0, -1, 0), torch.ones(3, 1).double(), 50)
    assert points[:2].tolist() == start[:2].tolist()
    assert values[0] == 1
    assert values[2] <= 1


# Barriers


def straight(largest, bound):
    points = evenly_between(vector(0, 0), vector(1, 0), 2)
    return Path(points, np.array([0.0, 1.0]), np.array([0.0, largest]), largest, bound, 1.0)


@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
def test_a_height_is_a_bound_and_its_error_reaches_down_to_where_no_path_was_found():
    outcome = Outcome(None, "why", True, 5, 2)
    found = _height(straight(3.0, 3.2), 1.0, Descent(straight(3.0, 3.2), 2.5, outcome), {"by": "x"}, 7)
    assert found.value == pytest.approx(2.2)
    assert found.terms == pytest.approx({"grid": 0.2, "level": 0.5})
    assert found.systematic == pytest.approx(math.hypot(0.2, 0.5))
    assert (found.se, found.seed, found.spec) == (0, 7, {"by": "x"})
    assert found.diagnostics == {"largest": 3.0, "ends": 1.0, "corners": 2, "grid_points": 2}
    assert [f.code for f in found.findings] == ["TOPO1122"]
    found = _height(straight(3.0, 3.2), 1.0, None, {}, 0)
    assert found.terms["level"] == pytest.approx(2)
    assert not found.findings
    assert _height(straight(0.5, 0.6), 1.0, None, {}, 0).value == 0


@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
def test_losses_between_grid_points_are_told_where_they_are_a_tenth_of_the_height():
    def codes(largest, bound, top=1.0):
        return [f.code for f in _height(straight(largest, bound), top, None, {}, 0).findings]

    assert codes(2.0, 2.15) == ["TOPO1123"]
    assert codes(2.0, 2.09) == []
    assert codes(1.0001, 1.0009) == []  # a thousandth of the loss at the ends is nothing
    assert codes(1.0001, 1.0019) == ["TOPO1123"]


@pytest.mark.heavy
def test_settings_are_recorded_and_are_those_that_are_told():
    land = potential(wells, 2)
    ends = vector(-1, 0), vector(1, 0)
    found = barrier(land, *ends, "line")
    told = {"method": "line", "tolerance": 0.01, "strings": 8, "beads": 96, "depth": 10, "steps": 200, "by": "line"}
    assert {k: v for k, v in found.height.spec.items() if k != "evaluations"} == told
    assert found.height.spec["evaluations"] >= len(found.path.losses) + 2
    assert found.losses == (0, 0)
    assert list(found.bounds) == ["line"]
    found = connect(land, *ends, 2.0)
    assert {k: found.spec[k] for k in ("level", "strings", "beads", "depth")} == {
        "level": 2.0,
        "strings": 8,
        "beads": 96,
        "depth": 10,
    }
    assert (found.spec["beads_used"], found.spec["depth_used"]) == (2, 0)
    tree = merge_tree(land, [*ends, vector(1, 0.1)])
    told = {"tolerance": 0.02, "strings": 4, "beads": 96, "depth": 10, "pairs": 3}
    assert {k: tree.spec[k] for k in told} == told
    assert tree.spec["gap"] == pytest.approx(0.02, rel=0.02)  # of the highest rise, which is 1
    assert tree.spec["searched"] == 2  # two are joined by the line between them


# Searches


def test_the_region_of_a_search_shrinks_to_a_quarter_and_doubles():
    # The gradient is linear, so that a step does what is promised, but for a wall.
    def sloped(wall):
        return potential(lambda w: w[0] * 200 + 0.5 * w[0] ** 2 + torch.where(w[0] < wall, 1e9, 0.0) * w[0], 1)

    start = vector(10)[None]
    lengths = [float(search(PointBatch(sloped(-1e9)), start, k).last) for k in (1, 2, 3)]
    assert lengths == pytest.approx([1, 2, 4])
    ends = [search(PointBatch(sloped(8.4)), start, k) for k in (1, 2, 3)]
    assert [float(e.last) for e in ends] == pytest.approx([1, 1, 0.5])  # 2 would lead behind the wall, and so would 1
    assert [float(e.weights) for e in ends] == pytest.approx([9, 9, 8.5])
    assert [float(e.steps) for e in ends] == [1, 1, 2]


def test_a_null_space_is_what_a_factor_of_a_hundred_sets_apart():
    error = 1e-3

    def seen(*values, small=True):
        rank = _rank(np.array(values), error, small)
        return rank.low, rank.high, rank.decided

    assert seen(-1.0, 5e-4, 0.06) == (2, 2, True)
    assert seen(-1.0, 5e-4, 0.04)[1:] == (3, False)  # no clear gap
    assert seen(-1.0, 5e-4, 0.06, small=False)[1:] == (3, False)
    assert seen(-1.0, 5e-3) == (1, 2, False)  # beyond its error, but not ten times
    assert seen(-1.0, 0.011) == (2, 2, True)
    assert seen(5e-4, -5e-4)[0] == 0
    assert _rank(np.array([-1.0, 5e-4, 0.06]), error, True).gap == pytest.approx(120)


def test_critical_points_record_their_settings():
    land = potential(wells, 2)
    found = critical_points(land)
    assert (found.spec["starts"], found.spec["steps"], found.spec["tolerance"]) == (32, 200, 1e-9)
    assert (found.spec["dim"], found.spec["level"], len(found.outcomes)) == (2, None, 32)
    assert set(found.ends) == {"loss", "gradient", "scale", "steps"}
    point = found.points[0]
    assert float(found.ends["loss"][point.start]) == point.loss.value
    assert float(found.ends["gradient"][point.start]) == point.gradient
    assert found.ends["scale"].min() > 0.1
    assert 1 <= found.ends["steps"].max() <= 200
    names = [e.name for e in (point.loss, point.index, point.fraction, point.degenerate)]
    assert names == ["loss at a critical point", "index", "index fraction", "degenerate directions"]


# Manifolds


class Squares(nn.Module):
    """The sum of the squares of two numbers, times the input: zero at a single point."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x):
        return x * self.w.square().sum()


def test_a_walk_from_a_point_that_is_alone_ends_after_nineteen_halvings():
    x = torch.ones(1, 1).double()
    land = Landscape(Squares(), (x, 0 * x), "gaussian")
    # A step r has a loss of r⁴/2, and nothing leads back: it has to be at most a hundredth of 1e-12 at once.
    length = 2 ** (1 / 4) * 1e-14 ** (1 / 4)
    for factor, steps in ((0.9, 1), (1.1, 0)):
        found = walk(land, 3, stride=factor * length * 2**19)
        (finding,) = [f for f in found.findings if f.code == "TOPO1109"]
        # Once away, its way back is the only one that changes the output.
        assert str(finding).count("no way ahead") == steps
        assert f"after {steps} of 3" in str(finding)
        assert len(found.path) == steps + 1


def line():
    """w1 + w2 = 1 for two weights and one example."""
    net = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(net.weight, 2.0)
    return Landscape(net, (torch.ones(1, 2).double(), torch.ones(1, 1).double()), "gaussian")


def test_walks_and_dimensions_record_their_settings():
    found = walk(line(), direction=vector(1, 0))
    assert len(found.path) == 101
    start = found.path[0]
    assert start.tolist() == pytest.approx([0.5, 0.5])
    stride = 0.02 * float(start.norm())
    assert found.length.value == pytest.approx(100 * stride)
    assert found.distance.value == pytest.approx(100 * stride)
    assert found.largest.value == found.losses.max()
    spec = {"n": 1, "dim": 2, "steps": 100, "tolerance": 1e-12, "stride": stride}
    assert {k: found.length.spec[k] for k in spec} == pytest.approx(spec)
    names = [e.name for e in (found.largest, found.length, found.distance)]
    assert names == ["largest loss of a walk", "length of a walk", "distance between the ends of a walk"]
    assert found.dimensions.tolist() == [1] * 101
    found = solution_dimension(line())
    spec = found.dimension.spec
    assert (spec["steps"], spec["tolerance"], spec["dim"], spec["outputs"]) == (200, 1e-20, 2, 1)
    assert 1 <= spec["taken"] <= 20
    assert (found.dimension.name, found.loss.name) == ("dimension of the zero-loss manifold", "loss")
    assert (found.parameters, found.equations, found.expected, found.dimension.value) == (2, 1, 1, 1)


def test_grids_have_forty_one_points_a_side_and_profiles_a_hundred_and_one():
    land = potential(wells, 2)
    seen = surface(land, Plane(land.center, torch.eye(2, dtype=torch.float64)))
    assert seen.losses.shape == (41, 41)
    assert profile(land, Plane(land.center, vector(1, 0)[None])).losses.shape == (101,)
    spec = seen.spec
    assert (spec["dim"], spec["n"]) == (2, land.n)
    x, y = np.meshgrid(*seen.coordinates, indexing="ij")
    np.testing.assert_allclose(seen.losses, (x**2 - 1) ** 2 + y**2, atol=1e-12)
    low, high = seen.curvatures()
    inner = (slice(1, -1), slice(1, -1))
    gap = seen.coordinates[0][1] - seen.coordinates[0][0]
    first = (12 * x**2 - 4 + 2 * gap**2)[inner]
    np.testing.assert_allclose(low, np.minimum(first, 2), atol=1e-6)
    np.testing.assert_allclose(high, np.maximum(first, 2), atol=1e-6)
    low, _ = seen.curvatures(2)
    assert low.shape == (37, 37)


def test_the_share_of_a_cubic_is_that_of_its_negative_side():
    for points, extent in ((21, (-1, 1)), (41, (-3, 1))):
        land = potential(lambda w: w[0] ** 3 + 1, 1)
        seen = profile(land, Plane(land.center, vector(1)[None]), points=points, extent=extent)
        x = seen.coordinates[0]
        # Differences of a cubic are its second derivative, 6x; that at 0 is left open by rounding.
        one, two = ((x[k:-k] < -1e-9).mean() for k in (1, 2))
        found = nonconvex_share(seen)
        assert found.value == pytest.approx(one)
        assert found.terms == pytest.approx({"differences": abs(one - two), "rounding": 1 / (points - 2) / 2})
        assert found.systematic == pytest.approx(math.hypot(*found.terms.values()))
        assert (found.name, found.se, found.seed) == ("nonconvex share", 0, seen.seed)
        assert not found.findings


def test_a_surface_says_what_it_was_made_with():
    land = potential(wells, 2)
    plane = Plane(land.center, torch.eye(2, dtype=torch.float64), marks={"end": vector(3, 1)[None]})
    seen = surface(land, plane, points=(5, 4), extent=((-1, 1), (0, 3)), seed=4)
    spec = {"dim": 2, "n": land.n, "loss": land.loss_name, "dtype": "float64", "device": "cpu", "probes": []}
    assert {k: seen.spec[k] for k in spec} == spec
    assert (seen.spec["points"], seen.spec["extent"]) == ([5, 4], [[-1.0, 1.0], [0.0, 3.0]])
    assert seen.spec["landscape"] == land.fingerprint()
    assert (seen.seed, seen.axes, seen.marks["end"].tolist()) == (4, 2, [[3.0, 1.0]])
    # Without an extent marks are shown with a quarter of their spread around them.
    plane = Plane(
        land.center, torch.eye(2, dtype=torch.float64), marks={"m": torch.stack([vector(0, 1), vector(4, 3)])}
    )
    assert surface(land, plane, points=3).spec["extent"] == [[-1.0, 5.0], [0.5, 3.5]]


def test_random_walks_explain_six_over_pi_squared_of_their_variance():
    land = potential(wells, 3)
    steps = torch.randn(2000, 3, generator=generator(), dtype=torch.float64).cumsum(0)
    recipe = trajectory_plane(land, list(steps[::500])).recipe
    assert recipe["random_walk"] == pytest.approx([6 / math.pi**2, 6 / (2 * math.pi) ** 2])
    assert recipe["checkpoints"] == 4
    assert len(recipe["off_plane"]) == 4
    assert random_directions(land, normalize="none").count == 2
    found = eigenvector_plane(land)
    assert found.count == 2
    # The Hessian at 0 is diag(−4, 2, 0).
    assert found.recipe["eigenvalues"] == pytest.approx([2, 0], abs=1e-6)
    assert max(found.recipe["residuals"]) < 1e-5


def chain(widths, activation, seed):
    torch.manual_seed(seed)
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1]).double()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("activation", "kinds"),
    [(nn.Softplus, ("permutation",)), (nn.Tanh, ("permutation", "sign")), (nn.ReLU, ("permutation", "scale"))],
)
def test_symmetries_of_a_single_unit_and_of_several_are_those_of_its_activation(activation, kinds):
    with torch.random.fork_rng():
        for widths in ((2, 1, 1), (2, 4, 3, 1)):
            nets = [chain(widths, activation, seed) for seed in (0, 1)]
            x = torch.randn(30, 2, dtype=torch.float64)
            land = Landscape(nets[0], (x, x[:, :1]), "gaussian")
            for seed in range(4):
                found = align(land, *nets, seed=seed)
                assert found.symmetries == (kinds,) * (len(widths) - 2)
            a, b = (torch.cat([p.detach().flatten() for p in net.parameters()]) for net in nets)
            assert found.before == pytest.approx(float((a - b).norm()))
            assert found.after == pytest.approx(float((a - found.weights).norm()))
            assert found.after <= found.before
            assert found.change < 1e-12
            if "scale" in kinds:  # where each scale is the best
                assert stationary(found.weights, a, widths)


def split(weights, widths):
    shapes = [shape for a, b in itertools.pairwise(widths) for shape in ((b, a), (b,))]
    sizes = [math.prod(shape) for shape in shapes]
    return [part.view(shape) for part, shape in zip(weights.split(sizes), shapes, strict=True)]


def stationary(weights, target, widths):
    """No unit can be scaled to come nearer to the target."""
    parts, other = split(weights, widths), split(target, widths)
    for k in range(0, len(parts) - 2, 2):
        for unit in range(len(parts[k])):
            into, into0 = (torch.cat([p[k][unit], p[k + 1][unit : unit + 1]]) for p in (parts, other))
            out, out0 = parts[k + 2][:, unit], other[k + 2][:, unit]
            costs = [(f * into - into0).square().sum() + (out / f - out0).square().sum() for f in (0.99, 1, 1.01)]
            if min(costs) < costs[1] - 1e-9:
                return False
    return True
