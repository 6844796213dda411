"""The coefficient as a slope in the temperature, on draws whose law is known."""

import math

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.core.result import Draws
from crunode.examples import toys

LEVELS = (60.0, 80.0, 100.0, 130.0, 170.0)


def bowl(d, base=0.0, seed=0, draws=2000, n=1000):
    """L = |w|²/2 + base in d dimensions; the center is off by `base`."""
    rng = np.random.default_rng(seed)
    losses = np.concatenate([rng.chisquare(d, (4, draws)) / (2 * t) + base for t in LEVELS])
    spec = {"n": n, "asked": {"seed": seed}}
    return Draws({"excess": losses, "distance2": losses}, {}, np.repeat(LEVELS, 4), spec)


@pytest.mark.heavy
@pytest.mark.parametrize("d", [1, 4, 21])
@pytest.mark.parametrize("base", [0.0, -0.02, 3.0])
def test_the_slope_needs_no_baseline(d, base):
    est = cr.rlct(bowl(d, base, seed=d))
    assert abs(est.value - d / 2) < 4 * est.se
    assert est.se < 0.1 * d


@pytest.mark.heavy
def test_the_stated_error_is_the_spread_over_repeats():
    found = [cr.rlct(bowl(6, seed=k, draws=300)) for k in range(60)]
    spread = np.std([e.value for e in found], ddof=1)
    assert 0.7 < spread / np.mean([e.se for e in found]) < 1.4  # 60 repeats know the spread to 9 %


def ladder_of_one(seed, draws=400, chains=4, share=0.9, memory=0.8, name="Exchange"):
    """Losses of a bowl in six dimensions whose levels move together: all have a part of the same slow noise."""
    rng = np.random.default_rng(seed)

    def slow(shape):
        noise, state = rng.standard_normal((*shape, draws)), np.zeros(shape)
        for k in range(draws):
            state = memory * state + math.sqrt(1 - memory**2) * noise[..., k]
            noise[..., k] = state
        return noise

    mixed = math.sqrt(share) * slow((1, chains)) + math.sqrt(1 - share) * slow((len(LEVELS), chains))
    t = np.array(LEVELS)[:, None, None]
    losses = ((3 + math.sqrt(3) * mixed) / t).reshape(-1, draws)
    spec = {"n": 1000, "asked": {"seed": seed}, "kernel": {"name": name}}
    return Draws({"excess": losses, "distance2": losses}, {}, np.repeat(LEVELS, chains), spec)


@pytest.mark.heavy
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_levels_that_exchange_states_are_one_ladder(share):
    """80 repeats know their spread to 8 %, so that bounds are four deviations or more away: one in 10⁴ false alarms."""
    found = [cr.rlct(ladder_of_one(k, share=share)) for k in range(80)]
    values = np.array([e.value for e in found])
    stated = math.sqrt(np.mean([e.se**2 for e in found]))
    assert abs(values.mean() - 3) < 4 * values.std(ddof=1) / math.sqrt(len(values))
    assert 0.7 < values.std(ddof=1) / stated < 1.35


@pytest.mark.heavy
def test_without_the_covariance_the_error_would_be_wrong():
    joint = [cr.rlct(ladder_of_one(k, share=0.95)) for k in range(20)]
    apart = [cr.rlct(ladder_of_one(k, share=0.95, name="HMC")) for k in range(20)]
    assert np.mean([e.se for e in joint]) < 0.8 * np.mean([e.se for e in apart])  # 0.71; the spread is the same


@pytest.mark.heavy
def test_data_sets_are_averaged_and_their_scatter_is_the_error():
    sets = [bowl(6, seed=k, draws=300) for k in range(30)]
    est = cr.rlct(sets)
    assert est.value == pytest.approx(np.mean([cr.rlct(d).value for d in sets]))
    assert abs(est.value - 3) < 4 * est.se
    assert est.se < 0.35 * cr.rlct(sets[0]).se
    assert len(est.diagnostics["r2"]) == 30


@pytest.mark.heavy
def test_a_slope_that_changes_is_a_systematic_error():
    draws = bowl(6, draws=20_000)
    bent = draws.arrays["excess"] * (1 + 0.3 * np.log(draws.nbeta / 100))[:, None]  # λ̂ rises with log nβ
    est = cr.rlct(Draws({"excess": bent, "distance2": bent}, {}, draws.nbeta, draws.spec))
    assert est.terms["law"] > 0.1
    assert cr.rlct(draws).terms["law"] < 0.1


@pytest.mark.heavy
def test_a_sampled_ladder():
    land = toys.quadratic(6)
    posterior = cr.Posterior(land, LEVELS, cr.Gaussian(0.01))
    draws = cr.sample(posterior, cr.HMC(), chains=4, draws=800, warmup=200, seed=0)
    est = cr.rlct(draws)
    assert est.ok
    assert abs(est.value - 3) < 4 * est.error


@pytest.mark.heavy
def test_global_coefficient_of_reduced_rank_regression():
    """λ = 7/2 with multiplicity 2, under a standard normal prior around the origin: slope and free energy."""
    exact = float(cr.exact.reduced_rank(3, 2, 3, rank=1).value)
    land, prior = toys.reduced_rank(3, 2, 3, 1, n=1000), cr.Gaussian(1.0, mean="origin")
    ladder = tuple(float(t) for t in 10.0 ** np.linspace(3, 5, 5))
    slope = cr.rlct(cr.sample(cr.Posterior(land, ladder, prior), cr.HMC(), chains=8, draws=300, warmup=200, seed=0))
    assert slope.ok
    assert abs(slope.value - exact) < 1.96 * slope.error
    assert abs(slope.value - exact) < 0.08 * exact
    whole = tuple(2.0**k for k in range(-8, 18))
    drawn = cr.sample(cr.Posterior(land, whole, prior), cr.HMC(), chains=4, draws=200, warmup=150, seed=1)
    grown = cr.coefficient_from_energy(drawn)
    assert grown.ok
    assert abs(grown.value - exact) < 2.5 * grown.error
    assert grown.value == pytest.approx(exact, rel=0.05)
    curve = cr.free_energy(drawn).diagnostics["curve"]
    (first, last) = (row for row in curve if row["nbeta"] in (2.0**10, 2.0**17))
    # F = λ log t − log log t + c: with the logarithm's logarithm put back, the increment gives λ.
    grown = last["value"] - first["value"] + math.log(math.log(2.0**17) / math.log(2.0**10))
    error = math.hypot(first["se"], last["se"]) / (7 * math.log(2))
    assert grown / (7 * math.log(2)) == pytest.approx(exact, abs=0.05 * exact + 3 * error)


def test_a_ladder_across_two_regions_is_no_line():
    draws = bowl(6)
    losses = draws.arrays["excess"] + np.where(draws.nbeta < 90, 0.0, 0.5)[:, None]
    est = cr.rlct(Draws({"excess": losses, "distance2": losses}, {}, draws.nbeta, draws.spec))
    assert "LLC116" in [f.code for f in est.findings]


def test_bad_input():
    land = cr.Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2), n=100)
    two = cr.sample(cr.Posterior(land, (5.0, 10.0), cr.Gaussian(1.0)), cr.HMC(step=0.01), chains=2, draws=20, warmup=5)
    with pytest.raises(cr.InputError, match="3 levels"):
        cr.rlct(two)
    with pytest.raises(cr.InputError, match="Draws"):
        cr.rlct([])
    still = bowl(3)
    zeros = np.zeros_like(still.arrays["excess"])
    with pytest.raises(cr.InputError, match="vary"):
        cr.rlct(Draws({"excess": zeros, "distance2": zeros}, {}, still.nbeta, still.spec))


def test_a_known_multiplicity_is_taken_into_account() -> None:
    """Draws of x²y² on the unit square by the exact law of its states: λ = 1/2 with m = 2.

    The plain slope is lower by about 1/log t. Within 4 standard errors and what is stated: one in 10⁴ fails by chance.
    """
    levels = [1e5 * 2.0**k for k in range(8)]
    rng = np.random.default_rng(3)
    grid = np.exp(np.linspace(-60.0, 0.0, 20_001))  # of s = x²y², with the density s^(−1/2) log(1/s) / 4
    rows = []
    for t in levels:
        weight = np.sqrt(grid) * -np.log(grid) * np.exp(-t * grid)
        share = np.cumsum(weight) / weight.sum()
        rows.append(grid[np.searchsorted(share, rng.random((4, 4000)))])
    draws = Draws({"excess": np.concatenate(rows)}, {}, np.repeat(levels, 4), {"n": 1000, "asked": {"seed": 0}})
    plain, known = cr.rlct(draws), cr.rlct(draws, multiplicity=2)
    assert plain.value < 0.44
    assert abs(known.value - 0.5) < 4 * known.se + known.systematic < 0.03
    with pytest.raises(cr.InputError, match="multiplicity"):
        cr.rlct(draws, multiplicity=0)
