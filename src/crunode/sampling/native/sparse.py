"""Products in C with examples of which most entries are zero, such as one-hot rows.

A row of x W is then a sum of few rows of W, and a row of a gradient y adds to few rows of xᵀ y; a dense product spends
nearly all of its time on zeros. The non-zero entries are found at each call, so that the result is that of the dense
product, up to rounding, whatever the examples are. What has not agreed with torch on a small case is not used.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from crunode.sampling.native.build import load

__all__ = ["DTYPES", "product_xt_y", "product_xw", "product_yt_x", "scratch_size", "why_not"]

DTYPES = {torch.float32: "float32", torch.float64: "float64"}
_SOURCE = Path(__file__).parent / "sparse.c"
_LANES = 64  # the same in sparse.c
_SIZE, _POINTER = ctypes.c_size_t, ctypes.c_void_p


class _Job(ctypes.Structure):
    _fields_ = (
        *((name, _SIZE) for name in ("chains", "rows", "columns", "units", "x_chain", "x_row")),
        *((name, _SIZE) for name in ("w_chain", "w_column", "w_unit", "y_chain", "y_row", "y_unit")),
        *((name, _POINTER) for name in ("ends", "entries", "block", "turned")),
    )


def product_xw(x: Tensor, w: Tensor, scratch: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The product x w, of shape (row, unit), or of several chains (chain, row, unit).

    Args:
        x: Mostly zeros, shape (..., row, column), columns next to each other in memory.
        w: Shape (..., column, unit), either of which lie next to each other.
        scratch: `scratch_size` bytes that nobody else uses meanwhile.
        out: Where to write it; units lie next to each other.

    Raises:
        RuntimeError: There is no compiled library, or a tensor lies in memory in another way.

    Example:
        >>> x, w = torch.eye(3), torch.arange(6.0).reshape(3, 2)
        >>> scratch = torch.empty(scratch_size(x), dtype=torch.uint8)
        >>> product_xw(x, w, scratch) if not why_not() else w
        tensor([[0., 1.],
                [2., 3.],
                [4., 5.]])
    """
    into = x.new_empty((*x.shape[:-1], w.shape[-1])) if out is None else out
    _run(_library()[0], "rows", x, w, into, scratch)
    return into


def product_xt_y(xt: Tensor, y: Tensor, scratch: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The product xᵀ y, shape (..., column, unit), as `product_xw`; x is given transposed."""
    into = y.new_empty((*xt.shape[:-1], y.shape[-1])) if out is None else out
    _run(_library()[0], "columns", xt.mT, into, y, scratch)
    return into


def product_yt_x(yt: Tensor, x: Tensor, scratch: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The product yᵀ x, shape (..., unit, column), as `product_xw`; y is given transposed."""
    into = x.new_empty((*yt.shape[:-1], x.shape[-1])) if out is None else out
    _run(_library()[0], "columns", x, into.mT, yt.mT, scratch)
    return into


def scratch_size(x: Tensor) -> int:
    """Bytes that a product with `x` works in; of these only what is filled is taken from the system.

    Example:
        >>> scratch_size(torch.ones(2, 3))
        1344
    """
    rows, columns = x.shape[-2:]
    return -(-4 * rows * (columns + 1) // 64) * 64 + (rows + columns) * _LANES * x.element_size()


def why_not() -> str:
    """Why products with sparse examples are not computed in C; empty when they are.

    Example:
        >>> isinstance(why_not(), str)
        True
    """
    return _library()[1]


def _run(library: ctypes.CDLL | None, name: str, x: Tensor, w: Tensor, y: Tensor, scratch: Tensor) -> None:
    """Call the function for x (..., row, column), w (..., column, unit) and y (..., row, unit)."""
    if library is None:
        raise RuntimeError(f"no compiled products: {why_not()}")
    xs, ws, ys = x.stride(), w.stride(), y.stride()
    (*chains, rows, columns), units = x.shape, w.shape[-1]
    if len(chains) > 1 or w.shape != (*chains, columns, units) or y.shape != (*chains, rows, units):
        raise RuntimeError(f"expected shapes that match, got {list(x.shape)}, {list(w.shape)} and {list(y.shape)}")
    if xs[-1] != 1 or 1 not in ws[-2:] or 1 not in (ys[-1:] if name == "rows" else ys[-2:]):
        raise RuntimeError(f"expected numbers next to each other in memory, got strides {xs}, {ws} and {ys}")
    if x.dtype not in DTYPES or not x.dtype == w.dtype == y.dtype:
        raise RuntimeError(f"expected one dtype of {[*DTYPES]}, got {x.dtype}, {w.dtype} and {y.dtype}")
    size, start = scratch_size(x), scratch.data_ptr()
    if scratch.nbytes < size:
        raise RuntimeError(f"expected a scratch space of {size} bytes, got {scratch.nbytes}")
    job = _Job(
        chains[0] if chains else 1,
        rows,
        columns,
        units,
        *(xs if chains else (0, *xs))[:2],
        *(ws if chains else (0, *ws)),
        *(ys if chains else (0, *ys)),
        start,
        start + 4 * rows,
        start + size - (rows + columns) * _LANES * x.element_size(),
        start + size - rows * _LANES * x.element_size(),
    )
    run = getattr(library, f"{name}_{DTYPES[x.dtype]}")
    run(_POINTER(x.data_ptr()), _POINTER(w.data_ptr()), _POINTER(y.data_ptr()), ctypes.byref(job))


@cache
def _library() -> tuple[ctypes.CDLL | None, str]:
    library, why = load(_SOURCE)
    if library is not None and not _agrees(library):
        return None, "compiled products give another result"
    return library, why


def _agrees(library: ctypes.CDLL) -> bool:
    """Both products of two chains, of more units than are treated at a time, next to those by torch."""
    rows, columns, units = 5, 2 * _LANES + 9, _LANES + 7
    for dtype in DTYPES:
        x = torch.arange(2.0 * rows * columns, dtype=dtype).sin().reshape(2, rows, columns)
        x = x * (x.abs() > 0.9)
        x[0, 1] = 0
        w = torch.arange(2.0 * columns * units, dtype=dtype).cos().reshape(2, units, columns)
        scratch = torch.empty(scratch_size(x), dtype=torch.uint8)
        for straight in (False, True):
            here = w.mT.contiguous() if straight else w.mT
            y = x.new_full((2, rows, units), torch.nan)
            _run(library, "rows", x, here, y, scratch)
            back = torch.full_like(here, torch.nan)
            _run(library, "columns", x, back, y if straight else y.mT.contiguous().mT, scratch)
            pairs = (y, x @ here), (back, x.mT @ (x @ here))
            if not all(torch.allclose(made, wanted, rtol=1e-4, atol=1e-4) for made, wanted in pairs):
                return False
    return True
