"""The share of the rank at the center that a temperature shows, held against dense matrices."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crunode.core.landscape import Landscape
from crunode.curvature.jacobian import NoOutputs
from crunode.estimators.prior_scale import PriorScale
from crunode.estimators.resolved import SMOOTH, Resolved
from crunode.exact import deep_linear_local
from crunode.examples.toys import reduced_rank


def network(activation: type[nn.Module], inputs: int = 30, hidden: int = 20, outputs: int = 15) -> Landscape:
    """A network on its own predictions."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(inputs, hidden), activation(), nn.Linear(hidden, outputs)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5)
    x = torch.randn(300, inputs, generator=generator, dtype=torch.float64)
    return Landscape(net, (x, net(x).detach()), "gaussian")


def deep_linear_network(widths: tuple[int, ...], ranks: tuple[int, ...], seed: int) -> Landscape:
    """Layers of the given ranks on their own predictions."""
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for (a, b), rank in zip(pairwise(widths), ranks, strict=True):
        layer = nn.Linear(a, b, bias=False)
        left, right = torch.randn(b, rank, generator=generator), torch.randn(a, rank, generator=generator)
        layer.weight.data = left @ right.T / (a * rank) ** 0.5
        layers.append(layer)
    net = nn.Sequential(*layers)
    x = torch.randn(4 * widths[0], widths[0], generator=generator)
    return Landscape(net, (x, net(x).detach()), "gaussian")


def dense_values(land: Landscape, index: torch.Tensor, share: float) -> torch.Tensor:
    """Eigenvalues of SJᵀJS/n by the whole Jacobian."""
    scale = PriorScale(land, share, 1.0).double()
    batch = land.data.take(index)

    def outputs(z: torch.Tensor) -> torch.Tensor:
        parts = land.packing.unravel(land.center + scale(z))
        return torch.func.functional_call(land.network, parts, (batch[0],))

    rows = torch.func.jacrev(outputs)(torch.zeros_like(land.center)).reshape(-1, land.dim)
    return torch.linalg.svdvals(rows).square() / len(index)


@pytest.mark.heavy
@pytest.mark.parametrize("activation", [nn.Identity, nn.Tanh])
@pytest.mark.parametrize("t", [1.0, 1e3, 1e6])
def test_shares_are_those_of_the_whole_spectrum(activation: type[nn.Module], t: float) -> None:
    land, index = network(activation), torch.arange(120)
    found = Resolved(land, index, PriorScale(land, 0.1, 1.0), seed=1)
    values = dense_values(land, index, 0.1)
    rank = int((values > 1e-10 * values[0]).sum())
    share, doubt = found.share(t)
    # A single random vector has a spread of √(2r)/r; four of them, with the rank's own, are a false alarm in 10⁴ runs.
    chance = 4 * (2 / rank) ** 0.5
    assert abs(found.rank / rank - 1) < chance
    assert abs(share * found.rank / float((t * values / (t * values + 1)).sum()) - 1) < chance + doubt


@pytest.mark.heavy
@settings(max_examples=10)
@given(st.floats(-2, 8), st.floats(0.1, 4))
def test_colder_shows_more(low: float, step: float) -> None:
    land = reduced_rank(60, 20, 60, rank=20)
    found = Resolved(land, torch.arange(80), PriorScale(land, 0.1, 1.0))
    hot, cold = found.share(10**low), found.share(10 ** (low + step))
    assert 0 <= hot[0] <= cold[0] + hot[1] + cold[1]
    assert cold[0] <= 1 + cold[1] + 0.05


def test_a_limit_of_passes_is_kept_and_is_in_the_error() -> None:
    land = reduced_rank(60, 20, 60, rank=20)
    found = Resolved(land, torch.arange(80), PriorScale(land, 0.1, 1.0))
    before = found.gradients
    _, doubt = found.share(1e12, most=0)
    assert found.gradients == before
    assert doubt > 0.4
    share, doubt = found.share(1e12)
    assert doubt < 0.1
    assert share == pytest.approx(1, abs=0.1)


def test_where_there_is_no_rank_it_is_no_measure() -> None:
    land = reduced_rank(6, 4, 5, rank=0)
    with pytest.raises(NoOutputs, match="rank at the center is 0"):
        Resolved(land, torch.arange(20), PriorScale(land, 0.1, 1.0))


@pytest.mark.heavy
def test_nothing_of_the_landscape_is_changed() -> None:
    land = network(nn.Tanh)
    center, state = land.center.clone(), torch.get_rng_state()
    Resolved(land, torch.arange(120), PriorScale(land, 0.1, 1.0)).share(1e4)
    assert torch.equal(land.center, center)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.heavy
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(18, 34), min_size=3, max_size=5))
def test_no_smooth_point_of_a_deep_linear_network_is_taken_for_a_singular_one(seed: int, widths: list[int]) -> None:
    chance = random.Random(seed)
    ranks = [min(a, b) if chance.random() < 0.5 else chance.randint(8, min(a, b)) for a, b in pairwise(widths)]
    # A product of neighboring layers has the least of their ranks.
    back = ranks[::-1]
    partial = [[min(back[s : t + 1]) for t in range(s, len(back))] for s in range(len(back))]
    exact = deep_linear_local(widths[::-1], partial)
    land = deep_linear_network(tuple(widths), tuple(ranks), seed)
    found = Resolved(land, torch.arange(2 * widths[0]), PriorScale(land, 0.1, 1.0))
    # What is bent is singular; that what is singular is bent holds but for higher orders.
    if exact.details["jacobian_rank"] == 2 * exact.value:
        assert found.bent() <= SMOOTH


def test_a_linear_model_is_smooth_everywhere() -> None:
    generator = torch.Generator().manual_seed(0)
    net = nn.Linear(40, 30)
    x = torch.randn(400, 40, generator=generator)
    land = Landscape(net, (x, net(x).detach()), "gaussian")
    found = Resolved(land, torch.arange(100), PriorScale(land, 0.1, 1.0))
    assert found.bent() == 0


class Cubes(nn.Module):
    """Half of the weights act by their cubes: flat at zero, where λ is more than half the rank."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.cat([torch.ones(400), torch.zeros(400)]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.w.split(400)
        return x[:, :40] @ first.reshape(40, 10) + x[:, 40:] @ second.pow(3).reshape(40, 10)


def test_a_third_order_is_not_taken_for_a_smooth_point() -> None:
    net = Cubes()
    x = torch.randn(300, 80, generator=torch.Generator().manual_seed(0))
    land = Landscape(net, (x, net(x).detach()), "gaussian")
    found = Resolved(land, torch.arange(150), PriorScale(land, 0.1, 1.0))
    assert found.rank == pytest.approx(400, rel=0.05)
    assert found.bent() > SMOOTH
