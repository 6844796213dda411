"""Steps toward critical points, and what is told of the ends, against dense linear algebra and hand-made cases."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.topology import critical_points
from crunode.topology.critical import _outcomes, _rank
from crunode.topology.critical_starts import starting_points
from crunode.topology.newton import Ends, PointBatch, _Model, moved_to_level, search


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows(*points):
    return torch.tensor(points, dtype=torch.float64)


def land(function, dim):
    return Landscape.of_function(function, torch.zeros(dim, dtype=torch.float64))


def uneven(w):
    """A polynomial without symmetry in four variables."""
    return w[0] ** 3 - 2 * w[0] * w[1] + w[2] ** 2 * w[3] + w[3] ** 4 / 4 - w[2] + w[1] ** 2 * (w[0] - w[3])


def derivatives(at):
    gradients = torch.stack([torch.autograd.functional.jacobian(uneven, w) for w in at])
    return gradients, torch.stack([torch.autograd.functional.hessian(uneven, w) for w in at])


@pytest.mark.parametrize("krylov", [False, True])
def test_steps_are_the_best_in_their_region(monkeypatch, krylov):
    """s = −(H² + μ)⁻¹Hg with μ = 0 where that fits, and otherwise as long as the region allows."""
    if krylov:
        monkeypatch.setattr("crunode.topology.newton._DENSE", 1)
    at = normal(5, 4)
    points = PointBatch(land(uneven, 4))
    losses, g = points.gradients(at)
    gradients, hessians = derivatives(at)
    torch.testing.assert_close(losses, torch.stack([uneven(w) for w in at]))
    torch.testing.assert_close(g, gradients)
    newton = -torch.linalg.solve(hessians, g)
    radius = newton.norm(dim=1) * torch.tensor([2.0, 0.5, 0.01, 0.9, 1.1], dtype=torch.float64)
    step, promised = _Model.at(points, at, g).step(radius)
    torch.testing.assert_close(step[[0, 4]], newton[[0, 4]])
    torch.testing.assert_close(step[[1, 2, 3]].norm(dim=1), radius[[1, 2, 3]])
    after = g + (hessians @ step[:, :, None])[..., 0]
    torch.testing.assert_close(promised, (g.square().sum(1) - after.square().sum(1)) / 2)
    for k in (1, 2, 3):  # Hessian times what is left is −μ times the step
        pull = hessians[k] @ after[k]
        mu = -float(pull @ step[k]) / float(step[k] @ step[k])
        assert mu > 0
        torch.testing.assert_close(pull, -mu * step[k], rtol=1e-6, atol=1e-9 * float(pull.norm()))


def test_directions_without_curvature_or_slope_are_not_moved_along():
    points = PointBatch(land(lambda w: w[0] ** 2 - 2 * w[1] ** 2 + 0 * w[2], 3))
    at = rows([1, 1, 5], [0, 2, -3])
    step, promised = _Model.at(points, at, points.gradients(at)[1]).step(torch.full((2,), 100.0).double())
    torch.testing.assert_close(step, rows([-1, -1, 0], [0, -2, 0]))
    torch.testing.assert_close(promised, torch.tensor([(4 + 16) / 2, 64 / 2], dtype=torch.float64))


def test_derivatives_of_a_network_are_means_over_all_batches():
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    x = normal(40, 2)
    parts = [(x[:33], x[:33, :1]), (x[33:], x[33:, :1])]
    at, vectors = normal(3, 9, seed=1), normal(3, 9, seed=2)
    whole = Landscape(net, (x, x[:, :1]), "gaussian")

    def loss(w):
        hidden = torch.tanh(x @ w[:4].reshape(2, 2).T + w[4:6])
        return 0.5 * (hidden @ w[6:8, None] + w[8] - x[:, :1]).square().mean()

    for points in (PointBatch(whole), PointBatch(Landscape(net, parts, "gaussian"))):
        losses, gradients = points.gradients(at)
        hessians = torch.stack([torch.autograd.functional.hessian(loss, w) for w in at])
        torch.testing.assert_close(losses, torch.stack([loss(w) for w in at]))
        torch.testing.assert_close(gradients, torch.stack([torch.autograd.functional.jacobian(loss, w) for w in at]))
        torch.testing.assert_close(points.hessians(at), hessians)
        torch.testing.assert_close(points.products(at, vectors), (hessians @ vectors[:, :, None])[..., 0])


def test_ends_of_a_search_say_where_and_how():
    diagonal = rows([1, -3, 5])[0]
    start = rows([4, 3, -2], [0.1, 0.2, 0.2], [0, 0, 0])
    ends = search(PointBatch(land(lambda w: 2 + (diagonal * w * w).sum() / 2, 3)), start, 60)
    torch.testing.assert_close(ends.weights, torch.zeros(3, 3, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(ends.losses, torch.full((3,), 2.0, dtype=torch.float64))
    assert (ends.gradients < 1e-9).all()
    first = (diagonal * start).norm(dim=1) + 5 * start.norm(dim=1).clamp(min=1)
    torch.testing.assert_close(ends.scales, first)
    assert not ends.stalled.any()
    assert (ends.remaining.norm(dim=1) < 1e-9).all()
    assert ends.steps[2] == 0
    assert math.isinf(ends.last[2])
    assert ends.shrank[2] == 0
    assert ends.steps[0] > ends.steps[1] > 0  # the first region is a tenth of the weights, or of one
    assert (ends.shrank[:2] < 0.5).all()
    assert (ends.last[:2] > 0).all()


class Watched(PointBatch):
    """Notes the points that gradients were asked for."""

    def __init__(self, land):
        super().__init__(land)
        self.seen = []

    def gradients(self, at):
        self.seen.append(at.clone())
        return super().gradients(at)


def test_regions_double_after_good_steps_and_are_a_quarter_of_failed_ones():
    points = Watched(land(lambda w: w[0] ** 2 / 2 + 0 * w[1], 2))
    search(points, rows([20.0, 0]), 3)
    places = [float(w[0, 0]) for w in points.seen]
    assert places == pytest.approx([20, 18, 14, 6])  # by a tenth of the weights, and twice and four times that
    center = torch.full((2,), 20.0, dtype=torch.float64)
    wall = Watched(Landscape.of_function(lambda w: w[0] ** 2 / (2 * (w[0] > 9.9)) + 0 * w[1], center))
    wall.hessians = lambda at: torch.diag_embed(torch.stack([torch.ones(len(at)), torch.zeros(len(at))], 1)).double()
    search(wall, rows([10.0, 0]), 3)
    places = [float(w[0, 0]) for w in wall.seen]
    assert places == pytest.approx([10, 9, 9.75, 10 - 1 / 16])  # steps of 1, a quarter, and a sixteenth
    assert wall.seen[0].shape == (1, 2)


def test_a_search_stalls_where_the_gradient_is_least_without_being_zero():
    ends = search(PointBatch(land(lambda w: w[0] ** 3 / 3 + w[0] + w[1] ** 2, 2)), rows([0.5, 0.5], [-2, 0.2]), 300)
    assert ends.stalled.all()
    torch.testing.assert_close(ends.weights, torch.zeros(2, 2, dtype=torch.float64), atol=1e-3, rtol=0)
    torch.testing.assert_close(ends.gradients, torch.ones(2, dtype=torch.float64), atol=1e-5, rtol=0)


def test_way_to_a_level_doubles_its_steps_and_halves_what_goes_too_far():
    points = Watched(land(lambda w: 2 * w[0] + 0 * w[1], 2))
    ends, losses = moved_to_level(points, rows([30.0, 40.0]), -1.0, 100)
    torch.testing.assert_close(losses, torch.tensor([-1.0], dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(ends, rows([-0.5, 40]), rtol=1e-5, atol=0)
    places = [float(w[0, 0]) for w in points.seen[:5]]
    assert places == pytest.approx([30, 25, 15, -5, 5])  # a tenth of the length, doubled, and halved once across
    up, reached = moved_to_level(PointBatch(land(lambda w: w @ w, 2)), rows([0.1, 0], [3, 4], [0, 0]), 1e-3, 200)
    torch.testing.assert_close(reached[:2], torch.full((2,), 1e-3, dtype=torch.float64), rtol=2e-6, atol=0)
    assert reached[2] == 0
    torch.testing.assert_close(up[1, 1] / up[1, 0], torch.tensor(4 / 3, dtype=torch.float64))


def test_starts_above_and_below_come_to_the_level_or_are_told():
    """(w² − 1)² + 0.3 w has minima of −0.3 on the left and 0.29 on the right: only the left ones come to 0."""
    valley = land(lambda w: (w[0] ** 2 - 1) ** 2 + 0.3 * w[0] + w[1] ** 2, 2)
    found = critical_points(valley, rows([-1.5, 0.5], [1.2, 0.3], [-1.0, 0.0]), level=0.0)
    assert found.outcomes[1] == "level not reached"
    assert [f.code for f in found.findings] == ["TOPO1102", "TOPO1101"]
    assert "1 of 3" in found.findings[0].message
    assert "1 level not reached" in found.findings[1].message
    assert np.isnan(found.ends["loss"][1])
    assert np.isfinite(found.ends["loss"][[0, 2]]).all()
    for p in found:
        k = p.start
        assert (p.loss.value, p.gradient) == (found.ends["loss"][k], found.ends["gradient"][k])
        assert 0 < found.ends["steps"][k] < found.ends["scale"][k] * 1e3


def test_a_start_with_half_a_gradient_is_not_finite():
    root = Landscape.of_function(lambda w: w[0].abs().sqrt() + w[1] ** 2, torch.ones(2, dtype=torch.float64))
    found = critical_points(root, rows([0.0, 1.0]))
    assert found.outcomes == ("not finite",)
    assert [f.code for f in found.findings] == ["TOPO1103"]


def test_tolerance_is_not_below_rounding():
    for dim in (4, 16):
        bowl = land(lambda w: w @ w, dim)
        assert critical_points(bowl, 1, tolerance=1e-5).spec["tolerance"] == 1e-5
        least = critical_points(bowl, 1, tolerance=1e-30).spec["tolerance"]
        assert least == pytest.approx(30 * 2.0**-52 * math.sqrt(dim))


def test_ten_times_as_many_steps_lead_to_the_level():
    slope = land(lambda w: w[0] + w[1] * 0, 2)
    for count, reached in ((20, True), (21, False)):  # steps of 0.1, 0.2, 0.4, ...
        level = -0.1 * (2**count - 1) * (1 + 5e-7)
        found = critical_points(slope, rows([0.0, 0.0]), level=level, steps=2)
        assert (found.outcomes != ("level not reached",)) == reached


def test_drawn_starts_have_the_sizes_of_their_tensors():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).double()
    sizes = {"0.weight": 3.0, "0.bias": 0.1, "1.weight": 0.5, "1.bias": 0.0}
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(sizes[name] * torch.where(torch.arange(p.numel()).reshape(p.shape) % 2 == 0, 1.0, -1.0))
    place = Landscape(net, (normal(5, 2), normal(5, 1)), "gaussian")
    away = starting_points(place, 4000, 0) - place.center
    parts = zip(place.packing.names, away.split(place.packing.sizes, 1), strict=True)
    spread = {name: float(part.std()) for name, part in parts}
    sizes["1.bias"] = float(place.center.square().mean().sqrt())  # of all weights, where those of a tensor are zero
    assert spread == pytest.approx(sizes, rel=0.06)
    assert float(starting_points(land(lambda w: w @ w, 2), 4000, 0).std()) == pytest.approx(1, rel=0.06)
    assert float(away.mean()) == pytest.approx(0, abs=0.1)


def made(step=0.0, last=1e-9, shrank=1.0, gradient=0.0, stalled=False, length=10.0):
    """The end of one search at weights of the given length, of scale one."""
    one = lambda x: torch.tensor([x], dtype=torch.float64)  # noqa: E731
    return Ends(
        rows([length, 0]), one(0.0), one(gradient), one(1.0), rows([0, step]), one(last), one(shrank), one(1.0),
        torch.tensor([stalled]),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (made(gradient=0.9e-6), "converged"),
        (made(gradient=1.1e-6), "unfinished"),
        (made(gradient=1.1e-6, stalled=True), "stalled"),
        (made(stalled=True), "converged"),
        (made(step=0.9e-2), "converged"),
        (made(step=1.1e-2), "escaping"),
        (made(step=0.9e-3, length=0.1), "converged"),
        (made(step=1.1e-3, length=0.1), "escaping"),
        (made(last=0.9e-2), "converged"),
        (made(last=1.1e-2), "escaping"),
        (made(last=5.0, shrank=0.09), "converged"),
        (made(last=5.0, shrank=0.11), "escaping"),
    ],
)
def test_outcomes_of_searches(end, expected):
    """Flat to the tolerance, the next step a thousandth of the weights, the last one too or the end of the slope."""
    both = Ends.joined([end, made(gradient=0.5, length=2.0)])
    assert _outcomes(both, 1e-6) == [expected, "unfinished"]


@pytest.mark.parametrize(
    ("values", "error", "small", "low", "high"),
    [
        ([1.0, -2.0, 5e-3], 1e-2, True, 2, 2),  # a gap of 200 sets one zero apart
        ([1.0, -2.0, 5e-3], 1e-2, False, 2, 3),  # which may be none where errors are large
        ([1.0, -2000.0, 1e-9, 9e-3], 1e-2, True, 2, 2),  # a gap of 111
        ([1.0, -2000.0, 1e-9, 1.1e-2], 1.2e-2, True, 2, 4),  # a gap of 91
        ([0.11, 1e-5], 1e-2, True, 1, 1),  # eleven errors away from zero
        ([0.09, 1e-5], 1e-2, True, 0, 1),  # nine are too few: whether it is zero is open, the other is
        ([3.0, -1.0], 1e-2, False, 2, 2),
        ([1e-5, -1e-4], 1e-2, True, 0, 0),
    ],
)
def test_rank_of_a_hessian_known_up_to_an_error(values, error, small, low, high):
    found = _rank(np.array(values), error, small)
    assert (found.low, found.high) == (low, high)
    assert found.decided == (low == high)


def test_point_is_described_by_its_hessian():
    matrix = np.diag([2.0, -6.0, 4.0])
    found = critical_points(land(lambda w: 7 + w[0] ** 2 - 3 * w[1] ** 2 + 2 * w[2] ** 2, 3), rows([0.5, 1.0, -1.0]))
    (p,) = found
    np.testing.assert_allclose(p.eigenvalues, np.sort(np.diag(matrix)))
    assert (p.loss.value, p.index.value, p.fraction.value, p.degenerate.value) == (7.0, 1.0, 1 / 3, 0.0)
    assert 0 < p.error < 1e-12
    assert p.loss.systematic < 1e-13
    assert p.kind == "saddle"
    assert (p.loss.name, p.index.name) == ("loss at a critical point", "index")
    assert found.fractions.tolist() == [1 / 3]
    assert found.spec["starts"] == 1
