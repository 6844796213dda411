"""What is left out is chosen and explained; what is given stays."""

import warnings

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.sampling.tuning import Plan

G = torch.Generator().manual_seed(0)
X = torch.randn(400, 3, generator=G)
NOISE = torch.randn(400, 1, generator=G)


def regression(noise=0.0, scale=1.0, n=400, weight=1.0):
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(weight)
        y = model(X[:n]) + noise * NOISE[:n]
    return cr.Landscape(model, (X[:n], y), lambda out, target: scale * 0.5 * (out - target).square().sum(1))


@pytest.mark.heavy
def test_every_choice_has_a_reason_and_is_the_same_again():
    plan = cr.tune(cr.Posterior(regression()), seed=3)
    assert {"kernel", "precision", "nbeta", "step"} <= set(plan.reasons)
    again = cr.tune(cr.Posterior(regression()), seed=3)
    assert again.spec() == plan.spec()


def test_what_is_given_stays():
    posterior = cr.Posterior(regression(), 50.0, cr.Gaussian(7.0))
    plan = cr.tune(posterior, cr.SGLD(step=1e-3, batch=20), chains=3, draws=5, warmup=0)
    assert (plan.nbeta, plan.precision, plan.kernel) == ((50.0,), 7.0, cr.SGLD(step=1e-3, batch=20))
    assert (plan.chains, plan.draws, plan.warmup) == (3, 5, 0)
    assert {plan.reasons[k] for k in ("kernel", "precision", "nbeta", "step", "batch")} == {"as asked"}


def wide_regression(noise):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50_000, 60, generator=generator)
    y = x[:, :1] + noise * torch.randn(50_000, 1, generator=generator)
    model = torch.nn.Linear(60, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()[0, 0] = 1.0
    return cr.Landscape(model, (x, y), lambda out, target: 0.5 * (out - target).square().sum(1))


def test_minibatches_with_momentum_where_a_full_gradient_is_costly():
    plan = cr.tune(cr.Posterior(wide_regression(0.0), 30.0), budget=100_000)
    assert isinstance(plan.kernel, cr.SGHMC)
    assert (plan.kernel.batch, plan.kernel.friction) == (256, 0.1)
    assert "momentum" in plan.reasons["kernel"]
    assert isinstance(cr.tune(cr.Posterior(regression()), seed=3).kernel, cr.HMC)


def test_where_noise_heats_friction_makes_momentum_no_dearer_than_langevin_steps():
    posterior = cr.Posterior(wide_regression(1.0), 500.0)
    plan, langevin = (cr.tune(posterior, kernel, budget=100_000) for kernel in (None, cr.SGLD()))
    assert 256 <= plan.kernel.batch == langevin.kernel.batch < 50_000
    assert 0.1 < plan.kernel.friction < 1
    assert "friction" in plan.reasons
    asked = cr.tune(posterior, cr.SGHMC(), budget=100_000)
    assert asked.kernel.friction == 0.1
    assert asked.kernel.batch > langevin.kernel.batch


def test_plan_survives_its_spec():
    plan = cr.tune(cr.Posterior(regression()), seed=1)
    assert Plan.from_spec(plan.spec()) == plan


@pytest.mark.heavy
def test_ladder_goes_colder_without_label_noise_only():
    clean = cr.tune(cr.Posterior(regression(0.0)))
    noisy = cr.tune(cr.Posterior(regression(1.0)))
    assert clean.measures["label_noise"] < 0.25 < noisy.measures["label_noise"]
    assert max(noisy.nbeta) == pytest.approx(2 * min(clean.nbeta))


@pytest.mark.heavy
def test_a_loss_far_from_a_log_likelihood_moves_the_ladder():
    plain, loud = (cr.tune(cr.Posterior(regression(1.0, scale=c))) for c in (1.0, 1000.0))
    assert max(loud.nbeta) < max(plain.nbeta) / 10


@pytest.mark.heavy
def test_step_meets_the_acceptance_aimed_for():
    plan = cr.tune(cr.Posterior(regression(), "wbic"), cr.HMC())
    draws = cr.sample(cr.Posterior(regression(), "wbic"), cr.HMC(), chains=8, draws=100)
    assert isinstance(plan.kernel.step, float)
    assert 0.6 < draws.arrays["accept"].mean() < 0.95


def test_prior_does_not_hold_what_the_loss_holds():
    plan = cr.tune(cr.Posterior(regression(weight=0.05)))
    curvature = 400 / 6 * 1.0
    assert plan.precision < 0.05 * curvature


def test_few_examples_are_noted():
    assert [f.code for f in cr.tune(cr.Posterior(regression(n=50))).findings] == ["LLC105"]


@pytest.mark.heavy
def test_a_cliff_at_the_center_is_not_ok():
    def cliff(w):
        return torch.where((w.abs() > 1e-12).any(), torch.inf, 0.0) + w.sum() * 0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cr.DiagnosticWarning)
        estimate = cr.llc(cr.Landscape.of_function(cliff, torch.zeros(2)), draws=20, warmup=5, on_failure="return")
    assert not estimate.ok
    assert "LLC106" in {f.code for f in estimate.findings}
