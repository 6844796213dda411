"""The closed forms behind the recipe, against refitting without each example and against draws."""

import math

import numpy as np
import pytest
import torch

from crunode_papers.watanabe2010.criteria import TRUE_WEIGHTS, _generalization, _inputs, _regression, closed_forms

pytestmark = pytest.mark.heavy


def posterior(x, y, beta):
    cov = np.linalg.inv(np.eye(x.shape[1]) + beta * x.T @ x)
    return beta * cov @ x.T @ y, cov


def test_cross_validation_is_that_of_refitting():
    x, y = _regression(40, 3)
    total = 0.0
    for i in range(40):
        mean, cov = posterior(np.delete(x, i, 0), np.delete(y, i), 1.0)
        s = 1 + x[i] @ cov @ x[i]
        # The loss lacks the constant ½ log 2π, and so does this.
        total += 0.5 * math.log(s) + 0.5 * (y[i] - x[i] @ mean) ** 2 / s
    entropy = ((y - x @ np.array(TRUE_WEIGHTS)) ** 2 / 2).sum()
    assert closed_forms((x, y), 1.0)["cv"] == pytest.approx(total - entropy, rel=1e-9)


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_generalization_of_draws_is_the_closed_form(beta):
    x, y = _regression(50, 1)
    mean, cov = posterior(x, y, beta)
    draws = np.random.default_rng(0).multivariate_normal(mean - np.array(TRUE_WEIGHTS), cov, 4000)
    generator = torch.Generator().manual_seed(0)
    test = _inputs(4000, 4, generator)
    noise = torch.randn(4000, 1, generator=generator, dtype=torch.float64)
    found = 50 * _generalization(torch.tensor(draws)[:, None, :], test, noise)
    # Test inputs, noise and draws together leave about one percent.
    assert found == pytest.approx(closed_forms((x, y), beta)["bg"], rel=0.05)


def test_test_inputs_are_white():
    x = _inputs(50, 3, torch.Generator().manual_seed(2))
    torch.testing.assert_close(x.T @ x / 50, torch.eye(3, dtype=torch.float64))


def test_difference_of_cross_validation_and_waic_is_of_third_order():
    """The mean over data sets times n³ tends to d(d+2)(d+4) = 192, its spread over 40 sets being about one percent."""
    n = 4000
    found = [closed_forms(_regression(n, seed), 1.0) for seed in range(40)]
    gap = np.array([each["cv"] - each["waic"] for each in found]) / n
    assert n**3 * gap.mean() == pytest.approx(192, rel=0.05)
