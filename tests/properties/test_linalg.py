"""What random estimates of a matrix must not depend on: its scale, its basis; and how they follow it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as limited
from hypothesis import strategies as st

from crunode.curvature.dimension import effective_dimension, matrix_rank, participation_ratio
from crunode.curvature.lanczos import log_determinant, spectral_density, top_eigenvalues, tridiagonalize
from crunode.curvature.linalg import diagonal, trace

SIZE = 24
FEW = {"probes": 4, "steps": 5, "tolerance": None}
seeds = st.integers(0, 2**32)
scales = st.floats(1e-3, 1e3)


def random_matrix(seed, size=SIZE):
    made = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made @ made.T / size


def rotation(seed, size=SIZE):
    made = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(made).Q


@limited(max_examples=12)
@given(seeds, scales)
def test_scaled_matrices_have_scaled_estimates(seed, scale):
    matrix = random_matrix(seed)
    for method in ("hutchinson", "hutch++", "xtrace"):
        one, other = (trace(scale**k * matrix, method=method, probes=12, tolerance=None) for k in (0, 1))
        assert other.value == pytest.approx(scale * one.value, rel=1e-8)
        assert other.se == pytest.approx(scale * one.se, rel=1e-6)
    assert diagonal(scale * matrix, probes=8, tolerance=None).errors == pytest.approx(
        scale * diagonal(matrix, probes=8, tolerance=None).errors, rel=1e-8
    )
    one, other = (spectral_density(scale**k * matrix, **FEW) for k in (0, 1))
    assert other.nodes == pytest.approx(scale * one.nodes, rel=1e-7, abs=1e-9 * scale)
    assert other.density == pytest.approx(one.density / scale, rel=1e-5, abs=1e-9 / scale)
    assert other.residuals == pytest.approx(scale * one.residuals, rel=1e-5, abs=1e-9 * scale)


@limited(max_examples=12)
@given(seeds, scales)
def test_numbers_without_a_scale(seed, scale):
    matrix = random_matrix(seed)
    one, other = (effective_dimension(scale**k * matrix, 0.1 * scale**k, **FEW) for k in (0, 1))
    assert other.value == pytest.approx(one.value, rel=1e-8)
    one, other = (participation_ratio(scale**k * matrix, probes=8, tolerance=None) for k in (0, 1))
    assert (other.value, other.se) == pytest.approx((one.value, one.se), rel=1e-8)
    one, other = (log_determinant(scale**k * matrix, 0.1 * scale**k, **FEW) for k in (0, 1))
    assert other.value == pytest.approx(one.value + SIZE * np.log(scale), rel=1e-8, abs=1e-8)


@limited(max_examples=12)
@given(seeds, st.integers(1, 4), st.integers(2, 12))
def test_residuals_and_intervals_hold(seed, k, steps):
    matrix = random_matrix(seed, 60)
    truth = torch.linalg.eigvalsh(matrix).numpy()[::-1]
    found = top_eigenvalues(matrix, k, steps=steps, tolerance=None, seed=seed)
    nearest = np.abs(found.values[:, None] - truth).min(1)
    assert (nearest <= found.errors).all()
    assert (found.values <= truth[:k] + 1e-12 * truth[0]).all()
    for run in tridiagonalize(matrix, rotation(seed, 60)[:, :3], steps):
        nodes, weights, residuals = run.rule()
        assert (np.abs(nodes[:, None] - truth).min(1) <= residuals + 1e-12 * truth[0]).all()
        assert weights.sum() == pytest.approx(1)


@limited(max_examples=12)
@given(seeds, st.integers(0, 10))
def test_rank_does_not_depend_on_the_basis(seed, rank):
    values = torch.zeros(SIZE, dtype=torch.float64)
    values[:rank] = torch.linspace(-1, 2, rank).double() + 0.1
    turn = rotation(seed)
    matrix = turn * values @ turn.T
    truth = int((values != 0).sum())
    assert matrix_rank((matrix + matrix.T) / 2, products=20, seed=seed).value == truth
    assert matrix_rank((matrix + matrix.T) / 2, products=64).value == truth


@limited(max_examples=4)
@given(seeds)
def test_orthogonal_similarity_leaves_means_alone(seed):
    # Two means over 20 seeds, less than five standard errors apart: a false alarm for one of 12 cases has probability
    # below 2e-4 (Student's t with 38 degrees of freedom).
    matrix, turn = random_matrix(7), rotation(seed)
    other = turn @ matrix @ turn.T
    other = (other + other.T) / 2
    for ask in (
        lambda a, s: trace(a, probes=8, tolerance=None, seed=s).value,
        lambda a, s: trace(a, method="xtrace", probes=8, tolerance=None, seed=s).value,
        lambda a, s: spectral_density(a, seed=s, **FEW).mass(0.0, 0.5).value,
    ):
        both = np.array([[ask(a, s) for s in range(first, first + 20)] for a, first in ((matrix, 0), (other, 1000))])
        apart = both[0].mean() - both[1].mean()
        assert abs(apart) < 5 * np.sqrt(both.var(1, ddof=1).sum() / 20) + 1e-9
