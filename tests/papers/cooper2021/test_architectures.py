"""The zero-loss manifold of each of the ten architectures has the dimension of the theorem."""

import math

import pytest

from crunode.topology import solution_dimension
from crunode_papers.cooper2021.dimension import ARCHITECTURES, landscape


@pytest.mark.heavy
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_dimension_is_that_of_the_theorem(name):
    kind = ARCHITECTURES[name]
    dim = sum(p.numel() for p in kind.build().parameters())
    examples = max(2, dim // (8 * kind.outputs))
    # ReLU networks can get stuck at kinks: the first start of these that does not is taken.
    found = next(
        found
        for seed in range(5)
        if math.isfinite((found := solution_dimension(landscape(name, examples, seed))).dimension.value)
    )
    assert found.dimension.value == found.expected == dim - kind.outputs * examples
    assert found.full_rank
    assert found.loss.value < 1e-24
    assert [f.code for f in found.findings] == ([] if kind.smooth else ["TOPO1108"])
