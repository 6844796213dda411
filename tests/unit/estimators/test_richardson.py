"""The error of the step: its closed form on quadratics, measured and removed."""

import math
import warnings

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.estimators.richardson import Stepped, remove_step_bias, solve
from crunode.examples.toys import quadratic
from crunode.sampling.posterior import Gaussian, Posterior
from crunode.sampling.run import sample

DIM, NBETA = 6, 500.0


def excess(kernel, dim=DIM, chains=256, draws=400, warmup=150, seed=0):
    """nβ times the mean excess loss on ‖w‖², over all chains, and its error."""
    post = Posterior(quadratic(dim), NBETA, Gaussian(1e-3))
    x = (
        NBETA
        * sample(post, kernel, chains=chains, draws=draws, warmup=warmup, seed=seed, layout="batched").arrays["excess"]
    )
    each = x.astype(float).mean(1)
    return each.mean(), each.std(ddof=1) / math.sqrt(chains)


@pytest.mark.parametrize("product", [0.2, 0.8, 1.6])
def test_langevin_steps_raise_a_quadratic_as_in_closed_form(product):
    # The curvature of ‖w‖² is 2, so that ε a = 2 ε nβ; λ̂ = (d/2)/(1 − ε a/4).
    value, error = excess(cr.SGLD(step=product / (2 * NBETA), batch=1))
    assert value == pytest.approx(DIM / 2 / (1 - product / 4), abs=4 * error)
    assert error < 0.02 * DIM


@pytest.mark.parametrize("friction", [0.1, 0.5])
def test_momentum_steps_raise_a_quadratic_as_in_closed_form(friction):
    product = 0.8  # of first order too: λ̂ = (d/2)/(1 − ε a/(4(2 − α)))
    value, error = excess(cr.SGHMC(step=product / (2 * NBETA), batch=1, friction=friction), draws=800)
    assert value == pytest.approx(DIM / 2 / (1 - product / (4 * (2 - friction))), abs=4 * error)


def stepped(bias, *, exact=10.0, se=0.02, predicted=(1.0, 0.0), ratio=0.0, rng=None):
    noise = (0.0, 0.0) if rng is None else se * rng.standard_normal(2)
    full, half = exact + bias(1.0) + noise[0], exact + bias(0.5) + noise[1]
    return Stepped(100.0, full, se, half, se, *predicted, ratio)


@pytest.mark.parametrize("product", [0.1, 0.4, 1.0])
def test_quadratic_law_is_removed_to_all_orders(product):
    ratio = product / 4
    found = solve([stepped(lambda s: 10 / (1 - s * ratio) - 10, predicted=(10 * ratio, 0.0), ratio=ratio)])
    assert found.values[0] == pytest.approx(10, abs=1e-3)
    assert found.measured[0] == pytest.approx(10 / (1 - ratio) - 10, abs=1e-3)


def test_heating_is_told_apart_by_its_growth_over_levels():
    # Predictions are off by factors; heating grows with nbeta, discretisation does not.
    heat = [0.2, 0.4, 0.8, 1.6]
    levels = [Stepped(100.0 * h, 10 + 1 + 1.5 * h, 0.01, 10 + 0.5 + 0.75 * h, 0.01, 1.0, h) for h in heat]
    found = solve(levels)
    assert np.abs(np.array(found.values) - 10).max() < 0.3 < np.array(found.measured).min()
    assert np.all(np.diff(found.heating) > 0)
    assert all(
        abs(v - 10) < 3 * math.hypot(s, left) for v, s, left in zip(found.values, found.se, found.left, strict=True)
    )


def test_thin_arms_are_removed_to_second_order():
    found = solve([stepped(lambda s: 1.0 * s + 2.0 * s**2, se=1e-3)])
    assert found.values[0] == pytest.approx(10, abs=0.05)
    assert found.measured[0] == pytest.approx(3, abs=0.1)


def test_errors_are_those_of_repeats():
    rng = np.random.default_rng(0)
    found = [solve([stepped(lambda s: 1.1 * s + 0.5 * s**2, se=0.3, rng=rng) for _ in range(4)]) for _ in range(400)]
    values = np.array([f.values for f in found])
    stated = np.mean([f.se for f in found])
    assert values.std(0).mean() == pytest.approx(stated, rel=0.1)
    total = np.hypot(np.array([f.se for f in found]), np.array([f.left for f in found]))
    assert (np.abs(values - 10) < 2 * total).mean() > 0.9


def quiet(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cr.DiagnosticWarning)
        return cr.llc(*args, **options)


@pytest.mark.heavy
def test_tuned_sgld_is_right_on_a_small_quadratic():
    # The tuned step alone is coarse: 1.86 ± 0.27 against 1.5 without the rungs at half of it.
    found = [quiet(quadratic(3), kernel=cr.SGLD(), nbeta="wbic", chains=16, draws=400, seed=s) for s in range(5)]
    errors = np.array([(e.value - 1.5) / e.error for e in found])
    assert np.abs(errors).max() < 3.5
    assert abs(np.mean([e.value for e in found]) - 1.5) < 0.07
    assert all(e.diagnostics["step"][0]["bias"] > 0.05 for e in found)
    assert not any(f.code == "MC302" for e in found for f in e.findings)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [cr.SGLD(), cr.PSGLD(), cr.SGHMC(), cr.SGNHT()], ids=lambda k: type(k).__name__)
def test_stated_errors_cover_quadratics(kernel):
    curvature = torch.logspace(-0.5, 0.5, 12)
    land = cr.Landscape.of_function(lambda w: 0.5 * (curvature * w**2).sum(), torch.zeros(12))
    exact = float((0.5 * 2000 * curvature / (2000 * curvature + 1)).sum())
    found = [
        quiet(land, kernel=kernel, nbeta=2000.0, precision=1.0, chains=8, draws=1500, warmup=500, seed=s)
        for s in range(12)
    ]
    scores = np.array([(e.value - exact) / e.error for e in found])
    assert (np.abs(scores) < 2).mean() >= 0.75
    assert np.abs(scores).max() < 4


def test_a_given_step_keeps_its_meaning():
    draws = sample(Posterior(quadratic(2), NBETA, Gaussian(1.0)), cr.SGLD(step=1e-4, batch=1), chains=2, draws=20)
    assert remove_step_bias(draws) is None
    assert draws.chains == 2
    assert quiet(draws).terms["discretisation"] == pytest.approx(1e-4 * NBETA * 4 / 8, rel=0.01)


def test_rungs_at_half_the_step_and_their_cost_are_on_record():
    estimate = quiet(quadratic(2), kernel=cr.SGLD(), nbeta="wbic", chains=4, draws=50, warmup=50, seed=0)
    rungs = [r for r in estimate.spec["checks"] if r["role"] == "step"]
    assert [r["step"] for r in rungs] == [estimate.spec["kernel"]["step"] / 2]
    assert estimate.draws.chains == 8 + 4 * (len(estimate.spec["checks"]) - 1)
    assert estimate.diagnostics["cost"]["gradients"] >= estimate.draws.chains * 100
