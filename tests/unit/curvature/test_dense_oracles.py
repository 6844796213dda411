"""Traces, diagonals and largest eigenvalues against dense algebra on the very vectors that were multiplied."""

import numpy as np
import pytest
import scipy.stats
import torch

from crunode.curvature.lanczos import top_eigenvalues
from crunode.curvature.linalg import VectorEstimate, diagonal, trace
from crunode.curvature.probing import generator_of, signs, stretch

STAGES = (8, 16, 32, 40)


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
    def vectors(self):
        return torch.cat(self.blocks, 1).numpy()

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


def student(count):
    """Student's t at the level of two standard deviations, over two."""
    return scipy.stats.t.ppf(scipy.stats.norm.cdf(2), count - 1) / 2


def of_mean(samples):
    """Mean and stretched standard error along the last axis."""
    count = samples.shape[-1]
    return samples.mean(-1), samples.std(-1, ddof=1) / np.sqrt(count) * student(count)


def orthonormal(images):
    return np.linalg.qr(images)[0]


MATRIX = turned(torch.linspace(-1, 3, 50))


@pytest.mark.parametrize(("count", "within"), [(2, 1e-9), (3, 1e-9), (4, 2e-2), (8, 1e-3), (40, 1e-6)])
def test_errors_are_stretched_by_students_t(count, within):
    assert stretch(count) == pytest.approx(student(count), rel=within)


def test_hutchinson_is_the_mean_over_signs():
    known = Recorder(MATRIX)
    found = trace(known, probes=40, tolerance=None)
    z = known.vectors
    assert set(np.unique(z)) == {-1.0, 1.0}
    assert np.abs(z.mean()) < 0.1  # 2000 signs
    value, se = of_mean((z * (MATRIX.numpy() @ z)).sum(0))
    assert (found.value, found.se) == pytest.approx((value, se), rel=1e-5)
    assert found.diagnostics == {"probes": 40, "products": known.products}
    assert found.spec == {"method": "hutchinson", "probes": 40, "tolerance": None, "size": 50}
    assert (found.systematic, found.seed, known.products) == (0, 0, 40)


@pytest.mark.parametrize("ask", [trace, diagonal])
def test_the_first_look_that_is_within_the_tolerance_is_the_last(ask):
    known = Recorder(MATRIX)
    ask(known, probes=40, tolerance=None)
    z = known.vectors
    samples = z * (MATRIX.numpy() @ z)
    samples = samples.sum(0) if ask is trace else samples
    looks = [of_mean(samples[..., :count]) for count in STAGES]
    ratios = [np.linalg.norm(se) / np.linalg.norm(mean) for mean, se in looks]
    for goal in (0.99 * min(ratios), *(1.01 * ratio for ratio in ratios)):
        expected = next((count for count, ratio in zip(STAGES, ratios, strict=True) if ratio <= goal), 40)
        known = Recorder(MATRIX)
        found = ask(known, probes=40, tolerance=float(goal))
        assert found.diagnostics == {"probes": expected, "products": expected}
        assert known.products == expected
        assert [f.code for f in found.findings] == ([] if min(ratios) <= goal else ["CURV811"])


def test_the_diagonal_is_the_mean_over_signs_whatever_the_blocks():
    known = Recorder(MATRIX)
    found = diagonal(known, probes=40, tolerance=None)
    z = known.vectors
    value, se = of_mean(z * (MATRIX.numpy() @ z))
    assert found.values == pytest.approx(value, rel=1e-9)
    assert found.errors == pytest.approx(se, rel=1e-5)
    assert found.spec == {"method": "signs", "probes": 40, "tolerance": None, "size": 50}
    assert len({block.shape[1] for block in known.blocks}) > 1
    exact = diagonal(Recorder(MATRIX), probes=50)
    assert exact.diagnostics == {"probes": 50, "products": 50}
    assert (exact.spec["method"], exact.findings) == ("exact", ())
    assert exact.values == pytest.approx(MATRIX.diagonal().numpy())


def test_as_many_products_as_rows_are_all_columns():
    for method in ("hutchinson", "hutch++", "xtrace"):
        exact, sampled = (trace(Recorder(MATRIX), method=method, probes=n, tolerance=None) for n in (50, 49))
        assert (exact.spec["method"], sampled.spec["method"]) == ("exact", method)
        assert exact.diagnostics == {"probes": 50, "products": 50}
        assert exact.value == pytest.approx(50)
        assert sampled.se > 0 == exact.se
    assert diagonal(MATRIX, probes=49).spec["method"] == "signs"


@pytest.mark.parametrize("ask", [trace, diagonal])
def test_nothing_is_found_to_be_nothing_at_the_first_look(ask):
    found = ask(torch.zeros(60, 60), probes=40)
    assert found.diagnostics["probes"] == 8
    assert found.findings == ()


@pytest.mark.parametrize("probes", [12, 23, 24, 25, 40, 60])
def test_hutch_plus_is_a_third_sketch_a_third_its_range_and_a_third_signs(probes):
    matrix = turned(torch.linspace(-1, 3, 50 if probes < 50 else 70))
    known, a = Recorder(matrix), matrix.numpy()
    found = trace(known, method="hutch++", probes=probes, tolerance=None)
    assert known.products == found.diagnostics["products"] == probes
    sketch, third = known.vectors[:, : probes // 3], probes // 3
    assert set(np.unique(sketch)) == {-1.0, 1.0}
    q = orthonormal(a @ sketch)
    taken = known.vectors[:, third : 2 * third]
    assert q @ q.T == pytest.approx(taken @ taken.T, abs=1e-9)
    rest = known.vectors[:, 2 * third :]
    assert np.abs(q.T @ rest).max() < 1e-9
    samples = (rest * (a @ rest)).sum(0)
    value, se = of_mean(samples)
    assert found.value == pytest.approx(np.trace(q.T @ a @ q) + value, rel=1e-9)
    assert found.se == pytest.approx(se, rel=2e-2)
    assert found.diagnostics["probes"] == rest.shape[1]


def test_hutch_plus_and_xtrace_begin_with_four_products():
    assert trace(MATRIX, method="hutch++", probes=4, tolerance=None).diagnostics == {"probes": 2, "products": 4}
    assert trace(MATRIX, method="xtrace", probes=4, tolerance=None).diagnostics == {"probes": 2, "products": 4}


def test_hutch_plus_counts_what_the_range_gives_in_its_tolerance():
    decaying = turned(torch.arange(1.0, 61.0) ** -2)
    known = Recorder(decaying)
    found = trace(known, method="hutch++", probes=48, tolerance=0.05)
    # The error of the rest is held against the whole trace, of which the rest is a small part.
    assert known.products == found.diagnostics["products"] == 2 * 16 + 8
    assert found.se <= 0.05 * found.value
    assert found.findings == ()


def left_out(a, omega):
    """XTrace's estimates, each by the range of the images of the other vectors, from the definition."""
    size, count = omega.shape
    values = []
    for i in range(count):
        q = orthonormal(a @ np.delete(omega, i, 1))
        rest = omega[:, i] - q @ (q.T @ omega[:, i])
        values.append(np.trace(q.T @ a @ q) + (size - count + 1) * (rest @ a @ rest) / (rest @ rest))
    return np.mean(values)


@pytest.mark.parametrize("probes", [8, 17, 32])
def test_xtrace_leaves_out_each_vector_in_turn(probes):
    known, a, count = Recorder(MATRIX), MATRIX.numpy(), probes // 2
    found = trace(known, method="xtrace", probes=probes, tolerance=None)
    omega = np.concatenate([block.numpy() for block in known.blocks[::2]], 1)
    assert omega.shape == (50, count)
    assert found.value == pytest.approx(left_out(a, omega), rel=1e-9)
    jackknife = np.array([left_out(a, np.delete(omega, k, 1)) for k in range(count)])
    se = np.sqrt((count - 1) ** 2 / count * jackknife.var(ddof=1)) * student(count)
    assert found.se == pytest.approx(se, rel=2e-2)
    assert found.diagnostics == {"probes": count, "products": known.products}
    assert known.products == 2 * count


def test_xtrace_stops_where_its_error_is_small_enough():
    decaying = turned(torch.arange(1.0, 61.0) ** -2)
    first = trace(decaying, method="xtrace", probes=16, tolerance=None)
    ratio = first.se / first.value
    for factor, count in ((1.01, 8), (0.99, 16)):
        found = trace(decaying, method="xtrace", probes=32, tolerance=factor * ratio)
        assert found.diagnostics["probes"] == count
        assert found.findings == ()


def test_a_range_that_is_found_gives_the_trace_itself():
    values = torch.zeros(60, dtype=torch.float64)
    values[:5] = torch.tensor([5.0, -2.0, 1.0, 1.0, 0.5])
    known = Recorder(turned(values))
    found = trace(known, method="xtrace", probes=40, tolerance=None)
    assert (found.value, found.se) == (pytest.approx(5.5, rel=1e-12), 0.0)
    assert found.diagnostics == {"probes": 8, "products": known.products}
    assert known.products == 8 + 5
    assert trace(torch.zeros(60, 60), method="xtrace", probes=40).diagnostics["probes"] == 8


@pytest.mark.parametrize("method", ["hutchinson", "hutch++", "xtrace"])
def test_only_what_is_clear_of_rounding_is_negative(method):
    # Half the entries of a diagonal matrix are 1, half −1 with a little more on one of them.
    for off, codes in ((1e-14, []), (1e-9, ["CURV815"])):
        if method != "hutchinson":
            values = torch.zeros(100, dtype=torch.float64)
            values[:3], values[3] = 1.0, -off
        else:
            values = torch.tensor([1.0, -1.0 - off], dtype=torch.float64).repeat(50)
        codes = codes if method != "hutch++" else []  # in the range, which is looked at as a whole
        for scale in (1e-9, 1.0, 1e9):
            known = Recorder(scale * torch.diag(values), positive=True)
            found = trace(known, method=method, probes=24, tolerance=None)
            assert [f.code for f in found.findings] == codes
        assert not trace(torch.diag(values), method=method, probes=24, tolerance=None).findings


def test_nothing_in_a_range_is_not_below_zero():
    # The range of e₁e₂ᵀ + e₂e₁ᵀ has both signs; a block that vanishes on it is not negative.
    matrix = torch.zeros(60, 60, dtype=torch.float64)
    matrix[0, 1] = matrix[1, 0] = 1.0
    found = trace(Recorder(matrix, positive=True), method="xtrace", probes=24)
    assert (found.value, [f.code for f in found.findings]) == (pytest.approx(0, abs=1e-14), ["CURV815"])


def test_signs_are_one_for_each_generator():
    first, second = (signs(40, 3, generator_of(0, use), MATRIX) for use in (1, 2))
    assert not torch.equal(first, second)
    again = torch.cat([signs(40, n, chance, MATRIX) for chance in [generator_of(0, 1)] for n in (1, 2)], 1)
    assert torch.equal(first, again)


def test_numbers_with_an_infinite_error_are_not_ok():
    fine = VectorEstimate("x", np.ones(2), np.zeros(2))
    assert fine.ok
    assert not VectorEstimate("x", np.array([1.0, np.nan]), np.zeros(2)).ok
    assert not VectorEstimate("x", np.ones(2), np.array([0.0, np.inf])).ok


def krylov_space(a, start, steps):
    """An orthonormal basis of the start, its image, the image of that, …"""
    blocks = [orthonormal(start)]
    for _ in range(steps - 1):
        blocks.append(orthonormal(a @ blocks[-1]))
        whole = orthonormal(np.concatenate(blocks, 1))
        blocks[-1] = whole[:, -start.shape[1] :]
    return orthonormal(np.concatenate(blocks, 1))


@pytest.mark.parametrize("k", [1, 3])
def test_largest_eigenvalues_are_those_of_the_krylov_space(k):
    matrix = turned(torch.linspace(-5, 3, 80))
    a, known = matrix.numpy(), Recorder(matrix)
    found = top_eigenvalues(known, k, steps=6, tolerance=None)
    space = krylov_space(a, known.blocks[0].numpy(), 6)
    expected = np.linalg.eigvalsh(space.T @ a @ space)[::-1][:k]
    assert found.values == pytest.approx(expected, rel=1e-9)
    y = found.vectors.numpy()
    assert np.linalg.norm(y, axis=0) == pytest.approx(np.ones(k))
    residuals = np.linalg.norm(a @ y - y * found.values, axis=0)
    assert found.errors == pytest.approx(residuals, rel=1e-9)
    assert found.intervals == pytest.approx(np.stack([expected - residuals, expected + residuals], 1))
    assert found.diagnostics == {"products": known.products}
    assert known.products == 6 * k + k
    assert found.spec == {"method": "block lanczos", "k": k, "steps": 6, "tolerance": None, "size": 80}
    assert found.findings == ()


@pytest.mark.parametrize("k", [1, 2])
def test_steps_end_where_all_residuals_are_small_enough(k):
    matrix = turned(torch.cat([torch.linspace(-4, 1, 97), torch.tensor([2.0, 2.5, 3.0])]))
    a, known = matrix.numpy(), Recorder(matrix)
    found = top_eigenvalues(known, k, steps=40, tolerance=1e-2)
    taken = (known.products - k) // k
    reached = []
    for steps in (taken - 1, taken):
        space = krylov_space(a, known.blocks[0].numpy(), steps)
        values, axes = np.linalg.eigh(space.T @ a @ space)
        y = (space @ axes)[:, ::-1][:, :k]
        worst = np.linalg.norm(a @ y - y * values[::-1][:k], axis=0).max()
        reached.append(worst <= 1e-2 * np.abs(values).max())
    assert reached == [False, True]
    assert found.findings == ()
    assert found.diagnostics["products"] == known.products
    # Beside the largest of the k values, the residual may still be too large; here four times the most negative counts.
    assert top_eigenvalues(matrix, k, steps=4, tolerance=1e-2).findings[0].code == "CURV813"


def test_the_worst_of_several_residuals_has_to_be_small_enough():
    matrix = turned(torch.cat([torch.linspace(-1, 1, 98), torch.tensor([1.02, 50.0])]))
    found = top_eigenvalues(matrix, 2, steps=8, tolerance=None)
    low, high = found.errors.min() / 50, found.errors.max() / 50
    assert 10 * low < high
    for tolerance, codes in ((0.9 * high, ["CURV813"]), (1.1 * high, [])):
        told = top_eigenvalues(matrix, 2, steps=8, tolerance=float(tolerance))
        assert [f.code for f in told.findings] == codes


def test_as_many_steps_as_rows_pay_for_all_columns():
    matrix = turned(torch.linspace(-5, 3, 12))
    for steps, k, method in ((12, 1, "exact"), (11, 1, "block lanczos"), (4, 3, "exact"), (3, 3, "block lanczos")):
        known = Recorder(matrix)
        found = top_eigenvalues(known, k, steps=steps)
        assert found.spec["method"] == method
        assert found.diagnostics["products"] == known.products
    exact = top_eigenvalues(matrix, 3, steps=4)
    assert exact.values == pytest.approx(np.linspace(-5, 3, 12)[::-1][:3])
    assert (matrix @ exact.vectors).numpy() == pytest.approx(exact.vectors.numpy() * exact.values, abs=1e-12)
    # An interval is as wide as rounding may have moved an eigenvalue, beside the largest in size.
    assert (exact.errors >= np.finfo(float).eps * 3).all()
    assert (exact.errors <= 100 * np.finfo(float).eps * 5).all()


def test_a_krylov_space_that_ends_has_all_it_can_have():
    matrix = turned(torch.tensor([2.0] * 30 + [1.0] * 30))
    known = Recorder(matrix)
    found = top_eigenvalues(known, 1, steps=20, tolerance=None)
    assert found.values == pytest.approx([2.0])
    assert known.products == 3  # two steps and the residual


def test_the_largest_of_a_matrix_said_to_be_positive_is_not_negative():
    negative = -torch.diag(torch.linspace(1, 2, 60).double())
    said = top_eigenvalues(Recorder(negative, positive=True), 1, steps=20, tolerance=None)
    assert [f.code for f in said.findings] == ["CURV815"]
    assert top_eigenvalues(Recorder(negative), 1, steps=20, tolerance=None).findings == ()
    # Where an eigenvalue above zero may be within the residual, none is proved to be below.
    wide = torch.diag(torch.cat([torch.linspace(-2, -0.5, 59), torch.tensor([1.0])]).double())
    vague = top_eigenvalues(Recorder(wide, positive=True), 1, steps=2, tolerance=None)
    assert vague.values[0] < 0 < vague.values[0] + vague.errors[0]
    assert vague.findings == ()
    nothing = torch.diag(torch.full((60,), -1e-18).double())
    nothing[0, 0] = 1.0
    assert top_eigenvalues(Recorder(nothing, positive=True), 1, steps=20).findings == ()
