"""How an estimate moves with the precision: what draws at one precision say is what chains at another one find."""

import math
import warnings

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.estimators.precision import moves_of_chains, moves_of_draws
from crunode.examples import toys
from crunode.sampling.diagnostics import mcse_mean

CURVATURES = np.array([100.0, 1.0, 0.01])  # times nβ


def quadratic(precision, count=40_000, noise=0.0):
    """Draws from exp(−½ Σ (h + γ) w²), with noise that has nothing to do with w on the losses."""
    rng = np.random.default_rng(1)
    w = rng.normal(size=(4, count, 3)) / np.sqrt(CURVATURES + precision)
    excess = 0.5 * (CURVATURES * w**2).sum(2) + noise * rng.normal(size=(4, count))
    arrays = {"excess": excess, "distance2": (w**2).sum(2)}
    return cr.Draws(arrays, {}, np.ones(4), {"precision": precision})


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_the_slope_is_that_of_a_quadratic(noise):
    precision = 1.0
    found = moves_of_draws(quadratic(precision, noise=noise), 1.0)
    held = CURVATURES / (CURVATURES + precision)
    value, slope = 0.5 * held.sum(), -0.5 * (held * (1 - held)).sum()
    assert found["value"] == pytest.approx(value, abs=0.02 * (1 + noise))
    assert found["se"] < 0.02 * (1 + noise)
    # A false alarm once in 10⁴, of the error stated.
    assert found["half"] - found["value"] == pytest.approx(-slope * math.log(2), abs=4 * found["se"] + 0.02)
    assert found["double"] - found["value"] == pytest.approx(slope * math.log(2), abs=4 * found["se"] + 0.02)


def test_the_error_is_that_of_repeats():
    rng = np.random.default_rng(2)
    rows = []
    for _ in range(200):
        square = (rng.normal(size=(4, 500, 3)) ** 2).sum(2)
        spec = {"precision": 1.0}
        rows.append(moves_of_draws(cr.Draws({"excess": square, "distance2": square}, {}, np.ones(4), spec), 1.0))
    scatter = np.std([math.log2(r["value"] / r["double"]) * r["value"] * math.log(2) for r in rows], ddof=1)
    assert 0.7 < np.mean([r["se"] for r in rows]) / scatter < 1.4


@pytest.mark.heavy
@pytest.mark.parametrize(("loss", "times"), [(lambda w: w.square().sum(), 2.0), (lambda w: w.pow(4).sum(), 4.0)])
def test_chains_at_half_the_precision_find_what_draws_foretell(loss, times):
    land = cr.Landscape.of_function(loss, torch.zeros(4))
    values = []
    for precision in (1000.0, 500.0):  # which holds all directions
        posterior = cr.Posterior(land, 1.0, cr.Gaussian(precision))
        draws = cr.sample(posterior, cr.HMC(), chains=32, draws=400, warmup=100, seed=3)
        values.append(moves_of_draws(draws, 1.0))
    assert values[0]["half"] == pytest.approx(values[1]["value"], rel=0.1)
    assert values[1]["value"] / values[0]["value"] == pytest.approx(times, rel=0.1)


def test_nothing_is_said_without_a_prior_around_the_center():
    draws = quadratic(1.0, count=100)
    for spec in (
        {"precision": None},
        {"precision": 1.0, "asked": {"prior": {"mean": "origin"}}},
    ):
        assert moves_of_draws(cr.Draws(draws.arrays, {}, draws.nbeta, spec), 1.0) is None
    low = {**draws.arrays, "excess": draws.arrays["excess"] - 10.0}
    assert moves_of_draws(cr.Draws(low, {}, draws.nbeta, draws.spec), 1.0) is None
    assert moves_of_chains(draws, {"value": 1.0, "se": 0.1}) is None


def test_the_slope_of_draws_is_their_covariance_carried_on_as_a_power():
    rng = np.random.default_rng(3)
    excess, square = rng.gamma(2.0, 1.0, (3, 80)), rng.gamma(1.0, 0.2, (3, 80))
    excess += 2 * square
    nbeta, precision = 0.7, 1.6
    found = moves_of_draws(
        cr.Draws({"excess": excess, "distance2": square}, {}, np.full(3, nbeta), {"precision": precision}), nbeta
    )
    scaled = nbeta * excess
    slope = -precision / 2 * np.cov(scaled.ravel(), square.ravel(), ddof=0)[0, 1]
    power = slope / scaled.mean()
    assert found["nbeta"] == nbeta
    assert found["value"] == pytest.approx(scaled.mean())
    assert found["double"] / found["value"] == pytest.approx(2**power)
    assert found["half"] / found["value"] == pytest.approx(2**-power)
    influence = precision / 2 * (scaled - scaled.mean()) * (square - square.mean())
    assert found["se"] == pytest.approx(math.log(2) * mcse_mean(influence))


def test_no_power_beyond_three_is_believed():
    rng = np.random.default_rng(3)
    square = rng.gamma(1.0, 1.0, (3, 80))
    for sign, times in ((1.0, 8.0), (-1.0, 1 / 8)):
        excess = 10.0 + sign * square
        draws = cr.Draws({"excess": excess, "distance2": square}, {}, np.ones(3), {"precision": 1e4})
        found = moves_of_draws(draws, 1.0)
        assert found["half"] / found["value"] == pytest.approx(times)
        assert found["value"] / found["double"] == pytest.approx(times)
    broken = {"excess": square, "distance2": np.where(square == square.max(), np.inf, square)}
    with np.errstate(invalid="ignore"):
        assert moves_of_draws(cr.Draws(broken, {}, np.ones(3), {"precision": 1.0}), 1.0) is None


def test_chains_at_other_precisions_say_what_they_found():
    rng = np.random.default_rng(4)
    excess = rng.gamma(2.0, 1.0, (6, 50)) * np.array([1, 1, 3, 3, 5, 5])[:, None]
    roles = ["ladder"] * 2 + ["half-precision"] * 2 + ["double-precision"] * 2
    checks = [{"role": r, "nbeta": 0.5} for r in ("half-step", "half-precision", "double-precision")]
    draws = cr.Draws({"excess": excess}, {}, np.full(6, 0.5), {"checks": checks, "role_per_chain": roles})
    found = moves_of_chains(draws, {"value": 1.5, "se": 0.01})
    errors = [mcse_mean(0.5 * excess[k : k + 2]) for k in (2, 4)]
    assert found["half"] == pytest.approx(0.5 * excess[2:4].mean())
    assert found["double"] == pytest.approx(0.5 * excess[4:].mean())
    assert (found["nbeta"], found["value"], found["se"]) == (0.5, 1.5, pytest.approx(max(errors)))
    large = moves_of_chains(draws, {"value": 1.5, "se": 9.0, "at_step": 1.25})
    assert (large["value"], large["se"]) == (1.25, 9.0)


def estimated(land, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cr.DiagnosticWarning)
        return cr.llc(land, seed=0, **options)


@pytest.mark.heavy
def test_a_value_that_the_prior_makes_says_so():
    land = toys.reduced_rank(6, 4, 6, 2, noise=1.0)
    options = {"labels": "given", "nbeta": "wbic", "chains": 8, "draws": 200, "warmup": 100}
    strong, weak = (estimated(land, precision=p, **options) for p in (1000.0, 0.1))
    assert {"TUNE401", "TUNE402"} & {f.code for f in strong.findings}
    assert strong.value < 0.5 * weak.value
    assert strong.terms["precision"] > 0.2 * strong.value > weak.terms["precision"]
    assert strong.systematic >= strong.terms["precision"]


@pytest.mark.heavy
@pytest.mark.parametrize("power", [1, 2])
def test_a_value_that_doubles_with_half_the_precision_is_not_ok(power):
    land = cr.Landscape.of_function(lambda w: w.square().pow(power).sum(), torch.zeros(4))
    options = {"nbeta": 10.0, "chains": 64, "draws": 400, "warmup": 50, "kernel": cr.HMC()}
    held = estimated(land, precision=1000.0, **options)
    assert "TUNE402" in {f.code for f in held.findings}
    assert not held.ok
    free = estimated(land, precision=0.01, **options)
    assert free.ok
    assert not {"TUNE401", "TUNE402"} & {f.code for f in free.findings}
    assert abs(free.value - 2 / power) < 2 * free.error


@pytest.mark.heavy
def test_on_a_ladder_it_counts_with_label_noise_alone():
    options = {"precision": 100.0, "chains": 4, "draws": 200, "warmup": 100, "kernel": cr.HMC()}
    noisy = estimated(toys.reduced_rank(6, 4, 6, 2, noise=1.0), labels="given", **options)
    assert noisy.terms["precision"] > 0
    levels = tuple(500.0 * 4.0**k for k in range(4))
    free = estimated(toys.quadratic(4), nbeta=levels, **{**options, "precision": 0.1})
    assert "precision" not in free.terms
