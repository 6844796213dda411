"""Coefficient and multiplicity from the growth of the free energy, on draws from posteriors whose λ and m are known."""

import math

import numpy as np
import pytest

import crunode as cr
from crunode.core.result import Draws
from crunode.estimators.energy_curve import increments

COLD = [2.0**k for k in range(-4, 30)]
CHAINS, DRAWS = 4, 1500


def on_ladder(losses, levels, dim=2, name="HMC", n=1000):
    spec = {"n": n, "dim": dim, "asked": {"seed": 0}, "kernel": {"name": name}}
    rows = np.concatenate(losses)
    return Draws({"excess": rows, "distance2": rows}, {}, np.repeat(np.asarray(levels), CHAINS), spec)


def crossing(b, seed, levels=COLD):
    """L = x² y^2b under a standard normal prior: x given y is normal, y by the inverse of its distribution."""
    rng = np.random.default_rng(seed)
    grid = np.concatenate([[0.0], np.geomspace(1e-8, 9, 4001)])
    losses = []
    for t in levels:
        density = np.exp(-(grid**2) / 2) / np.sqrt(1 + 2 * t * grid ** (2 * b))
        total = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(grid))])
        y = np.interp(rng.random((CHAINS, DRAWS)), total / total[-1], grid)
        x = rng.standard_normal(y.shape) / np.sqrt(1 + 2 * t * y ** (2 * b))
        losses.append(x**2 * y ** (2 * b))
    return losses


def bowl(d, seed, levels=COLD, draws=DRAWS):
    rng = np.random.default_rng(seed)
    return [rng.chisquare(d, (CHAINS, draws)) / (2 * (1 + t)) for t in levels]


def tanh_network(hidden, seed, levels=COLD, moves=12):
    """L = ½ E (Σ a_i tanh(b_i x))²: a given b is normal, and b is moved by Metropolis steps from level to level."""
    rng = np.random.default_rng(seed)
    x, size = np.linspace(0.2, 2, 10), CHAINS * DRAWS
    eye, rows = np.eye(hidden), np.arange(size)

    def gram(b):
        features = np.tanh(b[:, :, None] * x)
        return np.einsum("nix,njx->nij", features, features) / len(x)

    def score(b, t):
        return -0.5 * (b * b).sum(1) - 0.5 * np.linalg.slogdet(eye + t * gram(b))[1]

    b, before, losses = rng.standard_normal((size, hidden)), 0.0, []
    for t in levels:
        weight = score(b, t) - score(b, before)
        total = np.cumsum(np.exp(weight - weight.max()))
        b = b[np.searchsorted(total / total[-1] * (1 - 1e-12), (rng.random() + rows) / size)][rng.permutation(size)]
        now = score(b, t)
        for k in range(moves):
            unit, new = rng.integers(hidden, size=size), b.copy()
            jacobian = np.zeros(size)
            if k % 3 == 0:
                factor = np.exp(rng.standard_normal(size))
                new[rows, unit] *= factor
                jacobian = np.log(factor)
            elif k % 3 == 1:
                new[rows, unit] += (t + 1) ** (-0.5 * rng.random(size)) * rng.standard_normal(size)
            else:
                factor = np.exp(0.5 * rng.standard_normal(size))
                new *= factor[:, None]
                jacobian = hidden * np.log(factor)
            then = score(new, t)
            kept = np.log(rng.random(size)) < then - now + jacobian
            b, now = np.where(kept[:, None], new, b), np.where(kept, then, now)
        matrix = gram(b)
        root = np.linalg.cholesky(np.linalg.inv(eye + t * matrix))
        a = (root @ rng.standard_normal((size, hidden, 1)))[..., 0]
        losses.append((0.5 * np.einsum("ni,nij,nj->n", a, matrix, a)).reshape(CHAINS, DRAWS))
        before = t
    return losses


def judge(est, coefficient, multiplicity, within=0.05):
    assert est.ok, est.findings
    assert abs(est.value - coefficient) < 2.5 * est.error
    assert est.value == pytest.approx(coefficient, rel=within)
    odds = est.diagnostics["multiplicity"]
    assert max(odds, key=odds.get) == str(multiplicity)
    assert sum(odds.values()) == pytest.approx(1)


@pytest.mark.parametrize(("b", "coefficient", "multiplicity"), [(1, 1 / 2, 2), (2, 1 / 4, 1), (3, 1 / 6, 1)])
def test_normal_crossings(b, coefficient, multiplicity):
    judge(cr.coefficient_from_energy(on_ladder(crossing(b, seed=b), COLD)), coefficient, multiplicity)


@pytest.mark.parametrize("d", [1, 5])
def test_bowls(d):
    judge(cr.coefficient_from_energy(on_ladder(bowl(d, seed=d), COLD, dim=d)), d / 2, 1)


def test_a_known_multiplicity_is_the_only_one():
    draws = on_ladder(crossing(1, seed=1), COLD)
    right, wrong = (cr.coefficient_from_energy(draws, multiplicity=m) for m in (2, 1))
    assert right.diagnostics["multiplicity"] == {"2": pytest.approx(1)}
    assert right.value == pytest.approx(0.5, rel=0.03)
    assert wrong.value < 0.48
    with pytest.raises(cr.InputError, match="multiplicity"):
        cr.coefficient_from_energy(draws, multiplicity=0)


@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_tanh_networks_at_zero_truth(hidden):
    exact = cr.exact.evaluate("tanh-zero-truth", hidden=hidden)
    draws = on_ladder(tanh_network(hidden, seed=hidden), COLD, dim=2 * hidden)
    judge(cr.coefficient_from_energy(draws), float(exact.value), exact.multiplicity)


def test_covariance_of_increments_is_the_scatter():
    """300 repeats know a variance to 8 %: bounds are more than three deviations away on each side."""
    rng = np.random.default_rng(0)
    levels = (1.0, 2.0, 4.0)
    found = [increments(levels, [rng.chisquare(3, (4, 200)) / (2 * (1 + t)) for t in levels]) for _ in range(300)]
    scatter, stated = np.cov(np.array([x.change for x in found]).T), np.mean([x.covariance for x in found], axis=0)
    assert 0.75 < scatter[0, 0] / stated[0, 0] < 1.3
    assert 0.75 < scatter[1, 1] / stated[1, 1] < 1.3
    assert scatter[0, 1] > 0.3 * math.sqrt(scatter[0, 0] * scatter[1, 1])  # a shared level
    assert 0.6 < scatter[0, 1] / stated[0, 1] < 1.6


def test_errors_cover_a_repeat():
    """Twelve bowls: the scatter is at most 1.7 times the stated error, where 12 repeats know it to 21 %."""
    levels = [2.0**k for k in range(2, 11)]
    found = [cr.coefficient_from_energy(on_ladder(bowl(4, k, levels, draws=200), levels, dim=4)) for k in range(12)]
    assert np.std([e.value for e in found], ddof=1) < 1.7 * np.mean([e.se for e in found])
    assert abs(np.mean([e.value for e in found]) - 2) < 2 * np.mean([e.error for e in found])


def test_levels_that_exchange_states():
    levels = [2.0**k for k in range(0, 16)]
    losses = bowl(4, 0, levels)
    apart, joint = (cr.coefficient_from_energy(on_ladder(losses, levels, 4, name)) for name in ("HMC", "Exchange"))
    assert joint.value == pytest.approx(apart.value, abs=apart.error)
    assert 0.4 < joint.se / apart.se < 2.5


def test_levels_before_a_transition_are_left_out():
    """At levels up to 1024 in a raised region with small λ, colder in a deep one with λ = 2."""
    levels = [2.0**k for k in range(4, 16)]
    rng = np.random.default_rng(0)
    losses = []
    for t in levels:
        second = rng.random((CHAINS, DRAWS)) < 1 / (1 + 30 * t**1.5 * math.exp(-t / 100))
        losses.append(np.where(second, rng.gamma(2.0, 1 / t, second.shape), 0.01 + rng.gamma(0.5, 1 / t, second.shape)))
    est = cr.coefficient_from_energy(on_ladder(losses, levels, dim=4))
    assert est.ok
    assert est.diagnostics["from"] > 1000
    assert abs(est.value - 2) < 2.5 * est.error < 0.25


def test_bad_input():
    with pytest.raises(cr.InputError, match="Draws"):
        cr.coefficient_from_energy(1.0)
    levels = [1.0, 2.0, 4.0]
    with pytest.raises(cr.InputError, match="4 levels"):
        cr.coefficient_from_energy(on_ladder(bowl(2, 0, levels), levels))
    levels = [2.0**k for k in range(3, 9)]
    losses = bowl(2, 0, levels)
    losses[2][0, 0] = np.nan
    with pytest.raises(cr.InputError, match="finite"):
        cr.coefficient_from_energy(on_ladder(losses, levels))
    with pytest.raises(cr.InputError, match="vary"):
        cr.coefficient_from_energy(on_ladder([np.ones((CHAINS, 50)) for _ in levels], levels))


def test_levels_too_far_apart_are_an_error():
    levels = [8.0, 800.0, 80_000.0, 8e6]
    est = cr.coefficient_from_energy(on_ladder(bowl(20, 0, levels), levels, dim=20))
    assert "CRIT703" in [f.code for f in est.findings]
    assert not est.ok
