"""Posteriors of one model on many data sets in one batch: the same draws as on their own, with their own centers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from crunode import HMC, NUTS, Exchange, Gaussian, InputError, Landscape, Posterior, Processes, sample, sample_each
from crunode.core.rng import derived_seed
from crunode.sampling.diagnostics import mcse_mean

N = 30


def landscape(k: int, n: int = N, bias: bool = False) -> Landscape:
    generator = torch.Generator().manual_seed(derived_seed(5, k))
    x = torch.randn(n, 2, generator=generator)
    y = x @ torch.tensor([[1.0], [-0.5]]) * k + torch.randn(n, 1, generator=generator)
    model = nn.Linear(2, 1, bias=bias)
    with torch.no_grad():
        model.weight.copy_(torch.full_like(model.weight, 0.1 * k))
    return Landscape(model, (x, y), "gaussian")


def posteriors(count: int, nbeta: float | tuple[float, ...] = 30.0, mean: str = "origin") -> list[Posterior]:
    return [Posterior(landscape(k), nbeta, Gaussian(0.5, mean=mean)) for k in range(1, count + 1)]


@pytest.mark.parametrize("mean", ["origin", "center"])
def test_the_first_has_the_draws_that_it_has_alone(mean: str) -> None:
    kernel, length = HMC(step=0.05, leaps=5), {"chains": 3, "draws": 40, "warmup": 10}
    posts = posteriors(3, mean=mean)
    together = sample_each(posts, kernel, seed=4, keep=("positions", "pointwise"), **length)
    alone = sample(posts[0], kernel, seed=4, keep=("positions", "pointwise"), layout="batched", **length)
    for name, array in alone.arrays.items():
        np.testing.assert_allclose(together[0].arrays[name], array, rtol=2e-4, atol=2e-5, err_msg=name)


def test_others_do_not_matter() -> None:
    kernel, length = HMC(step=0.05, leaps=5), {"chains": 2, "draws": 30, "warmup": 10, "seed": 1}
    one, two, three = posteriors(3)
    first, second = sample_each([one, two], kernel, **length), sample_each([three, two, one], kernel, **length)
    np.testing.assert_allclose(first[1].arrays["excess"], second[1].arrays["excess"], rtol=1e-4, atol=1e-6)
    assert not np.allclose(first[0].arrays["excess"], second[0].arrays["excess"])


@pytest.mark.heavy
def test_each_is_its_own_posterior_at_all_levels() -> None:
    """Conjugate means and the variance of the first weight within 5 standard errors: one in 10⁵ fails by chance."""
    levels = (3.0, 10.0, 30.0)
    posts = posteriors(4, levels)
    kernel = Exchange(HMC(leaps=6, metric="diagonal"))
    for post, draws in zip(
        posts, sample_each(posts, kernel, chains=4, draws=400, warmup=150, seed=2, keep=("positions",)), strict=True
    ):
        x, y = (t.double().numpy() for t in post.landscape.data.tensors())
        for t in levels:
            covariance = np.linalg.inv(t / N * x.T @ x + 0.5 * np.eye(2))
            mean = covariance @ (t / N * x.T @ y)[:, 0]
            w = draws.at(t)["positions"].astype(np.float64)
            for k in range(2):
                assert abs(w[..., k].mean() - mean[k]) < 5 * mcse_mean(w[..., k])
                square = (w[..., k] - mean[k]) ** 2
                assert abs(square.mean() - covariance[k, k]) < 5 * mcse_mean(square)


def test_distances_are_from_its_own_center() -> None:
    posts = posteriors(2)
    for post, draws in zip(
        posts,
        sample_each(posts, HMC(step=0.02, leaps=3), chains=2, draws=5, warmup=0, keep=("positions",)),
        strict=True,
    ):
        away = draws.arrays["positions"] - post.landscape.center.numpy()
        np.testing.assert_allclose(draws.arrays["distance2"], (away**2).sum(-1), rtol=1e-4)


@pytest.mark.heavy
def test_executors_and_observables() -> None:
    posts, kernel = posteriors(3), HMC(step=0.05, leaps=3)
    length = {"chains": 2, "draws": 10, "warmup": 5, "observe": {"rows": _rows}}
    here, there = sample_each(posts, kernel, **length), sample_each(posts, kernel, executor=Processes(2), **length)
    for k, (one, other) in enumerate(zip(here, there, strict=True)):
        np.testing.assert_allclose(one.arrays["excess"], other.arrays["excess"], rtol=1e-4, atol=1e-6)
        assert np.allclose(one.arrays["rows"], _rows(posts[k].landscape, torch.zeros(2)))


def _rows(land: Landscape, w: torch.Tensor) -> torch.Tensor:
    return land.data.tensors()[1].sum()


def test_what_does_not_go_together_is_refused() -> None:
    post = posteriors(1)[0]
    others = {
        "examples": Posterior(landscape(1, n=N + 1), 30.0, post.prior),
        "nbeta and the prior": Posterior(landscape(2), 20.0, post.prior),
        "model": Posterior(landscape(1, bias=True), 30.0, post.prior),
    }
    for words, other in others.items():
        with pytest.raises(InputError, match=words):
            sample_each([post, other], HMC(step=0.1))
    with pytest.raises(InputError, match="sequence of posteriors"):
        sample_each([], HMC(step=0.1))


def test_settings_are_checked_and_kernels_have_their_say() -> None:
    posts = posteriors(2)
    for words, options in {"keep among": {"keep": ("position",)}, "draws": {"draws": 0}, "seed": {"seed": -1}}.items():
        with pytest.raises(InputError, match=words):
            sample_each(posts, HMC(step=0.1), **options)
    with pytest.raises(InputError, match="two or more levels"):
        sample_each(posts, Exchange(HMC(step=0.1)))
    shallow = sample_each(posts, NUTS(step=1e-4, depth=1, accept=None), chains=2, draws=10, warmup=0)
    assert all("MC209" in [f.code for f in draws.findings] for draws in shallow)
