"""Curvature, noise and steps of quadratic losses, where all of them are known exactly."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import crunode as cr
from crunode.sampling.batching import fill_batch, gradient_noise, measure_noise, signal, smaller_steps
from crunode.sampling.metropolis import HMC, MALA
from crunode.sampling.pilot import first_step, pilot
from crunode.sampling.stepping import (
    accepted_share,
    bounded,
    calming,
    explore,
    friction_of,
    half_steps,
    lengths_for,
    noise_away,
    predicted,
    steps_of,
)
from crunode.sampling.stochastic import SGHMC, SGLD, SGNHT

CURVATURES = torch.tensor([4.0, 1.0, 0.25, 0.0], dtype=torch.float64)
DIM = len(CURVATURES)


def orthogonal(noise=0.0, rows=256, weight=0.5):
    """A linear model on orthogonal inputs: its Hessian is diagonal with the given curvatures, everywhere."""
    generator = torch.Generator().manual_seed(0)
    q = torch.linalg.qr(torch.randn(rows, DIM, generator=generator, dtype=torch.float64))[0]
    x = q * (rows * CURVATURES).sqrt()
    y = x.sum(1, keepdim=True) * weight + noise * torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    model = nn.Linear(DIM, 1, bias=False).double()
    nn.init.constant_(model.weight, weight)
    return cr.Landscape(model, (x, y), "gaussian"), x, y


def covariance_trace(x, y, w, minus=None):
    each = (x @ w - y[:, 0])[:, None] * x
    if minus is not None:
        each = each - (x @ minus - y[:, 0])[:, None] * x
    return float(each.var(0).sum())


def test_first_step_is_a_tenth_of_what_the_stiffest_direction_allows():
    land, _, _ = orthogonal(0.3)
    for nbeta, prior, precision in ((100.0, cr.Gaussian(7.0), 7.0), (3.0, cr.Flat(), 1e-3)):
        step = first_step(cr.Posterior(land, nbeta, prior), nbeta, seed=1)
        assert step == pytest.approx(0.1 / (4 * nbeta + precision), rel=1e-3)


def test_a_loss_without_curvature_steps_as_the_prior_allows():
    land = cr.Landscape.of_function(lambda w: 0 * w.sum(), torch.zeros(3))
    assert first_step(cr.Posterior(land, 50.0, cr.Gaussian(2.0)), 50.0, seed=0) == pytest.approx(0.05)
    assert first_step(cr.Posterior(land, 50.0, cr.Flat()), 50.0, seed=0) == pytest.approx(100)


@pytest.mark.parametrize("target", [0.6, 0.9])
def test_pilot_finds_steps_of_the_acceptance_aimed_for(target):
    land = cr.Landscape.of_function(lambda w: 0.5 * w.square().sum(), torch.zeros(6, dtype=torch.float64), n=100)
    posterior = cr.Posterior(land, (10.0, 1000.0), cr.Gaussian(1e-3))
    found = pilot(posterior, MALA(), chains=8, target=target, seed=0, layout="batched", iterations=200)
    assert found.nbeta == (10.0, 1000.0)
    assert found.accept == pytest.approx((target, target), abs=0.06)
    # A quadratic loss is the same at all temperatures, but for its scale, and has half the dimension for coefficient.
    assert found.steps[0] / found.steps[1] == pytest.approx(100, rel=0.25)
    assert found.signal == pytest.approx((3, 3), abs=0.6)
    assert found.gradients == 16 * 201
    assert found.ends.shape == (16, 6)
    assert torch.equal(found.last, found.ends[:8])
    assert float(found.ends[:8].square().mean()) == pytest.approx(1 / 10, rel=0.5)
    assert float(found.ends[8:].square().mean()) == pytest.approx(1 / 1000, rel=0.5)


def test_pilot_counts_the_gradients_of_trajectories_and_takes_given_starts():
    land = cr.Landscape.of_function(lambda w: 0.5 * w.square().sum(), torch.zeros(2, dtype=torch.float64), n=100)
    posterior = cr.Posterior(land, 10.0, cr.Gaussian(1.0))
    found = [
        pilot(posterior, HMC(leaps=3), chains=2, target=0.8, seed=0, layout=layout, iterations=12, start=[1e-2])
        for layout in ("batched", "sequential")
    ]
    assert found[0].gradients == found[1].gradients == 2 * (1 + 12 * 3)
    assert found[0].steps == pytest.approx(found[1].steps)
    assert found[0].steps[0] > 1e-2  # nearly all is accepted at so small a step
    default = pilot(posterior, MALA(), chains=1, target=0.8, seed=0, layout="batched")
    assert default.gradients == 1 + 120


def test_steps_of_a_pilot_move_by_what_acceptance_lacks_times_a_gain_that_falls():
    land = cr.Landscape.of_function(lambda w: 0 * w.sum(), torch.zeros(1, dtype=torch.float64))
    posterior = cr.Posterior(land, 1.0, cr.Gaussian(1e-30))

    def moved(target, iterations):  # where all is accepted
        options = {"chains": 1, "seed": 0, "layout": "batched", "start": [1e-3]}
        found = pilot(posterior, MALA(), target=target, iterations=iterations, **options)
        assert found.accept == pytest.approx((1,))
        return math.log(found.steps[0] / 1e-3)

    assert moved(0.8, 100) / moved(0.9, 100) == pytest.approx(2, rel=1e-4)
    # Sums of gains that fall as k^-0.6 grow as k^0.4, but for a constant.
    few, some, many = (moved(0.9, k) for k in (50, 200, 800))
    assert (many - some) / (some - few) == pytest.approx(4**0.4, rel=0.08)


def test_a_pilot_tells_of_its_second_half_alone():
    land = cr.Landscape.of_function(lambda w: 0.5 * w.square().sum(), torch.zeros(6, dtype=torch.float64), n=100)
    posterior = cr.Posterior(land, 10.0, cr.Gaussian(1e-3))
    found = pilot(
        posterior, MALA(), chains=16, target=0.7, seed=0, layout="batched", iterations=80, start=[1e6]
    )  # where nothing is accepted at first
    assert found.accept == pytest.approx((0.7,), abs=0.07)
    assert found.signal == pytest.approx((3,), abs=0.7)


def test_curvature_of_a_quadratic_loss_is_that_of_its_hessian_wherever_chains_are():
    land, _, _ = orthogonal(0.1)
    posterior = cr.Posterior(land, (5.0, 50.0, 500.0), cr.Gaussian(1.0))
    found = explore(posterior, seed=0, layout="batched")
    assert found.largest == pytest.approx([4.0] * 3, rel=1e-2)
    assert found.trace == pytest.approx([float(CURVATURES.sum())] * 3, rel=1e-5)
    assert found.square == pytest.approx([float(CURVATURES.square().sum())] * 3, rel=1e-5)
    assert found.gradients == 6 * (1 + 60 * 16)
    # Farther out at hot levels, residuals are larger, and so is the noise of what labels do not explain.
    assert found.noise[0] > 2 * found.noise[2]
    assert found.controlled[0] > 5 * found.controlled[2]
    assert found.noise[2] > 2 * found.controlled[2]


def test_large_problems_are_not_explored():
    land = cr.Landscape.of_function(lambda w: w.square().sum(), torch.zeros(3))
    posterior = cr.Posterior(land, 5.0, cr.Gaussian(1.0))
    assert explore(posterior, seed=0, layout="batched") is not None
    model = nn.Linear(1000, 1, bias=False)
    many = torch.ones(1001, 1000)
    assert explore(cr.Posterior(cr.Landscape(model, (many, many[:, :1]), "gaussian"), 5.0), seed=0, layout="x") is None


def test_noise_of_gradients_is_the_trace_of_their_covariance():
    land, x, y = orthogonal(0.7, rows=4000)
    center, away = torch.full((DIM,), 0.5, dtype=torch.float64), torch.tensor([0.7, 0.1, 0.5, -3.0]).double()
    known = covariance_trace(x, y, center)
    found = np.mean([gradient_noise(land, seed) for seed in range(30)])
    assert found == pytest.approx(known, rel=0.2)
    assert np.mean([gradient_noise(land, seed, batches=4, size=8) for seed in range(60)]) == pytest.approx(
        known, rel=0.2
    )
    pairs = [noise_away(land, away, torch.Generator().manual_seed(seed)) for seed in range(30)]
    plain, controlled = np.mean(pairs, axis=0)
    assert plain == pytest.approx(covariance_trace(x, y, away), rel=0.2)
    assert controlled == pytest.approx(covariance_trace(x, y, away, minus=center), rel=0.2)
    assert noise_away(land, center, torch.Generator().manual_seed(0))[1] == 0


def test_batches_as_large_as_the_data_have_no_noise():
    land, _, _ = orthogonal(0.7, rows=20)
    assert gradient_noise(land, 0) == pytest.approx(0, abs=1e-12)
    assert noise_away(land, land.center + 1, torch.Generator().manual_seed(0)) == pytest.approx((0, 0), abs=1e-12)


@pytest.mark.parametrize("friction", [1.0, 0.3])
def test_what_a_step_adds_is_what_the_stationary_variance_of_its_recursion_has(friction):
    """Of w' = w − (ε/2)(aw + noise) + N(0, ε) and its form with momentum, whose variance solves a linear equation."""
    step, nbeta, batch, curvature, noise = 1e-4, 50.0, 20, 3.0, 0.4
    a, eta = nbeta * curvature, step / 2
    if friction == 1.0:
        jump, shake = np.array([[1 - eta * a]]), np.array([[step + eta**2 * nbeta**2 * noise / batch]])
    else:
        jump = np.array([[1 - eta * a, 1 - friction], [-eta * a, 1 - friction]])
        shake = np.ones((2, 2)) * (2 * friction * eta + eta**2 * nbeta**2 * noise / batch)
    size = len(jump)
    variance = np.linalg.solve(np.eye(size**2) - np.kron(jump, jump), shake.ravel())[0]
    added = sum(predicted(step, nbeta, trace=curvature, noise=noise, batch=batch, friction=friction))
    assert nbeta * curvature * variance / 2 - 0.5 == pytest.approx(added, rel=0.03)


def test_friction_without_momentum_is_one_and_is_what_is_left_out():
    assert predicted(0.1, 3.0, trace=2.0, noise=4.0, batch=5) == predicted(
        0.1, 3.0, trace=2.0, noise=4.0, batch=5, friction=friction_of(SGLD())
    )
    assert (friction_of(SGHMC(friction=0.3)), friction_of(SGNHT(diffusion=0.2))) == (0.3, 0.2)
    assert predicted(0.1, 3.0, trace=-2.0, noise=0.0, batch=5) == (0.0, 0.0)


def test_acceptance_and_discretisation_are_two_sides_of_the_step():
    for directions, share in ((20.0, 0.05), (100.0, 0.02)):
        accept = math.erfc(math.sqrt(directions * (4 * share) ** 3) / 8 / math.sqrt(2))
        assert accepted_share(accept, directions) == pytest.approx(share)
    assert accepted_share(0.5, 0.1) == accepted_share(0.5, 1.0)


def test_steps_are_calmed_to_a_fifth_and_bounded_by_the_largest_curvature():
    assert calming([0.0, -1.0, 0.2, 0.25, 2.0]) == pytest.approx([1, 1, 1, 0.8, 0.1])
    assert bounded([1.0, 1e-5, 1.0], [10.0, 10.0, 10.0], [2.0, 2.0, 0.0], 5.0) == pytest.approx((0.7 / 25, 1e-5, 1.0))
    assert steps_of(SGLD((0.1, 0.2)), 2) == (0.1, 0.2)
    assert steps_of(SGLD(0.1), 3) == (0.1, 0.1, 0.1)
    rungs = half_steps([10.0, 20.0], 3.0, SGLD((0.1, 0.2)))
    assert [(r.nbeta, r.precision, r.step, r.role) for r in rungs] == [(10, 3, 0.05, "step"), (20, 3, 0.1, "step")]


def test_runs_are_long_enough_for_flat_directions_but_take_no_more_than_seconds():
    kernel = SGHMC(step=(0.01, 0.02), friction=0.5)
    assert lengths_for(kernel, 2.0, levels=2, rungs=2, work=1.0) == (4, 2000, 500, 4 * 0.5 / (0.01 * 2))
    assert lengths_for(kernel, 0.2, levels=2, rungs=2, work=1.0) == (4, 10_000, 3000, 1000)
    # Without a prior nothing forgets: as long as eight seconds allow, of ten microseconds and a nanosecond for each
    # example and parameter, but 2500 steps at least and 40000 at most, of which a quarter is warm-up.
    for work, rungs in ((1.0, 1), (1e4, 5), (1e5, 3), (1e7, 4)):
        chains, draws, warmup, slow = lengths_for(kernel, 0.0, levels=2, rungs=rungs, work=work)
        most = 8e6 / (10 + work / 1000) / (4 * rungs)
        assert slow == math.inf
        assert chains == 4
        assert draws + warmup == pytest.approx(min(max(most, 2500), 40_000), abs=1)
        assert warmup == (draws + warmup) // 4


# Batches


def away(trace=0.0, square=1.0, noise=0.0, controlled=0.0):
    measures = {"curvature_trace": trace, "curvature_square": square}
    return measures | {"away": {"trace": [trace], "noise": [noise], "controlled": [controlled]}}


class Rows:
    """A landscape as far as batches are concerned."""

    n, dim = 10_000, 10
    data = SimpleNamespace(rows=10_000, stacked=True)


def filled(kernel, noise, controlled=1e9, reasons=None, first=None, trace=0.0, square=1.0):
    given = {"kernel": "chosen", "step": "chosen"} | (reasons or {})
    levels = (cr.sampling.posterior.wbic_nbeta(Rows.n),)
    return fill_batch(Rows, levels, kernel, first, away(trace, square, noise, controlled), given), given


def heat(kernel, noise):
    """Minibatch heating as a share of a coefficient of one."""
    nbeta = Rows.n / math.log(Rows.n)
    return predicted(kernel.step, nbeta, trace=0, noise=noise, batch=kernel.batch, friction=friction_of(kernel))[1]


def test_batches_double_until_minibatches_heat_by_less_than_five_percent():
    assert filled(SGLD(step=1e-5), 0.0)[0].batch == 256
    for noise in (0.5, 3.0, 10.0, 30.0, 60.0, 150.0, 250.0):
        kernel, reasons = filled(SGLD(step=1e-5), noise)
        assert kernel.control is False
        assert heat(kernel, noise) <= 0.05
        assert kernel.batch == 256 or heat(kernel, noise) > 0.025
        assert ("5 %" in reasons["batch"]) == (kernel.batch > 256)
    assert filled(SGLD(step=1e-5), 1e9)[0].batch == Rows.n
    assert filled(SGLD(step=1e-5, batch=7), 1e9)[1]["batch"] == "as asked"


def test_the_batch_is_that_of_the_level_nearest_to_the_conventional_one():
    usual = cr.sampling.posterior.wbic_nbeta(Rows.n)
    measures = away() | {"away": {"noise": [1e9, 60.0, 1e9], "controlled": [1e12] * 3}}
    levels, reasons = (usual / 20, 1.1 * usual, 20 * usual), {"kernel": "chosen", "step": "chosen"}
    kernel = SGLD(step=(1e-7, 1e-5, 1e-3))
    found = fill_batch(Rows, levels, kernel, None, measures, reasons)
    added = predicted(1e-5, 1.1 * usual, trace=0, noise=60.0, batch=found.batch)[1]
    assert 0.025 < added <= 0.05


def test_steps_are_weighed_against_the_coefficient_too():
    pilots, measures = SimpleNamespace(signal=(4.0,)), away(trace=8.0, square=1e9)
    kernel = smaller_steps(
        Rows, (100.0,), SGLD(step=1e-2, batch=256), pilots, 1.0, measures | {"curvature_square": 1e9}, {"step": ""}
    )
    added = predicted(1e-2, 100.0, trace=8.0, noise=0.0, batch=256)[0]
    assert kernel.step == pytest.approx(1e-2 * min(1.0, 0.2 / (added / 4)))
    kernel = smaller_steps(Rows, (100.0,), SGLD(step=1e-1, batch=256), pilots, 1.0, measures, {"step": ""})
    assert kernel.step == pytest.approx(1e-1 * 0.2 / (10 * added / 4))


def test_heating_is_weighed_against_the_coefficient():
    pilots = SimpleNamespace(signal=(4.0, 2.0))
    kernel, _ = filled(SGLD(step=1e-5), 400.0, first=pilots)
    assert 0.025 < heat(kernel, 400.0) / 4 <= 0.05
    kernel, _ = filled(SGLD(step=1e-5), 400.0, trace=6.0, square=6.0)
    assert 0.025 < heat(kernel, 400.0) / 3 <= 0.05
    assert signal(None, {"curvature_trace": 6.0, "curvature_square": 4.0}) == 4.5
    assert signal(pilots, {"curvature_trace": 6.0, "curvature_square": 0.0}) == 4
    assert signal(None, {"curvature_trace": 1.0, "curvature_square": 4.0}) == 1


def test_noise_at_the_center_is_taken_away_where_that_helps_and_matters():
    base = 0.02 / heat(SGLD(step=1e-5, batch=256), 1.0)  # heats by two percent
    kernel, reasons = filled(SGLD(step=1e-5), base, 0.5 * base)
    assert kernel.control is True
    assert "taken away" in reasons["control"]
    assert filled(SGLD(step=1e-5), base, 0.7 * base)[0].control is False
    assert filled(SGLD(step=1e-5), 0.2 * base, 0.1 * base)[0].control is False  # less than half a percent
    assert filled(SGLD(step=1e-5), base, 0.5 * base, {"step": "as asked"})[0].control is None
    # With it, the batch is that of the noise which is left.
    kernel, _ = filled(SGLD(step=1e-5), 1e4 * base, base)
    assert (kernel.control, kernel.batch) == (True, 256)


def test_friction_is_what_heating_allows_up_to_nine_tenths():
    for noise in (0.5, 200.0, 1e9):
        kernel, reasons = filled(SGHMC(step=1e-5), noise)
        plain = filled(SGLD(step=1e-5), noise)[0]
        assert kernel.batch == plain.batch  # that of Langevin steps
        if noise == 0.5:
            assert (kernel.friction, "friction" in reasons) == (0.1, False)
        elif noise == 200.0:
            assert heat(kernel, noise) == pytest.approx(0.05)
            assert 0.1 < kernel.friction < 0.9
        asked = filled(SGHMC(step=1e-5), noise, reasons={"kernel": "as asked"})[0]
        assert asked.friction == 0.1
        assert asked.batch >= kernel.batch


def test_steps_become_smaller_where_errors_or_curvatures_are_large():
    reasons = {"step": "chosen"}
    measures = away(trace=8.0, square=1e9, noise=0.0)
    kernel = smaller_steps(Rows, (100.0,), SGLD(step=1e-4, batch=256), None, 1.0, measures, reasons)
    assert (kernel.step, reasons["step"], measures["step_factors"]) == (1e-4, "chosen", [1.0])
    kernel = smaller_steps(Rows, (100.0,), SGLD(step=1e-2, batch=256), None, 1.0, measures, reasons)
    added = predicted(1e-2, 100.0, trace=8.0, noise=0.0, batch=256)[0]
    assert kernel.step == pytest.approx(1e-2 * 0.2 / added)
    assert measures["step_factors"] == pytest.approx([0.2 / added])
    assert "smaller" in reasons["step"]
    measures["away"]["largest"] = [50.0]
    kernel = smaller_steps(Rows, (100.0,), SGLD(step=(1e-3,), batch=256), None, 10.0, measures, reasons)
    assert kernel.step == pytest.approx((0.7 / 5010,))
    # All data have no noise, and controlled batches what is left of it.
    for batch, control, noise in ((Rows.n, None, 0.0), (256, True, 30.0), (256, None, 300.0)):
        measures = away(square=1e9, noise=300.0, controlled=30.0)
        kernel = SGLD(step=1e-3, batch=batch, control=control)
        found = smaller_steps(Rows, (1000.0,), kernel, None, 1.0, measures, dict(reasons))
        added = sum(predicted(1e-3, 1000.0, trace=0, noise=noise, batch=batch))
        assert found.step == pytest.approx(1e-3 * min(1, 0.2 / added if added else 1))


def test_noise_is_recorded_for_each_level():
    land, x, y = orthogonal(0.7, rows=400)
    measures = {"curvature_trace": -5.0, "curvature_square": 17.0}
    measure_noise(land, (5.0, 50.0), None, None, measures, 3)
    plain = gradient_noise(land, 3)
    assert measures["gradient_noise"] == plain
    expected = {"trace": [5.0, 5.0], "square": [17.0, 17.0], "noise": [plain, plain], "controlled": [0.0, 0.0]}
    assert measures["away"] == expected
    points = torch.stack([land.center + 1, land.center - 2] * 20)
    first = SimpleNamespace(nbeta=(10.0, 1.0), last=points)
    measure_noise(land, (5.0, 50.0), first, None, measures, 3)
    known = np.mean([[covariance_trace(x, y, w), covariance_trace(x, y, w, land.center)] for w in points], axis=0)
    assert measures["away"]["noise"] == pytest.approx([known[0]] * 2, rel=0.25)
    assert measures["away"]["controlled"][0] == pytest.approx(2 * known[1], rel=0.25)
    assert measures["away"]["controlled"][1] == pytest.approx(measures["away"]["controlled"][0] / 10)
    posterior = cr.Posterior(orthogonal(0.1)[0], (5.0, 50.0), cr.Gaussian(1.0))
    found = explore(posterior, seed=0, layout="batched")
    measure_noise(land, (5.0, 50.0), first, found, measures, 3)
    names = ("largest", "trace", "square", "noise", "controlled")
    assert measures["away"] == {name: list(getattr(found, name)) for name in names}
