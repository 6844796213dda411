"""Hessian traces by other libraries: PyHessian's random vectors, and BackPACK's exact Gauss-Newton diagonal."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


def pyhessian_start(model: nn.Module, data: tuple[Tensor, Tensor]) -> Any:
    """PyHessian's object for a batch, which takes the gradient once."""
    from pyhessian import hessian

    return hessian(model, nn.CrossEntropyLoss(), data=data, cuda=data[0].is_cuda)


def pyhessian_values(started: Any, vectors: int) -> list[float]:
    """Values vᵀHv for random signs, by PyHessian's own loop, which is kept from stopping by itself."""
    return [float(value) for value in started.trace(maxIter=vectors, tol=-math.inf)]


def backpack_start(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Model and loss with BackPACK's hooks."""
    from backpack import extend

    return extend(model), extend(nn.CrossEntropyLoss())


def backpack_trace(model: nn.Module, loss: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """The sum of the exact diagonal of the Gauss-Newton matrix."""
    from backpack import backpack
    from backpack.extensions import DiagGGNExact

    with backpack(DiagGGNExact()):
        loss(model(data[0]), data[1]).backward()
    return float(sum(p.diag_ggn_exact.sum(dtype=torch.float64) for p in model.parameters()))
