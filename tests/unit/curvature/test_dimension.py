"""Rank, effective dimension, participation ratio and sharpness."""

import numpy as np
import pytest
import torch

from crunode.curvature.dimension import effective_dimension, matrix_rank, participation_ratio, sharpness
from crunode.errors import EstimationError, InputError

REPEATS = 200


class Known:
    def __init__(self, matrix, positive=False):
        self._matrix, self.positive = matrix, positive
        self.shape, self.dtype, self.device = tuple(matrix.shape), matrix.dtype, matrix.device

    def __matmul__(self, vectors):
        return self._matrix @ vectors


def turned(values, seed=0):
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    values = torch.as_tensor(values, dtype=torch.float64)
    chance = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(len(values), len(values), generator=chance, dtype=torch.float64)).Q
    whole = q * values @ q.T
    return (whole + whole.T) / 2


def of_rank(rank, size, low=0.5):
    values = torch.zeros(size)
    values[:rank] = torch.linspace(low, 1, rank)
    return values


def coverage(found, truth):
    return np.mean([abs(e.value - truth) <= 2 * e.error for e in found])


def test_small_matrices_are_exact():
    values = torch.tensor([0.0, 1.0, 3.0])
    matrix = turned(values)
    dimension = effective_dimension(matrix, 1.0)
    assert dimension.value == pytest.approx(1 / 2 + 3 / 4)
    assert participation_ratio(matrix).value == pytest.approx(16 / 10)
    assert sharpness(matrix).value == pytest.approx(3)
    assert matrix_rank(matrix).value == 2
    one = torch.tensor([[2.0]])
    assert effective_dimension(one, 2.0).value == pytest.approx(0.5)
    assert participation_ratio(one).value == pytest.approx(1)
    assert (sharpness(one).value, matrix_rank(one).value) == (2.0, 1.0)
    for found in (dimension, participation_ratio(matrix), matrix_rank(matrix)):
        assert (found.se, found.systematic, found.findings) == (0, 0, ())


def test_zero_matrix():
    for size in (3, 400):
        zero = torch.zeros(size, size)
        assert effective_dimension(zero, 0.1).value == 0
        assert (sharpness(zero).value, matrix_rank(zero, products=32).value) == (0, 0)
        with pytest.raises(InputError, match="other than zero"):
            participation_ratio(zero, probes=32)


@pytest.mark.heavy
def test_errors_of_the_effective_dimension_cover():
    # At a coverage of 95.4 %, 200 repeats give a share outside [0.90, 0.995] with probability 1e-3.
    values = torch.arange(1.0, 101.0).double() ** -1.5
    matrix, truth = turned(values), float((values / (values + 0.01)).sum())
    settings = {"probes": 8, "steps": 10, "tolerance": None}
    found = [effective_dimension(matrix, 0.01, seed=seed, **settings) for seed in range(REPEATS)]
    assert 0.90 <= coverage(found, truth) <= 0.995
    off = np.array([e.value - truth for e in found])
    assert np.mean([e.se for e in found]) < 1.3 * off.std()


def test_steps_that_do_not_suffice_are_enclosed():
    values = torch.linspace(0, 1, 300).double() ** 6
    truth = float((values / (values + 1e-4)).sum())
    found = effective_dimension(turned(values), 1e-4, probes=32, steps=4, tolerance=None)
    assert "CURV813" in [f.code for f in found.findings]
    assert abs(found.value - truth) < found.systematic + 3 * found.se


def test_errors_of_the_participation_ratio_cover():
    values = torch.linspace(-0.2, 1, 90).double()
    matrix, truth = turned(values), float(values.sum() ** 2 / values.square().sum())
    found = [participation_ratio(matrix, probes=16, tolerance=None, seed=seed) for seed in range(REPEATS)]
    assert 0.90 <= coverage(found, truth) <= 0.995
    off = np.array([e.value - truth for e in found])
    assert abs(off.mean()) < 4 * off.std() / REPEATS**0.5 + 0.1 * off.std()
    assert [f.code for f in participation_ratio(matrix, probes=8, tolerance=1e-6).findings] == ["CURV811"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [0, 1, 5, 27])
def test_ranks_by_sketches_and_by_eigenvalues(rank, dtype):
    matrix = turned(of_rank(rank, 120)).to(dtype)
    for products, method in ((64, "sketch"), (128, "exact")):
        found = matrix_rank(matrix, products=products)
        assert (found.value, found.se, found.systematic) == (rank, 0, 0)
        assert (found.spec["method"], found.findings) == (method, ())


@pytest.mark.heavy
def test_errors_of_ranks_by_quadrature_cover():
    # 60 repeats at 95.4 %: a share below 0.83 has probability 3e-4.
    matrix = turned(of_rank(90, 140))
    found = [matrix_rank(matrix, products=16, probes=8, steps=30, seed=seed) for seed in range(60)]
    assert not any(e.findings for e in found)
    assert {e.spec["method"] for e in found} == {"quadrature"}
    assert coverage(found, 90) >= 0.83
    assert np.mean([e.se for e in found]) < 6


def test_rank_without_a_gap():
    values = 10.0 ** -torch.linspace(0, 20, 100).double()
    found = matrix_rank(turned(values))
    assert [f.code for f in found.findings] == ["CURV814"]
    assert found.diagnostics["low"] < found.value < found.diagnostics["high"]
    # A factor of ten on both sides of the limit holds 99/20 eigenvalues each.
    assert found.systematic == pytest.approx(99 / 20, abs=1)
    wide = matrix_rank(turned(values), products=8, probes=8, steps=40)
    assert wide.spec["method"] == "quadrature"
    assert "CURV814" in [f.code for f in wide.findings]
    # Too few steps to tell zeros from small eigenvalues.
    few = matrix_rank(turned(of_rank(90, 140)), products=16, steps=6)
    assert "CURV814" in [f.code for f in few.findings]
    assert few.diagnostics["low"] < 100 < few.diagnostics["high"] + 10


def test_negative_eigenvalues():
    matrix = turned(torch.linspace(-0.5, 1, 120))
    found = effective_dimension(matrix, 1.0, probes=8, steps=10, tolerance=None)
    assert "CURV815" in [f.code for f in found.findings]
    for settings in ({"probes": 8, "steps": 10}, {}):
        with pytest.raises(InputError, match="positive definite"):
            effective_dimension(matrix, 0.1, **settings)
    rounded = effective_dimension(turned(of_rank(20, 120)).float(), 1e-3, probes=8, steps=10, tolerance=None)
    assert "CURV815" not in [f.code for f in rounded.findings]


def test_sharpness_has_its_residual():
    matrix = turned(torch.cat([torch.tensor([-9.0, 5.0]), torch.linspace(0, 1, 298)]))
    found = sharpness(matrix)
    assert abs(found.value - 5) <= found.systematic <= 5e-2
    assert [f.code for f in sharpness(turned(torch.linspace(0, 1, 300)), steps=3).findings] == ["CURV813"]


@pytest.mark.parametrize("gamma", [0.0, -1.0, float("nan"), float("inf"), "1"])
def test_bad_gamma(gamma):
    with pytest.raises(InputError, match="gamma"):
        effective_dimension(torch.eye(3), gamma)


@pytest.mark.parametrize(
    "ask",
    [lambda a, **s: effective_dimension(a, 1.0, **s), participation_ratio, sharpness, matrix_rank],
    ids=["effective_dimension", "participation_ratio", "sharpness", "matrix_rank"],
)
def test_bad_matrices(ask):
    for matrix in (torch.ones(2, 3), torch.ones(0, 0), torch.full((2, 2), torch.nan), torch.ones(2, 2).triu()):
        with pytest.raises(InputError):
            ask(matrix)
    with pytest.raises(EstimationError, match="finite"):
        ask(Known(torch.full((400, 400), torch.nan)))
    with pytest.raises(InputError):
        ask(torch.eye(3), seed=-1)
    if ask is matrix_rank:
        for resolution in (0.0, 1.0, float("nan")):
            with pytest.raises(InputError, match="resolution"):
                ask(torch.eye(3), resolution=resolution)
