"""Averages over laws of the free energy are fixed points of weighted least squares, and begin where they should."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import special, stats

import crunode as cr
from crunode.core.result import Draws
from crunode.estimators import energy_curve
from crunode.estimators.energy_curve import Increments, _averaged, _cold, gap_findings, increments

LEVELS = [2.0**k for k in range(3, 12)]


def bowl(d, t, prior=0.0, count=400, seed=0):
    values = stats.gamma.ppf((np.arange(count) + 0.5) / count, d / 2) / (t + prior)
    return np.random.default_rng(seed).permutation(values).reshape(4, -1)


def ladder(losses, levels, n=10**9, **spec):
    rows = np.concatenate(losses)
    asked = {"seed": 5, "prior": {"precision": 1.0, "mean": "center"}}
    arrays = {"excess": rows, "distance2": rows}
    return Draws(arrays, {}, np.repeat(np.asarray(levels, float), 4), {"n": n, "asked": asked, **spec})


def made(t, change, covariance):
    nothing = np.zeros(len(change))
    return Increments(np.asarray(t), np.asarray(change), np.asarray(covariance), nothing + 1, nothing)


@pytest.fixture
def few_laws(monkeypatch):
    """A pole or none beside a simple one, and a double one with two shifts."""
    monkeypatch.setattr(energy_curve, "_POLES", {1: {0.0: 0.6, 0.5: 0.4}, 2: {0.0: 1.0}})
    monkeypatch.setattr(energy_curve, "_SHARES", (0.4, -0.3))
    monkeypatch.setattr(energy_curve, "_SHIFTS", np.array([-1.0, 1.0]))
    monkeypatch.setattr(energy_curve, "_ROUGH", 0.02)


def laws(t, guess):
    """m, the pole's distance, what is added to λ log t, and how likely it is, with seven in ten of m = 1."""
    yield 1, 0.0, 0 * t, 0.7 * 0.6
    for q in (0.4, -0.3):
        yield 1, 0.5, -np.log(1 - q * np.sqrt(t[0] / t)), 0.7 * 0.4 / 2
    for s in (-1.0, 1.0):
        yield 2, 0.0, -np.log(np.log(t) - special.digamma(guess) + s), 0.3 / 2


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("scatter", [0.3, 3.0])
def test_averages_are_fixed_points(few_laws, noisy, scatter):
    t, n = np.array([20.0, 50.0, 100.0, 300.0, 500.0, 1500.0, 4000.0]), 20_000
    rng = np.random.default_rng(1)
    growth = np.diff(np.log(t))
    covariance = 0.03**2 * (np.eye(6) + 0.3 * np.eye(6, k=1) + 0.3 * np.eye(6, k=-1))
    change = 1.2 * growth - 0.5 * np.diff(np.log(np.log(t))) + 0.03 * scatter * rng.normal(size=6)
    found = _averaged(made(t, change, covariance), n, noisy, {1: 0.7, 2: 0.3})
    guess, stretch = found.value, max(found.misfit, 1.0)
    plain = stretch * covariance + np.diag((0.02 * guess * growth) ** 2)
    whole = plain + guess**2 * np.outer(np.diff(t / n), np.diff(t / n)) * noisy
    rows = []
    for k in range(3):  # from the first, second or third level on
        inverse = np.linalg.inv(whole[k:, k:])
        pull = growth[k:] @ inverse / (growth[k:] @ inverse @ growth[k:])
        more = pull @ (whole - plain)[k:, k:] @ pull
        for m, p, added, prior in laws(t[k:], guess):
            y = change[k:] - np.diff(added)
            rest = y - (pull @ y) * growth[k:]
            chi2 = rest @ inverse @ rest
            rows.append((m, p, pull @ y, math.log(prior) - chi2 / 2 - k, chi2 / (5 - k), more, math.log(t[k])))
    m, p, values, scores, chi2, more, start = map(np.array, zip(*rows, strict=True))
    weights = special.softmax(scores)
    assert found.value == pytest.approx(weights @ values, rel=1e-3)
    assert found.misfit == pytest.approx(stretch * chi2.min(), rel=1e-2)
    assert (found.misfit > 1.5) == (scatter > 1)
    assert found.spread == pytest.approx(math.sqrt(weights @ ((values - guess) ** 2 + more)), rel=1e-2)
    assert found.multiplicity == pytest.approx({k: weights[m == k].sum() for k in (1, 2)}, rel=1e-2)
    assert math.log(found.start) == pytest.approx(weights @ start, rel=1e-3)
    kinds = {(1, 0.0), (1, 0.5), (2, 0.0)}
    parts = {kind: weights[(m == kind[0]) & (p == kind[1])].sum() for kind in kinds}
    assert {(row["m"], row["next"]): row["weight"] for row in found.laws} == pytest.approx(parts, rel=1e-2)
    assert all(a["weight"] >= b["weight"] for a, b in pairwise(found.laws))


@pytest.mark.parametrize("scatter", [0.0, 4.0])
def test_the_error_of_one_law_is_that_of_least_squares_times_what_it_misses_by(monkeypatch, scatter):
    monkeypatch.setattr(energy_curve, "_POLES", {1: {0.0: 1.0}})
    monkeypatch.setattr(energy_curve, "_ROUGH", 0.0)
    monkeypatch.setattr(energy_curve, "_REPEATS", 3000)
    t = np.array([20.0, 60.0, 100.0, 300.0, 900.0])  # four increments: all of them are used
    growth, spread = np.diff(np.log(t)), np.array([0.03, 0.02, 0.05, 0.01])
    change = 1.7 * growth + scatter * spread * np.array([1.0, -1.0, 1.0, -0.2])
    found = _averaged(made(t, change, np.diag(spread**2)), 10**9, False, {1: 1.0})
    x, y = growth / spread, change / spread
    value = x @ y / (x @ x)
    misfit = ((y - value * x) ** 2).sum() / 3
    assert found.value == pytest.approx(value)
    assert found.misfit == pytest.approx(misfit, abs=1e-9)
    assert found.se == pytest.approx(math.sqrt(max(misfit, 1) / (x @ x)), rel=0.05)
    assert found.spread == pytest.approx(0, abs=1e-6)
    assert found.start == pytest.approx(20)
    assert found.multiplicity == {1: pytest.approx(1)}


@pytest.mark.parametrize("law", [0.1, 0.5, 20.0])
def test_exact_growth_is_found_whatever_its_size(law):
    t = np.array(LEVELS)
    growth = np.diff(np.log(t))
    found = _averaged(made(t, law * growth, np.diag((1e-3 * law * growth) ** 2)), 10**9, False, {1: 1.0})
    assert found.value == pytest.approx(law, rel=0.03)
    assert found.misfit < 0.1
    twice = _averaged(made(t, law * growth, np.diag((1e-1 * law * growth) ** 2)), 10**9, False, {1: 1.0})
    assert twice.se > 5 * found.se


def test_levels_that_feel_the_prior_are_left_out():
    levels = [2.0**k for k in range(2, 16)]
    losses = [bowl(3, t, prior=100.0) for t in levels]  # t E[L] = 3/2 t / (t + 100)
    assert levels[_cold(levels, losses)] == 512  # the first above three quarters of the largest
    assert levels[_cold(levels[:6], losses[:6])] == 16  # four are to be left
    hot = [2.0**k for k in range(-6, 8)]
    assert hot[_cold(hot, [bowl(3, t) for t in hot])] == 4  # log log t means nothing below e
    assert _cold([0.1, 0.2, 0.4, 0.8, 1.6], [bowl(3, t) for t in (0.1, 0.2, 0.4, 0.8, 1.6)]) == 1
    # What is low after the top, in a deeper region, does not count: 256 / 356 is above three quarters of 2048 / 2148.
    fallen = [x * (0.3 if t > 4000 else 1.0) for t, x in zip(levels, losses, strict=True)]
    assert levels[_cold(levels, fallen)] == 256
    assert _cold(levels, [bowl(3, t) for t in levels]) == 0


def test_only_losses_below_the_center_speak_of_noise_in_labels():
    losses = [bowl(3, t) for t in LEVELS]
    few, many = (cr.coefficient_from_energy(ladder(losses, LEVELS, n), multiplicity=1) for n in (3000, 10**9))
    assert few.value == many.value
    losses[-1] = losses[-1].copy()
    losses[-1][0, 0] = -1e-6
    few, many = (cr.coefficient_from_energy(ladder(losses, LEVELS, n), multiplicity=1) for n in (3000, 10**9))
    assert few.value != many.value
    assert few.systematic > many.systematic


@pytest.mark.heavy
def test_no_more_lines_cross_than_there_are_coordinates():
    losses = [bowl(3, t) for t in LEVELS]
    for dim, wanted in ((1, ["1"]), (2, ["1", "2"]), (3, ["1", "2", "3"]), (9, ["1", "2", "3"])):
        found = cr.coefficient_from_energy(ladder(losses, LEVELS, dim=dim))
        assert list(found.diagnostics["multiplicity"]) == wanted
    assert list(cr.coefficient_from_energy(ladder(losses, LEVELS)).diagnostics["multiplicity"]) == ["1", "2", "3"]
    known = cr.coefficient_from_energy(ladder(losses, LEVELS, dim=2), multiplicity=5)
    assert list(known.diagnostics["multiplicity"]) == ["5"]


def test_gaps_of_a_ladder_are_named():
    levels = [8.0, 16.0, 32.0, 64.0, 6400.0, 12800.0]
    found = cr.coefficient_from_energy(ladder([bowl(20, t) for t in levels], levels))
    (gap,) = [f for f in found.findings if f.code == "CRIT703"]
    assert "between nbeta 64 and 6.4e+03" in gap.message
    near = cr.coefficient_from_energy(ladder([bowl(20, t) for t in LEVELS], LEVELS))
    assert "CRIT703" not in [f.code for f in near.findings]


def test_increments_of_one_level_are_none_and_joint_ones_take_all_levels_together():
    rng = np.random.default_rng(0)
    common = rng.gamma(2.0, 1.0, (4, 500))
    levels = [1.0, 1.5, 2.0]
    losses = [common / t for t in levels]  # the same draws at all levels, but for scale
    apart, joint = (increments(levels, losses, joint=kind).covariance for kind in (False, True))
    assert joint[0, 1] > 0 or apart[0, 1] != joint[0, 1]
    for joined in (False, True):
        none = increments([1.0], [common], joint=joined)
        assert none.change.shape == (0,)
        assert none.covariance.shape == (0, 0)


def test_levels_that_say_nothing_leave_poles_and_multiplicities_as_likely_as_before():
    t = np.array(LEVELS)
    vague = made(t, np.diff(np.log(t)), 1e8 * np.eye(len(t) - 1))
    both = _averaged(vague, 10**9, False, energy_curve._MULTIPLICITY).multiplicity
    assert both[1] == pytest.approx(2 * both[2], rel=1e-3)  # one line is twice as likely as two that cross
    assert both[2] > both[3] > 0
    one, two = ({row["next"]: row["weight"] for row in _averaged(vague, 10**9, False, {m: 1.0}).laws} for m in (1, 2))
    assert sum(one.values()) == pytest.approx(1) == pytest.approx(sum(two.values()))
    assert one[0.0] == pytest.approx(1 / 4, rel=1e-3)
    # Those of squares, then that of fourth powers, then those of sixth powers.
    assert one[0.0] > one[1 / 2] == pytest.approx(one[1.0], rel=1e-3)
    assert one[1 / 2] > one[1 / 4] + 0.01 > one[1 / 3] + 0.02
    assert one[1 / 3] == pytest.approx(one[1 / 6], rel=1e-3)
    assert two[0.0] > two[1 / 2] == pytest.approx(two[1.0], rel=1e-3)
    assert set(two) == {0.0, 1 / 2, 1.0}


@pytest.mark.parametrize(("least", "told"), [(0.04, False), (0.031, False), (0.029, True), (0.0, True)])
def test_less_than_three_percent_in_common_is_no_overlap(least, told):
    found = list(gap_findings([1.0, 2.0, 5.0, 9.0], np.array([0.5, least, 0.3])))
    assert [f.code for f in found] == ["CRIT703"] * told
    assert all("between nbeta 2 and 5" in f.message for f in found)
    assert not list(gap_findings([1.0], np.zeros(0)))
