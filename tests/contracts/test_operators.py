"""Operators of every kind keep the contract, and the suite refuses what does not."""

import numpy as np
import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.curvature.operators import Operator, fisher, ggn, hessian, jacobian, ntk, residual_part
from crunode.testing import check_operator

MAKERS = {
    "hessian": hessian,
    "ggn": ggn,
    "residual part": residual_part,
    "true Fisher": fisher,
    "empirical Fisher": lambda land: fisher(land, "empirical"),
    "sampled Fisher": lambda land: fisher(land, "sampled", seed=3),
    "jacobian": jacobian,
    "transposed jacobian": lambda land: jacobian(land).T,
    "ntk": ntk,
    "sum": lambda land: (hessian(land) - 2 * ggn(land)).shifted(0.1),
}


def landscape(dtype, loss):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 3), nn.LayerNorm(3), nn.Dropout(0.5)).to(dtype)
    x, y = torch.randn(9, 3, dtype=dtype), torch.randn(9, 3, dtype=dtype)
    return Landscape(model, (x, y if loss == "gaussian" else y.argmax(1)), loss)


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("loss", ["gaussian", "cross-entropy"])
@pytest.mark.parametrize("maker", MAKERS)
def test_operators_keep_the_contract(maker, loss, dtype):
    check_operator(MAKERS[maker](landscape(dtype, loss)))


def test_functions_keep_the_contract():
    potential = Landscape.of_function(lambda w: (w[0] * w[1] ** 2).sin(), torch.ones(2, dtype=torch.float64))
    check_operator(hessian(potential))


def noisy(v):
    return v + torch.randn_like(v)


def seeds_numpy(v):
    np.random.seed(0)  # noqa: NPY002
    return v


def in_place(v):
    return v.mul_(2)


class Untyped:
    shape = (3, 3)


def plain(product, **options):
    return Operator("it", (3, 3), product, **options)


def moves(land):
    def product(v):
        land.center.add_(1e-3)
        return v

    return Operator("it", (3, 3), product, landscape=land, symmetric=True)


class Accepting:
    shape, dtype, device, name = (3, 3), torch.float32, torch.device("cpu"), "it"

    def __matmul__(self, v):
        return v[:3]


UPPER = torch.tensor([[1.0, 2, 0], [0, 1, 0], [0, 0, 1]])
WRONG = {
    "expected an attribute dtype": Untyped,
    "linear": lambda: plain(torch.square, symmetric=True),
    "are linear": lambda: plain(lambda v: v + 1, symmetric=True),
    "same products again": lambda: plain(noisy, symmetric=True),
    "random state of numpy": lambda: plain(seeds_numpy, symmetric=True),
    "several vectors": lambda: plain(lambda v: v.flip(1), symmetric=True),
    "symmetric operator": lambda: plain(lambda v: UPPER @ v, symmetric=True),
    "no negative": lambda: plain(torch.neg, symmetric=True, positive=True),
    "transpose with uᵀ": lambda: plain(lambda v: UPPER @ v, transposed=lambda u: UPPER @ u),
    "transpose with 3 rows": lambda: plain(lambda v: v, transposed=lambda u: u[:2]),
    "expected products of shape": lambda: plain(lambda v: v[:2], symmetric=True),
    "another kind": lambda: plain(torch.Tensor.double, symmetric=True),
    "changed the vectors": lambda: plain(in_place, symmetric=True),
    "changed the landscape": lambda: moves(Landscape.of_function(lambda w: w.square().sum(), torch.ones(3))),
    "refused by an InputError": Accepting,
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_operators_are_refused(message):
    with pytest.raises(AssertionError, match=message):
        check_operator(WRONG[message]())
