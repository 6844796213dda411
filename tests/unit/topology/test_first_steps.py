"""First steps of descents, bands and curves, on losses that say themselves what they are at each look."""

from types import SimpleNamespace

import pytest
import torch

from crunode.core.landscape import Landscape
from crunode.topology import bands
from crunode.topology.bands import elastic_band
from crunode.topology.curves import trained_curve
from crunode.topology.descent import lowered
from crunode.topology.heights import Heights


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


class Slope:
    """A loss of one variable with a slope that is one, whatever the losses are; notes where it was looked at."""

    def __init__(self, loss):
        self.loss, self.places = loss, []

    def slopes(self, points):
        self.places.append(float(points[0, 0]))
        return column(self.loss(self.places[-1], len(self.places) - 1)), torch.ones_like(points)


def descend(loss, steps, floor, reach=1e9):
    slope = Slope(loss)
    found, _ = lowered(slope, column(0)[None], column(0), column(floor), column(reach)[None], steps)
    return slope.places, float(found)


def test_a_descent_grows_by_halves_up_to_twice_the_step():
    places, end = descend(lambda w, k: 1 - 1e-9 * k, 5, 0.0)
    assert places == pytest.approx([0, -1, -2.5, -4.5, -6.5, -8.5], abs=1e-6)
    assert end == pytest.approx(-8.5, abs=1e-6)
    places, _ = descend(lambda w, k: 1 - 1e-9 * k, 3, -1.0, reach=2.5)  # twice as far to the floor, but no further
    assert places == pytest.approx([0, -2, -4.5, -7], abs=1e-6)


def test_a_descent_that_goes_up_comes_back_with_three_tenths_of_the_step():
    places, end = descend(lambda w, k: 1.0 + (k > 0), 4, 0.0)
    assert places == pytest.approx([0, -1, -0.3, -0.09, -0.027])
    assert end == 0
    places, _ = descend(lambda w, k: [1, 2, 0.9, 0.8, 0.7][k], 4, 0.0)  # and grows again from there
    assert places[:3] == pytest.approx([0, -1, -0.3])
    assert places[3] == pytest.approx(-0.3 - 0.45 * 0.9)


@pytest.mark.parametrize(("each", "looks"), [(0.0018, 11), (0.0021, 26)])
def test_a_descent_ends_where_ten_steps_bring_less_than_a_fiftieth_of_what_is_left(each, looks):
    places, _ = descend(lambda w, k: 1 - each * k, 25, 0.0)
    assert len(places) == looks


@pytest.mark.parametrize(
    ("after", "conjugate"),
    [((-0.5, 1.0), True), ((0.97, 1.0), True), ((0.5, 0.1), True), ((-0.58, 1.0), True), ((-0.6, 1.0), False)],
)
def test_directions_are_those_of_polak_and_ribiere_where_they_lead_down(after, conjugate):
    """From a slope g to f the way is −f + max(0, f·(f − g)/g·g) times the one before, or −f."""
    first, second = column(1, 0), column(*after)
    seen = []

    class Turning:
        def slopes(self, points):
            seen.append(points[0].clone())
            return column(1 - 0.1 * (len(seen) - 1)), (first if len(seen) == 1 else second)[None].clone()

    lowered(Turning(), column(0, 0)[None], column(0), column(0), column(1e9)[None], 2)
    way = seen[2] - seen[1]
    turn = max(float(second @ (second - first)), 0.0)
    expected = -second - turn * first if conjugate else -second
    cosine = -float(expected @ second) / float(expected.norm() * second.norm())
    assert cosine > 0.1
    torch.testing.assert_close(way / way.norm(), expected / expected.norm())
    assert float(way.norm()) == pytest.approx(1.5 * 0.9 / (cosine * float(second.norm())))


def heights(function, dim):
    return Heights(Landscape.of_function(function, torch.zeros(dim, dtype=torch.float64)))


def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("dim", [2, 5])
def test_first_steps_of_bands_and_curves_are_shares_of_the_spacing_and_of_the_distance(dim):
    a, b = torch.zeros(dim, dtype=torch.float64), torch.zeros(dim, dtype=torch.float64)
    b[0] = 4.0
    slope, seen = heights(lambda w: 7 * w.sum(), dim), []
    real = slope.slopes
    slope.slopes = lambda at: seen.append(at) or real(at)
    elastic_band(slope, a, b, generator(), beads=5, steps=2)
    curves = [
        trained_curve(heights(lambda w, k=k: k * w.sum(), dim), a, b, generator(), kind="polygon", steps=1).points
        for k in (0, 7)
    ]
    assert torch.equal(curves[0][[0, -1]], curves[1][[0, -1]])
    for moved, length in ((seen[1] - seen[0], 0.2 * 4.0 / 4), ((curves[1] - curves[0])[1:-1], 0.05 * 4.0)):
        # All coordinates by as much, as Adam does at first.
        torch.testing.assert_close(moved.abs(), torch.full((3, dim), length / dim**0.5, dtype=torch.float64))
    assert bool((curves[1] <= curves[0]).all())


def test_each_step_of_a_curve_looks_once_at_each_of_sixteen_parts():
    dim = 400  # in which the random displacement has next to nothing along the line
    a, b = torch.zeros(dim, dtype=torch.float64), torch.zeros(dim, dtype=torch.float64)
    b[0] = 16.0
    looked = heights(lambda w: 0 * w.sum(), dim)
    seen, real = [], looked.slopes
    looked.slopes = lambda at: seen.append(at[:, 0]) or real(at)
    trained_curve(looked, a, b, generator(), kind="polygon", steps=40)
    times = torch.stack(seen)
    assert times.shape == (40, 16)
    inside = times - torch.arange(16, dtype=torch.float64)
    assert (inside > -0.1).all()
    assert (inside < 1.1).all()
    assert float(inside.mean()) == pytest.approx(0.5, abs=0.05)
    assert float(inside.std(dim=0).mean()) == pytest.approx(12**-0.5, abs=0.05)  # anywhere in its part, anew each time


@pytest.mark.parametrize("lower", [0, 1])
def test_the_lower_is_taken_of_the_last_band_and_of_the_one_with_the_lowest_highest_bead(monkeypatch, lower):
    looked = heights(lambda w: 0 * w.sum(), 2)
    script, seen, looks = [(5, 0, 4), (3, 2, 1), (4, 1, 1)], [], []

    def slopes(at):
        seen.append(at.clone())
        return column(*script[len(seen) - 1]), torch.ones_like(at)

    def examined(heights, points):
        looks.append(points)
        return SimpleNamespace(points=points, bound=float(len(looks) - 1 != lower))

    looked.slopes = slopes
    monkeypatch.setattr(bands, "examine_path", examined)
    a, b = column(0, 0), column(4, 0)
    found = elastic_band(looked, a, b, generator(), beads=5, steps=3)
    assert len(looks) == 2
    assert torch.equal(looks[1], torch.cat([a[None], seen[1], b[None]]))
    assert not torch.equal(looks[0][1:-1], seen[2])  # after the last step
    assert torch.equal(found.points, looks[lower])


def test_a_step_across_a_direction_goes_as_far_as_its_own_slope_needs():
    """Of a slope (3, 4) across the first axis 4 is left: from 10 to the floor by 2.5 along the second."""
    plane = heights(lambda w: 10 + 3 * w[0] + 4 * w[1], 2)
    found, values = lowered(
        plane, column(0, 0)[None], column(0), column(0), column(9)[None], 1, across=column(1, 0)[None]
    )
    torch.testing.assert_close(found, column(0, -2.5)[None])
    assert float(values) == pytest.approx(0, abs=1e-12)
