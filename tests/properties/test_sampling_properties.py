"""Sampling: what holds for any scale, any set of chains and any sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crunode.core.landscape import Landscape
from crunode.core.rng import BatchStream, NoiseStream
from crunode.sampling.metropolis import HMC, MALA
from crunode.sampling.posterior import Flat, Gaussian, Posterior
from crunode.sampling.run import sample
from crunode.sampling.stochastic import PSGLD, SGHMC, SGLD, SGNHT

seeds = st.integers(0, 2**31)
chain_sets = st.lists(st.integers(0, 40), min_size=1, max_size=6, unique=True)


def well(scale):
    """A loss with a flat and a steep direction and a quartic part, times a factor."""
    at = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64)
    curvature = torch.tensor([0.1, 1.0, 4.0], dtype=torch.float64)
    return Landscape.of_function(lambda w: scale * ((curvature * w * w).sum() + (w[0] * w[1]) ** 2), at, n=500)


@settings(max_examples=12)
@given(
    kernel=st.sampled_from([SGLD(2e-3), PSGLD(2e-3), SGHMC(2e-3), SGNHT(2e-3), MALA(2e-3), HMC(2e-3, leaps=3)]),
    factor=st.floats(1e-3, 1e3),
    nbeta=st.floats(1.0, 50.0),
    flat=st.booleans(),
    seed=seeds,
)
def test_loss_times_c_with_nbeta_over_c_gives_the_same_draws(kernel, factor, nbeta, flat, seed):
    prior = Flat() if flat else Gaussian(2.0)
    size = {"chains": 2, "draws": 12, "warmup": 4, "seed": seed, "keep": ["positions"], "layout": "batched"}
    one = sample(Posterior(well(1.0), nbeta, prior), kernel, **size).arrays
    other = sample(Posterior(well(factor), nbeta / factor, prior), kernel, **size).arrays
    np.testing.assert_allclose(other["positions"], one["positions"], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(other["excess"] / factor, one["excess"], rtol=1e-7, atol=1e-9)


@settings(max_examples=40)
@given(seeds, chain_sets, st.integers(1, 9), st.integers(0, 50_000), st.sampled_from(["normal", "uniform"]), st.data())
def test_noise_of_a_chain_does_not_depend_on_the_others(seed, chains, width, step, kind, data):
    some = data.draw(st.lists(st.sampled_from(chains), min_size=1, unique=True))
    options = {"stream": 0, "kind": kind, "dtype": torch.float64}
    together = NoiseStream(seed, chains, width, **options)
    together.at(data.draw(st.integers(0, 50_000)))  # nor on what was drawn before
    rows = together.at(step).clone()
    assert rows.shape == (len(chains), width)
    alone = NoiseStream(seed, some, width, **options).at(step)
    assert torch.equal(rows[[chains.index(chain) for chain in some]], alone)


@settings(max_examples=20)
@given(seeds, st.integers(1, 5), st.integers(0, 1000))
def test_noise_differs_by_seed_chain_stream_and_step(seed, width, step):
    def at(seed, chain, stream, step):
        return NoiseStream(seed, [chain], width, stream=stream, dtype=torch.float64).at(step).clone()

    first = at(seed, 0, 0, step)
    for other in ((seed + 1, 0, 0, step), (seed, 1, 0, step), (seed, 0, 1, step), (seed, 0, 0, step + 1)):
        assert not torch.equal(first, at(*other))


@settings(max_examples=60)
@given(seeds, chain_sets, st.integers(1, 60), st.integers(1, 60), st.integers(0, 100_000))
def test_batches_depend_on_seed_chain_and_step_alone(seed, chains, n, batch, step):
    rows = BatchStream(seed, chains, n=n, batch=batch).at(step)
    assert rows.shape == (len(chains), batch)
    assert int(rows.min()) >= 0
    assert int(rows.max()) < n
    for k, chain in enumerate(chains):
        assert torch.equal(BatchStream(seed, [chain], n=n, batch=batch).at(step)[0], rows[k])


def test_batches_are_uniform_and_independent_of_the_step_before():
    stream = BatchStream(0, range(4), n=10, batch=5)
    rows = torch.stack([stream.at(k).clone() for k in range(2000)])
    counts = torch.bincount(rows.reshape(-1), minlength=10).double()
    expected = rows.numel() / 10
    assert float((counts - expected).abs().max()) < 5 * expected**0.5
    again = (rows[1:, :, :, None] == rows[:-1, :, None, :]).double().mean()
    assert float(again) == pytest.approx(0.1, abs=0.005)


def test_noise_has_its_moments():
    rows = [
        NoiseStream(seed, range(20), 50, stream=0, dtype=torch.float64).at(step)
        for seed in range(5)
        for step in (0, 655, 656)
    ]
    values = torch.stack(rows)
    count = values.numel()
    assert float(values.mean()) == pytest.approx(0, abs=5 / count**0.5)
    assert float(values.square().mean()) == pytest.approx(1, abs=5 * (2 / count) ** 0.5)
    flat = values.reshape(-1, 50)
    products = (flat[1:] * flat[:-1]).mean()  # of neighboring chains and steps
    assert float(products) == pytest.approx(0, abs=5 / count**0.5)
