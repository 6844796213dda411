"""Fits recover what spectra were made with, within their errors, and say so when there is nothing to recover."""

import math

import numpy as np
import pytest
import torch

from crunode.errors import InputError
from crunode.spectra import (
    critical_energy,
    fit_bulk,
    fit_index,
    hessian_law,
    index,
    index_prefactor,
    marchenko_pastur,
    random_spectrum,
    semicircle,
    tail_exponent,
)

CASES = {
    "marchenko-pastur": (marchenko_pastur(0.5, 2.0), {"ratio": 0.5, "variance": 2.0}, {}),
    "semicircle": (semicircle(1.5, -3.0), {"sigma": 1.5, "center": -3.0}, {}),
    "linear": (hessian_law(0.2, 0.5, "linear", 1.3), {"energy": 0.2, "variance": 1.3}, {"ratio": 0.5}),
    "relu": (hessian_law(0.4, 4.0, "relu"), {"energy": 0.4, "variance": 1.0}, {"ratio": 4.0}),
}


# Four standard errors with errors known to 11%: one false alarm in about 5000 for each parameter.
@pytest.mark.heavy
@pytest.mark.parametrize("family", CASES)
def test_parameters_are_recovered_within_their_errors(family):
    law, truth, fixed = CASES[family]
    values = random_spectrum(law, 300, seed=7)
    extra = [law.edges.max() + 3.0, law.edges.min() - 3.0]
    found = fit_bulk([*values, *extra], family, fixed=fixed, seed=1)
    assert not found.findings
    assert found.ok
    np.testing.assert_array_equal(np.sort(found.outliers), np.sort(extra))
    assert set(found.parameters) == set(truth)
    for name, value in truth.items():
        estimate = found.parameters[name]
        assert abs(estimate.value - value) < 4 * estimate.error
        assert 0 < estimate.error < 0.05 * max(1, abs(value))
    assert found.distance < found.usual * 1.5
    assert family in str(found)


@pytest.mark.heavy
def test_errors_are_the_spread_over_matrices():
    law = marchenko_pastur(0.5)
    fits = [fit_bulk(random_spectrum(law, 60, seed=k), seed=k).parameters["ratio"] for k in range(16)]
    spread = np.std([f.value for f in fits], ddof=1)
    # Sixteen values give a spread within a factor of 1.9 of the true one but once in ten thousand.
    assert 1 / 2 < spread / np.mean([f.se for f in fits]) < 2


def test_another_law_is_noticed():
    values = np.random.default_rng(0).standard_normal(400)
    found = fit_bulk(values, "semicircle")
    assert "SPEC1001" in [f.code for f in found.findings]


def test_same_seed_same_fit_and_tensors_are_taken():
    values = torch.tensor(random_spectrum(marchenko_pastur(2.0), 100, seed=3))
    a, b = fit_bulk(values, seed=4), fit_bulk(values.numpy(), seed=4)
    assert a.parameters["ratio"].value == b.parameters["ratio"].value
    assert a.parameters["ratio"].se == b.parameters["ratio"].se
    assert a.parameters["ratio"].value == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("exponent", [2.0, 3.5])
def test_tail_exponent_is_recovered(exponent):
    rng = np.random.default_rng(1)
    tail = (1 - rng.random(800)) ** (-1 / (exponent - 1))
    for start, values in ((1.0, tail), (None, np.concatenate([tail, rng.random(400)]))):
        found = tail_exponent(values, start)
        assert abs(found.exponent.value - exponent) < 4 * found.exponent.se
        assert "SPEC1003" not in [f.code for f in found.exponent.findings]


def test_exponential_tail_is_no_power_law():
    found = tail_exponent(np.random.default_rng(2).exponential(size=1000) + 1, 1.0)
    assert found.against_exponential < -1.64
    assert "SPEC1003" in [f.code for f in found.exponent.findings]
    assert "SPEC1004" in [f.code for f in tail_exponent(np.arange(1.0, 21.0), 1.0).exponent.findings]


@pytest.mark.parametrize("model", ["linear", "relu"])
def test_exponent_near_the_critical_energy_is_three_halves(model):
    critical = critical_energy(0.25, model)
    energies = critical * (1 + np.geomspace(1e-4, 2e-3, 20))
    found = fit_index(energies, index(energies, 0.25, model))
    assert found.exponent.value == pytest.approx(1.5, abs=0.003)
    assert abs(found.exponent.value - 1.5) < found.exponent.error
    assert abs(found.critical_energy.value / critical - 1) < 1e-6
    # An exponent that is off by 0.0014 is one percent of the prefactor, which its error has to cover.
    assert abs(found.prefactor.value - index_prefactor(0.25, model)) < found.prefactor.error
    assert found.prefactor.error < 0.02 * found.prefactor.value
    # Farther out the exponent is lower, and the fit says that its range matters.
    far = critical * np.linspace(1.05, 2, 20)
    wide = fit_index(far, index(far, 0.25, model))
    assert wide.exponent.value < 1.4
    assert "SPEC1005" in [f.code for f in wide.exponent.findings]


def test_fit_of_noisy_indices_has_honest_errors():
    rng = np.random.default_rng(5)
    x = np.linspace(0.1, 0.4, 30)
    truth = 0.2 * np.clip(x / 0.2 - 1, 0, None) ** 1.5
    off = []
    for _ in range(12):
        noisy = np.clip(truth + 0.002 * rng.standard_normal(len(x)), 0, 1)
        found = fit_index(x, noisy, np.full(len(x), 0.002))
        off.append((found.exponent.value - 1.5) / found.exponent.error)
    assert np.abs(off).max() < 4
    held = fit_index(x, truth, exponent=1.5)
    assert held.exponent.se == 0
    assert held.critical_energy.value == pytest.approx(0.2, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fit_bulk([1.0] * 5), "at least 20"),
        (lambda: fit_bulk([1.0] * 30), "spread"),
        (lambda: fit_bulk([math.nan, *range(30)]), "finite"),
        (lambda: fit_bulk(np.arange(30.0), "gumbel"), "family"),
        (lambda: fit_bulk(np.arange(30.0), fixed={"energy": 1.0}), "fixed"),
        (lambda: fit_bulk(np.arange(30.0), fixed={"ratio": 1.0, "variance": 1.0}), "not all"),
        (lambda: tail_exponent([1.0, math.inf] * 10), "finite"),
        (lambda: tail_exponent(-np.arange(30.0)), "tail"),
        (lambda: tail_exponent(np.arange(30.0), -1.0), "start"),
        (lambda: fit_index([0.1] * 3, [0.1] * 3), "at least 6"),
        (lambda: fit_index(np.arange(8.0), np.full(8, 2.0)), "indices from 0 to 1"),
        (lambda: fit_index(np.arange(8.0), np.full(7, 0.2)), "equal length"),
        (lambda: fit_index(np.arange(8.0), np.full(8, math.nan)), "finite"),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(30))
def test_indices_that_follow_no_law_end_in_a_doubt_and_never_in_a_crash(seed):
    chance = np.random.default_rng(seed)
    energy = np.sort(chance.uniform(0.1, 2, int(chance.integers(9, 13))))
    index = 0.3 * np.clip(energy / 0.4 - 1, 0, None) ** 1.5 + 0.05 * chance.normal(size=len(energy))
    found = fit_index(energy, np.clip(index, 1e-3, 1)).exponent
    assert math.isfinite(found.se) or not found.ok
