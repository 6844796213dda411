"""`llc` at a fixed inverse temperature against expectations computed by other means: quadrature, conjugacy."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import crunode as cr


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cr.DiagnosticWarning)
        yield


POTENTIALS = {
    "x²": (1, lambda w: w[0] ** 2),
    "x⁴": (1, lambda w: w[0] ** 4),
    "x²y²": (2, lambda w: w[0] ** 2 * w[1] ** 2),
    "(x²−y³)²": (2, lambda w: (w[0] ** 2 - w[1] ** 3) ** 2),
}


def quadrature(potential, dim, nbeta, precision):
    """nβ E[K] under exp(−nβ K(w) − (γ/2)‖w‖²), on a grid that covers the prior to nine standard deviations."""
    side = np.linspace(-9, 9, 20_001 if dim == 1 else 3_001) / math.sqrt(precision)
    w = np.meshgrid(*[side] * dim, indexing="ij", sparse=True)
    k = potential(w)
    log_density = -nbeta * k - 0.5 * precision * sum(x**2 for x in w)
    density = np.exp(log_density - log_density.max())
    return nbeta * float((density * k).sum() / density.sum())


def test_the_quadrature_itself():
    assert quadrature(lambda w: w[0] ** 2, 1, 50.0, 2.0) == pytest.approx(50 / (2 * 50 + 2), rel=1e-9)
    assert quadrature(lambda w: w[0] ** 2 + 2 * w[1] ** 2, 2, 50.0, 2.0) == pytest.approx(
        50 / 102 + 100 / 202, rel=1e-9
    )


@pytest.mark.parametrize(("nbeta", "precision"), [(30.0, 1.0), (300.0, 4.0)])
@pytest.mark.parametrize("name", POTENTIALS)
def test_potentials(name, nbeta, precision):
    dim, potential = POTENTIALS[name]
    expected = quadrature(potential, dim, nbeta, precision)
    land = cr.Landscape.of_function(potential, torch.zeros(dim, dtype=torch.float64))
    estimate = cr.llc(
        land,
        nbeta=nbeta,
        precision=precision,
        kernel=cr.HMC(step=1.0 / nbeta, leaps=8),
        chains=128,
        draws=150,
        warmup=50,
        seed=3,
        layout="batched",
    )
    assert estimate.ok, estimate
    assert estimate.se < 0.1 * expected
    assert abs(estimate.value - expected) < 4 * estimate.se


@pytest.mark.parametrize("nbeta", [30.0, 3000.0])
def test_x_squared_y_squared_tends_to_one_half(nbeta):
    """λ = 1/2 with multiplicity 2: nβE[K] rises to it with the logarithm of nβ, and is below it at any nβ."""
    value = quadrature(POTENTIALS["x²y²"][1], 2, nbeta, 1.0)
    assert 0.5 - 0.8 / math.log(nbeta) < value < 0.5


G = torch.Generator().manual_seed(6)
D, N = 6, 500
X = torch.randn(N, D, generator=G, dtype=torch.float64)
Y = X @ torch.randn(D, 1, generator=G, dtype=torch.float64) + 0.5 * torch.randn(N, 1, generator=G, dtype=torch.float64)
H = X.T @ X / N
BEST = torch.linalg.solve(H, X.T @ Y / N)[:, 0]


def regression(weights):
    model = nn.Linear(D, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(weights[None])
    return model


def conjugate(center, nbeta, precision):
    """nβ (E[L] − L(w*)) of linear regression: the posterior is Gaussian, in closed form."""
    a = nbeta * H + precision * torch.eye(D, dtype=torch.float64)
    mean = torch.linalg.solve(a, nbeta * H @ BEST + precision * center)
    excess = 0.5 * ((mean - BEST) @ H @ (mean - BEST) - (center - BEST) @ H @ (center - BEST))
    return nbeta * float(excess + 0.5 * torch.trace(H @ torch.linalg.inv(a)))


@pytest.mark.parametrize("shift", [0.0, 0.05])
@pytest.mark.parametrize("kernel", [cr.HMC(step=0.003, leaps=8), cr.MALA(step=0.004)])
def test_linear_regression(kernel, shift):
    nbeta, precision, center = 200.0, 10.0, BEST + shift
    expected = conjugate(center, nbeta, precision)
    options = {"chains": 8, "draws": 300, "warmup": 100, "seed": 2, "layout": "batched"}
    estimate = cr.llc(
        regression(center), (X, Y), "gaussian", nbeta=nbeta, precision=precision, kernel=kernel, **options
    )
    assert abs(estimate.value - expected) < 4 * estimate.se
    assert estimate.se < 0.4
    assert shift > 0 or expected == pytest.approx(D / 2, rel=0.1)


@pytest.mark.parametrize(("step", "batch"), [(1e-3, N), (4e-3, N), (5e-4, 50), (1e-3, 50)])
def test_langevin_is_off_by_its_stated_systematic_error(step, batch):
    nbeta, precision = 200.0, 10.0
    expected = conjugate(BEST, nbeta, precision)
    estimate = cr.llc(
        regression(BEST),
        (X, Y),
        "gaussian",
        nbeta=nbeta,
        precision=precision,
        kernel=cr.SGLD(step, batch),
        chains=16,
        draws=800,
        warmup=100,
        seed=1,
        layout="batched",
    )
    predicted, shift = estimate.terms["discretisation"] + estimate.terms["heating"], estimate.value - expected
    assert (estimate.terms["heating"] > 0) == (batch < N)
    if batch == N:
        assert abs(shift - predicted) < 4 * estimate.se + 0.3 * predicted
    else:  # of the right size: to first order in the step, and for batches drawn anew each time
        assert -4 * estimate.se < shift < 4 * estimate.se + 2.5 * predicted
    assert abs(shift) < 4 * math.hypot(estimate.se, estimate.systematic)
