"""Equations of state from made-up left sides, and criteria by their definitions over draws."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import special

import crunode as cr
from crunode.core.result import Draws
from crunode.estimators import criteria, equations
from crunode.sampling.diagnostics import ess, mcse_mean, split_rhat


def left_sides(coefficient, fluctuation, beta):
    """n times what generalization, training, variance and cross-validation are above the entropy."""
    common = (coefficient - fluctuation) / beta
    return np.array([common + fluctuation, common - fluctuation, 2 * fluctuation / beta, 2 * coefficient / beta])


def solved(monkeypatch, rows, gaps, beta=0.5, n=400):
    rows = iter([(*row, gap) for row, gap in zip(rows, gaps, strict=True)])
    monkeypatch.setattr(equations, "_checked", lambda sets, triple: (beta * n, n))
    monkeypatch.setattr(equations, "_observed", lambda *given: next(rows))
    monkeypatch.setattr(equations, "_findings", lambda *given: iter(()))
    draws = SimpleNamespace(spec={"n": n}, provenance={})
    return equations.equations_of_state([(draws, None)] * len(gaps), None, seed=7)


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_exact_left_sides_give_both_numbers_and_no_residual(monkeypatch, beta):
    found = solved(monkeypatch, [left_sides(1.5, 0.8, beta)] * 4, [0.1] * 4, beta)
    assert (found.coefficient.value, found.fluctuation.value) == (pytest.approx(1.5), pytest.approx(0.8))
    assert found.coefficient.se == pytest.approx(0, abs=1e-9)
    assert [e.name for e in found.equations] == ["generalization", "training", "variance", "cross-validation"]
    for equation, left in zip(found.equations, left_sides(1.5, 0.8, beta), strict=True):
        assert equation.left == pytest.approx(left) == equation.right
        assert equation.score == pytest.approx(0, abs=1e-6)
    # The next term of large n, λ(2λ + 1)/n, and what cross-validation is above WAIC.
    limit = math.hypot(1.5 * 4 / 400, 0.1)
    assert found.coefficient.terms["limit"] == pytest.approx(limit) == found.fluctuation.systematic
    assert [e.systematic for e in found.equations] == [pytest.approx(limit)] * 4
    far = math.log(beta * 400) - special.digamma(1.5)
    assert 0.3 < found.coefficient.terms["multiplicity"] * far < 0.9
    assert found.coefficient.systematic == pytest.approx(math.hypot(*found.coefficient.terms.values()))
    assert found.coefficient.diagnostics == {
        "beta": beta,
        "n": 400,
        "sets": 4,
        "per_set": pytest.approx([1.5] * 4),
    }
    assert found.fluctuation.diagnostics["per_set"] == pytest.approx([0.8] * 4)


def test_scatter_over_data_sets_weighs_the_equations(monkeypatch):
    rng = np.random.default_rng(0)
    spread = np.array([0.2, 2.0, 0.1, 1.0])
    rows = left_sides(1.5, 0.8, 0.5) + spread * rng.normal(size=(12, 4))
    found = solved(monkeypatch, rows, np.zeros(12))
    design = np.array([left_sides(1, 0, 0.5), left_sides(0, 1, 0.5)]).T

    def fitted(values, weights, used):
        return np.linalg.lstsq(design[used] / weights[used, None], (values[:, used] / weights[used]).T, rcond=None)[0]

    errors = rows.std(0, ddof=1) / math.sqrt(12)
    rough = fitted(rows.mean(0)[None], errors, slice(None))[0, 0]
    limit = rough * (2 * rough + 1) / 400
    assert found.coefficient.terms["limit"] == pytest.approx(limit)
    weights = np.hypot(errors, limit)
    both = fitted(rows, weights, slice(None))
    assert found.coefficient.value == pytest.approx(both[0].mean())
    assert found.fluctuation.value == pytest.approx(both[1].mean())
    assert found.coefficient.se == pytest.approx(both[0].std(ddof=1) / math.sqrt(12))
    assert found.fluctuation.se == pytest.approx(both[1].std(ddof=1) / math.sqrt(12))
    assert found.coefficient.diagnostics["per_set"] == pytest.approx(both[0].tolist())
    for j, equation in enumerate(found.equations):
        others = [k for k in range(4) if k != j]
        right = fitted(rows, weights, others).T @ design[j]
        apart = rows[:, j] - right
        assert equation.left == pytest.approx(rows[:, j].mean())
        assert equation.right == pytest.approx(right.mean())
        assert equation.residual == pytest.approx(apart.mean())
        assert equation.se == pytest.approx(apart.std(ddof=1) / math.sqrt(12))
        assert equation.score == pytest.approx(apart.mean() / math.hypot(equation.se, limit))


def draws_of(losses, nbeta, prior=None):
    asked = {"seed": 2, "prior": prior or {"precision": 2.0, "mean": "origin"}}
    arrays = {"excess": losses.mean(2), "distance2": losses.mean(2), "pointwise": losses}
    return Draws(arrays, {}, np.full(len(losses), float(nbeta)), {"n": losses.shape[2], "asked": asked})


@pytest.fixture
def losses():
    return np.random.default_rng(3).gamma(2.0, 0.1, (4, 250, 20)) + np.linspace(0, 1, 20)


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_criteria_are_their_definitions(losses, beta):
    draws = draws_of(losses, beta * 20)
    flat = losses.reshape(-1, 20)
    count = len(flat)
    training = -(special.logsumexp(-flat, axis=0) - math.log(count))
    variance = flat.var(0, ddof=1)
    cross = special.logsumexp(beta * flat, axis=0) - special.logsumexp((beta - 1) * flat, axis=0)
    wanted = {
        "gibbs_training_loss": flat.mean(0),
        "bayes_training_loss": training,
        "functional_variance": 20 * variance,
        "waic": training + beta * variance,
    }
    for name, parts in wanted.items():
        found = getattr(cr, name)(draws)
        assert found.value == pytest.approx(parts.mean()), name
        assert found.diagnostics["data_se"] == pytest.approx(parts.std(ddof=1) / math.sqrt(20)), name
        assert (found.diagnostics["nbeta"], found.diagnostics["beta"]) == (beta * 20, beta)
        assert found.diagnostics["rhat"] == split_rhat(losses.mean(2))
        assert found.diagnostics["ess"] == ess(losses.mean(2))
        assert found.se > 0
    assert cr.gibbs_training_loss(draws).se == pytest.approx(mcse_mean(losses.mean(2)))
    plain = cr.loo(draws, smooth=False)
    assert plain.value == pytest.approx(cross.mean())
    smoothed, each = criteria.with_parts(draws, "loo")
    assert smoothed.value == pytest.approx(cr.loo(draws).value) == pytest.approx(each.mean())
    assert smoothed.value == pytest.approx(cross.mean(), rel=0.02)
    assert len(smoothed.diagnostics["pareto_k"]) == 20
    assert criteria.with_parts(draws, "waic")[1] == pytest.approx(wanted["waic"])


def test_examples_are_taken_in_blocks_of_any_size(losses, monkeypatch):
    whole = cr.waic(draws_of(losses, 20.0))
    monkeypatch.setattr(criteria, "_BLOCK", 3000)
    assert [block.shape[2] for block in criteria._blocks(losses)] == [3] * 6 + [2]
    parts = cr.waic(draws_of(losses, 20.0))
    assert (parts.value, parts.se) == (pytest.approx(whole.value), pytest.approx(whole.se))


def test_heavy_tails_and_local_priors_are_told_apart(losses):
    assert cr.loo(draws_of(losses, 20.0)).findings == ()
    local = cr.waic(draws_of(losses, 20.0, prior={"precision": 2.5, "mean": "center"}))
    assert [f.code for f in local.findings] == ["CRIT702"]
    heavy = losses.copy()
    heavy[..., 4] = -3 * np.log(np.random.default_rng(5).random((4, 250)))
    found = cr.loo(draws_of(heavy, 20.0))
    assert "CRIT701" in [f.code for f in found.findings]
    assert np.argmax(found.diagnostics["pareto_k"]) == 4


def test_models_are_compared_example_by_example(losses):
    better = losses - 0.3 * np.linspace(0, 1, 20)
    found = cr.compare({"worse": draws_of(losses, 20.0), "better": draws_of(better, 20.0)}, "waic")
    one, two = found.rows
    assert (one.name, two.name, found.best, found.criterion) == ("better", "worse", "better", "waic")
    apart = 0.3 * np.linspace(0, 1, 20)
    assert (one.difference, one.mc_se, one.data_se) == (0, 0, 0)
    assert two.difference == pytest.approx(apart.mean())
    assert two.data_se == pytest.approx(apart.std(ddof=1) / math.sqrt(20))
    assert two.mc_se == pytest.approx(math.hypot(one.estimate.se, two.estimate.se))
    assert two.clear
    assert found.tied == ("better",)
    near = cr.compare({"a": draws_of(losses, 20.0), "b": draws_of(losses + 1e-4, 20.0)})
    assert near.tied == ("a", "b")
