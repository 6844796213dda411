"""Grid noise: its moments, its independence, and that noise depends on (seed, chain, step) alone."""

import math

import pytest
import torch

from crunode.core.rng import BLOCK, NoiseStream

WIDTH = BLOCK + 11  # more than a block, and not a multiple of the eight numbers in a draw


def _stream(*chains, width=WIDTH, kind="grid", dtype=torch.float32):
    return NoiseStream(5, chains, width, stream=0, kind=kind, dtype=dtype)


def test_grid_has_the_first_five_moments_of_normal_numbers():
    grid = _stream(0, dtype=torch.float64).at(0).unique()
    assert len(grid) == 128
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (5, 0)):
        assert float((grid**power).mean()) == pytest.approx(moment, rel=1e-12, abs=1e-12)
    assert float(grid.max()) < 2.332


def test_grid_values_are_equally_likely():
    count = _stream(0).at(0).unique(return_counts=True)[1].double()
    expected = WIDTH / 128
    assert float(((count - expected) ** 2 / expected).sum()) < 181  # chi-squared with 127, one in a thousand


def test_steps_chains_and_neighbors_are_uncorrelated():
    stream = _stream(0, 1)
    first, second = stream.at(0).double().clone(), stream.at(1).double().clone()
    pairs = [(first[0], first[1]), (first[0], second[0]), (first[0], second[1])]
    pairs += [(first[0][:-lag], first[0][lag:]) for lag in (1, 2, 3, 4, BLOCK)]
    for a, b in pairs:
        assert abs(float((a * b).mean())) < 4 / math.sqrt(len(a))


@pytest.mark.parametrize("width", [3, 1000, WIDTH])
@pytest.mark.parametrize("kind", ["normal", "grid", "uniform"])
def test_depends_on_seed_chain_and_step_alone(width, kind):
    together, alone = _stream(4, 7, width=width, kind=kind), _stream(7, width=width, kind=kind)
    for step in (0, 31, 2):
        assert torch.equal(together.at(step)[1:], alone.at(step))
    assert not torch.equal(together.at(3)[0], together.at(3)[1])


def test_double_precision_has_the_same_numbers():
    assert torch.allclose(_stream(0).at(1).double(), _stream(0, dtype=torch.float64).at(1), atol=1e-6)
