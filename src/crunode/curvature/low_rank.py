"""All eigenvalues of a large symmetric matrix of low rank, by products with a few random vectors.

For a positive semidefinite G of rank below k and a random Ω of k columns, G = GΩ (ΩᵀGΩ)⁺ (GΩ)ᵀ exactly, so that the
eigenvalues of G are the squared singular values of GΩ L⁻ᵀ, where LLᵀ = ΩᵀGΩ. A small multiple of 1 is added to G before
and taken away afterwards, which keeps L away from zero.

References:
    Tropp, Yurtsever, Udell & Cevher 2017, "Fixed-rank approximation of a positive-semidefinite matrix from streaming
    data", algorithm 3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["low_rank_spectrum"]

# What is added to the matrix, relative to its products.
_SHIFT = 1e-14


def low_rank_spectrum(product: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Eigenvalues of a positive semidefinite matrix, descending, as many as there are start vectors.

    Those that are not zero are exact where they are fewer than the start vectors, up to rounding of the largest.

    Args:
        product: Multiplies a vector by the matrix.
        start: Random vectors, in columns.

    Example:
        >>> values = torch.cat([torch.tensor([3.0, 2.0, 0.5]), torch.zeros(47)]).double()
        >>> start = torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> found = low_rank_spectrum(lambda v: values * v, start)
        >>> [round(float(v), 6) for v in found]
        [3.0, 2.0, 0.5, 0.0, 0.0, 0.0]
    """
    basis = torch.linalg.qr(start).Q
    products = torch.stack([product(column) for column in basis.unbind(1)], 1)
    shift = _SHIFT * float(products.norm())
    if not shift > 0:
        return products.new_zeros(products.shape[1])
    products += shift * basis
    inner = basis.T @ products
    values, axes = torch.linalg.eigh((inner + inner.T) / 2)
    root = axes / values.clamp(min=shift / 2).sqrt()
    return torch.clamp(torch.linalg.svdvals(products @ root).square() - shift, min=0.0)
