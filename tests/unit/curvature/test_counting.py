"""Counts of what is not zero: gaps of known width, inertia, and quadratures of known spectra."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.jacobian import Evaluation
from crunode.curvature.krylov import KrylovMap, _above, _all_counted, counted_share
from crunode.curvature.outputs import DenseMap, OutputMap, counted, largest
from crunode.curvature.rank import clear_count, numeric_rank


def with_gap(upper, gap):
    """From one down to rounding in steps of ten at most, but for one gap below `upper`."""
    above = [1.0, *(upper * 10.0**k for k in range(20) if upper * 10.0**k < 1)]
    return np.array([*above, *(upper / gap / 10.0**k for k in range(20) if upper / gap / 10.0**k > 1e-14)])


def test_a_gap_of_a_hundred_decides_and_a_narrower_one_does_not():
    for gap, decided in ((101.0, True), (99.0, False)):
        values = with_gap(1e-3, gap)
        found = numeric_rank(values, 5, 1e-4)
        assert found.decided == decided
        assert found.gap == pytest.approx(gap)
        assert (found.rank, found.low) == (4, 4)
        assert found.high == (4 if decided else (values > 50 * np.finfo(float).eps).sum())
        assert found.tolerance == pytest.approx(1e-3 / math.sqrt(gap) if decided else 1e-4)


def test_a_cut_lies_within_a_factor_of_ten_of_its_limit():
    # A gap counts where what is left out is at most ten times the limit, and what counts at least a tenth of it.
    for upper, decided in ((0.9e-1, True), (1.1e-1, False), (1.1e-6, True), (0.9e-6, False)):
        values = with_gap(upper, 1000.0)
        found = numeric_rank(values, 5, 1e-5)
        assert found.decided == decided
        assert found.rank == (values > (upper / 10 if decided else 1e-5)).sum()


def test_rounding_grows_with_the_size_and_the_largest_value():
    for top, size in ((1.0, 4), (1e6, 4), (1.0, 40_000)):
        values = top * 10.0 ** -np.arange(20)
        found = numeric_rank(values, size, 1e-8)
        assert not found.decided
        assert found.low == 8 + (values[8] > 1e-8 * top)
        assert found.high == (values > 10 * size * np.finfo(float).eps * top).sum()
        # Below ten times rounding nothing counts, whatever the resolution.
        floor = 10 * size * np.finfo(float).eps * top
        assert numeric_rank([top, 0.05 * floor], size, 1e-30).rank == 1


def test_a_gap_of_ten_counts_and_a_narrower_one_is_doubtful():
    for gap, found in ((10.5, (3.0, 0.0)), (9.5, (2.0, 0.5))):
        values = torch.tensor([1.0, 0.5, 0.9e-6 * gap, 0.9e-6], dtype=torch.float64)
        assert counted(values, 1e-5, 10.0, 2e-7) == found
    # Below the gap there is nothing but rounding: a tenth of the cut at most.
    for least, found in ((0.9e-6, (3.0, 0.0)), (1.1e-6, (3.0, 1.0))):
        values = torch.tensor([1.0, 0.5, 4.5e-5, least], dtype=torch.float64)
        assert counted(values, 1e-5, 10.0, 2e-7) == found


def test_without_a_gap_half_of_what_is_near_is_the_doubt():
    values = torch.logspace(0, -4, 41, dtype=torch.float64)  # ten for each factor of ten
    assert counted(values, 1.05e-2, 10.0, 5e-5) == (20.0, 10.0)
    assert counted(values, 1.05e-2, 10**0.5, 5e-5) == (20.0, 5.0)
    assert counted(values * 1e6, 1.05e-2, 10.0, 5e-5) == (20.0, 10.0)
    assert counted(torch.zeros(3), 1e-2, 10.0, 1e-9) == counted(torch.zeros(0), 1e-2, 10.0, 1e-9) == (0.0, 0.0)
    # Below the floor nothing is told from zero.
    assert counted(torch.tensor([1.0, 1e-2, 1e-5], dtype=torch.float64), 1e-6, 10.0, 1e-4) == (2.0, 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_inertia_counts_eigenvalues_where_none_is_near(seed):
    chance = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(12, 12, generator=chance, dtype=torch.float64)).Q
    for square, clear in ((1e-12, True), (4e-9, False), (2e-6, False)):
        values = torch.tensor([4.0, 2.0, 1.0, 0.5, 0.01, square] + [0.0] * 6, dtype=torch.float64)
        gram = q * values @ q.T
        found = clear_count((gram + gram.T) / 2, 1e-3, 1e-6)
        assert found == (5 if clear else None if square < 1e-7 else 6)
    assert clear_count(torch.eye(4, dtype=torch.float64), 1e-3, 1e-6) == 4
    assert clear_count(torch.zeros(4, 4, dtype=torch.float64), 1e-3, 1e-6) is None
    assert clear_count(torch.eye(4, dtype=torch.float64), 1e-3, 1e-4) is None


def test_inertia_is_clear_where_nothing_is_between_a_tenth_and_a_hundredth_of_the_cut():
    for root, found in ((1.5e-4, 3), (0.7e-4, None), (1.5e-5, None), (0.7e-5, 2)):
        gram = torch.diag(torch.tensor([4.0, 1.0, 4 * root**2], dtype=torch.float64))
        assert clear_count(gram, 1e-3, 1e-6) == found


@pytest.mark.parametrize("size", [1, 2, 9])
def test_the_largest_eigenvalue_by_power_iteration(size):
    chance = torch.Generator().manual_seed(size)
    rows = torch.randn(size, 2, generator=chance, dtype=torch.float64)
    rows[:, 1] *= 0.1
    gram = rows @ rows.T
    assert largest(gram) == pytest.approx(float(torch.linalg.eigvalsh(gram)[-1]), rel=1e-6)
    assert largest(5 * gram) == pytest.approx(5 * largest(gram))
    assert largest(torch.zeros(0, 0)) == largest(torch.zeros(3, 3)) == 0.0


def lanczos(values, start, steps):
    """α and β of steps from a vector, for a diagonal matrix."""
    basis, alphas, betas = [start / np.linalg.norm(start)], [], []
    for _ in range(steps):
        image = values * basis[-1]
        alphas.append(float(image @ basis[-1]))
        for _ in range(2):
            for known in basis:
                image = image - known * (known @ image)
        betas.append(float(np.linalg.norm(image)))
        basis.append(image / betas[-1])
    return alphas, betas


def test_the_weight_above_the_limit_is_that_of_eigenvalues_that_are_not_zero():
    start = np.random.default_rng(0).standard_normal(12)
    values = np.array([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0, 0, 0, 0, 0, 0])
    share, near = _above(*lanczos(values, start, 6))
    assert share == pytest.approx((start[:6] ** 2).sum() / (start**2).sum(), rel=1e-10)
    assert near < 1e-10
    whole, _ = _above(*lanczos(np.linspace(1, 2, 12), start, 5))
    assert 0.99 < whole <= 1 + 1e-12  # the node at zero has next to no weight
    # Values a thousandth of the mean and less are neither clearly zero nor clearly not.
    soft = np.concatenate([values[:6], np.full(6, 3e-4)])
    assert _above(*lanczos(soft, start, 7))[1] == pytest.approx((start[6:] ** 2).sum() / (start**2).sum(), rel=1e-6)


def test_shares_do_not_depend_on_scale_and_end_with_the_krylov_space():
    values = torch.cat([torch.ones(5), 3 * torch.ones(4), torch.zeros(11)]).double()
    u = torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    calls = []

    def product(v, scale):
        calls.append(1)
        return scale * values * v

    truth = float(u[:9].square().sum() / u.square().sum())
    for scale in (1e-20, 1.0, 1e20):
        calls.clear()
        share, doubt = counted_share(lambda v, scale=scale: product(v, scale), u, 100)
        assert share == pytest.approx(truth, rel=1e-8)
        assert doubt < 1e-8
        assert len(calls) == 3  # three values, three steps
    assert counted_share(lambda v: v, u, 100) == (pytest.approx(1), pytest.approx(0))


def test_a_few_eigenvalues_are_all_counted():
    values = torch.zeros(200, dtype=torch.float64)
    values[:7] = torch.linspace(1, 2, 7)
    chance = torch.Generator().manual_seed(0)
    drawn = []

    def random(size):
        drawn.append(size)
        return torch.randn(size, generator=chance, dtype=torch.float64)

    found = _all_counted(lambda v: values * v, 200, 7 / 200, 10.0, 10**6, random)
    assert found == (7.0, 0.0)
    # Three standard deviations √(2r(1 − r/n)) of what a probe finds, and sixteen more.
    assert drawn == [200] * (math.ceil(7 + 3 * math.sqrt(14 * (1 - 7 / 200))) + 16)
    assert _all_counted(lambda v: values * v, 200, 7 / 200, 10.0, 2 * len(drawn) - 1, random) is None
    assert _all_counted(lambda v: values * v, 200, 0.0, 10.0, 10**6, random) == (7.0, 0.0)
    many = torch.ones(200, dtype=torch.float64)
    assert _all_counted(lambda v: many * v, 200, 0.0, 10.0, 10**6, random) is None  # there are more than expected
    assert _all_counted(lambda v: many * v, 200, 1.0, 10.0, 10**6, random) == (200.0, 0.0)


def maps(rows, examples=20, inputs=4, width=3):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, width)).double()
    x = torch.randn(examples, inputs, dtype=torch.float64)
    seen = Evaluation(cr.Landscape(net, (x, net(x).detach()), "gaussian"))
    return seen, DenseMap(seen, rows), KrylovMap(seen, rows)


def jacobian(dense, w):
    return torch.func.jacrev(lambda v: torch.cat([dense.part(k, v) for k in range(len(dense.batches))]))(w)


@pytest.mark.parametrize("count", [4, 20])
def test_what_a_linear_part_does_is_what_its_matrix_does(count):
    seen, dense, free = maps(torch.arange(count))
    w = seen.center + 0.05 * torch.randn(43, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    j = jacobian(dense, w)
    u, v = (torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in j.shape)
    for outputs in (dense, free):
        before = outputs.gradients
        torch.testing.assert_close(outputs.pushed(w, v), j @ v)
        torch.testing.assert_close(outputs.pulled(w, u), j.T @ u)
        assert outputs.gradients == before + 4
        torch.testing.assert_close(outputs.residual(w), torch.cat([dense.part(k, w) for k in range(1)]))
        assert outputs.gradients == before + 5
        assert (outputs.rows, outputs.examples) == (3 * count, count)
    products = free.at(w)
    torch.testing.assert_close(products.push(v), j @ v)
    torch.testing.assert_close(products.back(u), j.T @ u)
    torch.testing.assert_close(products.gram(u), j @ (j.T @ u))
    least = 1e-3
    scaled = products.scaling.push(products.scaling.pull(j.T @ u, least), least)
    torch.testing.assert_close(products.gram(u, least), j @ scaled)
    mu = 0.1 * products.top
    eye = torch.eye(len(j), dtype=torch.float64)
    solved = products._inverse(u, 0.0, mu, 1e-10)
    torch.testing.assert_close(solved, torch.linalg.solve(j @ j.T + mu * eye, u), rtol=1e-6, atol=1e-9)
    assert not products._inverse(torch.zeros_like(u), 0.0, mu, 1e-3).any()


def test_products_held_at_a_point_do_not_ask_the_model_again():
    seen, _, free = maps(torch.arange(6))
    calls = []
    seen.landscape._module.register_forward_hook(lambda *_: calls.append(1))
    seen.landscape.network.register_forward_hook(lambda *_: calls.append(1))
    products = free.at(seen.center)
    held = len(calls)
    products.push(torch.ones(43, dtype=torch.float64))
    products.back(torch.ones(18, dtype=torch.float64))
    assert len(calls) == held > 0


@pytest.mark.parametrize("count", [3, 20])
def test_kernels_are_left_alone_and_what_is_seen_is_taken_away(count):
    seen, dense, free = maps(torch.arange(count))
    j = jacobian(dense, seen.center)
    step = torch.randn(43, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    projected = step - torch.linalg.pinv(j) @ (j @ step)
    rest = dense.at(seen.center).kernel(step)
    if count == 3:
        torch.testing.assert_close(rest, projected, rtol=1e-5, atol=1e-6)
    left = free.at(seen.center).kernel(step)
    assert float((j @ left).norm()) < 1e-3 * float((j @ step).norm())
    if count == 3:  # whatever nine outputs are to be, some step gives it
        outside = torch.randn(9, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        assert float(free.at(seen.center).beyond(outside).norm()) < 1e-3 * float(outside.norm())


def test_what_other_rows_show_is_relative_to_what_all_show():
    seen, few, _ = maps(torch.arange(3))
    others = OutputMap(seen, torch.arange(3, 20))
    linear = few.at(seen.center)
    step = torch.randn(43, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    rest = linear.kernel(step)
    shown = float(others.pushed(seen.center, rest).norm()) / math.sqrt(others.rows)
    usual = math.sqrt(linear.top / few.rows) * float(rest.norm())
    assert linear.misses(others, step) == pytest.approx(shown / usual)
    row = linear.rows[0]
    assert linear.misses(others, row) == 0.0  # nothing of it is in the kernel


def test_what_other_rows_show_without_matrices_is_relative_to_what_these_do():
    seen, dense, free = maps(torch.arange(3))
    others = OutputMap(seen, torch.arange(3, 20))
    j = jacobian(dense, seen.center)
    there = jacobian(others, seen.center)
    products = free.at(seen.center)
    b = torch.stack([products.scaling.push(one, 1e-12) for one in torch.eye(43, dtype=torch.float64)], 1)
    step = torch.randn(43, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    rest = step - torch.linalg.pinv(j @ b) @ (j @ b @ step)
    shown = float((there @ b @ rest).square().sum()) / others.rows
    usual = float((j @ b @ step).square().sum()) / free.rows
    assert products.misses(others, step) == pytest.approx(shown / usual, rel=0.05)
