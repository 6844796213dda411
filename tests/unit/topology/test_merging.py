"""Merge trees: minimax levels, single linkage, and numbers of components."""

import numpy as np
import pytest
import torch

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.examples.toys import units_potential
from crunode.topology import merge_tree
from crunode.topology.merging import _merges, minimax


def test_minimax_is_an_ultrametric_below_what_was_given():
    random = np.random.default_rng(0)
    given = random.uniform(1, 2, (9, 9))
    given = np.maximum(given, given.T)
    np.fill_diagonal(given, 0.0)
    found = minimax(given)
    assert (found <= given).all()
    assert np.array_equal(found, found.T)
    for k in range(9):
        assert (found <= np.maximum(found[:, k : k + 1], found[k : k + 1]) + 1e-15).all()


def test_merges_are_single_linkage():
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    distance = pytest.importorskip("scipy.spatial.distance")
    points = np.random.default_rng(1).normal(size=(12, 2))
    apart = distance.squareform(distance.pdist(points))
    expected = hierarchy.linkage(distance.pdist(points), "single")[:, 2]
    merges = _merges(minimax(apart))
    assert np.allclose([m.level for m in merges], expected)
    assert sorted(merges[-1].left + merges[-1].right) == list(range(12))


def three_wells(w):
    """Wells at −2, 0 and 2 of depth 0; barriers of 1 at −1 and of 2 at 1."""
    x = w[0]
    return torch.where(x < 0, 1.0, 2.0) * (x * (x.abs() - 2)).square() + w[1] ** 2


@pytest.mark.heavy
def test_three_wells_merge_at_their_barriers():
    land = Landscape.of_function(three_wells, torch.zeros(2, dtype=torch.float64))
    solutions = [torch.tensor([x, y], dtype=torch.float64) for x, y in ((-2, 0), (0, 0), (2, 0), (2.1, 0.2))]
    tree = merge_tree(land, solutions, tolerance=0.05, strings=1)
    assert tree.levels[0, 1] == pytest.approx(1.0, rel=0.1)
    assert tree.levels[1, 2] == pytest.approx(2.0, rel=0.1)
    assert tree.levels[0, 2] == pytest.approx(2.0, rel=0.1)
    assert (tree.levels[[0, 1, 0], [1, 2, 2]] >= [1.0, 2.0, 2.0]).all()
    assert tree.components([0.05, 0.5, 1.5, 2.5]).tolist() == [3, 3, 2, 1]
    assert tree.labels(1.5).tolist() == [0, 0, 2, 2]
    assert tree.labels(-0.1).tolist() == [-1] * 4
    assert [f.code for f in tree.findings] == ["TOPO1124"]
    assert len(tree.merges) == 3


@pytest.mark.heavy
def test_adversarial_data_has_a_component_for_each_sign():
    """Two units on ±1 → 1: two components below ½, whatever is searched, and one above."""
    solutions = [torch.tensor(w, dtype=torch.float64) for w in ((1, 1, 1, -1), (1, 1, -1, 1), (2, 1, 0.5, -1))]
    land = Landscape.of_function(units_potential(2, 1), solutions[0])
    tree = merge_tree(land, solutions, tolerance=0.1, strings=1)
    assert tree.components([0.06, 0.499, 0.65]).tolist() == [2, 2, 1]
    assert "at most" in str(tree)


@pytest.mark.parametrize("solutions", [[], [torch.zeros(2)], torch.zeros(3, 2)])
def test_too_few_solutions(solutions):
    land = Landscape.of_function(three_wells, torch.zeros(2))
    with pytest.raises(InputError, match="two or more"):
        merge_tree(land, solutions)
    with pytest.raises(InputError, match="solution 1"):
        merge_tree(land, [torch.zeros(2), torch.zeros(3)])
