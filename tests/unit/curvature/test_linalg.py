"""Traces and diagonals: exact where the budget allows, covering error bars elsewhere, and no number from bad input."""

import json

import numpy as np
import pytest
import torch

from crunode.core.result import Estimate
from crunode.curvature import probing
from crunode.curvature.linalg import Products, diagonal, trace
from crunode.errors import EstimationError, InputError

METHODS = ("hutchinson", "hutch++", "xtrace")
REPEATS = 200


class Known:
    """A matrix that shows its products only, and counts them."""

    def __init__(self, matrix, positive=False, symmetric=True):
        self._matrix, self.positive, self.symmetric = matrix, positive, symmetric
        self.shape, self.dtype, self.device = tuple(matrix.shape), matrix.dtype, matrix.device
        self.products = 0

    def __matmul__(self, vectors):
        self.products += vectors.shape[1] if vectors.ndim == 2 else 1
        return self._matrix @ vectors


def turned(values, seed=0):
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    values = torch.as_tensor(values, dtype=torch.float64)
    chance = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(len(values), len(values), generator=chance, dtype=torch.float64)).Q
    whole = q * values @ q.T
    return (whole + whole.T) / 2


SPECTRA = {
    "flat": torch.linspace(0.5, 1, 90),
    "decaying": torch.arange(1.0, 91.0) ** -1,
    "indefinite": torch.linspace(-1, 1.5, 90),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_small_matrices_are_exact(method, size):
    matrix = turned(torch.linspace(-1, 2, size))
    known = Known(matrix)
    found = trace(known, method=method, probes=40)
    assert found.value == pytest.approx(float(matrix.trace()), abs=1e-12)
    assert (found.se, found.systematic, found.findings, found.spec["method"]) == (0, 0, (), "exact")
    assert known.products == size
    entries = diagonal(matrix, probes=40)
    assert np.allclose(entries.values, matrix.diagonal().numpy(), atol=1e-14)
    assert not entries.errors.any()


@pytest.mark.parametrize("method", METHODS)
def test_zero_matrix(method):
    for size in (3, 100):
        found = trace(torch.zeros(size, size), method=method, probes=16)
        assert (found.value, found.se, found.ok) == (0.0, 0.0, True)
    assert not diagonal(torch.zeros(100, 100), probes=16).values.any()


@pytest.mark.heavy
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("method", METHODS)
def test_two_errors_cover_the_trace(method, spectrum):
    # With a coverage of 95.4 %, 200 repeats give a share outside [0.90, 0.995] with probability 1e-3. The jackknife of
    # XTrace and samples of Hutch++ that are not normal may cover more, which is bounded by the size of the errors.
    values = SPECTRA[spectrum]
    matrix, truth = turned(values), float(values.double().sum())
    found = [trace(matrix, method=method, probes=24, tolerance=None, seed=seed) for seed in range(REPEATS)]
    off, errors = np.array([e.value - truth for e in found]), np.array([e.se for e in found])
    assert np.mean(np.abs(off) <= 2 * errors) >= 0.90
    if method == "hutchinson":
        assert np.mean(np.abs(off) <= 2 * errors) <= 0.995
    assert errors.mean() < (1.5 if method != "xtrace" else 3.0) * off.std()
    assert abs(off.mean()) < 4 * off.std() / REPEATS**0.5  # unbiased; false alarm 6e-5


def test_two_errors_cover_each_entry_of_the_diagonal():
    matrix = turned(SPECTRA["decaying"])
    truth = matrix.diagonal().numpy()
    inside, off = [], []
    for seed in range(REPEATS):
        found = diagonal(matrix, probes=16, tolerance=None, seed=seed)
        inside.append(np.abs(found.values - truth) <= 2 * found.errors)
        off.append(found.values - truth)
    # 200 × 90 comparisons, which are correlated within a repeat: the mean share is within 2 % of 95.4 %. Over the 90
    # entries, a single share below 0.88 has probability 5e-6 each.
    assert abs(np.mean(inside) - 0.954) < 0.02
    assert np.mean(inside, axis=0).min() > 0.88
    assert np.abs(np.mean(off, axis=0) / (np.std(off, axis=0) / REPEATS**0.5)).max() < 5


def test_methods_that_sketch_find_low_ranks_exactly():
    factor = torch.randn(80, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = factor @ factor.T
    for method in ("hutch++", "xtrace"):
        found = trace(matrix, method=method, probes=24)
        assert found.value == pytest.approx(float(matrix.trace()), rel=1e-10)
        assert found.se < 1e-8
        assert found.ok


def test_stops_at_the_tolerance_and_says_when_it_did_not():
    matrix = turned(torch.linspace(0.9, 1.1, 300))
    known = Known(matrix)
    found = trace(known, probes=256, tolerance=0.05)
    assert found.se <= 0.05 * found.value
    assert found.diagnostics["probes"] == known.products == 8
    assert not found.findings
    tight = trace(matrix, probes=16, tolerance=1e-6)
    assert [f.code for f in tight.findings] == ["CURV811"]
    few = trace(matrix, probes=4, tolerance=None)
    assert [f.code for f in few.findings] == ["CURV812"]
    assert [f.code for f in diagonal(matrix, probes=4, tolerance=1e-6).findings] == ["CURV811", "CURV812"]


def test_matrix_said_to_be_positive():
    values = torch.cat([torch.full((50,), -1.0), torch.full((50,), 0.2)])
    for method in METHODS:
        found = trace(Known(turned(values), positive=True), method=method, probes=24)
        assert "CURV815" in [f.code for f in found.findings], method
        fine = trace(Known(turned(values.abs()), positive=True), method=method, probes=24)
        assert "CURV815" not in [f.code for f in fine.findings], method
    low_rank = torch.zeros(100)
    low_rank[:3] = 1.0
    assert trace(Known(turned(low_rank), positive=True), method="hutch++", probes=24).findings == ()


def test_same_seed_same_numbers_whatever_the_blocks(monkeypatch):
    matrix = turned(SPECTRA["flat"])
    first = trace(matrix, probes=20, tolerance=None, seed=3)
    assert trace(matrix, probes=20, tolerance=None, seed=4).value != first.value
    monkeypatch.setattr(probing, "_COLUMNS", 3)
    again = trace(matrix, probes=20, tolerance=None, seed=3)
    assert again.value == pytest.approx(first.value, rel=1e-13)
    assert again.se == pytest.approx(first.se, rel=1e-10)


def test_leaves_random_state_and_matrix_alone():
    matrix = turned(SPECTRA["flat"]).requires_grad_()
    before, state = matrix.detach().clone(), torch.get_rng_state()
    for method in METHODS:
        trace(matrix, method=method, probes=12)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(before, matrix.detach())
    assert matrix.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(dtype):
    found = trace(turned(SPECTRA["flat"]).to(dtype), probes=24, tolerance=None)
    assert abs(found.value - float(SPECTRA["flat"].sum())) < 4 * found.se + 1.0


def test_json():
    assert json.loads(json.dumps(diagonal(torch.eye(3)).to_dict()))["values"] == [1.0, 1.0, 1.0]
    found = trace(torch.eye(3))
    assert Estimate.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert isinstance(Known(torch.eye(2)), Products)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.ones(2, 3), "square"),
        (torch.ones(3), "square"),
        (torch.ones(0, 0), "one row or more"),
        (torch.ones(2, 2, dtype=torch.int64), "floating-point"),
        (torch.ones(2, 2, dtype=torch.complex64), "floating-point"),
        (torch.tensor([[0.0, 1.0], [0.0, 0.0]]), "transpose"),
        (torch.full((2, 2), torch.nan), "finite"),
        (Known(torch.eye(2), symmetric=False), "not"),
        ("no matrix", "tensor or an operator"),
    ],
)
def test_bad_matrices(matrix, message):
    for ask in (trace, diagonal):
        with pytest.raises(InputError, match=message):
            ask(matrix)


def test_products_that_show_bad_matrices():
    slanted = torch.triu(torch.ones(60, 60, dtype=torch.float64))
    for ask in (trace, diagonal):
        with pytest.raises(InputError, match="symmetric"):
            ask(Known(slanted), probes=16)
        with pytest.raises(EstimationError, match="finite"):
            ask(Known(torch.full((60, 60), torch.inf)), probes=16)

    class Wrong(Known):
        def __matmul__(self, vectors):
            return super().__matmul__(vectors)[:-1]

    with pytest.raises(InputError, match="shape"):
        trace(Wrong(torch.eye(60)), probes=16)


@pytest.mark.parametrize(
    "settings",
    [
        {"probes": 1},
        {"probes": 2.5},
        {"probes": True},
        {"tolerance": 0.0},
        {"tolerance": float("nan")},
        {"tolerance": -1},
        {"seed": -1},
        {"seed": 0.5},
        {"method": "guess"},
    ],
)
def test_bad_settings(settings):
    with pytest.raises(InputError):
        trace(torch.eye(3), **settings)


@pytest.mark.parametrize("method", ["hutch++", "xtrace"])
def test_too_few_products_for_a_sketch(method):
    with pytest.raises(InputError, match="4 probes"):
        trace(torch.eye(30), method=method, probes=2)
