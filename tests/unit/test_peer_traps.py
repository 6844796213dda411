"""Mistakes that estimators of the learning coefficient are known to make, and that must not happen here."""

import copy
import itertools
import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import crunode as cr
from crunode.core.rng import BatchStream

G = torch.Generator().manual_seed(4)
D, N = 10, 400
X = torch.randn(N, D, generator=G)
Y = (X @ torch.randn(D, 1, generator=G)) + torch.randn(N, 1, generator=G)
WBIC = N / math.log(N)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cr.DiagnosticWarning)
        yield


def fitted(x=X, y=Y):
    """Least squares: λ = d/2 exactly."""
    model = nn.Linear(x.shape[1], 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(x, y).solution.T)
    return model


def exact(nbeta, precision):
    """nβ E[L_n − L_n(w*)] of the conjugate posterior: ½ Tr(nβH (nβH + γ)⁻¹) at the least-squares solution."""
    h = torch.linalg.eigvalsh((X.T @ X / N).double())
    return 0.5 * float((nbeta * h / (nbeta * h + precision)).sum())


QUICK = {"nbeta": "wbic", "precision": 1.0, "chains": 2, "draws": 5, "warmup": 2, "kernel": cr.SGLD(1e-4, 32)}


@pytest.mark.parametrize("kernel", [cr.SGLD(1e-3, 32), cr.SGHMC(1e-3, 32), cr.SGNHT(1e-3, 32), cr.HMC(1e-3, leaps=2)])
def test_no_noise_on_frozen_parameters(kernel):
    model = nn.Sequential(nn.Linear(D, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    first = model[0](X)
    seen = []

    def hidden(land, w):
        losses = land.losses(w)
        a, b = w[:3], w[3]
        seen.append(w)
        return (losses - 0.5 * (first @ a + b - Y[:, 0]).square()).abs().max()

    land = cr.Landscape(model, (X, Y), "gaussian")
    posterior = cr.Posterior(land, 20.0, cr.Gaussian(1.0))
    draws = cr.sample(posterior, kernel, chains=2, draws=10, warmup=2, observe={"gap": hidden})
    assert land.dim == seen[0].numel() == 4
    assert draws.arrays["gap"].max() < 1e-3


KERNELS = [
    cr.SGLD(0.02),
    cr.PSGLD(0.02),
    cr.SGHMC(0.005),
    cr.SGNHT(0.005),
    cr.MALA(0.05),
    cr.HMC(0.15, leaps=4),
]


@pytest.mark.heavy
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
def test_the_temperature_is_the_one_asked_for(kernel):
    """On U = h·w²/2, h = t + γ, every coordinate has variance 1/h, for every kernel; Langevin steps add ε/4 to it."""
    land = cr.Landscape.of_function(lambda w: 0.5 * w.square().sum(), torch.zeros(40))
    posterior = cr.Posterior(land, nbeta=3.0, prior=cr.Gaussian(1.0))
    draws = cr.sample(posterior, kernel, chains=32, draws=1200, warmup=300, seed=1, layout="batched")
    variance = draws.arrays["distance2"].mean(1) / 40
    error = 4 * variance.std(ddof=1) / math.sqrt(32) + 0.01 * 0.25
    langevin = isinstance(kernel, cr.SGLD | cr.PSGLD)
    assert abs(variance.mean() - 0.25 / (1 - (kernel.step if langevin else 0.0))) < error
    assert error < 0.04 * 0.25


def test_a_folder_does_not_answer_for_another_model(tmp_path):
    store = tmp_path / "run"
    cr.llc(fitted(), (X, Y), "gaussian", **QUICK, store=store)
    other = fitted()
    with torch.no_grad():
        other.weight[0, 0] += 1e-3
    with pytest.raises(cr.StoreMismatch, match="landscape"):
        cr.llc(other, (X, Y), "gaussian", **QUICK, store=store)
    with pytest.raises(cr.StoreMismatch, match="landscape"):
        cr.llc(fitted(), (X, Y + 1e-3), "gaussian", **QUICK, store=store)
    with pytest.raises(cr.StoreMismatch, match="landscape"):
        cr.llc(fitted(), (X, Y), F.mse_loss, **QUICK, store=store)


def test_a_dead_chain_is_not_averaged_in():
    """Of chains that run into a wall of infinite loss only some do; neither they nor the rest give a value."""

    def walled(w):
        return torch.where(w[0] > 0.8, torch.nan, 1.0) * 0.5 * w.square().sum()

    land = cr.Landscape.of_function(walled, torch.zeros(1))
    options = {"nbeta": 4.0, "precision": 1.0, "kernel": cr.SGLD(step=0.01), "chains": 8, "draws": 200, "warmup": 0}
    with pytest.raises(cr.EstimationError) as caught:
        cr.llc(land, **options)
    partial = caught.value.partial
    dead = ~np.isfinite(partial.draws.arrays["excess"]).all(1)
    assert 0 < dead.sum() < 8
    returned = cr.llc(land, **options, on_failure="return")
    assert not returned.ok
    assert math.isnan(returned.value)
    assert "MC204" in [f.code for f in returned.findings]


def test_dropout_is_off():
    model = nn.Sequential(nn.Dropout(0.5), fitted())
    with_dropout = cr.llc(model.train(), (X, Y), "gaussian", **QUICK, layout="batched")
    without = cr.llc(copy.deepcopy(model).eval(), (X, Y), "gaussian", **QUICK, layout="batched")
    assert with_dropout.value == without.value
    assert "MODEL501" in [f.code for f in with_dropout.findings]
    assert model.training


def test_the_model_is_left_in_its_mode_and_without_gradients():
    model = nn.Sequential(nn.BatchNorm1d(D), fitted()).train()
    cr.llc(model, (X, Y), "gaussian", **QUICK)
    assert all(m.training for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.heavy
def test_six_seeds_agree_with_each_other_and_with_the_truth():
    """The baseline is the loss on all data, so that repeats differ by Monte-Carlo error only."""
    options = {"nbeta": "wbic", "precision": 1.0, "kernel": cr.HMC(step=0.01, leaps=6), "chains": 4, "draws": 100}
    model = fitted()
    estimates = [cr.llc(model, (X, Y), "gaussian", **options, warmup=20, seed=seed) for seed in range(6)]
    values = np.array([e.value for e in estimates])
    truth = exact(WBIC, 1.0)
    assert truth == pytest.approx(5.0, abs=0.1)
    assert all(abs(e.value - truth) < 3 * e.se for e in estimates)
    assert all(abs(e.value - 5.0) < 2 * e.error + 0.1 for e in estimates)
    assert values.std(ddof=1) < 2 * np.mean([e.se for e in estimates])
    assert values.std(ddof=1) < 0.5


def test_a_minibatch_chain_pairs_its_losses_with_the_center():
    """At step 0 every chain is at the center: whatever the minibatch, the excess is exactly zero."""
    posterior = cr.Posterior(cr.Landscape(fitted(), (X, Y), "gaussian"), WBIC, cr.Gaussian(1.0))
    for layout in ("batched", "sequential"):
        draws = cr.sample(posterior, cr.SGLD(1e-4, 8), chains=3, draws=3, warmup=0, layout=layout)
        assert np.abs(draws.arrays["excess"][:, 0]).max() < 1e-6


def test_nbeta_comes_from_n_not_from_the_batch():
    for batch in (8, 64):
        kernel = cr.SGLD(1e-4, batch)
        estimate = cr.llc(fitted(), DataLoader(TensorDataset(X, Y), batch), "gaussian", **{**QUICK, "kernel": kernel})
        assert estimate.draws.levels() == [pytest.approx(WBIC)]
        assert estimate.spec["n"] == N


def test_a_loss_of_exactly_zero_at_the_center_is_a_number():
    model = fitted()
    with torch.no_grad():
        target = model(X)
    for kernel in (cr.HMC(1e-3, leaps=4), cr.SGLD(1e-4, 64)):
        options = {**QUICK, "kernel": kernel, "draws": 40}
        estimate = cr.llc(model, (X, target), "gaussian", **options)
        assert float(cr.Landscape(model, (X, target), "gaussian").loss()) == 0.0
        assert estimate.value == pytest.approx(WBIC * estimate.draws.arrays["excess"].mean())
        assert estimate.value > 0


def test_warm_up_is_not_averaged_in():
    options = {**QUICK, "draws": 50, "warmup": 50, "kernel": cr.SGLD(1e-5, 64)}
    estimate = cr.llc(fitted(), (X, Y), "gaussian", **options)
    draws = estimate.draws
    assert draws.warmup["excess"].shape == draws.arrays["excess"].shape == (2, 50)
    assert estimate.value == pytest.approx(WBIC * draws.arrays["excess"].mean())
    together = np.concatenate([draws.warmup["excess"], draws.arrays["excess"]], 1)
    assert estimate.value != pytest.approx(WBIC * together.mean(), rel=0.05)


def test_the_callers_arguments_stay_as_they_are():
    observe, keep = {"norm": lambda land, w: w.norm()}, ["positions"]
    kernel = cr.SGLD()
    posterior = cr.Posterior(cr.Landscape(fitted(), (X, Y), "gaussian"), "wbic")
    cr.sample(posterior, kernel, chains=2, draws=3, warmup=1, observe=observe, keep=keep)
    assert (list(observe), keep, kernel, posterior.nbeta) == (["norm"], ["positions"], cr.SGLD(), "wbic")
    assert posterior.prior == cr.Gaussian()


def test_chains_see_different_minibatches_even_if_the_loader_has_its_own_generator():
    loader = DataLoader(TensorDataset(X, Y), 8, shuffle=True, generator=torch.Generator().manual_seed(0))
    estimate = cr.llc(fitted(), loader, "gaussian", **QUICK)
    excess = estimate.draws.arrays["excess"]
    assert not np.array_equal(excess[0], excess[1])
    orders = [tuple(row.tolist()) for row in BatchStream(0, range(6), n=N, batch=8).at(0)]
    assert all(a != b for a, b in itertools.combinations(orders, 2))


def test_chains_have_different_noise():
    draws = cr.sample(
        cr.Posterior(cr.Landscape(fitted(), (X, Y), "gaussian"), 20.0, cr.Gaussian(1.0)),
        cr.SGLD(1e-3, N),
        chains=3,
        draws=2,
        warmup=1,
        keep=["positions"],
    )
    first = draws.arrays["positions"][:, 0]
    assert all(not np.allclose(a, b) for a, b in itertools.combinations(first, 2))


def test_an_unequal_last_batch_counts_by_its_examples():
    """Batches of unlike shapes stay apart; a short one must not weigh as much as a long one."""
    batches = [(X[:380], torch.zeros(380, 3), Y[:380]), (X[380:], torch.zeros(20, 2), Y[380:])]
    land = cr.Landscape(fitted(), batches, lambda model, batch: 0.5 * (model(batch[0]) - batch[2]).square().sum(1))
    whole = cr.Landscape(fitted(), (X, Y), "gaussian")
    assert not land.data.stacked
    torch.testing.assert_close(land.loss(), whole.loss())
    posterior = {name: cr.Posterior(each, WBIC, cr.Gaussian(1.0)) for name, each in (("apart", land), ("whole", whole))}
    same = {"chains": 2, "draws": 20, "warmup": 5, "layout": "sequential"}
    drawn = {name: cr.sample(each, cr.HMC(0.01, leaps=4), **same).arrays["excess"] for name, each in posterior.items()}
    np.testing.assert_allclose(drawn["apart"], drawn["whole"], rtol=1e-3, atol=1e-5)
    owners = [len(land.data.take(torch.tensor([k]))[0]) for k in range(N)]
    assert (owners.count(380), owners.count(20)) == (380, 20)
