"""Paths, curves, bands and descents where lengths, bounds and steps can be worked out by hand."""

import math

import numpy as np
import pytest
import torch

from crunode.core.landscape import Landscape
from crunode.topology.bands import _force, elastic_band
from crunode.topology.barriers import thinned
from crunode.topology.curves import basis, trained_curve
from crunode.topology.descent import Adam, lowered
from crunode.topology.heights import Heights, end_point
from crunode.topology.paths import Path, examine_path, examine_pieces


def rows(*points):
    return torch.tensor(points, dtype=torch.float64)


def heights(function, dim):
    return Heights(Landscape.of_function(function, torch.zeros(dim, dtype=torch.float64)))


def corner():
    """A path of lengths 3 and 4 around a corner, in three dimensions."""
    return examine_path(heights(lambda w: w.sum(), 3), rows([0, 0, 0], [3, 0, 0], [3, 4, 0]))


def test_length_and_places_of_a_path_with_a_corner():
    path = corner()
    assert path.length == 7
    for share, place in ((-1.0, [0, 0, 0]), (0.0, [0, 0, 0]), (1 / 7, [1, 0, 0]), (3 / 7, [3, 0, 0])):
        torch.testing.assert_close(path.at(share), rows(place)[0], atol=1e-12, rtol=0)
    for share, place in ((5 / 7, [3, 2, 0]), (1.0, [3, 4, 0]), (1.7, [3, 4, 0])):
        torch.testing.assert_close(path.at(share), rows(place)[0], atol=1e-12, rtol=0)


def test_grid_of_a_path_is_in_order_and_its_losses_belong_to_it():
    path = corner()
    assert (np.diff(path.positions) >= 0).all()
    assert (path.positions[0], path.positions[-1]) == (0.0, 1.0)
    np.testing.assert_allclose(path.losses, 7 * path.positions, atol=1e-12)
    assert path.spacing == pytest.approx(4 / 8)
    assert path.largest == path.bound == 7
    told = path.to_dict()
    assert (told["corners"], told["length"], told["largest"], told["bound"]) == (3, 7, 7, 7)
    assert told["losses"] == path.losses.tolist()


def test_a_path_that_stays_in_its_place_has_no_length():
    path = examine_path(heights(lambda w: w.square().sum(), 2), rows([1, 2], [1, 2]))
    assert (path.length, path.largest, path.spacing) == (0, 5, 0)
    torch.testing.assert_close(path.at(0.5), rows([1, 2])[0])


def test_first_bound_adds_half_of_the_larger_second_difference():
    """On x² and a grid of an eighth second differences are 2/64, so that no interval rises by more than 1/64."""
    square = heights(lambda w: w.square().sum(), 1)
    seen = examine_pieces(square, rows([0.0]), rows([1.0]), rows(5.0)[0:1].reshape(1))
    assert len(seen.place) == 9
    assert float(seen.bound) == pytest.approx(1 + 1 / 64, abs=1e-12)
    assert (float(seen.largest), float(seen.where)) == (1.0, 1.0)
    hat = examine_pieces(heights(lambda w: -(w - 0.3).abs().sum(), 1), rows([0.0]), rows([1.0]), torch.zeros(1))
    # The kink at 0.3 is between 0.25 and 0.375: the loss at the ends, plus half of the larger second difference.
    at = -abs(np.linspace(0, 1, 9) - 0.3)
    second = np.abs(np.diff(at, 2))
    assert float(hat.bound.max()) >= 0.0
    assert second.max() == pytest.approx(0.15)


def test_pieces_are_held_against_their_own_levels():
    bump = heights(lambda w: 1 - w[0] ** 2 + 0 * w[1], 2)
    starts, ends = rows([-1.05, 0], [-1.05, 0], [0.5, 1]), rows([1, 0], [1, 0], [1, 1])
    seen = examine_pieces(bump, starts, ends, torch.tensor([1.0001, 0.5, 2.0], dtype=torch.float64))
    assert seen.largest[0] == pytest.approx(1, abs=1e-3)
    assert float(seen.bound[0]) <= 1.0001  # it took a finer grid to see that
    assert (seen.piece == 0).sum() > (seen.piece == 1).sum() == 9  # what is above its level is left at that
    assert seen.bound[1] > 0.5
    assert float(seen.largest[2]) == 0.75
    assert float(seen.where[2]) == 0
    assert seen.where[1] == pytest.approx(0.5, abs=1e-9)
    for k in range(3):
        mine = seen.piece == k
        at = torch.lerp(starts[k], ends[k], seen.place[mine][:, None])
        torch.testing.assert_close(seen.loss[mine], 1 - at[:, 0] ** 2)
        assert seen.largest[k] == seen.loss[mine].max()


def test_bound_without_a_limit_is_within_a_thousandth_of_the_rise():
    for scale in (1e-6, 1.0, 1e6):
        path = examine_path(heights(lambda w, s=scale: s * (1 - w[0] ** 2) ** 2 * 3, 1), rows([-1.0], [0.07], [1.3]))
        truth = max(3 * (1 - 1.3**2) ** 2, 3.0) * scale
        assert path.largest <= truth * (1 + 1e-12)
        assert truth <= path.bound <= path.largest + 1.001e-3 * truth


def test_path_with_a_wall_has_no_finite_bound():
    path = examine_path(heights(lambda w: (1 / (w[0] > -0.5)) + w[0] * 0, 1), rows([-1.0], [1.0]), 2.0)
    assert path.largest == math.inf


@pytest.mark.parametrize("count", [1, 4])
def test_losses_and_slopes_are_those_of_autograd_point_by_point(count):
    def function(w):
        return (w[0] * w[1] - 1) ** 2 + w[2].exp()

    at = torch.randn(count, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = heights(function, 3)
    values, slopes = seen.slopes(at)
    torch.testing.assert_close(values, torch.stack([function(w) for w in at]))
    torch.testing.assert_close(slopes, torch.stack([torch.autograd.functional.jacobian(function, w) for w in at]))
    torch.testing.assert_close(seen.values(at), values)
    assert seen.evaluations == 2 * count


def test_losses_are_means_over_all_batches_of_unlike_size():
    net = torch.nn.Linear(2, 1, bias=False).double()
    x = torch.randn(7, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = Landscape(net, (x, x[:, :1]), "gaussian")
    parts = Landscape(net, [(x[:5], x[:5, :1]), (x[5:], x[5:, :1])], "gaussian")
    at = torch.randn(3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for one, other in zip(Heights(whole).slopes(at), Heights(parts).slopes(at), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(Heights(parts).values(at)[0], whole.loss(at[0]))


def test_a_slope_that_is_no_number_makes_a_wall():
    seen = Heights(Landscape.of_function(lambda w: w[0].abs().sqrt() + w[1], torch.ones(2, dtype=torch.float64)))
    values, slopes = seen.slopes(rows([0.0, 1.0], [4.0, 1.0]))
    assert values.tolist() == [math.inf, 3.0]
    assert slopes.tolist() == [[0.0, 0.0], [0.25, 1.0]]


def test_end_points_are_in_double_precision():
    land = Landscape.of_function(lambda w: w.sum(), torch.zeros(2))
    assert end_point(land, torch.tensor([0.5, 2.0]), "a").dtype == torch.float64


@pytest.mark.parametrize("controls", [2, 3, 5])
def test_weights_of_control_points(controls):
    times = torch.linspace(0, 1, 11, dtype=torch.float64)
    for kind in ("bezier", "polygon"):
        weights = basis(kind, controls, times)
        torch.testing.assert_close(weights.sum(1), torch.ones(11, dtype=torch.float64))
        # Evenly placed control points give the straight line, run through at an even pace.
        places = torch.linspace(0, 1, controls, dtype=torch.float64)
        torch.testing.assert_close(weights @ places, times)
    at = basis("bezier", controls, rows(0.3)[:1].reshape(1))[0]
    n = controls - 1
    torch.testing.assert_close(at, rows([math.comb(n, k) * 0.3**k * 0.7 ** (n - k) for k in range(controls)])[0])


def test_polygon_and_curve_begin_and_end_where_they_should():
    flat = heights(lambda w: 0 * w.sum(), 4)
    a, b = torch.zeros(4, dtype=torch.float64), torch.full((4,), 2.0, dtype=torch.float64)
    for kind, bends, corners in (("polygon", 3, 5), ("polygon", 1, 3)):
        path = trained_curve(flat, a, b, torch.Generator().manual_seed(0), kind=kind, bends=bends, steps=5)
        assert len(path.points) == corners
        assert torch.equal(path.points[[0, -1]], torch.stack([a, b]))
        # Control points begin a fiftieth of the distance beside the line, in all directions alike.
        line = torch.lerp(a, b, torch.linspace(0, 1, corners, dtype=torch.float64)[:, None])
        away = (path.points - line).norm(dim=1)[1:-1]
        torch.testing.assert_close(away, torch.full((bends,), 0.02 * 4.0, dtype=torch.float64))
    curve = trained_curve(flat, a, b, torch.Generator().manual_seed(0), steps=5)
    assert torch.equal(curve.points[[0, -1]], torch.stack([a, b]))
    assert curve.length == pytest.approx(4.0, rel=0.01)


def test_curve_of_a_valley_ends_in_it():
    """For (w₁ − w₀(2 − w₀))², of which Bézier curves of degree two hold the valley: the trained one ends low."""
    valley = heights(lambda w: (w[1] - w[0] * (2 - w[0])) ** 2, 2)
    path = trained_curve(
        valley, rows([0.0, 0.0])[0], rows([2.0, 0.0])[0], torch.Generator().manual_seed(0), bends=1, steps=150
    )
    assert valley.values(rows([1.0, 0.0]))[0] == 1
    assert path.largest < 0.01


def test_first_step_of_adam_has_its_rate_and_later_ones_less():
    adam, gradient = Adam(0.3, 4), rows([2.0, -50.0])[0]
    steps = [adam.step(gradient) for _ in range(4)]
    for k, step in enumerate(steps):  # of a constant gradient only the sign counts
        torch.testing.assert_close(step, -gradient.sign() * 0.3 * (1 - k / 4), rtol=1e-9, atol=0)


def test_steps_of_adam_are_those_of_torch():
    gradients = torch.randn(6, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    theirs = torch.optim.Adam([weight], lr=0.1, betas=(0.9, 0.99), eps=1e-12)
    ours, place = Adam(0.1, 6), torch.zeros(3, dtype=torch.float64)
    for k, gradient in enumerate(gradients):
        theirs.param_groups[0]["lr"] = 0.1 * (1 - k / 6)
        weight.grad = gradient
        theirs.step()
        place = place + ours.step(gradient)
    torch.testing.assert_close(place, weight.detach(), rtol=1e-9, atol=1e-12)


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def test_first_step_of_a_descent_is_polyaks():
    """From loss 4 with floor 0 a parabola x² gets the step (L − floor)/|∇L| = 1: from 2 to 1."""
    square = heights(lambda w: w.square().sum(), 2)
    reach = torch.full((2, 1), 9.0, dtype=torch.float64)
    points, values = lowered(square, rows([2, 0], [0, -2]), column(0, 0), column(0, 3.0), reach, 1)
    torch.testing.assert_close(points, rows([1, 0], [0, -1.75]))
    torch.testing.assert_close(values, column(1, 1.75**2))
    near, _ = lowered(square, rows([2, 0], [0, -2]), column(0, 0), column(0, 0), reach / 30, 1)
    torch.testing.assert_close(near, rows([1.7, 0], [0, -1.7]))


def test_points_at_their_target_and_at_rest_stay():
    square = heights(lambda w: w.square().sum(), 2)
    start = rows([2, 0], [0, 0], [3, 0])
    points, values = lowered(square, start, column(4, -1, 1), column(0, 0, 0), torch.ones(3, 1).double(), 60)
    assert torch.equal(points[:2], start[:2])
    assert values[:2].tolist() == [4, 0]
    assert values[2] <= 1
    assert square.evaluations < 20


def test_descent_across_a_direction_keeps_its_place_along_it():
    tilted = heights(lambda w: (w[0] - w[1]) ** 2 + (w[2] - 1) ** 2, 3)
    along = rows([1, 0, 0], [0, 1, 0])
    start = rows([1, 0, 0], [0, 2, 3])
    points, values = lowered(
        tilted, start, column(1e-8, 1e-8), column(0, 0), torch.full((2, 1), 5.0).double(), 300, along
    )
    assert points[0, 0] == 1
    assert points[1, 1] == 2
    torch.testing.assert_close(points, rows([1, 1, 1], [2, 2, 1]), atol=1e-3, rtol=0)
    assert (values <= 1e-8).all()


def test_a_descent_that_gets_nowhere_ends_early():
    """A valley floor of height one above the target: after some steps nothing more is gained."""
    floor = heights(lambda w: 1 + w.square().sum(), 2)
    _, values = lowered(floor, rows([1, 1]), column(0), column(0), torch.ones(1, 1).double(), 10_000)
    assert float(values) == pytest.approx(1, abs=0.05)
    assert floor.evaluations < 200


def test_conjugate_directions_cross_a_long_valley():
    valley = heights(lambda w: (w * torch.tensor([1.0, 10.0, 3.0])).square().sum(), 3)
    start = rows([10, 1, 1], [-10, 1, -2])
    _, values = lowered(valley, start, column(1e-3, 1e-3), column(0, 0), torch.full((2, 1), 10.0).double(), 400)
    assert (values <= 1e-3).all()
    assert valley.evaluations < 120


def test_forces_on_a_straight_band_are_hand_made():
    """Beads at 0, 1, 3, 4 on a line that rises: springs push along it, the loss only across."""
    chain = rows([0, 0], [1, 0], [3, 0], [4, 0])
    slopes = rows([1, 2], [1, -2])
    found = _force(chain, column(0, 1, 3, 4), slopes)
    stiffness = math.sqrt(5) / (4 / 3)
    torch.testing.assert_close(found, rows([stiffness, -2], [-stiffness, 2]))


@pytest.mark.parametrize("values", [(0, 1, 2), (2, 1, 0), (1, 3, 0), (0, 3, 1), (2, 1, 3), (3, 1, 2), (1, 1, 1)])
def test_direction_of_a_band_points_to_the_higher_neighbor(values):
    """Henkelman & Jónsson 2000: to the higher one, or at a turn to both, by their differences of loss."""
    low, here, high = values
    chain, slopes = rows([0, 0], [1, 0], [1, 2]), rows([0.3, 0.4])
    before, after = rows([1, 0])[0], rows([0, 2])[0]
    if low < here < high:
        along = after
    elif low > here > high:
        along = before
    else:
        more, less = max(abs(high - here), abs(low - here)), min(abs(high - here), abs(low - here))
        along = after * more + before * less if high > low else after * less + before * more
        along = along if more else after + before
    along = along / along.norm()
    across = slopes[0] - (slopes[0] @ along) * along
    expected = 0.5 / 1.5 * (2 - 1) * along - across
    torch.testing.assert_close(_force(chain, column(*values), slopes)[0], expected)


def test_band_on_a_plain_stays_near_its_line_and_keeps_its_distances():
    flat = heights(lambda w: 0 * w.sum(), 3)
    a, b = torch.zeros(3, dtype=torch.float64), rows([4.0, 0, 0])[0]
    path = elastic_band(flat, a, b, torch.Generator().manual_seed(0), beads=9, steps=1)
    assert len(path.points) == 9
    away = (path.points - torch.lerp(a, b, torch.linspace(0, 1, 9, dtype=torch.float64)[:, None])).norm(dim=1)
    torch.testing.assert_close(away[1:-1], torch.full((7,), 0.02 * 4, dtype=torch.float64))
    assert torch.equal(path.points[[0, -1]], torch.stack([a, b]))


def test_band_is_the_lower_of_its_last_and_its_best():
    """With steps that overshoot the band that had the lowest highest bead is not the last one."""
    ring = heights(lambda w: (w.square().sum() - 1) ** 2, 2)
    for steps in (1, 3, 200):
        path = elastic_band(ring, rows([1, 0])[0], rows([-1, 0])[0], torch.Generator().manual_seed(0), steps=steps)
        assert isinstance(path, Path)
        assert path.largest <= 1.05
    assert path.largest < 0.005
    spaces = path.points.diff(dim=0).norm(dim=1)
    assert spaces.max() < 1.6 * spaces.mean()


def test_thinned_paths_keep_their_ends_and_are_spread_evenly():
    points = torch.arange(100.0, dtype=torch.float64)[:, None]
    found = thinned(points)
    assert len(found) == 24
    assert (found[0], found[-1]) == (0, 99)
    assert set(found.diff(dim=0).flatten().tolist()) <= {4.0, 5.0}
    assert torch.equal(thinned(points[:24]), points[:24])
