"""Traces of functions of diagonal matrices, where vectors of signs make no error: what is left is the quadrature."""

import numpy as np
import pytest
import torch

from crunode.curvature.dimension import (
    _jackknife,
    _node_errors,
    effective_dimension,
    matrix_rank,
    participation_ratio,
    sharpness,
)
from crunode.curvature.lanczos import spectral_density
from crunode.curvature.linalg import trace
from crunode.curvature.quadrature import function_trace, log_determinant
from crunode.errors import InputError


class Counted:
    """A diagonal matrix that shows its products only, and counts them."""

    def __init__(self, values, positive=False):
        self.values, self.positive, self.symmetric = torch.as_tensor(values, dtype=torch.float64), positive, True
        self.shape, self.dtype, self.device = (len(values), len(values)), torch.float64, torch.device("cpu")
        self.products = 0

    def __matmul__(self, vectors):
        self.products += vectors.shape[1] if vectors.ndim == 2 else 1
        return self.values[:, None] * vectors if vectors.ndim == 2 else self.values * vectors


VALUES = np.geomspace(0.05, 4.0, 300)


def test_small_matrices_say_where_their_spectrum_begins_and_what_it_cost():
    matrix = torch.diag(torch.tensor([0.5, 2.0, 3.0, 0.25], dtype=torch.float64))
    found = function_trace(matrix, np.sqrt)
    assert found.value == pytest.approx(np.sqrt([0.5, 2.0, 3.0, 0.25]).sum())
    assert found.diagnostics == {"probes": 0, "products": 4, "lowest": 0.25, "lowest_residual": 0.0}
    assert found.spec["method"] == "exact"
    assert log_determinant(matrix, 1.0).value == pytest.approx(np.log([1.5, 3.0, 4.0, 1.25]).sum())


def test_steps_see_the_lowest_eigenvalue_within_its_residual():
    matrix = Counted(VALUES)
    found = function_trace(matrix, np.sqrt, probes=6, steps=12, tolerance=None)
    seen = found.diagnostics
    assert (seen["probes"], found.spec["probes"], found.spec["steps"]) == (6, 6, 12)
    assert seen["products"] == 6 * 12 <= matrix.products
    assert abs(seen["lowest"] - VALUES[0]) <= seen["lowest_residual"] < 0.1
    assert found.value == pytest.approx(np.sqrt(VALUES).sum(), rel=1e-4)
    assert found.se < 1e-4 * found.value


def test_more_steps_move_the_value_by_no_more_than_its_error():
    exact = np.sqrt(VALUES).sum()
    off = []
    for steps in (4, 6, 9, 14):
        found = function_trace(Counted(VALUES), np.sqrt, probes=4, steps=steps, tolerance=None)
        off.append(abs(found.value - exact))
        assert off[-1] < 3 * found.systematic + 1e-6
        assert found.systematic < 0.3 * exact / steps
    assert off == sorted(off, reverse=True)


@pytest.mark.parametrize("steps", [3, 5, 8])
def test_gauss_and_radau_rules_enclose_what_is_concave(steps):
    for shift in (0.02, 1.0):
        found = log_determinant(Counted(VALUES, positive=True), shift, probes=3, steps=steps, tolerance=None)
        exact = np.log(VALUES + shift).sum()
        assert abs(found.value - exact) <= found.systematic + 3 * found.se
        assert found.systematic < 8 * abs(found.value - exact)  # and not by far more than need be
    share = effective_dimension(Counted(VALUES, positive=True), 0.3, probes=3, steps=steps, tolerance=None)
    exact = (VALUES / (VALUES + 0.3)).sum()
    assert abs(share.value - exact) <= share.systematic + 3 * share.se < 0.2 * exact


def test_a_shift_that_barely_suffices_is_doubted():
    values = np.concatenate([[-0.999], np.linspace(0.0, 1.0, 299)])
    found = log_determinant(Counted(values), 1.0, probes=4, steps=3, tolerance=None)
    assert "CURV816" in [f.code for f in found.findings]
    assert "CURV816" not in [f.code for f in log_determinant(Counted(VALUES), 1.0, probes=4, steps=8).findings]
    with pytest.raises(InputError, match="positive definite"):
        log_determinant(Counted(values), 0.5, probes=4, steps=8)


@pytest.mark.parametrize(("method", "each"), [("hutchinson", 1), ("hutch++", None), ("xtrace", 2)])
def test_products_are_counted_apart_from_vectors(method, each):
    matrix = Counted(VALUES)
    found = trace(matrix, method=method, probes=24, tolerance=None)
    assert found.diagnostics["products"] == matrix.products == 24
    if each:
        assert found.diagnostics["probes"] == 24 / each
    else:
        assert found.diagnostics["probes"] == 24 - 2 * 8
    if method == "hutchinson":
        assert found.value == pytest.approx(VALUES.sum())


def test_a_jackknife_is_that_of_leaving_each_out():
    rng = np.random.default_rng(0)
    firsts, seconds = rng.normal(3, 1, 9), rng.normal(5, 1, 9) ** 2
    whole = firsts.mean() ** 2 / seconds.mean()
    left = np.array([np.delete(firsts, k).mean() ** 2 / np.delete(seconds, k).mean() for k in range(9)])
    value, se = _jackknife(firsts, seconds)
    assert value == pytest.approx(9 * whole - 8 * left.mean())
    plain = np.sqrt(8 / 9 * ((left - left.mean()) ** 2).sum())
    assert plain < se < 1.5 * plain  # few samples: Student's t
    many = _jackknife(np.tile(firsts, 60), np.tile(seconds, 60))[1]
    assert many == pytest.approx(plain / np.sqrt(60 * (540 - 1) / (540 - 60)), rel=0.02)


def test_nodes_that_stand_clear_are_known_to_second_order():
    found = _node_errors(np.array([0.0, 1.0, 1.25, 5.0]), np.array([0.1, 0.2, 0.2, 0.5]))
    assert found == pytest.approx([0.1**2 / 0.9, 0.2, 0.2, 0.5**2 / 3.25])


def test_ranks_say_between_what_they_lie():
    values = np.concatenate([np.linspace(0.5, 1, 6), 1e-6 * np.linspace(0.5, 1, 4), np.zeros(90)])
    sketch = matrix_rank(Counted(values), products=40)
    assert sketch.spec["method"] == "sketch"
    assert (sketch.diagnostics["low"], sketch.diagnostics["high"], sketch.value) == (10, 10, 10)
    assert sketch.diagnostics["gap"] > 1e4
    assert sketch.diagnostics["decided"] is True
    assert sketch.diagnostics["products"] <= 40
    assert sketch.name == "rank"
    some = matrix_rank(
        Counted(np.concatenate([np.linspace(0.5, 1, 60), np.zeros(90)])), products=20, probes=6, steps=20
    )
    assert some.spec["method"] == "quadrature"
    assert some.value == pytest.approx(60, abs=1e-6)
    assert some.diagnostics["low"] <= some.value <= some.diagnostics["high"]
    assert some.diagnostics["low"] == pytest.approx(some.diagnostics["high"])
    smooth = matrix_rank(Counted(10.0 ** -np.linspace(0, 20, 100)), products=128)
    assert smooth.diagnostics["low"] < smooth.diagnostics["high"]
    assert smooth.systematic == (smooth.diagnostics["high"] - smooth.diagnostics["low"]) / 2
    assert smooth.diagnostics["gap"] < 10
    assert smooth.diagnostics["decided"] is False
    fine = matrix_rank(Counted(10.0 ** -np.linspace(0, 3, 30)), products=64)
    assert (fine.value, fine.spec["products"], fine.spec["probes"], fine.spec["steps"]) == (30, 64, 8, 64)


def test_signs_see_the_trace_of_a_diagonal_matrix_and_its_square_at_once():
    found = participation_ratio(Counted(VALUES), probes=8, tolerance=None)
    assert found.value == pytest.approx(VALUES.sum() ** 2 / (VALUES**2).sum())
    assert found.se < 1e-6
    top = sharpness(Counted(VALUES), steps=40)
    assert top.value == pytest.approx(4.0, rel=1e-4)
    assert top.name == "sharpness"


def turned(values, seed=0):
    chance = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(len(values), len(values), generator=chance, dtype=torch.float64)).Q
    whole = axes * torch.as_tensor(values, dtype=torch.float64) @ axes.T
    return (whole + whole.T) / 2


@pytest.mark.parametrize(
    "ask",
    [
        lambda matrix, **s: function_trace(matrix, np.sqrt, steps=9, **s),
        lambda matrix, **s: effective_dimension(matrix, 0.5, steps=9, **s),
        participation_ratio,
    ],
    ids=["function", "dimension", "participation"],
)
def test_vectors_are_taken_until_the_error_is_small_enough(ask):
    matrix = turned(np.geomspace(1e-3, 4.0, 300))
    loose = ask(matrix, probes=32, tolerance=0.08)
    assert loose.se <= 0.08 * loose.value
    assert loose.diagnostics["probes"] < 32
    assert "CURV811" not in [f.code for f in loose.findings]
    tight = ask(matrix, probes=32, tolerance=1e-5)
    assert tight.diagnostics["probes"] == 32
    assert "CURV811" in [f.code for f in tight.findings]
    every = ask(matrix, probes=32, tolerance=None)
    assert every.diagnostics["probes"] == 32
    assert "CURV811" not in [f.code for f in every.findings]


def test_the_lowest_node_is_that_of_all_starts():
    matrix = turned(np.linspace(1, 2, 300))
    nodes = spectral_density(matrix, probes=5, steps=3, tolerance=None).nodes
    found = function_trace(matrix, np.exp, probes=5, steps=3, tolerance=None)
    assert found.diagnostics["lowest"] == pytest.approx(nodes.min())
    assert nodes[:, 0].max() > nodes.min() + 1e-3


def test_too_few_steps_are_told_of():
    few = function_trace(Counted(VALUES**3), np.log, probes=4, steps=4, tolerance=0.01)
    many = function_trace(Counted(VALUES), np.log, probes=4, steps=30, tolerance=0.01)
    assert few.systematic > 0.03 * np.abs(np.log(VALUES**3)).sum()
    assert "CURV813" in [f.code for f in few.findings]
    assert "CURV813" not in [f.code for f in many.findings]
    # Chance that is larger than what the steps leave open is not blamed on them.
    noisy = function_trace(turned(np.geomspace(1e-2, 100.0, 300)), np.sqrt, probes=2, steps=8, tolerance=1e-6)
    assert noisy.systematic < 2 * noisy.se
    assert "CURV813" not in [f.code for f in noisy.findings]
