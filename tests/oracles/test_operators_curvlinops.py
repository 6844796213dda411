"""Operators against curvlinops, in the environment that has it: it brings builds of other packages along."""

import importlib.util

import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.curvature.operators import fisher, ggn, hessian, jacobian

# Not by importorskip, which the full run takes for a failure: no install of this package alone has curvlinops.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("curvlinops") is None, reason="curvlinops has an environment of its own"
)


def case(loss, dtype=torch.float64):
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 6), nn.GELU(), nn.Linear(6, 3)
    model = nn.Sequential(*conv).to(dtype).eval()
    x, y = torch.randn(10, 1, 6, 6, dtype=dtype), torch.randn(10, 3, dtype=dtype)
    target = y if loss == "gaussian" else y.argmax(1)
    theirs = nn.MSELoss() if loss == "gaussian" else nn.CrossEntropyLoss()
    return model, Landscape(model, (x, target), theirs), theirs, [(x[:4], target[:4]), (x[4:], target[4:])]


def products(operator, width, dtype=torch.float64):
    vectors = torch.randn(width, 3, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return vectors, torch.as_tensor(operator @ vectors)


@pytest.mark.parametrize("loss", ["gaussian", "cross-entropy"])
@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (hessian, "HessianLinearOperator"),
        (ggn, "GGNLinearOperator"),
        (lambda land: fisher(land, "empirical"), "EFLinearOperator"),
    ],
    ids=["hessian", "ggn", "empirical"],
)
def test_products_agree(ours, name, loss):
    curvlinops = __import__("curvlinops")
    model, land, criterion, data = case(loss)
    params = list(model.parameters())
    theirs = getattr(curvlinops, name)(model, criterion, params, data)
    vectors, expected = products(theirs, land.dim)
    found = ours(land) @ vectors
    if name == "EFLinearOperator" and loss == "gaussian":
        expected = expected / 3  # theirs takes each of the outputs, over which the loss is a mean, for an example
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_jacobian_agrees():
    curvlinops = __import__("curvlinops")
    model, land, _, data = case("cross-entropy")
    theirs = curvlinops.JacobianLinearOperator(model, list(model.parameters()), data)
    vectors, expected = products(theirs, land.dim)
    torch.testing.assert_close(jacobian(land) @ vectors, expected, rtol=1e-8, atol=1e-10)
