"""Hessian products by layers: those of dense autodiff and of the graph, and left where they do not hold."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import crunode as cr
from crunode.curvature import chained, products
from crunode.curvature.operators import hessian, residual_part
from crunode.curvature.straight_code import without_zeros
from crunode.errors import InputError

ROWS = 7


class Functional(nn.Module):
    """Activations in the code of the model, and one after the last layer."""

    def __init__(self, bias=True):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5, bias=bias), nn.Linear(5, 3, bias=bias)

    def forward(self, x):
        return 2 * torch.sigmoid(self.second(F.softplus(self.first(x)).square()))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.third(h + torch.tanh(self.second(h)))


class Twice(nn.Module):
    """One layer called two times."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(torch.tanh(self.first(x)))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Borrowed(nn.Module):
    """A weight that is also used outside of its layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))) + (x @ self.first.weight)[:, :3]


class Softmax(nn.Module):
    """Entries that are mixed between layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.second(self.first(x).softmax(1))


def layers(*between, bias=True, widths=(4, 5, 6, 3)):
    found = []
    for k, (one, other) in enumerate(pairwise(widths)):
        found += [nn.Linear(one, other, bias=bias), *between[k : k + 1]]
    return nn.Sequential(*found)


CHAINS = {
    "relu": lambda bias: layers(nn.ReLU(), nn.ReLU(), bias=bias),
    "in place": lambda bias: layers(nn.ReLU(inplace=True), nn.LeakyReLU(inplace=True), bias=bias),
    "tanh": lambda bias: layers(nn.Tanh(), nn.Tanh(), bias=bias),
    "mixed": lambda bias: layers(nn.GELU(), nn.ReLU(), bias=bias),
    "linear": lambda bias: layers(bias=bias),
    "one layer": lambda bias: layers(bias=bias, widths=(4, 3)),
    "after the last": lambda bias: nn.Sequential(layers(nn.SiLU(), bias=bias), nn.Tanh()),
    "functional": Functional,
}


def coupled(outputs, target):
    """A loss of all examples together."""
    return (outputs.mean(0) - target.mean(0)).square().sum() * outputs.exp().mean()


def landscape(model, loss, dtype=torch.float64, width=3):
    chance = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 4, generator=chance, dtype=torch.float64).to(dtype)
    y = torch.randn(ROWS, width, generator=chance, dtype=torch.float64).to(dtype)
    return cr.Landscape(model.to(dtype), (x, y.argmax(1) if loss is F.cross_entropy else y), loss)


def held(land, compared=None):
    """What products with the Hessian on the whole data are made of."""
    (batch,) = land.passes()
    return products.SecondDerivative(land, lambda w: land.batch_loss(w, batch), ROWS, 0, compared)


def dense(land):
    (batch,) = land.passes()
    return torch.func.jacrev(torch.func.jacrev(lambda w: land.batch_loss(w, batch)))(land.center).detach()


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10 + 1e-9 * float(expected.abs().max()))


@pytest.mark.heavy
@pytest.mark.parametrize("loss", [F.cross_entropy, F.mse_loss, coupled], ids=lambda f: f.__name__)
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "none"])
@pytest.mark.parametrize("kind", CHAINS)
def test_products_by_layers_are_those_of_dense_autodiff(kind, bias, loss):
    torch.manual_seed(3)
    land = landscape(CHAINS[kind](bias), loss)
    assert held(land)._chain is not None
    assert_same(hessian(land).dense(), dense(land))


@pytest.mark.parametrize("names", [["0.*"], ["2.weight"], ["4.*"], ["0.bias"], ["2.bias", "4.weight"]], ids="+".join)
def test_subsets_are_blocks(names):
    torch.manual_seed(3)
    land = landscape(CHAINS["tanh"](True), F.cross_entropy)
    part = land.restrict(*names)
    assert held(part)._chain is not None
    order = zip(land.packing.names, land.packing.sizes, strict=True)
    inside = torch.cat([torch.full((size,), name in part.packing.names) for name, size in order])
    assert_same(hessian(part).dense(), dense(land)[inside][:, inside])


def test_layers_that_are_not_called_have_no_curvature():
    torch.manual_seed(3)
    model = Functional()
    model.spare = nn.Linear(2, 2)
    land = landscape(model, F.mse_loss)
    assert held(land)._chain is not None
    assert_same(hessian(land).dense(), dense(land))


def test_many_outputs_and_the_residual_part(monkeypatch):
    torch.manual_seed(3)
    land = landscape(layers(nn.Tanh(), widths=(4, 5, 9)), F.mse_loss, width=9)
    both = residual_part(land).dense(), hessian(land).dense()
    monkeypatch.setattr(chained, "_WIDE", 8)
    assert held(land)._chain._curvature is None
    assert_same(hessian(land).dense(), dense(land))
    assert_same(residual_part(land).dense(), both[0])
    assert_same(both[1], dense(land))


@pytest.mark.parametrize("make", [Residual, Twice, Tied, Borrowed, Softmax], ids=lambda m: m.__name__)
def test_other_networks_are_left_to_the_graph(make):
    torch.manual_seed(3)
    land = landscape(make(), F.cross_entropy)
    assert held(land)._chain is None
    assert_same(hessian(land).dense(), dense(land))


@pytest.mark.parametrize("kind", ["relu", "tanh"])
@pytest.mark.parametrize("together", [1, 1 << 20])
def test_single_precision_is_that_of_the_graph(kind, together, monkeypatch):
    monkeypatch.setitem(chained._TOGETHER, "cpu", together)
    torch.manual_seed(3)
    land = landscape(CHAINS[kind](True), F.cross_entropy, torch.float32)
    vectors = torch.randn(5, land.dim, generator=torch.Generator().manual_seed(0))
    by_layers, by_graph = held(land), held(land, {0: False})
    assert by_layers._chain is not None
    assert by_graph._chain is None
    found, expected = by_layers(vectors), by_graph(vectors)
    assert found.dtype == torch.float32
    assert float((found - expected).norm()) < 1e-5 * float(expected.norm())


def test_columns_in_any_layout_give_the_same():
    torch.manual_seed(3)
    land = landscape(CHAINS["relu"](True), F.cross_entropy)
    operator, plain = hessian(land), dense(land)
    for count in (0, 1, 3, 20):
        vectors = torch.randn(land.dim, count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
        for given in (vectors, vectors.T.contiguous().T):
            assert_same(operator @ given, plain @ vectors) if count else (operator @ given)


def test_each_chunk_is_compared_with_the_graph_once(monkeypatch):
    torch.manual_seed(3)
    land = landscape(CHAINS["tanh"](True), F.mse_loss)
    plain = dense(land)
    monkeypatch.setattr(cr.Landscape, "chunk_rows", lambda self, chains=1: 3)
    monkeypatch.setattr(products, "_ROOM", 0)  # chunks are built for each product
    graphs, graph = [], products.SecondDerivative._graph
    monkeypatch.setattr(products.SecondDerivative, "_graph", lambda self, v: graphs.append(1) or graph(self, v))
    operator = hessian(land)
    for _ in range(3):
        assert_same(operator @ torch.ones(land.dim, dtype=torch.float64), plain.sum(1))
    assert len(graphs) == 3  # of seven examples


def test_data_that_was_written_to_is_refused():
    torch.manual_seed(3)
    land = landscape(CHAINS["relu"](True), F.mse_loss)
    operator, one = hessian(land), torch.ones(land.dim, dtype=torch.float64)
    operator @ one
    next(iter(land.passes()))[0].mul_(2)
    with pytest.raises(InputError, match="written to since"):
        operator @ one
    assert_same(hessian(land) @ one, dense(land) @ one)


def test_dropped_sums_are_those_with_zeros_of_the_same_kind():
    half, one = torch.zeros(3), torch.zeros(3, dtype=torch.float64)

    def function(v):
        written = torch.zeros_like(v).add_(1)
        wider = torch.zeros(2, 3) + v
        return (half + v) + (written + v) + wider.sum(0) + (v + one).float() + (torch.zeros_like(v) + v).mul_(2)

    code, v = without_zeros(function, torch.ones(3)), torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(code(v), function(v))
    assert torch.equal(v, torch.tensor([1.0, 2.0, 3.0]))
    sums = [node for node in code.graph.nodes if node.target is torch.ops.aten.add.Tensor]
    assert len(sums) == 8  # four between the terms and one in each but the first, `half + v`
