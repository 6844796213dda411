"""Left sides of the equations of state by their definitions, for draws of a linear model."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.core.result import Draws, Finding
from crunode.estimators import equations
from crunode.estimators.equations import Equation, _findings, _observed, _with_losses

N = 30


def linear():
    w0 = torch.tensor([[0.7], [-0.4]], dtype=torch.float64)
    model = torch.nn.Linear(2, 1, bias=False).double()
    return cr.Triple(model, lambda x: x @ w0, "normal", sd=0.5, prior=cr.Gaussian(2.0, mean="origin"), features=2)


def drawn(triple, beta=0.6, seed=0):
    x, y = triple.data(N, seed)
    covariance = torch.linalg.inv(2 * torch.eye(2).double() + beta / 0.25 * x.T @ x)
    mean = (beta / 0.25 * covariance @ (x.T @ y))[:, 0]
    places = np.random.default_rng(1).multivariate_normal(mean.numpy(), covariance.numpy(), (3, 40))
    arrays = {"excess": (places**2).sum(2), "distance2": (places**2).sum(2), "positions": places}
    spec = {"n": N, "asked": {"seed": seed, "prior": {"precision": 2.0, "mean": "origin"}}}
    return Draws(arrays, {}, np.full(3, beta * N), spec)


def test_losses_of_all_examples_are_those_at_the_positions(monkeypatch):
    triple = linear()
    land, draws = triple.landscape(N, 0), drawn(triple)
    x, y = (v.numpy() for v in triple.data(N, 0))
    off = np.einsum("cdk,nk->cdn", draws.arrays["positions"], x) - y[:, 0]
    wanted = off**2 / (2 * 0.25) + math.log(0.5 * math.sqrt(2 * math.pi))
    found = _with_losses(draws, land, triple)
    assert found.arrays["pointwise"] == pytest.approx(wanted)
    assert set(found.arrays) == {*draws.arrays, "pointwise"}
    monkeypatch.setattr(equations, "_BLOCK", 16 * N * 7)  # seven positions at a time
    assert np.array_equal(_with_losses(draws, land, triple).arrays["pointwise"], found.arrays["pointwise"])


@pytest.mark.parametrize("beta", [0.6, 1.0])
def test_left_sides_are_their_definitions(beta):
    triple = linear()
    land = triple.landscape(N, 0)
    draws = _with_losses(drawn(triple, beta), land, triple)
    own = triple.empirical_entropy(triple.data(N, 0)).value
    assert abs(own) > 0.05  # so that a term that is left out is seen
    above, training, spread, fourth, gap = _observed(draws, land, triple, N, beta, 50, 3)
    ahead = cr.bayes_generalization_loss(draws, triple, test=50, seed=3)
    assert above == pytest.approx(N * ahead.diagnostics["excess"])
    losses = draws.arrays["pointwise"].reshape(-1, N)
    assert training == pytest.approx(N * (-np.log(np.exp(-losses).mean(0)).mean() - own))
    assert spread == pytest.approx(losses.var(0, ddof=1).sum())
    cross = cr.loo(draws).value
    assert fourth == pytest.approx(above + N * (cross - own) - (beta - 1) * spread)
    assert gap == pytest.approx(N * (cross - cr.waic(draws).value))


def test_draws_have_the_lengths_asked_for_and_data_of_their_own():
    triple = linear()
    sets = cr.simulate(triple, 20, 3, beta=0.5, kernel=cr.HMC(step=0.01, leaps=3), chains=2, draws=7, warmup=4, seed=5)
    assert [d.arrays["pointwise"].shape for d, _ in sets] == [(2, 7, 20)] * 3
    assert [d.spec["warmup"] for d, _ in sets] == [4] * 3
    assert [d.levels() for d, _ in sets] == [[10.0]] * 3
    first, second, third = (float(land.losses().sum()) for _, land in sets)
    assert len({first, second, third}) == 3
    for draws, land in sets:
        batch = next(iter(land.passes(20)))
        at = torch.as_tensor(draws.arrays["positions"][1, 6])
        assert draws.arrays["pointwise"][1, 6] == pytest.approx(land.batch_losses(at, batch).numpy())
    again = cr.simulate(triple, 20, 1, beta=0.5, kernel=cr.HMC(step=0.01, leaps=3), chains=2, draws=7, warmup=4, seed=5)
    assert np.array_equal(again[0][0].arrays["excess"], sets[0][0].arrays["excess"])


def test_equations_that_miss_are_named(monkeypatch):
    monkeypatch.setattr(equations, "bayes_training_loss", lambda draws: SimpleNamespace(findings=draws))
    near = SimpleNamespace(distance=lambda draws, seed: SimpleNamespace(findings=()))
    slow, poor = (Finding.of(code, "here") for code in ("MC202", "MC201"))
    sets = [((slow,), None), ((slow, poor), None), ((), None)]

    def found(*scores):
        rows = [Equation(str(k), 3 + 0.5 * score, 3.0, 0.3, 0.4) for k, score in enumerate(scores)]
        assert [row.score for row in rows] == pytest.approx(list(scores))
        return list(_findings(sets, near, rows, 0))

    fine = found(1.0, -3.9, 3.5)
    assert [f.code for f in fine] == ["MC202", "MC201"]
    assert ["2 of 3" in fine[0].message, "1 of 3" in fine[1].message] == [True, True]
    for scores in ((4.5, 1.0, -3.0), (1.0, -4.5, 3.0)):
        *_, last = found(*scores)
        worst = max(range(3), key=lambda k: abs(scores[k]))
        assert last.code == "CRIT713"
        assert f"that of {worst} misses by {0.5 * scores[worst]:.3g}, {scores[worst]:.1f} errors" in last.message
