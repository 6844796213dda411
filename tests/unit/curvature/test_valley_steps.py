"""Steps into valleys that are known, what is smooth there, and which pieces of a valley are followed to its center."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from crunode.curvature.rounding import unrounded
from crunode.curvature.surroundings import Surroundings
from crunode.curvature.valley import Valley, _same, _sank, _Smooth, _Walk
from crunode.curvature.valley_rows import Rows
from crunode.curvature.valley_steps import into_valley, is_smooth


class Known:
    """A map of few numbers with matrices for its linear part; zero at the center."""

    resolution, flat, chords = 1e-12, 1e-12, 0

    def __init__(self, function, center, chords=0, coarse=0.0):
        self.function, self.chords, self.coarse = function, chords, coarse
        center = torch.tensor(center, dtype=torch.float64)
        self.seen, self.asked, self.looked = SimpleNamespace(center=center), 0, 0
        self.rows = len(function(center))

    def residual(self, w):
        self.asked += 1
        value = self.function(w) - self.function(self.seen.center)
        return (value / self.coarse).round() * self.coarse if self.coarse else value

    def at(self, w):
        self.looked += 1
        j = torch.autograd.functional.jacobian(self.function, w)
        gram = j @ j.T
        top = float(torch.linalg.eigvalsh(gram)[-1])

        def solve(residual, damping):
            eye = torch.eye(len(j), dtype=torch.float64)
            return j.T @ torch.linalg.solve(gram + max(damping * top, 1e-300) * eye, residual)

        def kernel(step):
            return step - torch.linalg.pinv(j) @ (j @ step)

        return SimpleNamespace(top=top, solve=solve, kernel=kernel)


def circle(w):
    return (w.square().sum() - 1)[None]


PLANE = torch.tensor([[1.0, 2.0, -1.0], [0.0, 1.0, 3.0]], dtype=torch.float64)


def point(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("chords", [0, 4])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_steps_lead_to_the_valley_whatever_its_scale(chords, scale):
    plane = Known(lambda w: scale * (PLANE @ w), (1.0, 0.0, 0.0), chords)
    start = point(2.0, 1.0, -0.5)
    found = into_valley(plane, start)
    away = start - plane.seen.center
    nearest = start - torch.linalg.pinv(PLANE) @ (PLANE @ away)
    torch.testing.assert_close(found, nearest, rtol=1e-9, atol=1e-9)  # no step has a part along the valley
    ring = Known(lambda w: scale * circle(w), (1.0, 0.0), chords)
    for start in (point(1.3, 0.4), point(0.2, 0.3)):
        found = into_valley(ring, start)
        assert float(found.norm()) == pytest.approx(1, rel=1e-11)
        torch.testing.assert_close(found / found.norm(), start / start.norm())
    assert into_valley(ring, point(0.0, 1.0)).tolist() == [0.0, 1.0]


def test_further_steps_by_the_same_matrices_save_matrices():
    looked = []
    for chords in (0, 4):
        ring = Known(circle, (1.0, 0.0), chords)
        into_valley(ring, point(1.1, 0.3))
        looked.append(ring.looked)
    assert looked[1] < looked[0]


def test_too_few_steps_do_not_arrive():
    ring = Known(circle, (1.0, 0.0))
    assert into_valley(ring, point(2.0, 0.4), steps=2) is None
    assert ring.looked == 2


def test_a_valley_on_which_nothing_has_a_slope_is_none():
    cube = Known(lambda w: w[:1] ** 3, (0.0, 1.0))
    assert into_valley(cube, point(0.5, 1.2)) is None
    nowhere = Known(lambda w: 0 * w[:1], (0.0, 1.0))
    assert into_valley(nowhere, point(0.5, 1.2)) is None


@pytest.mark.parametrize(("coarse", "arrives"), [(1e-8, True), (1e-3, False)])
def test_rounded_outputs_are_close_enough_where_rounding_is_small(coarse, arrives):
    # Coarse outputs are never quite zero: a constant half a step off.
    ring = Known(circle, (1.0, 0.0))
    shifted = ring.residual
    ring.residual = lambda w: shifted(w) + coarse * torch.cos(1e9 * w.sum())[None]
    found = into_valley(ring, point(1.2, 0.4))
    assert (found is not None) == arrives
    if arrives:
        assert float(found.norm()) == pytest.approx(1, abs=1e-6)


def test_a_residual_is_held_against_how_far_the_point_is_from_the_center():
    for far, arrives in ((0.3, True), (1e-4, False)):
        ring = Known(circle, (1.0, 0.0))
        exact = ring.residual
        ring.residual = lambda w, exact=exact: exact(w) + 1e-9 * exact(w).sign()
        assert (into_valley(ring, point(1.0 + far, far)) is not None) == arrives


def test_a_slope_that_dies_away_on_the_way_is_none():
    double = Known(lambda w: w[:1] ** 2, (0.0, 1.0))
    double.resolution = 1e-6  # would be reached, by steps that go half the way each
    assert into_valley(double, point(0.5, 2.0)) is None


def first_damping(start, scale=1.0):
    plane, asked = Known(lambda w: scale * w[:1], (0.0, 0.0)), []

    def noted(w, at=plane.at):
        linear = at(w)
        return SimpleNamespace(top=linear.top, solve=lambda r, d: asked.append(d) or linear.solve(r, d))

    plane.at = noted
    into_valley(plane, start)
    return asked[0]


def test_steps_are_damped_by_the_square_of_the_residual_relative_to_the_way_from_the_center():
    straight = first_damping(point(1.0, 0.0))
    assert 0 < straight < 0.1  # the first step takes most of the way
    for start, share in ((point(0.3, 0.4), 0.6), (point(3.0, 4.0), 0.6), (point(0.8, 0.6), 0.8)):
        assert first_damping(start) == pytest.approx(share**2 * straight)
        assert first_damping(start, 1e3) == pytest.approx(share**2 * straight)


@pytest.mark.parametrize("bad", [1, 2, 1000])
def test_steps_that_lead_away_are_damped_more_and_more_and_given_up(bad):
    ring, asked = Known(circle, (1.0, 0.0)), []

    def far(w, at=ring.at):
        linear = at(w)

        def solve(residual, damping):
            asked.append(damping)
            return point(1e3, 0.0) if len(asked) <= bad else linear.solve(residual, damping)

        return SimpleNamespace(top=linear.top, solve=solve)

    ring.at = far
    found = into_valley(ring, point(1.3, 0.4))
    tries = asked[: bad + 1]
    assert all(later > 2 * earlier for earlier, later in pairwise(tries))
    assert (found is None) == (bad == 1000)
    assert len(tries) < 20


def test_a_residual_may_grow_a_little_but_not_without_end():
    for factor, arrives in ((2.0, True), (10.0, False)):
        ring, taken = Known(circle, (1.0, 0.0)), []

        def off(w, at=ring.at, factor=factor, taken=taken):
            linear = at(w)

            def solve(residual, damping):
                taken.append(damping)
                if w[0] == 1.3:  # at the first point alone: to where the residual is that much larger
                    return w - w / w.norm() * math.sqrt(1 + factor * float(residual))
                return linear.solve(residual, damping)

            return SimpleNamespace(top=linear.top, solve=solve)

        ring.at = off
        assert (into_valley(ring, point(1.3, 0.4)) is not None) == arrives


def rows(outputs, others=None):
    return Rows(outputs, others, 0.0, 0.0, 0)


CROSS = (lambda w: (w[0] * w[1])[None], (0.0, 0.0))


def test_a_point_is_smooth_where_the_valley_bends_to_second_order_only():
    ring = Known(circle, (1.0, 0.0))
    for angle in (0.0, 0.7):
        at = point(math.cos(angle), math.sin(angle))
        assert is_smooth(rows(ring), at, point(0.8, -1.1))
    cross = Known(*CROSS)
    assert is_smooth(rows(cross), point(1.0, 0.0), point(1.0, 0.5))
    for length in (1e-4, 1.0, 1e4):
        assert not is_smooth(rows(cross), point(0.0, 0.0), length * point(1.0, 0.5))
    kinked = Known(lambda w: (w[1] - w[0].abs())[None], (0.0, 0.0))
    assert is_smooth(rows(kinked), point(0.5, 0.5), point(1.0, 0.3))
    sharp = Known(lambda w: (w[1] + 3e5 * w[0].square())[None], (0.0, 0.0))
    assert not is_smooth(rows(sharp), point(0.0, 0.0), point(1e3, 0.0))
    assert is_smooth(rows(sharp), point(0.0, 0.0), point(1e-3, 0.0))


def test_a_point_whose_kernel_is_nothing_is_smooth():
    whole = Known(lambda w: w, (0.3, 0.1))
    assert is_smooth(rows(whole), point(0.3, 0.1), point(1.0, 2.0))


def test_others_have_to_be_predicted_as_at_the_center_at_both_points():
    plane = Known(lambda w: w[:1], (0.0, 1.0, 1.0))
    step = point(0.1, 1.0, 0.2)
    for function, smooth in (
        (lambda w: w[:1] * 2, True),
        (lambda w: w[:1] + w[1:2] - 1, False),  # the step shows in others
        (lambda w: 1e-9 * w[1:2], True),
    ):
        others = Known(function, (0.0, 1.0, 1.0))
        assert is_smooth(rows(plane, others), point(0.0, 1.0, 1.0), step) == smooth
    there = Known(lambda w: (w[2] - 1)[None] ** 3, (0.0, 1.0, 1.0))
    assert is_smooth(rows(plane, there), point(0.0, 1.0, 1.0), step)
    assert not is_smooth(rows(plane, there), point(0.0, 1.0, 2.0), step)  # others are off from the beginning


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((5.0, 0.0), (5.0, 0.0), True),
        ((5.0, 0.0), (5.5, 0.0), True),
        ((5.0, 0.0), (5.6, 0.0), False),
        ((500.0, 3.0), (509.0, 4.0), True),  # twice the error of the difference, 5
        ((500.0, 3.0), (511.0, 4.0), False),
        ((511.0, 4.0), (500.0, 3.0), False),
        ((100.0, 3.0), (100.0, 4.0), False),  # too uncertain to be alike
    ],
)
def test_ranks_agree_as_far_as_they_are_certain(one, other, same):
    assert _same(one, other) == same


def made(rank, distance, error=0.0, **others):
    return _Smooth(rank, error, distance, point(distance, 0.0), **others)


def test_errors_below_a_half_or_two_percent_are_clear():
    assert made(3.0, 0.1, 0.5).clear
    assert not made(3.0, 0.1, 0.6).clear
    assert made(1000.0, 0.1, 20.0).clear
    assert not made(1000.0, 0.1, 20.1).clear


def test_a_rank_that_sinks_near_the_center_is_lost_in_rounding():
    assert _sank(made(10.0, 0.2), made(9.0, 0.05))
    assert not _sank(made(10.0, 0.2), made(10.0, 0.05))
    assert not _sank(made(10.0, 0.2), made(9.6, 0.05, 0.1))
    assert not _sank(made(10.0, 0.2), made(9.0, 0.1))  # as far away as that it is another piece
    assert _sank(made(10.0, 0.2), made(9.0, 0.1, 0.1))
    assert not _sank(made(100.0, 0.2, 10.0), made(80.0, 0.05, 10.0))
    assert _sank(made(100.0, 0.2, 10.0), made(71.0, 0.05, 10.0))


def test_a_center_is_smooth_where_ranks_around_are_its_own():
    def around(*pairs, here=7.0):
        ranks, errors = zip(*pairs, strict=True) if pairs else ((), ())
        return Valley(here, ranks, errors, (0.0,) * len(ranks), 5, 10, 3, "dense").smooth

    assert around((7.0, 0.0), (7.4, 0.0), (9.0, 2.0))
    assert not around((7.0, 0.0), (7.6, 0.0))
    assert not around((7.0, 0.0), (9.1, 2.0))
    assert not around()
    assert Valley(7.0, (), (), (), 5, 10, 3, "dense").beyond == 0


class Walk(_Walk):
    """With a rank for each point that is looked at; None where there is no valley."""

    def __init__(self, rank, *found):
        self.rank, self.found, self.beyond, self.points = rank, list(found), 0.0, []
        self._center, self._around = point(0.0, 0.0), SimpleNamespace(unit=1.0)

    def _smooth(self, at):
        self.points.append(float(at.norm()))
        rank = self.rank(at)
        return None if rank is None else _Smooth(*rank, float(at.norm()), at)


def test_the_piece_of_least_rank_is_followed_half_way_and_half_way_again():
    walk = Walk(lambda at: (3.0, 0.0), made(3.0, 0.08), made(5.0, 0.05))
    walk.approach(0.5, 3, 0.0)
    assert walk.points == pytest.approx([0.04, 0.02, 0.01])
    assert [(s.rank, s.distance) for s in walk.found] == [(3.0, pytest.approx(0.01))]
    assert walk.beyond == 0.0
    once = Walk(lambda at: (3.0, 0.0), made(3.0, 0.08))
    once.approach(0.5, 1, 0.0)
    assert once.points == pytest.approx([0.04])


def test_a_piece_that_has_more_near_the_center_gives_way_to_the_next():
    walk = Walk(lambda at: (9.0, 0.0) if at.norm() < 0.03 else (3.0, 0.0), made(3.0, 0.05), made(5.0, 0.06))
    walk.approach(0.5, 1, 0.0)
    # The first one has nine near the center, so that the second is looked at, which has three at 0.03.
    assert walk.points == pytest.approx([0.025, 0.03])
    assert min(s.rank for s in walk.found) in (5.0, 3.0)


def test_a_rank_that_sinks_is_the_one_from_before():
    walk = Walk(lambda at: (2.0, 0.0), made(3.0, 0.05))
    walk.approach(0.5, 2, 0.0)
    assert [(s.rank, s.distance, s.lost) for s in walk.found] == [(3.0, 0.05, False)]


@pytest.mark.parametrize(("distance", "lost"), [(0.2, True), (0.05, False)])
def test_a_piece_that_is_lost_far_away_does_not_count_beside_one_that_arrives(distance, lost):
    walk = Walk(lambda at: None if at[1] == 0 else (8.0, 0.0), made(7.5, distance))
    walk.found.append(_Smooth(8.0, 0.0, 0.2, point(0.0, 0.2)))
    walk.approach(0.5, 8, 0.03)
    # Where half the way is too much, its root is tried.
    assert walk.points[:2] == pytest.approx([distance / 2, distance * math.sqrt(0.5)])
    assert walk.points[2:] == ([pytest.approx(p) for p in (0.1, 0.05, 0.025)] if lost else [])
    kept = sorted(s.rank for s in walk.found)
    assert kept == ([8.0] if lost else [7.5])
    assert walk.beyond == 0.0


def test_a_lost_piece_of_much_less_rank_is_told():
    walk = Walk(lambda at: None if at[1] == 0 else (8.0, 0.0), made(5.0, 0.2))
    walk.found.append(_Smooth(8.0, 0.0, 0.2, point(0.0, 0.2)))
    walk.approach(0.5, 8, 0.03)
    assert sorted(s.rank for s in walk.found) == [5.0, 8.0]
    assert walk.beyond == 3.0


def test_only_clear_points_count_where_there_are_some():
    walk = Walk(lambda at: (4.0, 0.0), made(3.0, 0.04, 2.0), made(4.0, 0.04))
    walk.approach(0.5, 1, 0.0)
    assert [s.rank for s in walk.found] == [4.0]
    vague = Walk(lambda at: (50.0, 5.0), made(50.0, 0.04, 5.0), made(40.0, 0.04, 9.0))
    vague.approach(0.5, 1, 0.0)
    assert [s.rank for s in vague.found] == [50.0]  # errors of more than twice the least share are left out


def looked(shares, reach, enough, *ranks, nearer=1.0):
    """What steps are asked for from a center with rank 3, and what is found."""
    rank, asked = iter(ranks), []
    walk = Walk(lambda at: next(rank))
    walk._here, walk._nearer, walk._random = (3.0, 0.0), nearer, torch.ones

    def step(share, factors, random, far):
        asked.append((share, far))
        return point(share, 0.0) * factors[0]

    walk._around = SimpleNamespace(unit=1.0, sizes=[2, 3], step=step)
    walk.look(shares, reach, enough)
    return asked, walk


def test_points_are_looked_at_until_there_are_enough_or_all_have_the_rank_of_the_center():
    three, five = (3.0, 0.0), (5.0, 0.0)
    asked, walk = looked((0.1, 0.1, 0.03), 0.0, 3, three)
    assert (len(asked), len(walk.found), walk.all_alike()) == (1, 1, True)
    asked, walk = looked((0.1, 0.1, 0.03), 0.0, 2, None, five, three)
    assert [share for share, _ in asked] == [0.1, 0.1, 0.03]
    assert ([s.rank for s in walk.found], walk.all_alike()) == ([5.0, 3.0], False)
    asked, walk = looked((0.1, 0.1, 0.03), 0.0, 2, five, five)
    assert len(asked) == len(walk.found) == 2
    assert all(s.factors.shape == (2,) for s in walk.found)
    assert not looked((0.1,), 0.0, 1, None)[1].all_alike()


def test_the_first_of_several_looks_is_from_closer_than_the_others():
    five = (5.0, 0.0)
    first, second, third = (far for _, far in looked((0.1, 0.1, 0.1), 2.0, 9, five, five, five)[0])
    assert 0 < first < second == third == 2.0
    assert looked((0.1,), 2.0, 9, five)[0] == [(0.1, 2.0)]
    halved = [far for _, far in looked((0.1, 0.1), 2.0, 9, five, five, nearer=0.5)[0]]
    assert halved == [first / 2, 1.0]


def test_further_starts_are_counted_from_the_center():
    walk, seen = Walk(lambda at: seen.append(at.tolist()) or ((5.0, 0.0) if at[0] > 2 else None)), []
    walk._center = point(1.0, 2.0)
    walk.look_from([point(0.5, 0.0), point(3.0, -1.0)])
    assert seen == [[1.5, 2.0], [4.0, 1.0]]
    assert [s.point.tolist() for s in walk.found] == [[4.0, 1.0]]


class Ranked(Known):
    def at(self, w):
        linear = super().at(w)
        linear.rank = lambda cut, band, random: (float(torch.linalg.matrix_rank(self.slopes(w), atol=1e-6)), 0.0)
        return linear

    def slopes(self, w):
        return torch.autograd.functional.jacobian(self.function, w)


def walk_on(function, center, here):
    chance = torch.Generator().manual_seed(0)
    outputs = Ranked(function, center)
    around = Surroundings(outputs.seen.center, [(len(center),)], [None])
    return _Walk(rows(outputs), here, around, lambda size: torch.randn(size, generator=chance, dtype=torch.float64))


def test_a_center_is_smooth_where_a_step_that_j_does_not_see_leads_to_a_point_of_its_rank():
    ring = walk_on(circle, (0.6, 0.8), (1.0, 0.0))
    assert ring.smooth_at(0.05)
    (found,) = ring.found
    assert (found.rank, found.error) == (1.0, 0.0)
    assert 0.01 < found.distance < 0.051  # what J sees of the step is taken away
    assert float(found.point.norm()) == pytest.approx(1)
    assert not walk_on(circle, (0.6, 0.8), (2.0, 0.0)).smooth_at(0.05)
    cross = walk_on(*CROSS, (0.0, 0.0))
    assert not cross.smooth_at(0.05)
    assert cross.found == []


def test_a_step_that_a_slanted_kernel_made_longer_has_the_length_asked_for():
    walk = walk_on(circle, (0.6, 0.8), (1.0, 0.0))
    outputs = walk._rows.outputs
    at = outputs.at

    def slanted(w):
        linear = at(w)
        kernel = linear.kernel
        linear.kernel = lambda step: 20 * kernel(step)
        return linear

    outputs.at = slanted
    assert walk.smooth_at(0.05)
    assert walk.found[0].distance == pytest.approx(0.05, rel=0.01)


@pytest.mark.parametrize(
    ("here", "kept"), [((1.4, 0.0), True), ((1.6, 0.0), False), ((2.9, 1.0), True), ((3.1, 1.0), False)]
)
def test_a_point_of_clearly_less_rank_than_the_center_is_too_far(here, kept):
    walk = walk_on(circle, (0.6, 0.8), here)
    found = walk._smooth(point(0.7, 0.9))
    assert (found is not None) == kept
    assert walk._nearer == (1.0 if kept else 0.5)
    if kept:
        apart = math.hypot(0.7 / math.hypot(0.7, 0.9) - 0.6, 0.9 / math.hypot(0.7, 0.9) - 0.8)
        assert found.distance == pytest.approx(apart)


def factors_of(k, found=()):
    walk = Walk(None, *found)
    walk._around = SimpleNamespace(sizes=[2, 3])
    walk._random = lambda size: torch.arange(1.0, 1.0 + size, dtype=torch.float64)
    return walk._factors(k)


def test_choices_of_how_far_to_move_each_tensor_are_made_after_the_best_so_far():
    ones, chance = torch.ones(2, dtype=torch.float64), point(1.0, 2.0)
    assert torch.equal(factors_of(0), ones)
    assert torch.equal(factors_of(2), ones)
    torch.testing.assert_close(factors_of(1), chance.exp())
    good = [made(4.0, 0.1, factors=point(2.0, 5.0)), made(3.0, 0.1, factors=point(1.0, 10.0)), made(1.0, 0.1)]
    torch.testing.assert_close(factors_of(4, good), chance.exp())
    turned = factors_of(5, good)
    # About the one of least rank that has been chosen, and nearer to it than chance alone would be.
    away = (turned / point(1.0, 10.0)).log()
    torch.testing.assert_close(away / chance, away[:1] * ones)
    assert 0 < float(away[0]) < 1


def test_a_step_has_the_length_asked_for_and_leaves_the_spaces_of_low_rank():
    chance = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 2, generator=chance, dtype=torch.float64), torch.randn(2, 4, generator=chance).double()
    matrix = a @ b
    center = torch.cat([matrix.reshape(-1), torch.ones(3, dtype=torch.float64)])
    shapes = [(5, 4), (3,)]
    _, spaces = unrounded(center, shapes, [torch.float64] * 2)
    around = Surroundings(center, shapes, spaces)
    assert around.low
    assert around.sizes == [20, 3]
    assert around.unit == pytest.approx(float(center.norm()))

    def random(size):
        return torch.arange(1.0, 1.0 + size, dtype=torch.float64).sin()

    plain = around.step(0.03, point(1.0, 2.0), random)
    assert float(plain.norm()) == pytest.approx(0.03 * around.unit)
    assert float(plain[20:].norm() / plain[:20].norm()) == pytest.approx(
        2 * float(random(3).norm() / random(20).norm())
    )
    far = around.step(0.03, point(1.0, 2.0), random, reach=0.5)
    assert torch.equal(far[20:] / plain[20:], (far[20] / plain[20]).expand(3))
    assert 0 < float(far[20] / plain[20]) < 1  # all others are moved less then
    outside = (far - plain * (far[20] / plain[20]))[:20].reshape(5, 4)
    assert float((a.T @ outside).norm() + (outside @ b.T).norm()) < 1e-12
    left, right = torch.linalg.svd(matrix, full_matrices=True)[::2]
    block = left[:, 2:] @ (left[:, 2:].T @ random(20).reshape(5, 4) @ right.T[:, 2:]) @ right[2:]
    typical = float(torch.linalg.svdvals(matrix)[:2].square().mean().sqrt())
    torch.testing.assert_close(outside, block * 0.5 * 2 * typical / (5**0.5 + 4**0.5))
    small = Surroundings(torch.zeros(6), [(2, 3)], [None])
    assert not small.low
    assert small.unit > 0  # weights of zero are no measure
