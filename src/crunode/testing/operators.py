"""`check_operator`: is something that multiplies vectors the matrix it claims to be?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crunode.core.rng import preserved_rng
from crunode.errors import InputError
from crunode.testing.probes import require, surroundings

__all__ = ["check_operator"]

# Up to this many rows and columns the matrix is written out.
_SMALL = 400
_VECTORS = 3
# Relative errors: a product of many terms keeps about half of the digits at worst.
_ALLOWED = {torch.float64: 1e-8, torch.float32: 1e-3}


def check_operator(operator: Any, *, seed: int = 0) -> None:
    """Check the contract of an operator: an object with `shape`, `dtype`, `device` and products `A @ v`.

    Products have to be linear; the same again when asked again; the same for several vectors as for each alone; of the
    operator's dtype and device, without a history. A `symmetric` operator has uᵀAv = vᵀAu, a `positive` one vᵀAv ≥ 0,
    and a transpose has uᵀ(Av) = (Aᵀu)ᵀv. Small operators are written out by `dense()`, which has to agree with the
    products. Vectors, the landscape, global random states, the default dtype, the gradient mode and the number of
    threads stay as they were, and vectors that do not fit are refused by an `InputError`.

    Args:
        operator: The operator; about ten products are taken.
        seed: The vectors come from it.

    Raises:
        AssertionError: The operator breaks the contract; the message says where.

    Example:
        >>> from crunode.curvature.operators import Operator
        >>> check_operator(Operator("twice", (3, 3), lambda v: 2 * v, symmetric=True, positive=True))
        >>> check_operator(Operator("square", (3, 3), lambda v: v * v, symmetric=True))
        Traceback (most recent call last):
        AssertionError: square: expected products that are linear
    """
    name = getattr(operator, "name", type(operator).__name__)
    for attribute in ("shape", "dtype", "device"):
        require(hasattr(operator, attribute), f"{name}: expected an attribute {attribute}")
    land = getattr(operator, "landscape", None)
    landscape_before = None if land is None else land.fingerprint()
    with preserved_rng():
        torch.manual_seed(101)
        before = surroundings()
        _check_products(operator, name, seed)
        changed = [what for what, value in surroundings().items() if value != before[what]]
    require(not changed, f"{name} changed {', '.join(changed)}")
    if land is not None:
        require(land.fingerprint() == landscape_before, f"{name} changed the landscape")


def _check_products(operator: Any, name: str, seed: int) -> None:
    rows, columns = operator.shape
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn.to(operator.device, operator.dtype)

    allowed = _ALLOWED.get(operator.dtype, 1e-1)
    vectors = random(columns, _VECTORS)
    kept = vectors.clone()
    images = operator @ vectors
    require(torch.equal(vectors, kept), f"{name} changed the vectors it was given")
    size = max(float(images.abs().max()), torch.finfo(operator.dtype).tiny)

    def near(one: Tensor, other: Tensor, scale: float = size) -> bool:
        return bool((one - other).abs().max() <= allowed * scale)

    require(images.shape == (rows, _VECTORS), f"{name}: expected products of shape {(rows, _VECTORS)}")
    require(images.dtype == operator.dtype and images.device == vectors.device, f"{name}: products of another kind")
    require(not images.requires_grad, f"{name}: expected products without a history")
    require(bool(torch.isfinite(images).all()), f"{name}: expected finite products")
    require(near(operator @ vectors, images), f"{name}: expected the same products again")
    alone = torch.stack([operator @ v for v in vectors.unbind(1)], 1)
    require(near(alone, images), f"{name}: expected the same products for several vectors as for each alone")
    mixed = operator @ (2 * vectors[:, 0] - 3 * vectors[:, 1])
    require(near(mixed, 2 * images[:, 0] - 3 * images[:, 1], 6 * size), f"{name}: expected products that are linear")
    spread = size * columns  # of a sum of as many products
    if getattr(operator, "symmetric", False):
        table = vectors.T @ images
        require(rows == columns and near(table, table.T, spread), f"{name}: expected a symmetric operator")
        if getattr(operator, "positive", False):
            least = float(torch.diagonal(table).min())
            require(least >= -allowed * spread, f"{name}: expected no negative vᵀAv, got {least}")
    elif getattr(operator, "T", None) is not None:
        others = random(rows, _VECTORS)
        back = operator.T @ others
        require(back.shape == (columns, _VECTORS), f"{name}: expected a transpose with {columns} rows")
        same = near(others.T @ images, back.T @ vectors, size * rows)
        require(same, f"{name}: expected a transpose with uᵀ(Av) = (Aᵀu)ᵀv")
    if hasattr(operator, "dense") and max(rows, columns) <= _SMALL:
        dense = operator.dense()
        require(dense.shape == (rows, columns), f"{name}: expected a dense matrix of shape {(rows, columns)}")
        require(near(dense @ vectors, images), f"{name}: expected the dense matrix to agree with the products")
    try:
        operator @ random(columns + 1)
    except InputError:
        return
    raise AssertionError(f"{name}: expected a vector of {columns + 1} entries to be refused by an InputError")
