"""Linear parts by layers against those with J as a matrix, and counts by inertia against those of all eigenvalues."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import crunode as cr
from crunode.curvature import valley_rows
from crunode.curvature.jacobian import Evaluation
from crunode.curvature.layered import Layered, LayeredMap
from crunode.curvature.outputs import Dense, DenseMap, OutputMap, counted
from crunode.curvature.rank import clear_count
from crunode.curvature.valley import valley

SEEDS = st.integers(0, 2**31)
CUT, BAND = 1e-5, 10.0


def network(seed, sides, activation, bias, loss, low=None, n=40, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for a, b in itertools.pairwise(sides):
        layers += [nn.Linear(a, b, bias=bias), activation()]
    net = nn.Sequential(*layers[:-1]).to(dtype)
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(generator=generator).div_(p.shape[-1] ** 0.5)
            if low is not None and p.ndim == 2:
                u, s, v = torch.linalg.svd(p.double(), full_matrices=False)
                p.copy_((u[:, :low] * s[:low]) @ v[:low])
        x = torch.randn(n, sides[0], generator=generator, dtype=torch.float64).to(dtype)
        y = net(x)
    if loss == "categorical":
        return cr.Landscape(net, (x, y.softmax(1)), nn.CrossEntropyLoss())
    return cr.Landscape(net, (x, y), "gaussian")


@settings(max_examples=15, deadline=None)
@given(
    SEEDS,
    st.lists(st.integers(1, 7), min_size=2, max_size=4),
    st.sampled_from([nn.Identity, nn.Tanh, nn.ReLU]),
    st.booleans(),
    st.sampled_from([None, "categorical"]),
    st.integers(1, 12),
    st.booleans(),
)
def test_by_layers_all_is_as_with_the_matrix(seed, sides, activation, bias, loss, examples, at_center):
    land = network(seed, sides, activation, bias, loss)
    seen, chance = Evaluation(land), torch.Generator().manual_seed(seed)
    examples, others = torch.arange(examples), OutputMap(seen, torch.arange(20, 40))
    step = torch.randn(land.dim, generator=chance, dtype=torch.float64)
    w = seen.center if at_center else seen.center + 0.3 * step
    layered, dense = LayeredMap(seen, examples), DenseMap(seen, examples)
    here, there = layered.at(w), dense.at(w)
    if float(there.gram.norm()) == 0:  # no output of these examples moves with the weights
        assert here.rank(CUT, BAND) == there.rank(CUT, BAND) == (0.0, 0.0)
        return
    assert isinstance(here, Layered)
    assert here.tall == there.tall
    torch.testing.assert_close(here.gram, there.gram, rtol=1e-10, atol=1e-12 * float(there.gram.abs().max()))
    assert here.top == pytest.approx(there.top, rel=1e-9)
    u = torch.randn(layered.rows, generator=chance, dtype=torch.float64)
    for damping in (1e-1, 1e-4):
        want = there.solve(u, damping)
        torch.testing.assert_close(here.solve(u, damping), want, rtol=1e-7, atol=1e-9 * float(want.abs().max()))
    assert float((here.kernel(step) - there.kernel(step)).norm()) <= 1e-3 * float(step.norm())
    enough = there.misses(others, step) <= dense.missed
    assert (here.misses(others, step) <= dense.missed) == enough
    assert here.rank(CUT, BAND) == there.rank(CUT, BAND)
    torch.testing.assert_close(here._held().T @ here._held(), there._root().T @ there._root(), rtol=1e-9, atol=1e-11)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 40), st.data())
def test_a_clear_count_is_the_one_of_the_widest_gap(seed, size, data):
    powers = data.draw(st.lists(st.floats(-9, 0), min_size=size, max_size=size))
    zeros = data.draw(st.integers(0, size - 1))
    generator = torch.Generator().manual_seed(seed)
    values = 10.0 ** torch.tensor(powers, dtype=torch.float64)
    values[:zeros] = 0.0
    axes = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    gram = (axes * values.square()) @ axes.T
    gram = (gram + gram.T) / 2
    floor = 3 * math.sqrt(size * torch.finfo(gram.dtype).eps)
    found = clear_count(gram, 1e-3, floor)
    if found is not None:
        seen = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(0)
        assert counted(seen, 1e-3, BAND, floor) == (float(found), 0.0)


def test_a_count_is_clear_where_squares_are_whole_numbers_or_zero():
    axes = torch.linalg.qr(torch.randn(60, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    for rank in (1, 17, 59, 60):
        values = torch.zeros(60, dtype=torch.float64)
        values[:rank] = 1.0 + torch.arange(rank) % 3
        assert clear_count((axes * values) @ axes.T, 1e-3, 1e-6) == rank
    assert clear_count(torch.zeros(4, 4, dtype=torch.float64), 1e-3, 1e-6) is None
    assert clear_count(torch.full((4, 4), math.nan, dtype=torch.float64), 1e-3, 1e-6) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("activation", "bias", "low", "dtype"),
    [
        (nn.Identity, False, 2, torch.float32),
        (nn.Identity, True, 3, torch.float64),
        (nn.Tanh, True, None, torch.float32),
    ],
)
def test_the_valley_is_the_same_by_layers(monkeypatch, seed, activation, bias, low, dtype):
    land = network(seed, (6, 5, 8), activation, bias, None, low, n=200, dtype=dtype)
    found = valley(land, reach=0.5 * (seed % 2), seed=seed)
    monkeypatch.setattr(valley_rows, "_WIDE", 10**9)
    want = valley(land, reach=0.5 * (seed % 2), seed=seed)
    assert found is not None
    assert want is not None
    assert (found.here, found.ranks, found.errors) == (want.here, want.ranks, want.errors)
    assert found.distances == pytest.approx(want.distances, rel=1e-5, abs=1e-7)
    assert (found.examples, found.rows, found.method) == (want.examples, want.rows, want.method)


@pytest.mark.parametrize("few_rows", [250, 2500])  # 32 examples are too many for matrices, or not
@pytest.mark.parametrize("seed", range(2))
def test_examples_are_as_few_as_show_all_inputs(monkeypatch, seed, few_rows):
    monkeypatch.setattr(valley_rows, "_MORE_ROWS", few_rows)
    for inputs in (13, 19, 23, 24):  # a linear map of so many inputs is known from so many examples
        land = network(seed, (inputs, 30, 10), nn.Identity, False, None, n=300)
        found = valley(land, seed=seed)
        assert found is not None
        assert (found.examples, found.here, found.method) == (inputs, 10.0 * inputs, "dense")


class Twice(nn.Module):
    """A layer that is called twice, or whose weight is used beside it."""

    def __init__(self, beside):
        super().__init__()
        self.layer, self.beside = nn.Linear(8, 8), beside

    def forward(self, x):
        first = self.layer(x).tanh()
        return first @ self.layer.weight if self.beside else self.layer(first)


@pytest.mark.parametrize(
    "net",
    [
        Twice(False),
        Twice(True),
        nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(12, 8)),
        nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)),
        nn.Sequential(nn.Unflatten(1, (4, 2)), nn.Linear(2, 2), nn.Flatten()),
    ],
)
def test_other_layers_are_left_to_the_matrix(net):
    net = net.double()
    x = torch.randn(20, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    land = cr.Landscape(net, (x, net(x).detach()), "gaussian")
    seen, examples = Evaluation(land), torch.arange(5)
    layered = LayeredMap(seen, examples)
    found = layered.at(seen.center)
    assert not layered.by_layers()
    assert type(found) is Dense
    assert torch.equal(found.gram, DenseMap(seen, examples).at(seen.center).gram)
    assert all(not m._forward_hooks for m in net.modules())  # the model is left as it was
