"""Replica exchange and the diagonal metric against quadrature and closed forms.

Comparisons are within 5 standard errors: a false alarm in 1.7 million each.
"""

import itertools

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.sampling.diagnostics import ess, mcse_mean
from crunode.testing import check_kernel

WELLS = (0.5, 2.0, 6.0, 15.0, 40.0)
TILT = 0.03


def near(values, exact, what):
    error = mcse_mean(values)
    assert abs(values.mean() - exact) <= 5 * error, f"{what}: {values.mean():.5g} ± {error:.2g}, exact {exact:.5g}"


# Two wells


def double_well(w):
    return (w * w - 1).square().sum() + TILT * w.sum()


def wells(nbeta=WELLS):
    """The double well (w² − 1)² + 0.03 w, begun in the higher one of its minima."""
    land = cr.Landscape.of_function(double_well, torch.ones(1, dtype=torch.float64), n=1000)
    return cr.Posterior(land, nbeta, cr.Gaussian(0.2, mean="origin"))


def quadrature(nbeta):
    """Mean position, weight of the right well, and mean excess loss."""
    w = np.linspace(-6, 6, 40001)
    loss = (w * w - 1) ** 2 + TILT * w
    log = -nbeta * loss - 0.1 * w * w
    p = np.exp(log - log.max())
    p /= p.sum()
    return float(p @ w), float(p @ (w > 0)), float(p @ (loss - TILT))


def test_a_single_chain_does_not_leave_its_well():
    drawn = cr.sample(wells(40.0), cr.HMC(0.004, leaps=8), chains=8, draws=400, warmup=50, keep=["positions"])
    assert (drawn.arrays["positions"] > 0).all()
    assert quadrature(40.0)[1] < 0.1


@pytest.mark.parametrize(
    "kernel",
    [
        cr.Exchange(cr.HMC(leaps=4)),
        cr.Exchange(cr.HMC(leaps=4, metric="diagonal"), every=2),
        cr.Exchange(cr.MALA()),
    ],
    ids=["hmc", "diagonal", "mala"],
)
def test_wells_are_weighed_as_by_quadrature(kernel):
    drawn = cr.sample(wells(), kernel, chains=16, draws=800, warmup=200, keep=["positions"], seed=1)
    assert not drawn.findings, drawn.findings
    report = cr.exchange_report(drawn)
    assert min(report["swap_rate"]) > 0.2
    assert report["round_trips"] > 100
    for nbeta in WELLS:
        mean, right, excess = quadrature(nbeta)
        arrays = drawn.at(nbeta)
        w = arrays["positions"][:, :, 0]
        near(w, mean, f"mean at {nbeta}")
        near((w > 0).astype(float), right, f"right well at {nbeta}")
        near(arrays["excess"], excess, f"loss at {nbeta}")


# Gaussians


def gaussian(levels, dim=4):
    """The loss ‖w‖², at which nbeta times the loss is a Gamma(dim/2) variable on every rung."""
    land = cr.Landscape.of_function(lambda w: w.square().sum(), torch.zeros(dim, dtype=torch.float64), n=1000)
    return cr.Posterior(land, levels, cr.Flat())


def exact_rate(ratio):
    """E min(1, exp((t_a − t_b)(L_a − L_b))) = 2 P(L_b > L_a), by the Beta(2, 2) distribution in 4 dimensions."""
    x = ratio / (1 + ratio)
    return 2 * (1 - 3 * x**2 + 2 * x**3)


@pytest.mark.parametrize(
    "inner",
    [cr.HMC((0.2, 0.1, 0.025), leaps=4), cr.MALA((0.4, 0.2, 0.05)), cr.NUTS((0.2, 0.1, 0.025), metric="diagonal")],
    ids=["hmc", "mala", "nuts"],
)
def test_gaussians_are_exact_on_all_rungs(inner):
    levels = (1.0, 2.0, 8.0)
    drawn = cr.sample(gaussian(levels), cr.Exchange(inner), chains=48, draws=150, warmup=40, keep=["positions"], seed=2)
    for nbeta in levels:
        arrays = drawn.at(nbeta)
        scaled = arrays["positions"] * np.sqrt(2 * nbeta)
        for k in range(4):
            near(scaled[:, :, k], 0.0, f"mean at {nbeta}")
            near(scaled[:, :, k] ** 2, 1.0, f"variance at {nbeta}")
            near(scaled[:, :, k] * scaled[:, :, k - 1], 0.0, f"correlation at {nbeta}")
        near(nbeta * arrays["excess"], 2.0, f"loss at {nbeta}")
    for hot, cold in itertools.pairwise(levels):
        chances = drawn.at(hot)["swap"]
        tried = np.isfinite(chances[0])
        near(chances[:, tried].astype(float), exact_rate(cold / hot), f"swap rate from {hot} to {cold}")


def test_diagonal_metric_samples_gaussians():
    ratios = check_kernel(cr.HMC(leaps=4, metric="diagonal"))
    assert len(ratios) == 13


def test_diagonal_metric_takes_fewer_gradients_on_a_badly_scaled_gaussian():
    scale = torch.logspace(-1, 1, 6, dtype=torch.float64)
    land = cr.Landscape.of_function(lambda w: 0.5 * (w / scale).square().sum(), torch.zeros(6).double(), n=1000)
    size = {"chains": 4, "draws": 300, "warmup": 150, "keep": ["positions"]}
    worst = {}
    for metric in (None, "diagonal"):
        drawn = cr.sample(cr.Posterior(land, 1.0, cr.Flat()), cr.HMC(metric=metric), **size)
        scaled = drawn.arrays["positions"] / scale.numpy()
        worst[metric] = min(ess(f(scaled[:, :, k])) for k in range(6) for f in (np.asarray, np.square))
        if metric:
            for k in range(6):
                near(scaled[:, :, k] ** 2, 1.0, f"variance of coordinate {k}")
    assert worst["diagonal"] >= 5 * worst[None]


# Ladders


def test_ladders_have_the_rate_asked_for():
    levels = cr.ladder(gaussian(None), 1.0, 50.0, swap=0.4, kernel=cr.HMC(leaps=4))
    assert (levels[0], levels[-1]) == (1.0, 50.0)
    rates = [exact_rate(b / a) for a, b in itertools.pairwise(levels)]
    assert min(rates) > 0.2
    assert 0.3 < np.mean(rates) < 0.55


def hole(nbeta, dim, edges):
    """Distribution of the loss 1 − exp(−10 r²) over the prior N(0, 2)^dim, in bins: a hole in a plain."""
    r = np.linspace(1e-6, 14, 100001)
    loss = 1 - np.exp(-10 * r * r)
    log = -nbeta * loss - 0.25 * r * r + (dim - 1) * np.log(r)
    weight = np.exp(log - log.max())
    return np.histogram(loss, edges, weights=weight / weight.sum())[0]


def test_ladders_close_the_gap_at_a_first_order_transition():
    """A deep narrow hole against a wide plain: the loss jumps at nbeta 13, and geometric rungs do not overlap."""
    land = cr.Landscape.of_function(lambda w: 1 - torch.exp(-10 * w.square().sum()), torch.zeros(4), n=1000)
    edges = np.linspace(0, 1, 1001)
    middle = 0.5 * (edges[1:] + edges[:-1])

    def rate(a, b):
        joint = np.outer(hole(a, 4, edges), hole(b, 4, edges))
        return float((joint * np.exp(np.minimum((b - a) * (middle[None] - middle[:, None]), 0))).sum())

    levels = cr.ladder(
        cr.Posterior(land, None, cr.Gaussian(0.5)), 1.0, 200.0, kernel=cr.HMC(leaps=6, metric="diagonal")
    )
    even = np.geomspace(1.0, 200.0, len(levels))
    assert min(rate(a, b) for a, b in itertools.pairwise(even)) < 0.08
    assert min(rate(a, b) for a, b in itertools.pairwise(levels)) > 0.1
