"""What the valley of minima has to say, against coefficients that are known."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.valley import Valley
from crunode.estimators.extrapolate import extrapolate
from crunode.estimators.limits import Limit, valley_limit
from crunode.exact import deep_linear_local
from crunode.exact.local_linear import partial_ranks
from crunode.examples import toys


def linear_network(widths, ranks, seed=0, n=400):
    """A deep linear network whose layers have the given ranks, on its own predictions."""
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for a, b, r in zip(widths, widths[1:], ranks, strict=False):
        layer = nn.Linear(a, b, bias=False, dtype=torch.float64)
        left, right = (torch.randn(k, r, generator=generator, dtype=torch.float64) for k in (b, a))
        layer.weight.data = left @ right.T / max(a, b) ** 0.5
        layers.append(layer)
    net = nn.Sequential(*layers)
    x = torch.randn(n, widths[0], generator=generator, dtype=torch.float64)
    exact = deep_linear_local(widths[::-1], partial_ranks([layer.weight.tolist() for layer in layers[::-1]]))
    return cr.Landscape(net, (x, net(x).detach()), "gaussian"), exact


def quiet_llc(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cr.DiagnosticWarning)
        return cr.llc(*args, **options)


def codes(estimate):
    return {f.code for f in estimate.findings}


@pytest.mark.heavy
@pytest.mark.parametrize("case", [(5, 3, 5, 0), (8, 3, 4, 0), (6, 4, 6, 2), (3, 8, 4, 0), (10, 5, 10, 2)])
def test_the_limit_is_the_coefficient_of_reduced_rank_regression(case):
    limit = valley_limit(toys.reduced_rank(*case, n=300))
    exact = float(toys.exact_reduced_rank(*case))
    # A bound from above; the piece of least rank is not always among those that are met.
    assert exact <= limit.value <= 1.2 * exact
    assert limit.lowest < limit.value
    assert not limit.smooth


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("widths", "ranks"),
    [((6, 5, 4, 7), (3, 2, 4)), ((5, 6, 3), (5, 3)), ((7, 4, 6), (2, 3)), ((4, 6, 6, 5), (2, 5, 2))],
)
def test_the_limit_is_the_local_coefficient_of_deep_linear_networks(widths, ranks):
    land, exact = linear_network(widths, ranks)
    limit = valley_limit(land)
    # Small layers have small singular values, so that other pieces of the valley are close.
    assert limit.value == pytest.approx(float(exact), rel=0.1)
    assert limit.lowest <= float(exact)


def test_a_basin_reaches_lower_than_the_point():
    land, exact = linear_network((9, 8, 9), (8, 1))  # smooth itself, with more singular points around
    local, basin = valley_limit(land), valley_limit(land, "basin")
    assert local.smooth
    assert local.value == float(exact) == local.lowest
    assert basin.value <= local.value
    assert not basin.smooth


def test_a_smooth_point_gives_half_the_rank_without_chains():
    land, exact = linear_network((5, 6, 3), (5, 3))
    estimate = quiet_llc(land, seed=1)
    assert estimate.value == float(exact)
    assert estimate.ok
    assert "LLC109" in codes(estimate)
    assert estimate.diagnostics["by_valley"]
    assert estimate.draws is None
    assert estimate.spec["kernel"] is None
    assert "rank of the Jacobian" in estimate.spec["reasons"]["kernel"]
    assert cr.Estimate.from_dict(json.loads(json.dumps(estimate.to_dict()))).value == estimate.value


@pytest.mark.heavy
def test_chains_run_at_a_smooth_point_where_they_are_asked_for():
    land, exact = linear_network((5, 6, 3), (5, 3))
    estimate = quiet_llc(land, seed=1, draws=60)
    assert estimate.value == float(exact)
    assert estimate.draws.draws == 60
    again = quiet_llc(estimate.draws)
    assert again.value == estimate.value


@pytest.mark.heavy
def test_chains_of_a_kernel_that_was_asked_for_are_weighed_against_the_valley_too():
    land, exact = linear_network((5, 5, 5, 5), (2, 2, 2))
    options = {"kernel": cr.MALA(), "chains": 2, "draws": 100, "warmup": 50, "seed": 0}
    estimate = quiet_llc(land, **options)
    assert estimate.spec["kernel"]["name"] == "MALA"
    assert estimate.spec["limit"]["value"] == pytest.approx(float(exact), rel=0.1)
    assert abs(estimate.value - float(exact)) < 2 * estimate.error
    # A budget, one level and labels that carry noise leave it to the chains.
    small = quiet_llc(land, budget=20_000, **options)
    assert "limit" not in small.spec
    assert small.diagnostics["cost"]["gradients"] <= 20_000
    assert "limit" not in quiet_llc(land, nbeta="wbic", **options).spec


def test_limits_survive_json():
    limit = valley_limit(toys.reduced_rank(3, 2, 3, 1, n=60))
    assert Limit.from_summary(limit.summary()) == limit
    assert Limit.from_summary(None) is None


def test_no_limit_where_outputs_are_not_seen():
    assert valley_limit(toys.quadratic(3)) is None


LEVELS = [500.0, 2000.0, 8000.0, 32000.0]


def test_a_ladder_that_climbs_slowly_ends_at_its_limit():
    t = np.array(LEVELS)
    values = 11 - 3 / (np.log(t) - 2.3)
    free = extrapolate(LEVELS, values, [0.05] * 4, 4096, False)
    tied = extrapolate(LEVELS, values, [0.05] * 4, 4096, False, limit=(11.0, 0.1))
    assert abs(tied.value - 11) < abs(free.value - 11)
    assert tied.value == pytest.approx(11, abs=0.3)
    assert sum(w for name, w in tied.weights.items() if name.startswith("limit")) > 0.5


def test_a_flat_ladder_far_below_the_limit_is_believed():
    found = extrapolate(LEVELS, [0.667, 0.665, 0.668, 0.666], [0.005] * 4, 4096, False, limit=(1.0, 0.02))
    assert found.value == pytest.approx(0.667, abs=0.05)


def test_a_limit_leaves_a_ladder_that_reached_it():
    found = extrapolate(LEVELS, [6.5] * 4, [0.05] * 4, 4096, False, limit=(6.5, 0.1))
    assert found.value == pytest.approx(6.5, abs=0.1)


@pytest.mark.heavy
def test_budgets_are_kept():
    land = toys.reduced_rank(5, 3, 5, 0)
    estimate = quiet_llc(land, budget=20_000)
    cost = estimate.diagnostics["cost"]["gradients"]
    assert 10_000 < cost <= 20_000
    assert abs(estimate.value - 6.5) <= 3 * estimate.error


def test_a_budget_far_too_small_is_refused():
    with pytest.raises(cr.InputError, match="budget"):
        cr.llc(toys.reduced_rank(5, 3, 5, 0), budget=3000)
    with pytest.raises(cr.InputError, match="budget"):
        cr.llc(toys.reduced_rank(5, 3, 5, 0), budget=0)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::crunode.DiagnosticWarning")
def test_a_large_network_is_answered_by_its_valley_when_the_budget_has_no_room_for_chains():
    land = toys.reduced_rank(20, 15, 20, 3)
    est = cr.llc(land, budget=3000)
    assert est.spec["kernel"] is None
    assert {"LLC110"} == {f.code for f in est.findings}
    assert est.value == float(cr.exact.reduced_rank(20, 15, 20, rank=3).value)
    assert est.terms["valley"] > 0


@pytest.mark.parametrize("budget", [0, -5, 2.5, True, "many"])
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(cr.InputError, match="positive whole number"):
        cr.llc(toys.quadratic(2), budget=budget)


def test_targets_that_are_none_are_refused():
    with pytest.raises(cr.InputError, match="local"):
        cr.llc(toys.quadratic(2), target="global")


@pytest.mark.heavy
def test_half_and_twice_the_precision_are_told():
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    data = torch.randn(200, 4, generator=generator), torch.randint(0, 3, (200,), generator=generator)
    estimate = quiet_llc(net, data, nn.functional.cross_entropy, labels="given", chains=2, draws=100, warmup=50)
    moves = estimate.diagnostics["precision"]
    assert {"half", "double", "value", "se"} <= set(moves)
    roles = estimate.spec["role_per_chain"]
    assert roles.count("half-precision") == roles.count("double-precision") == 2
    assert roles.count("ladder") == 8
    assert len(estimate.draws.at(moves["nbeta"])["excess"]) == 2


@pytest.mark.slow
def test_a_cusp_is_sampled_although_the_valley_says_more():
    """Two tanh units that do nothing: λ = 2/3; smooth points have 1, or 1/2 where the third order is not seen."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return torch.tanh(x * self.b) @ self.a[:, None]

    x = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
    land = cr.Landscape(Net(), (x, 0 * x), "gaussian")
    assert valley_limit(land).value in (0.5, 1.0)
    estimate = quiet_llc(land, seed=3)
    assert not estimate.diagnostics["by_valley"]
    assert abs(estimate.value - 2 / 3) < 2 * estimate.error
    assert estimate.value < 0.85


def test_pieces_that_cannot_be_followed_to_the_center_widen_the_error(monkeypatch):
    found = Valley(84.0, (150.0, 214.0), (0.0, 0.0), (0.2, 0.03), 76, 3192, 100, "dense")
    monkeypatch.setattr("crunode.estimators.limits.valley", lambda *_, **__: found)
    land = toys.reduced_rank(30, 20, 30, 5, n=60)
    sure = valley_limit(land)
    found = replace(found, beyond=64.0)
    unsure = valley_limit(land)
    assert sure.value == unsure.value == 75.0
    assert sure.error < 5
    assert unsure.value + 1.96 * unsure.error > 107
