"""Rounded normal noise: its moments, its independence, and that it depends on (seed, chain, step) alone."""

import math

import numpy as np
import pytest
import torch

from crunode.core.rng import BLOCK, NoiseStream, normal_grid

WIDTH = BLOCK + 11  # more than a block, and not a multiple of the four numbers in a draw


def _stream(*chains, width=WIDTH, kind="grid", dtype=torch.float32):
    return NoiseStream(5, chains, width, stream=0, kind=kind, dtype=dtype)


def test_grid_has_normal_moments():
    grid = normal_grid(torch.float64)
    assert len(grid.unique()) == len(grid) == 2**16
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        assert float((grid**power).mean()) == pytest.approx(moment, rel=2e-3, abs=1e-12)


def test_grid_matches_the_normal_distribution_function():
    x = np.sort(_stream(0).at(0).double().numpy()[0])
    normal = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])
    gap = np.abs(normal - (np.arange(len(x)) + 0.5) / len(x)).max()
    assert gap < 1.95 / math.sqrt(len(x))  # Kolmogorov and Smirnov, one in a thousand


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
