"""Free energies of made-up ladders against sums by scipy, and what is said about them."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp

import crunode as cr
from crunode.core.result import Draws
from crunode.estimators.energy_curve import increments
from crunode.sampling.diagnostics import ess, mcse_mean, split_rhat
from crunode.sampling.pareto import smoothed_log_weights

LEVELS = [0.05, 0.15, 0.5, 1.5, 4.0]


def drawn(levels=LEVELS, scale=1.0, shift=0.0, seed=0, draws=200, **prior):
    """L = w²/2 under N(0, 1): Z(t) = (1 + t)^(−1/2)."""
    rng = np.random.default_rng(seed)
    w = np.concatenate([rng.normal(0, (1 + t) ** -0.5, (2, draws)) for t in levels])
    asked = {"seed": 13, "prior": prior or {"precision": 1.0, "mean": "center"}}
    levels = np.asarray(levels) * scale
    return Draws({"excess": w**2 / 2 / scale + shift}, {}, np.repeat(levels, 2), {"n": 64, "asked": asked})


def test_the_curve_begins_at_the_prior_and_adds_increments_with_their_covariance():
    draws = drawn()
    est = cr.free_energy(draws)
    losses = [draws.at(t)["excess"] for t in LEVELS]
    hot = LEVELS[0] * losses[0]
    start = logsumexp(hot) - math.log(hot.size)  # 1/Z = E[exp(t L)]
    start_se = mcse_mean(np.exp(hot) / np.exp(hot).mean())
    steps = increments(LEVELS, losses, joint=False)
    curve = est.diagnostics["curve"]
    assert [row["nbeta"] for row in curve] == LEVELS
    for k, row in enumerate(curve):
        assert row["value"] == pytest.approx(start + steps.change[:k].sum())
        assert row["se"] == pytest.approx(math.sqrt(start_se**2 + steps.covariance[:k, :k].sum()))
        if k:
            assert row["overlap"] == pytest.approx(steps.overlap[k - 1])
            assert row["integral"] == pytest.approx(steps.integral[k - 1])
    assert (est.value, est.se) == (curve[-1]["value"], curve[-1]["se"])
    assert est.diagnostics["integral"] == pytest.approx(start + steps.integral.sum())
    assert est.diagnostics["rhat"] == pytest.approx(max(split_rhat(x) for x in losses))
    assert est.diagnostics["pareto_k"] == pytest.approx(smoothed_log_weights(hot.ravel())[1])
    assert est.seed == 13
    assert est.value == pytest.approx(0.5 * math.log(5), abs=4 * est.se)
    assert ess(hot) > 100


def test_scales_and_constants_of_the_loss_do_what_they_should():
    plain = cr.free_energy(drawn())
    scaled = cr.free_energy(drawn(scale=10.0))
    assert (scaled.value, scaled.se) == pytest.approx((plain.value, plain.se), rel=1e-9)
    for up in (2.0, 400.0):  # F grows by t times a constant; at 400 the weights would overflow by themselves
        raised = cr.free_energy(drawn(scale=0.1, shift=up))
        assert raised.value == pytest.approx(plain.value + 0.4 * up, rel=1e-9)
        assert raised.se == pytest.approx(plain.se, rel=1e-6)


def test_very_large_losses_at_the_hottest_level_do_not_overflow():
    draws = drawn([1.0, 1.1])
    losses = draws.arrays["excess"] + 1e5
    losses[0, 0] -= 5e4
    est = cr.free_energy(Draws({"excess": losses}, {}, draws.nbeta, draws.spec))
    assert math.isfinite(est.value)
    assert est.diagnostics["curve"][0]["value"] == pytest.approx(logsumexp(losses[:2]) - math.log(400), rel=1e-12)


def test_the_curve_can_end_at_a_level_in_between():
    whole, part = cr.free_energy(drawn()), cr.free_energy(drawn(), nbeta=0.5)
    rows = whole.diagnostics["curve"]
    assert (part.value, part.se) == pytest.approx((rows[2]["value"], rows[2]["se"]))
    assert len(part.diagnostics["curve"]) == 3
    alone = cr.free_energy(drawn(), nbeta=0.05)
    assert (alone.value, alone.se) == pytest.approx((rows[0]["value"], rows[0]["se"]))
    assert not [f for f in alone.findings if f.code == "CRIT703"]


def test_gaps_are_told_with_their_place():
    est = cr.free_energy(drawn([0.05, 0.5, 1.5, 1e8, 3e8]))
    (finding,) = [f for f in est.findings if f.code == "CRIT703"]
    assert "between nbeta 1.5 and 1e+08" in finding.message
    overlap = [row["overlap"] for row in est.diagnostics["curve"][1:]]
    assert overlap[2] < 0.03 < min(overlap[0], overlap[1], overlap[3])
    assert f"{overlap[2]:.2g} between" in finding.message
    assert not [f for f in cr.free_energy(drawn()).findings if f.code in ("CRIT703", "CRIT704")]


def test_a_first_level_too_cold_for_the_prior_is_told():
    """At t ≥ 1 the weights exp(t w²/2) under N(0, 1/(1 + t)) have no variance: k = t / (1 + t)."""
    est = cr.free_energy(drawn([8.0, 16.0], draws=1500))
    (finding,) = [f for f in est.findings if f.code == "CRIT704"]
    assert est.diagnostics["pareto_k"] > 0.7
    assert f"k {est.diagnostics['pareto_k']:.2f} at nbeta 8" in finding.message


def test_priors_have_to_be_normalised():
    with pytest.raises(cr.InputError, match=r"'wide'.*normalized=True"):
        cr.free_energy(drawn(density="wide", normalized=False))
    assert cr.free_energy(drawn(density="wide", normalized=True)).value == cr.free_energy(drawn()).value
