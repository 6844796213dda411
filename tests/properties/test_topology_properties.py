"""What has to hold for critical points and zero-loss manifolds of any landscape."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crunode.core.landscape import Landscape
from crunode.topology import critical_points, solution_dimension

SEEDS = st.integers(0, 2**20)


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seed=SEEDS, signs=st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=5).filter(any))
@settings(max_examples=15)
def test_quadratic_forms_have_the_index_of_their_signs(seed, signs):
    # By Sylvester's law neither rotation nor scaling changes the signs; one step finds the point.
    axes = torch.linalg.qr(normal(len(signs), len(signs), seed=seed)).Q
    sizes = torch.tensor(signs, dtype=torch.float64) * (0.5 + normal(len(signs), seed=seed + 1).abs())
    matrix, shift = axes @ torch.diag(sizes) @ axes.T, normal(len(signs), seed=seed + 2)
    land = Landscape.of_function(lambda w: (w - shift) @ matrix @ (w - shift) / 2, torch.zeros_like(shift))
    found = critical_points(land, normal(2, len(signs), seed=seed + 3))
    assert len(found) == 2
    for p in found:
        assert p.index.value == signs.count(-1)
        assert p.degenerate.value == signs.count(0)
        assert abs(p.loss.value) < 1e-12


@given(seed=SEEDS, scale=st.sampled_from([1e-6, 1e-2, 1e3, 1e8]))
@settings(max_examples=6)
def test_nothing_depends_on_the_unit_of_the_loss(seed, scale):
    def wells(w):
        return (w[0] ** 2 - 1) ** 2 + w[0] * w[1] + 2 * w[1] ** 2 - w[2] ** 2

    start = normal(6, 3, seed=seed)
    one, other = (
        critical_points(Landscape.of_function(lambda w, c=c: c * wells(w), torch.zeros(3).double()), start, steps=60)
        for c in (1.0, scale)
    )
    assert one.outcomes == other.outcomes
    for p, q in zip(one, other, strict=True):
        assert torch.allclose(p.weights, q.weights, atol=1e-6)
        assert (p.index.value, p.degenerate.value) == (q.index.value, q.degenerate.value)


@given(seed=SEEDS, width=st.integers(4, 9), examples=st.integers(1, 5), outputs=st.integers(1, 2))
@settings(max_examples=12)
def test_dimension_is_parameters_minus_equations(seed, width, examples, outputs):
    net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, outputs)).double()
    with torch.no_grad():
        for k, weight in enumerate(net.parameters()):
            weight.copy_(normal(*weight.shape, seed=seed + k))
    x, y = normal(examples, 2, seed=seed + 10), normal(examples, outputs, seed=seed + 11)
    found = solution_dimension(Landscape(net, (x, y), "gaussian"))
    if found.full_rank:
        assert found.dimension.value == 3 * width + (width + 1) * outputs - examples * outputs
    else:  # steps may get stuck, which is told
        assert {f.code for f in found.findings} & {"TOPO1105", "TOPO1106", "TOPO1107"}
    assert found.full_rank or found.loss.value > 1e-20
