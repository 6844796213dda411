"""How far cooled chains go: coordinates held against dense matrices."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crunode.core.landscape import Landscape
from crunode.curvature.jacobian import NoOutputs
from crunode.curvature.rounding import unrounded
from crunode.estimators.cooled_chain import CooledChain
from crunode.estimators.prior_scale import PriorScale, stiffness
from crunode.examples.toys import quadratic, reduced_rank


def network(ranks: tuple[int, ...] = (12, 3, 10), widths: tuple[int, ...] = (16, 14, 12, 10)) -> Landscape:
    """A deep linear network with layers of the given ranks, on inputs of very unlike sizes."""
    chance = torch.Generator().manual_seed(0)
    layers = []
    for a, b, rank in zip(widths, widths[1:], ranks, strict=False):
        layer = torch.nn.Linear(a, b, bias=False)
        left, right = torch.randn(b, rank, generator=chance), torch.randn(a, rank, generator=chance)
        layer.weight.data = left @ right.T / (a * max(rank, 1)) ** 0.5
        layers.append(layer)
    net = torch.nn.Sequential(*layers)
    x = torch.randn(600, widths[0], generator=chance) * torch.logspace(0, -2, widths[0])
    return Landscape(net, (x, net(x).detach()), "gaussian")


def matrix(scale: PriorScale, dim: int) -> torch.Tensor:
    return torch.stack([scale(row) for row in torch.eye(dim, dtype=torch.float64)], 1)


@pytest.mark.heavy
@settings(max_examples=10, deadline=None)
@given(st.sampled_from([(14, 12, 10), (12, 3, 10), (12, 11, 0)]), st.sampled_from([0.0, 1e-1, 1e-4]))
def test_the_transpose_is_the_transpose(ranks: tuple[int, ...], least: float) -> None:
    land = network(ranks)
    scale = PriorScale(land, 0.1, 1.0)
    if least:
        scale = scale.evened(stiffness(land, torch.arange(60), scale).whitening(least))
    wide = scale.double()
    whole = matrix(wide, land.dim)
    gradient = torch.randn(land.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(wide.back(gradient), whole.T @ gradient, atol=1e-12)
    point = torch.randn(land.dim, generator=torch.Generator().manual_seed(2), requires_grad=True)
    (slope,) = torch.autograd.grad(scale(point), point, gradient.float())
    assert torch.allclose(slope.double(), whole.T @ gradient, atol=1e-4 * float(gradient.norm()))


@pytest.mark.parametrize("rank", [0, 2, 9])
def test_matrices_of_low_rank_move_by_their_size_where_they_have_nothing(rank: int) -> None:
    land = network((12, rank, 10))
    _, spaces = unrounded(land.center, land.packing.shapes, land.packing.dtypes)
    assert spaces[1] is not None
    whole, near = (matrix(PriorScale(land, 0.1, reach).double(), land.dim) for reach in (1.0, 0.1))
    first = land.packing.sizes[0]
    middle = slice(first, first + land.packing.sizes[1])
    step = torch.randn(land.dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    farther = ((whole - near) @ step)[middle]
    outside = spaces[1].outside(step[middle])
    assert torch.allclose(farther / farther.norm(), outside / outside.norm(), atol=1e-8)


@pytest.mark.heavy
def test_no_direction_is_lengthened_and_steep_ones_become_alike() -> None:
    land, index = network((14, 12, 10)), torch.arange(300)
    plain = PriorScale(land, 0.1, 1.0)
    evened = plain.evened(stiffness(land, index, plain).whitening(1e-4))
    before, after = (matrix(scale.double(), land.dim) for scale in (plain, evened))
    assert torch.linalg.matrix_norm(torch.linalg.solve(before, after), 2) <= 1 + 1e-6
    jacobian = torch.func.jacrev(lambda w: land.batch_outputs(w, land.data.take(index)))(land.center)
    rows = jacobian.reshape(-1, land.dim).double()
    spread = []
    for whole in (before, after):
        values = torch.linalg.svdvals(rows @ whole).square()
        # Of 16 inputs and 10 outputs a linear map has 160 directions; the last of them are below τ.
        spread.append(float(values[0] / values[100]))
    assert spread[0] > 20 * spread[1]


def test_a_chain_is_in_these_coordinates() -> None:
    land = network()
    chain = CooledChain(land, 0.1, 1.0, 0, 5000)
    z = torch.randn(land.dim, generator=torch.Generator().manual_seed(4))
    gradient, excess = chain._at(z)
    batch, point = land.data.take(chain.index), land.center + chain.scale(z)
    assert float(excess) == pytest.approx(float(land.batch_loss(point, batch)), rel=1e-4)
    expected = chain.scale.back(land.batch_gradient(point, batch))
    assert torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.heavy
def test_more_shows_at_the_first_temperature() -> None:
    land = network((40, 36, 30), (48, 40, 36, 30))
    plain, evened = CooledChain(land, 0.1, 1.0, 0, 5000), CooledChain(land, 0.1, 1.0, 0, 5000)
    before = plain.level(plain.first(), first=True)
    after = evened.level(evened.begin(), first=False)
    assert evened.even > 0
    assert plain.even == 0
    assert before is not None
    assert after is not None
    # Five standard deviations are a false alarm in 10⁶ runs.
    assert after.value > before.value + 5 * math.hypot(before.se, after.se)
    assert after.value < 720 + 5 * after.se  # half of 48 · 30


def test_a_function_without_outputs_is_left_alone() -> None:
    land = quadratic(50)
    with pytest.raises(NoOutputs):
        stiffness(
            Landscape.of_function(lambda w: w.square().sum(), torch.ones(3)), torch.arange(1), PriorScale(land, 0.1, 1)
        )
    chain = CooledChain(Landscape.of_function(lambda w: w.square().sum(), torch.ones(30)), 0.1, 1.0, 0, 5000)
    assert chain.begin() > 0
    assert chain.even == 0


def test_nothing_of_the_landscape_is_changed() -> None:
    land = reduced_rank(8, 6, 8, rank=3)
    center, state = land.center.clone(), torch.get_rng_state()
    CooledChain(land, 0.1, 1.0, 0, 2000).begin()
    assert torch.equal(land.center, center)
    assert torch.equal(torch.get_rng_state(), state)
