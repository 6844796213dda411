"""Draws of reduced rank posteriors against quadrature, and the best fit against least squares."""

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.sampling.diagnostics import mcse_mean
from crunode_papers.bilinear.posteriors import best_loss, draw_posteriors, simulate

pytestmark = pytest.mark.heavy

TRUTH = [[1.0, 0.5, 0.0]]
LEVELS = (0.05, 0.2, 0.8, 3.0, 10.0, 30.0)


def log_evidence(data, t):
    """log Z(t) of one hidden unit and one output: the input weights integrated in closed form, the other by a sum.

    With γ = 1, S = E[xxᵀ] and c = E[yx]: given b the weights a have precision I + t b² S and mean of t b c.
    """
    x, y = data.x[0].numpy(), data.y[0, :, 0].numpy()
    n = len(x)
    second, cross, square = x.T @ x / n, x.T @ y / n, float(y @ y) / n
    values, vectors = np.linalg.eigh(second)
    c = vectors.T @ cross
    b = np.linspace(-12, 12, 200_001)[:, None]
    precision = 1 + t * b**2 * values
    logs = -0.5 * np.log(precision).sum(1) + 0.5 * ((t * b * c) ** 2 / precision).sum(1)
    logs += -0.5 * b[:, 0] ** 2 - 0.5 * np.log(2 * np.pi) - 0.5 * t * square
    top = logs.max()
    return top + np.log(np.exp(logs - top).sum() * (b[1, 0] - b[0, 0]))


@pytest.fixture(scope="module")
def drawn():
    return draw_posteriors(simulate(TRUTH, 30, [5]), 1, LEVELS, chains=16, draws=2000, warmup=100, seed=1)


@pytest.fixture(scope="module")
def draws(drawn):
    return drawn.of(0)


@pytest.mark.parametrize("t", LEVELS)
def test_mean_loss_at_each_level(drawn, draws, t):
    # Six tests at four standard errors: a false alarm in one of 2500 seeds.
    data = drawn.data
    exact = -(log_evidence(data, t * 1.0005) - log_evidence(data, t * 0.9995)) / (0.001 * t)
    excess = draws.at(t)["excess"]
    ours = excess.mean() + float(data.true_losses().mean())
    assert mcse_mean(excess) < 0.03 * exact
    assert abs(ours - exact) < 4 * mcse_mean(excess)


def test_free_energy(drawn, draws):
    est = cr.free_energy(draws)
    exact = -log_evidence(drawn.data, 30.0) - 30 * float(drawn.data.true_losses().mean())
    assert est.se < 0.05
    assert abs(est.value - exact) < 4 * est.se


def test_chains_mix(draws):
    assert max(cr.waic(draws, nbeta=t).diagnostics["rhat"] for t in LEVELS) < 1.01


def test_losses_with_and_without_examples_agree(drawn, draws):
    np.testing.assert_allclose(drawn.of(0, pointwise=False).arrays["excess"], draws.arrays["excess"], atol=1e-9)


def test_best_fit_is_that_of_least_squares_and_of_descent():
    data = simulate([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], 40, [3, 4])
    for k in range(2):
        x, y = data.x[k], data.y[k]
        fit = torch.linalg.lstsq(x, y).solution
        assert float(best_loss(data, 2)[k]) == pytest.approx(float(0.5 * (y - x @ fit).square().sum() / 40))
        a, b = torch.linalg.svd(fit)[0][:, :1] @ torch.ones(1, 1).double(), torch.ones(1, 2).double()
        for _ in range(400):  # alternating least squares
            b = torch.linalg.lstsq(x @ a, y).solution
            a = torch.linalg.lstsq(x, y @ b.T / b.square().sum()).solution
        assert float(best_loss(data, 1)[k]) == pytest.approx(float(0.5 * (y - x @ a @ b).square().sum() / 40))


def test_data_sets_and_draws_depend_on_their_seeds_only():
    one, two = simulate(TRUTH, 10, [1, 2, 3]), simulate(TRUTH, 10, [3])
    assert torch.equal(one.y[2], two.y[0])
    maps = [draw_posteriors(two, 1, [5.0], draws=5, seed=s).maps for s in (0, 0, 1)]
    assert torch.equal(maps[0], maps[1])
    assert not torch.equal(maps[0], maps[2])
