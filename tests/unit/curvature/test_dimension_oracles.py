"""Ranks and participation ratios against dense algebra on the very vectors that were multiplied."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from crunode.curvature.dimension import _node_errors, matrix_rank, participation_ratio, sharpness
from crunode.curvature.linalg import trace

SIZE = 60


class Recorder:
    """A matrix that shows its products only, and keeps what it was multiplied by."""

    def __init__(self, matrix, positive=False):
        self._matrix, self.positive = matrix, positive
        self.shape, self.dtype, self.device = tuple(matrix.shape), matrix.dtype, matrix.device
        self.blocks = []

    def __matmul__(self, vectors):
        self.blocks.append(vectors.reshape(len(vectors), -1).clone())
        return self._matrix @ vectors

    @property
    def products(self):
        return sum(block.shape[1] for block in self.blocks)


def turned(values, seed=0):
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    values = torch.as_tensor(values, dtype=torch.float64)
    chance = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(len(values), len(values), generator=chance, dtype=torch.float64)).Q
    whole = q * values @ q.T
    return (whole + whole.T) / 2


def of_mean(samples):
    """Mean and stretched standard error along the last axis."""
    count = samples.shape[-1]
    student = scipy.stats.t.ppf(scipy.stats.norm.cdf(2), count - 1) / 2
    return samples.mean(-1), samples.std(-1, ddof=1) / np.sqrt(count) * student


MATRIX = turned(torch.linspace(-1, 3, SIZE))


@pytest.mark.parametrize("probes", [9, 40])
def test_the_participation_ratio_is_the_jackknife_of_a_ratio_of_means(probes):
    known = Recorder(MATRIX)
    found = participation_ratio(known, probes=probes, tolerance=None)
    z = torch.cat(known.blocks, 1).numpy()
    firsts, seconds = (z * (MATRIX.numpy() @ z)).sum(0), ((MATRIX.numpy() @ z) ** 2).sum(0)

    def ratio(kept):
        return firsts[kept].mean() ** 2 / seconds[kept].mean()

    left = np.array([ratio(np.arange(probes) != k) for k in range(probes)])
    assert found.value == pytest.approx(probes * ratio(slice(None)) - (probes - 1) * left.mean(), rel=1e-10)
    plain = math.sqrt((probes - 1) / probes * ((left - left.mean()) ** 2).sum())
    student = scipy.stats.t.ppf(scipy.stats.norm.cdf(2), probes - 1) / 2
    assert found.se == pytest.approx(plain * student, rel=1e-3)
    assert found.spec == {"method": "jackknife", "probes": probes, "tolerance": None, "size": SIZE}


def test_sharpness_is_the_largest_eigenvalue_with_all_that_was_seen():
    known = Recorder(MATRIX)
    found = sharpness(known, steps=70)
    assert found.value == pytest.approx(3)
    assert found.diagnostics == {"products": SIZE}
    assert found.spec == {"method": "exact", "k": 1, "steps": 70, "tolerance": 1e-3, "size": SIZE}
    few = sharpness(known, steps=5, tolerance=None)
    assert few.se == 0 < few.systematic
    assert 3 - few.value <= few.systematic


def test_scales_of_traces_do_not_matter():
    assert trace(1e-200 * torch.eye(80, dtype=torch.float64), probes=16).value == pytest.approx(80e-200)


@pytest.mark.parametrize("rank", [4, 12, 60])
def test_a_sketch_finds_a_rank_that_is_four_below_its_columns(rank):
    values = torch.zeros(90, dtype=torch.float64)
    values[:rank] = torch.linspace(1, 2, rank)
    known = Recorder(turned(values))
    found = matrix_rank(known, products=64)
    assert found.value == rank
    assert found.spec["method"] == "sketch"
    # Looks at 8, 16, 32 and 64 columns, of which four are to spare.
    assert found.diagnostics["products"] == known.products == {4: 8, 12: 16, 60: 64}[rank]
    assert (found.diagnostics["low"], found.diagnostics["high"], found.diagnostics["decided"]) == (rank, rank, True)
    assert found.diagnostics["gap"] > 1e6


def test_a_rank_beyond_a_sketch_is_counted_by_quadratures():
    values = torch.zeros(90, dtype=torch.float64)
    values[:61] = 1.0
    known = Recorder(turned(values))
    found = matrix_rank(known, products=64, probes=6, steps=9)
    assert found.spec["method"] == "quadrature"
    assert found.diagnostics["products"] == known.products
    starts = torch.cat([block for block in known.blocks if abs(float(block[:, 0].norm()) - 1) < 1e-9][:1], 1)
    shares = (turned(values) @ starts).square().sum(0).numpy() * 90
    value, se = of_mean(shares)
    assert (found.value, found.se) == (pytest.approx(value), pytest.approx(se, rel=1e-2))
    assert found.diagnostics["low"] == pytest.approx(found.diagnostics["high"])
    assert found.systematic == pytest.approx(0, abs=1e-9)
    assert [f.code for f in found.findings] == ["CURV812"]


def test_a_rank_without_a_gap_is_in_the_middle_of_what_is_possible():
    values = 10.0 ** -torch.arange(0, 20, dtype=torch.float64)
    found = matrix_rank(torch.diag(values), resolution=1e-8)
    low, high = found.diagnostics["low"], found.diagnostics["high"]
    assert found.value == (low + high) / 2
    assert found.systematic == (high - low) / 2
    assert low == int((values > 1e-7).sum())
    assert found.diagnostics["products"] == 20
    assert not found.diagnostics["decided"]
    assert high == int((values > 10 * 20 * np.finfo(float).eps).sum())


def test_resolution_is_some_rounding_and_more_in_single_precision():
    for dtype, more in ((torch.float64, 1), (torch.float32, 10)):
        spec = matrix_rank(torch.eye(4, dtype=dtype)).spec
        assert spec["resolution"] == pytest.approx(30 * more * torch.finfo(dtype).eps)
        assert (spec["products"], spec["probes"], spec["steps"], spec["size"]) == (256, 8, 64, 4)
    assert matrix_rank(torch.diag(torch.tensor([1.0, 1e-3, 1e-9])), resolution=1e-2).value == 2


def test_a_node_that_is_clear_of_others_is_nearer_to_an_eigenvalue_than_its_residual():
    # Temple's bound r²/δ, where δ is what is left of the distance to the next node.
    found = _node_errors(np.array([0.0, 1.0, 3.0, 3.15]), np.array([0.1, 0.2, 0.1, 0.1]))
    assert found == pytest.approx([0.01 / 0.9, 0.04 / 0.8, 0.1, 0.1])
    assert _node_errors(np.array([2.0]), np.array([0.5])) == pytest.approx([0.0])
    assert _node_errors(np.array([0.0, 1.0]), np.array([0.0, 0.0])).tolist() == [0.0, 0.0]


def test_names_are_those_of_what_was_asked_for():
    assert sharpness(MATRIX).name == "sharpness"
    assert matrix_rank(MATRIX).name == "rank"
    assert participation_ratio(MATRIX).name == "participation ratio"
