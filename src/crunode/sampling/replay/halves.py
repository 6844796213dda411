"""Products of matrices in single precision, each as three products in half precision.

Units for products of half-precision matrices, with sums in single precision, are more than ten times as fast on a GPU
as those for single precision. With x = s (h + l), h and l in half precision, 22 of the 24 bits are kept, and
ab = s s' (hh' + hl' + lh') misses ll' alone, of the size of what rounding misses anyway. Such units cut sums off rather
than round them, so that a product is smaller by a few parts in a million.

References:
    Ootomo & Yokota 2022 (single-precision products from half-precision units); Markidis et al. 2018.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

__all__ = ["halved", "largest", "pays", "product"]

# What the largest entry becomes: far from where half precision ends on either side.
_LARGEST = 4096.0
# Products of fewer multiply-adds are not worth the passes over memory; sides are filled up to multiples of the other.
_LARGE, _EVEN = 1 << 31, 8


def pays(a: Tensor, b: Tensor) -> bool:
    """Whether a product of two matrices is worth while in halves.

    Example:
        >>> x = torch.empty(2000, 2000)
        >>> pays(x, x), pays(x, x[:, :200])
        (True, False)
    """
    if not a.dtype == b.dtype == torch.float32 or not a.ndim == b.ndim == 2:
        return False
    return a.numel() * b.shape[1] >= _LARGE and _are_there(a.device.type)


def largest(x: Tensor) -> Tensor:
    """The size of the largest entry, or a little more than nothing."""
    return torch.clamp(torch.linalg.vector_norm(x, torch.inf), min=1e-30)


def halved(x: Tensor, size: Tensor) -> Tensor:
    """The parts h and −l of a matrix, one after the other, with sides filled up with zeros.

    Args:
        x: The matrix.
        size: Its largest entry.

    Example:
        >>> x = torch.tensor([[1.0, 1 / 3]])
        >>> high, low = halved(x, largest(x)).float()
        >>> high.shape, bool(((high - low)[:1, :2] / 4096 - x).abs().max() < 1e-7)
        (torch.Size([8, 8]), True)
    """
    rows, columns = x.shape
    parts = x.new_empty((2, _filled(rows), _filled(columns)), dtype=torch.float16)
    for rest in (parts[:, rows:], parts[:, :, columns:]):
        if rest.numel():
            rest.zero_()
    high, low = parts[0, :rows, :columns], parts[1, :rows, :columns]
    scale = _LARGEST / size
    torch.mul(x, scale, out=high)
    torch.addcmul(high, x, scale, value=-1, out=low)
    return parts


def product(a: Tensor, a_size: Tensor, b: Tensor, b_size: Tensor, rows: int, columns: int) -> Tensor:
    """The product of two matrices of which these are the halves.

    Args:
        a: The halves of the first.
        a_size: Its largest entry.
        b: Those of the second.
        b_size: Its largest entry.
        rows: Those of the product.
        columns: And its columns.

    Example:
        >>> a, b = torch.randn(2, 30, 30, generator=torch.Generator().manual_seed(0))
        >>> found = product(halved(a, largest(a)), largest(a), halved(b, largest(b)), largest(b), 30, 30)
        >>> bool((found - a @ b).abs().max() < 1e-5)
        True
    """
    found = _plus(_plus(_in_single(a[0], b[1]), a[1], b[0]), a[0], b[0], -1)
    return found[:rows, :columns] * (a_size * b_size / _LARGEST**2)


def _in_single(a: Tensor, b: Tensor) -> Tensor:
    """The product of half-precision matrices in single precision."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.device.type == "cuda" else a.float() @ b.float()


def _plus(sums: Tensor, a: Tensor, b: Tensor, factor: int = 1) -> Tensor:
    """The same, added to a multiple of `sums`, whose memory is used."""
    if sums.device.type == "cuda":
        return torch.addmm(sums, a, b, out_dtype=torch.float32, beta=factor, out=sums)
    return sums.mul_(factor).add_(_in_single(a, b))


@cache
def _are_there(device: str) -> bool:
    """Whether such products can be had."""
    x = torch.arange(15.0, device=device).reshape(3, 5) - 4
    size = largest(x)
    parts = halved(x, size)
    try:
        return torch.equal(product(parts, size, parts.mT, size, 3, 3).round(), x @ x.T)
    except (RuntimeError, TypeError):  # torch before 2.8, an old device
        return False


def _filled(side: int) -> int:
    return -(-side // _EVEN) * _EVEN
