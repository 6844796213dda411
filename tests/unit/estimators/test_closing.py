"""Steps into the valley, held against ranks that are known."""

from __future__ import annotations

import pytest
import torch

from crunode.core.landscape import Landscape
from crunode.curvature.jacobian import NoOutputs
from crunode.estimators import closing
from crunode.estimators.closing import Closing
from crunode.estimators.prior_scale import PriorScale
from crunode.examples.toys import reduced_rank


def away(land: Landscape, seed: int, reach: float = 1.0) -> torch.Tensor:
    """A random point of the prior of a chain, as an offset from the center."""
    return PriorScale(land, 0.1, reach)(torch.randn(land.dim, generator=torch.Generator().manual_seed(seed))).double()


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_around_a_smooth_point_the_rank_is_that_of_the_center(seed: int) -> None:
    land = reduced_rank(60, 20, 60, rank=20)
    found = Closing(land, torch.arange(80), 0.1, seed).close(away(land, seed), 1000.0)
    # A random probe tells it to 1.4 % at one standard error; 20 (60 + 60 - 20) is exact.
    assert found.rank == pytest.approx(2000, abs=max(3 * found.error, 60))
    assert found.loss < 1e-12
    assert found.moved < 1


def test_hidden_directions_are_counted() -> None:
    """The center of 60-20-60 with rank 4 has 464 directions, pieces of the valley p 60 + (24 - p) 60 - p (24 - p)."""
    land = reduced_rank(60, 20, 60, rank=4)
    pieces = [60 * 24 - p * (24 - p) for p in range(4, 21)]
    found = Closing(land, torch.arange(90), 0.1).close(away(land, 0), 650.0)
    assert min(pieces) - 3 * found.error < found.rank < 1.05 * max(pieces)
    assert found.rank > 2 * 464


@pytest.mark.heavy
def test_the_same_seed_gives_the_same_rank_and_nothing_is_changed() -> None:
    land = reduced_rank(60, 20, 60, rank=4)
    center, offset, state = land.center.clone(), away(land, 0), torch.get_rng_state()
    found = [Closing(land, torch.arange(90), 0.1).close(offset, 650.0) for _ in range(2)]
    assert found[0] == found[1]
    assert torch.equal(land.center, center)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_budget_that_is_too_small_ends_it() -> None:
    land = reduced_rank(30, 20, 30, rank=6)
    steps = Closing(land, torch.arange(50), 0.1)
    with pytest.raises(NoOutputs, match="further than 1000 passes"):
        steps.close(away(land, 0), 300.0, 1000)
    assert 0 < steps.gradients <= 1000


def test_memory_is_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    land = reduced_rank(30, 20, 30, rank=6)
    monkeypatch.setattr(closing, "memory_class", lambda device: 1e5)
    with pytest.raises(NoOutputs, match="gradients of 1200 weights"):
        Closing(land, torch.arange(50), 0.1)
