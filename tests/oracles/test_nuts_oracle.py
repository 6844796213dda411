"""NUTS against densities whose moments are known in closed form.

Tolerances are 5 standard errors: a comparison fails once in 1.7 million by chance, and there are some twenty.
"""

import math

import numpy as np
import pytest
import torch

from crunode.core.landscape import Landscape
from crunode.sampling.diagnostics import ess, mcse_mean
from crunode.sampling.nuts import NUTS
from crunode.sampling.posterior import Flat, Posterior
from crunode.sampling.run import sample

KERNELS = [NUTS(step=0.05, accept=0.9), NUTS(step=0.05, accept=0.9, metric="diagonal")]


def positions(potential, dim, kernel, draws=150, warmup=150):
    land = Landscape.of_function(potential, torch.zeros(dim, dtype=torch.float64))
    target = Posterior(land, nbeta=1.0, prior=Flat())
    found = sample(target, kernel, chains=48, draws=draws, warmup=warmup, seed=5, layout="batched", keep=["positions"])
    return found.arrays["positions"]


def near(values, exact):
    error = mcse_mean(values)
    assert ess(values) > 300  # enough for the error itself to be known to some 4 %
    assert abs(values.mean() - exact) <= 5 * error, (values.mean(), exact, error)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_correlated_gaussian(kernel):
    factor = np.array([[1.0, 0.0, 0.0], [0.5, 0.4, 0.0], [-0.5, 0.2, 0.5]])
    covariance, mean = factor @ factor.T, np.array([1.0, -2.0, 0.5])

    def potential(v):
        a = v[0] - mean[0]
        b = (v[1] - mean[1] - 0.5 * a) / 0.4
        c = (v[2] - mean[2] + 0.5 * a - 0.2 * b) / 0.5
        return (a**2 + b**2 + c**2) / 2

    w = positions(potential, 3, kernel)
    centered = w - mean
    for i in range(3):
        near(w[:, :, i], mean[i])
        for j in range(i + 1):
            near(centered[:, :, i] * centered[:, :, j], covariance[i, j])


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_banana(kernel):
    """X ~ N(0, 1) and y ~ N(x²/2, 1/4): E y = 1/2, E y² = 3/4 + 1/4, E x²y = 3/2."""
    w = positions(lambda v: v[0] ** 2 / 2 + 2 * (v[1] - v[0] ** 2 / 2) ** 2, 2, kernel)
    x, y = w[:, :, 0], w[:, :, 1]
    for values, exact in ((x, 0.0), (x**2, 1.0), (y, 0.5), (y**2, 1.0), (x**2 * y, 1.5)):
        near(values, exact)


def test_funnel():
    """V ~ N(0, 1) and x ~ N(0, exp(v)): E x² = √e, and x/exp(v/2) is standard normal."""
    kernel = NUTS(step=0.05, accept=0.9)
    w = positions(lambda v: v[0] ** 2 / 2 + 0.5 * v[1] ** 2 * torch.exp(-v[0]) + v[0] / 2, 2, kernel)
    v, x = w[:, :, 0], w[:, :, 1]
    inside = (np.abs(x) < np.exp(v / 2)).astype(float)
    for values, exact in ((v, 0.0), (v**2, 1.0), (x**2, math.exp(0.5)), (inside, math.erf(math.sqrt(0.5)))):
        near(values, exact)
