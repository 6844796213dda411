"""Densities, masses and cuts of spectra in closed form."""

import math

import numpy as np
import pytest
import torch

from crunode.curvature.block_lanczos import block_tridiagonal
from crunode.curvature.lanczos import SpectralDensity, spectral_density
from crunode.curvature.rank import clear_count, numeric_rank


class Counted:
    def __init__(self, values):
        self.values, self.positive, self.symmetric = torch.as_tensor(values, dtype=torch.float64), False, True
        self.shape, self.dtype, self.device = (len(values), len(values)), torch.float64, torch.device("cpu")

    def __matmul__(self, vectors):
        return self.values[:, None] * vectors if vectors.ndim == 2 else self.values * vectors


def bumps(grid, values, width):
    return np.exp(-0.5 * ((grid - np.asarray(values)[:, None]) / width) ** 2).mean(0) / (width * math.sqrt(2 * math.pi))


def test_a_small_matrix_has_a_bump_at_each_eigenvalue():
    values = [0.0, 1.0, 5.0]
    found = spectral_density(torch.diag(torch.tensor(values, dtype=torch.float64)), steps=11, points=101)
    assert found.width == pytest.approx(5 / (3 * 10))
    assert (found.grid[0], found.grid[-1], len(found.grid)) == (
        pytest.approx(-5 * found.width),
        pytest.approx(5 + 5 * found.width),
        101,
    )
    assert found.density == pytest.approx(bumps(found.grid, values, found.width))
    assert found.density.sum() * (found.grid[1] - found.grid[0]) == pytest.approx(1, abs=1e-3)
    assert not found.se.any()
    assert found.diagnostics == {"probes": 0, "products": 3}
    coarse = spectral_density(torch.diag(torch.tensor(values, dtype=torch.float64)), steps=64, points=20)
    assert coarse.width == pytest.approx(2 * 5 / 20)
    given = spectral_density(torch.eye(2, dtype=torch.float64), width=0.3, points=51)
    assert given.density == pytest.approx(bumps(given.grid, [1.0], 0.3))
    alike = spectral_density(4 * torch.eye(2, dtype=torch.float64), steps=11)
    assert alike.width == pytest.approx(4 * 0.1 / 30)


def test_many_eigenvalues_are_seen_by_few_steps():
    values = np.linspace(1, 3, 400)
    found = spectral_density(Counted(values), probes=6, steps=20, tolerance=None)
    assert found.diagnostics["probes"] == 6
    assert found.diagnostics["products"] == 120
    integral = found.se.sum() * (found.grid[1] - found.grid[0])
    assert found.diagnostics["integrated_se"] == pytest.approx(integral)
    assert (found.spec["probes"], found.spec["steps"]) == (6, 20)
    assert found.weights.sum(1) == pytest.approx(np.ones(6))
    assert found.moment(1).value == pytest.approx(2)
    assert found.moment(3).value == pytest.approx((values**3).mean())
    for low, high in ((1.5, 2.5), (0.0, 1.7), (2.2, 9.0)):
        share = found.mass(low, high)
        exact = ((values > low) & (values < high)).mean()
        assert abs(share.value - exact) < share.systematic + 3 * share.se + 1e-9 < 0.2
    assert found.density.sum() * (found.grid[1] - found.grid[0]) == pytest.approx(1, abs=1e-3)


def made(nodes, weights, residuals):
    nodes, weights, residuals = (np.atleast_2d(np.asarray(x, dtype=float)) for x in (nodes, weights, residuals))
    grid = np.linspace(-1, 5, 10)
    return SpectralDensity(grid, 0 * grid, 0 * grid, nodes, weights, residuals, 10, 0.1)


def test_nodes_that_are_cut_through_are_shared_out_by_their_residuals():
    exact = made([[0.0, 1.0, 4.0]], [[0.5, 0.3, 0.2]], [[0.0, 0.0, 0.0]])
    assert exact.mass(-1, 0.5).value == 0.5
    assert exact.mass(0.5, 2).value == pytest.approx(0.3)
    # A residual of 0.4 spreads the weight of 1 from 0.6 to 1.4, one of 9 no further than half-way to its neighbours.
    loose = made([[0.0, 1.0, 4.0]], [[0.5, 0.3, 0.2]], [[0.0, 0.4, 0.0]])
    found = loose.mass(-1, 0.8)
    assert found.value == pytest.approx(0.5 + 0.3 * 0.25)
    assert found.systematic == pytest.approx(0.3 * 0.25)
    assert loose.mass(-1, 1.2).systematic == pytest.approx(0.3 * 0.25)
    wide = made([[0.0, 1.0, 4.0]], [[0.5, 0.3, 0.2]], [[0.0, 9.0, 0.0]])
    assert wide.mass(-1, 2.0).value == pytest.approx(0.5 + 0.3 * 1.5 / 2)
    both = wide.mass(0.75, 2.0)
    assert both.value == pytest.approx(0.3 * (1.5 - 0.25) / 2)
    assert both.systematic == pytest.approx(0.3 * (0.25 + 0.5) / 2)
    last = made([[0.0, 1.0, 4.0]], [[0.5, 0.3, 0.2]], [[9.0, 0.0, 9.0]])
    assert last.mass(-1, 4.5).value == pytest.approx(0.5 + 0.3 + 0.2 * 2 / 10.5 - 0.5 * 8 / 9.5)
    two = made([[0.0, 1.0], [0.0, 1.0]], [[0.4, 0.6], [0.6, 0.4]], np.zeros((2, 2)))
    assert two.moment(1).value == pytest.approx(0.5)
    assert 0.1 <= two.moment(1).se < 1


def test_blocks_beside_the_diagonal_are_transposes():
    rng = np.random.default_rng(0)
    cores = [rng.normal(size=(k, k)) for k in (3, 2, 2)]
    cores = [core + core.T for core in cores]
    couplings = [rng.normal(size=(2, 3)), rng.normal(size=(2, 2)), rng.normal(size=(1, 2))]
    whole = block_tridiagonal(cores, couplings)
    assert whole == pytest.approx(whole.T)
    assert whole[3:5, :3] == pytest.approx(couplings[0])
    assert whole[5:, 3:5] == pytest.approx(couplings[1])
    assert not whole[5:, :3].any()
    assert whole[3:5, 3:5] == pytest.approx(cores[1])


def test_a_gap_of_a_hundred_near_the_resolution_is_a_rank():
    found = numeric_rank([1.0, 0.1, 2e-5, 1e-9], 4, 1e-6)
    assert (found.rank, found.low, found.high, found.decided) == (3, 3, 3, True)
    assert found.gap == pytest.approx(2e4)
    assert found.tolerance == pytest.approx(math.sqrt(2e-5 * 1e-9))
    # The cut may be moved by a factor of ten to the widest gap, either way.
    assert numeric_rank([1.0, 2e-3, 9e-6, 4e-7, 2e-8], 5, 1e-6).rank == 2
    assert not numeric_rank([1.0, 2e-3, 1.1e-5, 4e-7, 2e-8], 5, 1e-6).decided
    assert numeric_rank([1.0, 1e-2, 1e-4, 5e-6, 1.1e-7, 1e-10], 6, 1e-6).rank == 5
    assert not numeric_rank([1.0, 1e-2, 1e-4, 5e-6, 0.9e-7, 1e-10], 6, 1e-6).decided
    narrow = numeric_rank([1.0, 1e-3, 3e-5, 3e-6, 2e-7, 4e-9, 3e-10], 5, 1e-6)
    assert (narrow.decided, narrow.low, narrow.high) == (False, 4, 7)
    assert narrow.gap == pytest.approx(50)
    assert narrow.tolerance == pytest.approx(1e-6)
    just = [1.0, 1e-3, 3e-5, 3e-6, 2e-7, 2e-7 / 101, 1e-10]
    assert numeric_rank(just, 5, 1e-6).rank == 5
    assert not numeric_rank([1.0, 1e-3, 3e-5, 3e-6, 2e-7, 2e-7 / 99, 1e-10], 5, 1e-6).decided
    # Rounding of doubles grows with the side.
    falling = [10.0**-k for k in range(17)]
    assert [numeric_rank(falling, size, 1e-6).high for size in (10, 1000, 100_000)] == [14, 12, 10]
    assert numeric_rank([-2.0, 0.0, 1e-12], 3, 1e-6).rank == 1


def test_signs_of_a_factorization_count_only_where_nothing_is_near():
    chance = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(40, 40, generator=chance, dtype=torch.float64)).Q

    def turned(values):
        full = torch.zeros(40, dtype=torch.float64)
        full[: len(values)] = torch.as_tensor(values, dtype=torch.float64)
        return axes * full @ axes.T

    strong = [1.0] * 7
    assert clear_count(turned(strong), 1e-3, 1e-6) == 7
    assert clear_count(turned([*strong, 1e-2]), 1e-3, 1e-6) == 8
    assert clear_count(turned([*strong, 1e-9]), 1e-3, 1e-6) is None  # 3e-5 of the largest singular value
    assert clear_count(torch.eye(5, dtype=torch.float64), 1e-3, 1e-6) == 5
    assert clear_count(torch.zeros(3, 3, dtype=torch.float64), 1e-3, 1e-6) is None
    assert clear_count(turned(strong), 1e-6, 1e-7) is None  # rounding reaches up to where nothing may be
