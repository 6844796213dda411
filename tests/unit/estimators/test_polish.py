"""Weights moved to a minimum nearby: where they end, what is told of the way, and what is left alone."""

import math

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.estimators.polish import polished

FEWER = {"chains": 4, "draws": 60, "warmup": 40}


def chance(seed):
    return torch.Generator().manual_seed(seed)


def regression(noise, n=500, dim=4, dtype=torch.float32):
    x = torch.randn(n, dim, generator=chance(0), dtype=dtype)
    y = x @ torch.randn(dim, 1, generator=chance(1), dtype=dtype)
    y = y + noise * torch.randn(n, 1, generator=chance(2), dtype=dtype)
    net = nn.Linear(dim, 1, bias=False, dtype=dtype)
    nn.init.constant_(net.weight, 3.0)
    return net, (x, y), torch.linalg.lstsq(x.double(), y.double()).solution.flatten()


def function(potential, at):
    return cr.Landscape.of_function(potential, torch.tensor(at))


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-6)])
def test_a_regression_comes_to_least_squares(dtype, within):
    net, data, best = regression(1.0, dtype=dtype)
    given = net.weight.detach().clone()
    land = cr.Landscape(net, data, "gaussian")
    other, found = polished(land)
    assert torch.allclose(other.center.double(), best, atol=within)
    assert found.converged
    assert found.finding() is None
    assert not found.saddle
    assert found.moved == pytest.approx(float((best - 3.0).norm()), rel=1e-4)
    assert found.relative == pytest.approx(found.moved / 6.0, rel=1e-4)
    assert found.fell == pytest.approx(float(land.loss() - other.loss()), rel=1e-9)
    assert found.gradients < 100
    assert torch.equal(net.weight, given)
    assert torch.equal(land.center, given.flatten())


@pytest.mark.parametrize(("at", "far"), [(3.0, 30.0), (0.4, 4.0), (0.0, 1.0)])
def test_minima_are_near_up_to_ten_times_the_weights(at, far):
    for distance, near in ((0.9 * far, True), (1.3 * far, False)):
        goal = at + distance
        other, found = polished(function(lambda w, goal=goal: (w[0] - goal) ** 2, [at]))
        assert (abs(float(other.center[0]) - goal) < 1e-2) is near
        assert found.converged is near


def test_weights_of_several_dimensions_are_measured_by_their_root_mean_square():
    at = [3.0, 0.0, 0.0, 0.0]  # √(9/4), and a distance of up to 10 √(9/4) √4 = 30
    for distance, near in ((27.0, True), (39.0, False)):
        other, _ = polished(function(lambda w, d=distance: (w[1] - d) ** 2 + w[0] ** 2 * 0, at))
        assert (abs(float(other.center[1]) - distance) < 1e-2) is near


def test_a_minimum_stays_where_it_is():
    land = function(lambda w: (w[0] * w[1]) ** 2, [0.0, 0.0])
    other, found = polished(land)
    assert other is land
    assert (found.moved, found.fell, found.converged, found.saddle) == (0.0, 0.0, True, False)


@pytest.mark.parametrize(
    ("potential", "depth"),
    [
        (lambda w: w[0] ** 2 - w[1] ** 2 + w[1] ** 4, 1 / 4),
        (lambda w: w[0] ** 3 - 3 * w[0] * w[1] ** 2 + w.square().sum() ** 2, 27 / 256),
    ],
    ids=["saddle", "monkey saddle"],
)
def test_a_saddle_is_left(potential, depth):
    other, found = polished(function(potential, [0.0, 0.0]))
    assert found.saddle
    assert found.converged
    assert math.isinf(found.relative)
    assert found.summary()["relative"] is None
    assert float(other.loss()) == pytest.approx(-depth, rel=1e-3)


@pytest.mark.parametrize(
    "potential", [lambda w: w[0], lambda w: torch.exp(-w[0])], ids=["slope", "minimum at infinity"]
)
def test_a_loss_without_minimum_is_told_of_and_weights_stay_near(potential):
    _, found = polished(function(potential, [1.0, 1.0]))
    assert not found.converged
    assert found.moved <= 10 * math.sqrt(2) + 1e-5
    assert found.finding().code == "LLC112"


def test_no_more_gradients_than_asked_for():
    land = function(lambda w: (1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2, [-1.2, 1.0])
    _, short = polished(land, steps=7)
    assert short.gradients == 7
    assert not short.converged
    other, full = polished(land)
    assert full.converged
    assert torch.allclose(other.center, torch.ones(2), atol=1e-3)
    assert full.after < short.after < short.before


def test_the_same_seed_goes_the_same_way():
    land = function(lambda w: w[0] ** 2 - w[1] ** 2 + w[1] ** 4, [0.0, 0.0])
    one, again = (polished(land, seed=3)[0].center for _ in range(2))
    assert torch.equal(one, again)
    state = torch.get_rng_state()
    polished(land, seed=4)
    assert torch.equal(state, torch.get_rng_state())


def test_a_loss_that_turns_infinite_ends_the_descent():
    _, found = polished(function(lambda w: w[0] ** 2 - torch.log(w[1]), [1.0, 1.0]))
    assert not found.converged
    assert math.isfinite(found.after)


@pytest.mark.parametrize("options", [{"steps": 0}, {"steps": 1.5}, {"steps": True}, {"seed": -1}])
def test_wrong_numbers_are_refused(options):
    with pytest.raises(cr.InputError, match=next(iter(options))):
        polished(function(torch.sum, [0.0]), **options)


def test_only_landscapes_are_polished():
    with pytest.raises(cr.InputError, match="Landscape"):
        polished(nn.Linear(1, 1))


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_llc_polishes_on_request(noise):
    net, data, best = regression(noise)
    given = net.weight.detach().clone()
    estimate = cr.llc(net, data, "gaussian", polish=True, **FEWER)
    seen = estimate.diagnostics["polish"]
    assert estimate.value == pytest.approx(2.0, abs=2 * estimate.error)
    assert estimate.error < 1
    assert not {"LLC101", "LLC102", "LLC111", "LLC112"} & {f.code for f in estimate.findings}
    assert seen["converged"]
    assert seen["moved"] == pytest.approx(float((best - 3.0).norm()), rel=1e-4)
    assert estimate.diagnostics["cost"]["gradients"] > seen["gradients"] > 0
    assert torch.equal(net.weight, given)


@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
def test_llc_tells_of_a_polish_that_ended_early():
    net, data, _ = regression(1.0)
    estimate = cr.llc(net, data, "gaussian", polish=2, nbeta="wbic", **FEWER)
    assert "LLC112" in {f.code for f in estimate.findings}
    assert estimate.diagnostics["polish"]["gradients"] == 2
    assert "center" in estimate.diagnostics


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
def test_polish_and_look_are_part_of_the_budget():
    net, data, _ = regression(1.0)
    for polish in (False, True):
        estimate = cr.llc(net, data, "gaussian", polish=polish, budget=40_000)
        assert estimate.diagnostics["cost"]["gradients"] <= 40_000


@pytest.mark.parametrize("polish", [-1, "yes", None, 0.5])
def test_llc_refuses_other_values(polish):
    with pytest.raises(cr.InputError, match="polish"):
        cr.llc(nn.Linear(1, 1), polish=polish)


@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
def test_draws_cannot_be_polished():
    estimate = cr.llc(function(lambda w: w.square().sum(), [0.0]), nbeta="wbic", **FEWER)
    with pytest.raises(cr.InputError, match="Draws"):
        cr.llc(estimate.draws, polish=True)
