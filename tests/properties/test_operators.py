"""What holds for operators of any small network: linear, symmetric, H = H0 + H1, and the algebra of matrices."""

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crunode.core.landscape import Landscape
from crunode.curvature.operators import fisher, ggn, hessian, jacobian, ntk, residual_part

SEEDS = st.integers(0, 2**31)
ACTIVATIONS = st.sampled_from([nn.Tanh, nn.ReLU, nn.GELU, nn.Softplus])
LOSSES = st.sampled_from(["gaussian", "cross-entropy", "bernoulli"])


def landscape(seed, loss, activation, widths=(2, 3, 2), rows=4, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), activation()]
    model = nn.Sequential(*layers[:-1]).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=generator))
    x = torch.randn(rows, widths[0], generator=generator).double()
    y = torch.randn(rows, widths[-1], generator=generator).double()
    target = {"gaussian": y, "cross-entropy": y.argmax(1), "bernoulli": (y > 0).double()}[loss]
    return Landscape(model, (x, target), loss)


def random(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed ^ 1), dtype=torch.float64)


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9 * (1 + float(other.abs().max())))


@settings(max_examples=15)
@given(seed=SEEDS, loss=LOSSES, activation=ACTIVATIONS, rows=st.integers(1, 6), scale=st.floats(0.1, 3))
def test_hessian_is_the_sum_of_its_parts_and_symmetric(seed, loss, activation, rows, scale):
    land = landscape(seed, loss, activation, rows=rows, scale=scale)
    u, v = random(seed, 2, land.dim)
    whole, outer, rest = hessian(land), ggn(land), residual_part(land)
    close(whole @ v, outer @ v + rest @ v)
    for operator in (whole, outer, rest, ntk(land)):
        a, b = random(seed, 2, operator.shape[0])
        close(a @ (operator @ b), b @ (operator @ a))
    assert float(v @ (outer @ v)) >= 0
    assert float(u @ (fisher(land, "sampled", seed=seed) @ u)) >= 0
    close(fisher(land) @ v, outer @ v)


@settings(max_examples=15)
@given(seed=SEEDS, loss=LOSSES, activation=ACTIVATIONS, c=st.floats(-5, 5), kappa=st.floats(-2, 2))
def test_operators_are_linear_and_add_as_matrices_do(seed, loss, activation, c, kappa):
    land = landscape(seed, loss, activation)
    j, h = jacobian(land), hessian(land)
    u, v = random(seed, 2, land.dim)
    for operator in (h, j, fisher(land, "empirical")):
        close(operator @ (c * u + v), c * (operator @ u) + operator @ v)
        close(operator @ torch.stack([u, v], 1), torch.stack([operator @ u, operator @ v], 1))
    w = random(seed, j.shape[0])
    close(w @ (j @ v), (j.T @ w) @ v)
    close((c * h + ggn(land)).shifted(kappa) @ v, c * (h @ v) + ggn(land) @ v + kappa * v)


@settings(max_examples=10)
@given(seed=SEEDS, loss=LOSSES, activation=ACTIVATIONS, which=st.sampled_from(["0.*", "2.*", "*.bias", "0.weight"]))
def test_subsets_are_blocks(seed, loss, activation, which):
    land = landscape(seed, loss, activation)
    part = land.restrict(which)
    inside = torch.cat(
        [
            torch.full((size,), name in part.packing.names)
            for name, size in zip(land.packing.names, land.packing.sizes, strict=True)
        ]
    )
    v = random(seed, part.dim)
    wide = torch.zeros(land.dim, dtype=torch.float64)
    wide[inside] = v
    for make in (hessian, ggn, residual_part, fisher):
        close(make(part) @ v, (make(land) @ wide)[inside])
    close(jacobian(part) @ v, jacobian(land) @ wide)
