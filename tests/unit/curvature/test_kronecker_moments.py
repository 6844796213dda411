"""Scalings from second moments against the dense matrices that they stand for."""

import pytest
import torch

from crunode.curvature.kronecker import Kronecker, Moments
from crunode.curvature.low_rank import low_rank_spectrum

SHAPES = [(3, 4), (5,), (2, 2, 3)]
SIZES = (12, 5, 12)


def rows(count=40, seed=0):
    chance = torch.Generator().manual_seed(seed)
    scales = torch.linspace(0.5, 2, sum(SIZES), dtype=torch.float64)
    return torch.randn(count, sum(SIZES), generator=chance, dtype=torch.float64) * scales


def dense(jacobian):
    """E|g|² times the product of the second moments of both sides, each of trace one; a multiple of one for vectors."""
    blocks = []
    for part, shape in zip(jacobian.split(SIZES, dim=1), SHAPES, strict=True):
        size = part.square().sum() / len(part)
        if len(shape) == 1:
            blocks.append(size / shape[0] * torch.eye(shape[0], dtype=torch.float64))
            continue
        g = part.reshape(len(part), shape[0], -1)
        left, right = torch.einsum("rab,rcb->ac", g, g), torch.einsum("rab,rac->bc", g, g)
        blocks.append(size * torch.kron(left / left.trace(), right / right.trace()))
    return torch.block_diag(*blocks)


def test_the_scaling_is_the_inverse_root_of_the_damped_product_of_moments():
    jacobian = rows()
    scaling, whole = Kronecker.of_rows(SHAPES, jacobian), dense(jacobian)
    assert scaling.top == pytest.approx(float(torch.linalg.eigvalsh(whole)[-1]))
    assert scaling.gradients == 0
    g = rows(1, seed=1)[0]
    for damping in (1e-3, 0.7):
        damped = whole + damping * scaling.top * torch.eye(len(whole), dtype=torch.float64)
        torch.testing.assert_close(scaling.push(scaling.pull(g, damping), damping), torch.linalg.solve(damped, g))
        v = rows(1, seed=2)[0]
        assert float(scaling.pull(g, damping) @ v) == pytest.approx(float(g @ scaling.push(v, damping)))
        several = scaling.pull(torch.stack([g, v]), damping)
        torch.testing.assert_close(several[0], scaling.pull(g, damping))
        white = scaling.whitening(damping)
        tau = damping * scaling.top
        torch.testing.assert_close(white.push(white.pull(g)), tau * torch.linalg.solve(damped, g))
        assert float(white.pull(g) @ v) == pytest.approx(float(g @ white.push(v)))
        assert bool((white.gains <= 1).all())
        single = white.to(torch.float32)
        torch.testing.assert_close(single.push(v.float()).double(), white.push(v), rtol=1e-4, atol=1e-5)


def test_gradients_one_by_one_give_the_moments_of_all():
    jacobian = rows(96)
    following = iter(jacobian)
    scaling = Kronecker(SHAPES, lambda: next(following), fewest=96)
    assert scaling.gradients == 96
    g = rows(1, seed=1)[0]
    at_once = Kronecker.of_rows(SHAPES, jacobian)
    torch.testing.assert_close(scaling.push(scaling.pull(g, 0.1), 0.1), at_once.push(at_once.pull(g, 0.1), 0.1))
    assert scaling.top == pytest.approx(at_once.top)


def test_directions_that_few_gradients_do_not_meet_share_in_the_mean():
    one = torch.zeros(20, dtype=torch.float64)
    one[0] = 3.0
    moment = Moments((4, 5))
    moment.add(one)
    assert moment.short() == [True, True]
    _, left, _, right = moment.factors()
    assert float(left.sum() * right.sum()) == pytest.approx(9)  # E|g|², however it is shared
    # Nine tenths are what was seen, a tenth is the mean over all directions.
    assert (left / left.sum()).tolist() == pytest.approx([0.025, 0.025, 0.025, 0.925])
    assert (right / right.sum()).tolist() == pytest.approx([0.02] * 4 + [0.92])
    many = Moments((4, 5))
    for row in torch.randn(40, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64):
        many.add(row)
    assert many.short() == [False, False]


def test_a_side_is_met_by_three_vectors_for_each_direction():
    # A gradient of a 6 × 4 tensor has four columns for the left side and six rows for the right one.
    chance = torch.Generator().manual_seed(0)
    moment = Moments((6, 4))
    for count in range(1, 7):
        moment.add(torch.randn(24, generator=chance, dtype=torch.float64))
        left, right = min(6, 4 * count), min(4, 6 * count)
        assert moment.short() == [count * right < 3 * left, count * left < 3 * right]
    assert moment.count == 6


@pytest.mark.parametrize(("shape", "measured"), [((1, 5), False), ((5, 1), False), ((2, 2), True), ((2, 5000), False)])
def test_tensors_with_two_short_sides_are_measured(shape, measured):
    moment = Moments(shape)
    assert moment.measured == measured
    if min(shape) == 1:
        moment.add(torch.ones(5, dtype=torch.float64))
        assert moment.short() == [False, False]


def test_a_low_rank_spectrum_is_that_of_the_matrix():
    chance = torch.Generator().manual_seed(0)
    factor = torch.randn(40, 5, generator=chance, dtype=torch.float64) * torch.tensor([1e-3, 1e-1, 1, 10, 30]).double()
    matrix = factor @ factor.T
    start = torch.randn(40, 9, generator=chance, dtype=torch.float64)
    found = low_rank_spectrum(lambda v: matrix @ v, start)
    truth = torch.linalg.eigvalsh(matrix).flip(0)[:9].clamp(min=0)
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-12 * float(truth[0]))
    assert len(found) == 9
    assert low_rank_spectrum(lambda v: 0 * v, start).tolist() == [0.0] * 9
    full = low_rank_spectrum(lambda v: matrix[:9, :9] @ v, start[:9])
    torch.testing.assert_close(full, torch.linalg.eigvalsh(matrix[:9, :9]).flip(0).clamp(min=0), rtol=1e-9, atol=1e-9)
