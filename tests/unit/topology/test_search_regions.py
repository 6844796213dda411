"""Searches for critical points: what a region does after each step, when they rest, and how much is held at once."""

import math

import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.topology import newton
from crunode.topology.newton import PointBatch, _Model, moved_to_level, search

EPS = 2.0**-52


def rows(*points):
    return torch.tensor(points, dtype=torch.float64)


def land(function, dim):
    return Landscape.of_function(function, torch.zeros(dim, dtype=torch.float64))


class Watched(PointBatch):
    """Notes the points that gradients were asked for."""

    def __init__(self, land):
        super().__init__(land)
        self.seen = []

    def gradients(self, at):
        self.seen.append(at.clone())
        return super().gradients(at)


def places(share, steps=2):
    """Where a search looks from 20 on a slope on which a step does about this share of what its Hessian of one says."""
    points = Watched(land(lambda w: 1e6 * w[0] + share * w[0] ** 2 / 2, 1))
    points.hessians = lambda at: torch.ones(len(at), 1, 1).double()
    search(points, rows([20.0]), steps)
    return [float(w[0, 0]) for w in points.seen]


@pytest.mark.parametrize(
    ("share", "second", "third"),
    [
        (1.0, 18, 14),  # as promised: the region doubles
        (0.76, 18, 14),
        (0.74, 18, 16),  # not quite: it stays
        (0.26, 18, 16),
        (0.24, 18, 17.5),  # too little: a quarter of the step
        (1.3e-4, 18, 17.5),
        (0.5e-4, 18, 19.5),  # next to nothing: the step is not taken
        (-0.5, 18, 19.5),
    ],
)
def test_regions_follow_the_share_of_what_was_promised(share, second, third):
    assert places(share) == pytest.approx([20, second, third], rel=1e-3)


@pytest.mark.parametrize("krylov", [False, True])
def test_a_search_rests_at_four_roundings_of_the_gradient(monkeypatch, krylov):
    if krylov:
        monkeypatch.setattr(newton, "_DENSE", 0)
    for size in (1.0, 16.0):  # what the gradient is held against: the Hessian times the length of the weights
        bowl = land(lambda w, size=size: (w - size).square().sum() / 2, 2)
        start = size * (1 + rows([3 * EPS, 0], [8 * EPS, 0]))
        ends = search(PointBatch(bowl), start, 5)
        assert ends.steps.tolist() == [0, 1]
        assert ends.gradients.tolist() == [3 * EPS * size, 0]


class Scripted(PointBatch):
    """A landscape whose gradients are as long as a list says, with a Hessian in proportion to one."""

    def __init__(self, sizes, curvatures):
        super().__init__(land(lambda w: w.sum(), 2))
        self.sizes, self.curvatures, self.seen = iter(sizes), iter(curvatures), []

    def gradients(self, at):
        self.seen.append(at[0].clone())
        return torch.zeros(1).double(), rows([next(self.sizes), 0])

    def hessians(self, at):
        return next(self.curvatures) * torch.eye(2, dtype=torch.float64)[None]


@pytest.mark.parametrize(("first", "second"), [(10.0, 300), (280.0, 600)])
def test_a_region_that_is_not_reached_stays_as_it_is(first, second):
    """A tenth of weights of 3000; a good step that is shorter than nine tenths of it is no reason to widen it."""
    points = Scripted([first, 1.0, 0.5], [1.0, 1e-9, 1e-9])
    ends = search(points, rows([0.0, 3000.0]), 2)
    steps = torch.stack(points.seen).diff(dim=0).norm(dim=1)
    assert steps.tolist() == pytest.approx([first, second])
    assert ends.scales.tolist() == pytest.approx([first + 3000])


def test_no_more_is_held_at_once_than_there_is_room_for(monkeypatch):
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    place = Landscape(net, (x, x[:, :1]), "gaussian")
    at = torch.randn(7, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wide = place.activations
    whole = PointBatch(place)
    calls = {
        "gradients": (lambda points: points.gradients(at)[1], wide),
        "products": (lambda points: points.products(at, at), 2 * wide),
        "hessians": (lambda points: points.hessians(at), max(9 * wide, 81)),
    }
    for call, each in calls.values():
        expected, held = call(whole), []
        monkeypatch.setattr(newton, "_CHUNK", 3 * each * 16)

        class Counted(PointBatch):
            def _applied(self, one, plain, group, batch, held=held):
                held.append((len(group[0]), len(batch[0])))
                return super()._applied(one, plain, group, batch)

        torch.testing.assert_close(call(Counted(place)), expected)
        monkeypatch.undo()
        # Three points at a time with sixteen examples, and the one that is left with up to three times as many.
        assert [p for p, _ in held if p > 1] == [3] * (2 * math.ceil(40 / 16))
        assert all(p * rows <= 48 for p, rows in held)
        assert sum(p * rows for p, rows in held) == 7 * 40
        assert {rows for p, rows in held if p == 1} == {40}


def test_hessians_themselves_are_held_where_they_are_larger_than_activations(monkeypatch):
    place, held = land(lambda w: w.sum(), 12), []
    assert place.activations < 12
    monkeypatch.setattr(newton, "_CHUNK", 3 * 12 * 12)

    class Counted(PointBatch):
        def _applied(self, one, plain, group, batch):
            held.append(len(group[0]))
            return super()._applied(one, plain, group, batch)

    found = Counted(place).hessians(torch.ones(7, 12).double())
    assert torch.equal(found, torch.zeros(7, 12, 12, dtype=torch.float64))
    assert held == [3, 3, 1]


def test_rows_of_a_hessian_are_as_many_at_once_as_there_is_room_for(monkeypatch):
    x = torch.tensor([[1.0], [2.0], [0.0], [-3.0]], dtype=torch.float64)
    place = Landscape(nn.Linear(1, 5, bias=False).double(), (x, torch.zeros(4, 5).double()), "gaussian")
    sizes, real = [], torch.func.jacrev

    def noted(function, chunk_size):
        sizes.append(chunk_size)
        return real(function, chunk_size=chunk_size)

    monkeypatch.setattr(torch.func, "jacrev", noted)
    for room, rows_ in ((2, 2), (4, 4), (60, 5), (0.5, 1)):  # second derivatives hold twice the activations
        monkeypatch.setattr(newton, "_CHUNK", int(room * 2 * place.activations * 4))
        found = PointBatch(place).hessians(torch.ones(1, 5).double())[0]
        torch.testing.assert_close(found, (1 + 4 + 9) / 4 * torch.eye(5).double())
        assert sizes[-1] == rows_


def test_models_that_look_at_their_values_are_evaluated_point_by_point():
    def bent(w):
        return w[0] ** 3 + w[1] ** 2 if w.detach()[0] > 0 else w[0] * w[1]

    at, v = rows([2, 1], [-1, 3]), rows([1, 10], [1, 10])
    for plain, function in ((True, bent), (False, lambda w: torch.where(w[0] > 0, w[0] ** 3 + w[1] ** 2, w[0] * w[1]))):
        hessians = torch.stack([torch.diag(rows([12, 2])[0]), rows([0, 1], [1, 0])])
        place = land(function, 2)
        for call, expected in (
            (lambda p: p.gradients(at)[0], rows([9, -3])[0]),
            (lambda p: p.gradients(at)[1], rows([12, 2], [3, -1])),
            (lambda p: p.hessians(at), hessians),
            (lambda p: p.products(at, v), (hessians @ v[:, :, None])[..., 0]),
        ):
            points = PointBatch(place)
            torch.testing.assert_close(call(points), expected)
            assert points._batched == (not plain)


@pytest.mark.parametrize("krylov", [False, True])
def test_starts_are_searched_in_groups_whose_models_there_is_room_for(monkeypatch, krylov):
    bowl = land(lambda w: w @ w, 3)
    start = torch.ones(5, 3, dtype=torch.float64) * torch.arange(1, 6)[:, None]
    whole = search(PointBatch(bowl), start, 20)
    if krylov:  # a basis and its image, of a hundred directions each
        monkeypatch.setattr(newton, "_DENSE", 2)
    monkeypatch.setattr(newton, "_CHUNK", 3 * (200 if krylov else 3))
    points = Watched(bowl)
    points.hessians = lambda at: 2 * torch.eye(3).double().expand(len(at), 3, 3)
    points.products = lambda at, vectors: 2 * vectors
    ends = search(points, start, 20)
    torch.testing.assert_close(ends.weights, whole.weights, atol=1e-9, rtol=0)
    counts = [len(at) for at in points.seen if bool((at[:, None] == start).all(2).any(1).all())]
    assert counts == [2, 2, 1]


def test_a_step_that_promises_nothing_ends_the_search_and_others_do_not():
    """Along w[1] there is no curvature: what the slope there leaves of the gradient cannot be taken away."""
    for slope, low, high in ((3e7, 0.85, 1.05), (1e6, -0.1, 0.1)):
        points = PointBatch(land(lambda w, slope=slope: w[0] ** 2 / 2 + slope * w[1], 2))
        ends = search(points, rows([1.0, 0.0]), 10)
        assert ends.stalled.tolist() == [True]
        assert low <= float(ends.weights[0, 0]) <= high


def test_slopes_of_the_size_of_rounding_are_not_followed_where_there_is_no_curvature():
    """A curvature of 1e-13 beside one of one counts only where the slope is beyond rounding of all of the gradient."""
    for tilt, moved in ((12 * EPS, False), (20 * EPS, True)):  # four of a size of 1 + 3
        points = PointBatch(land(lambda w: w @ w, 2))
        points.hessians = lambda at: torch.diag(torch.tensor([1.0, 1e-13], dtype=torch.float64)).expand(len(at), 2, 2)
        g = rows([1.0, tilt])
        step, _ = _Model.at(points, rows([3.0, 0.0]), g).step(torch.tensor([1e9], dtype=torch.float64))
        assert float(step[0, 0]) == pytest.approx(-1)
        assert float(step[0, 1]) == pytest.approx(-tilt / 1e-13 if moved else 0, rel=1e-6)


def test_curvature_of_a_hundred_billionth_counts_whatever_the_slope():
    points = PointBatch(land(lambda w: w @ w, 2))
    for curvature, moved in ((1e-11, True), (1.5e-12, True), (0.7e-12, False)):
        matrix = torch.diag(torch.tensor([1.0, curvature], dtype=torch.float64))
        points.hessians = lambda at, matrix=matrix: matrix.expand(len(at), 2, 2)
        step, _ = _Model.at(points, rows([1.0, 0.0]), rows([1.0, EPS])).step(torch.tensor([1e9]).double())
        assert float(step[0, 1]) == pytest.approx(-EPS / curvature if moved else 0, rel=1e-6)


@pytest.mark.parametrize(("share", "taken"), [(0.12, True), (0.08, False)])
def test_a_step_to_a_level_does_a_tenth_of_what_the_slope_promises(share, taken):
    """Down a slope of one that ends after a share of the first step, which is a tenth of the weights."""
    end = 100 - 10 * share  # and is a thousandth from there on
    points = Watched(land(lambda w: torch.maximum(w[0], end + (w[0] - end) / 1000) + 0 * w[1], 2))
    moved_to_level(points, rows([100.0, 0.0]), 0.0, 2)
    first, second, third = (float(at[0, 0]) for at in points.seen)
    assert (first, second) == (100, 90)
    assert third == pytest.approx(90 if taken else 95, abs=0.1)
