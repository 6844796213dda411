"""Matrices of weights that have a low rank up to rounding: with that rank, and what they do not reach.

A matrix of rank r stored in single precision has full rank, with singular values from r on at some 1e-8 of the largest.
In a product of several such matrices these cover what is small by nature. The nearest matrix of rank r differs from the
stored one by less than the stored one does from the one meant, and in double precision its rank can be told apart down
to 1e-16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Spaces", "unrounded"]

# Singular values below this, relative to the largest, are rounding where those above stand apart by the factor.
_ROUNDING, _APART = 1e-6, 1e3


@dataclass(frozen=True)
class Spaces:
    """Column and row space of a matrix of less than full rank.

    Attributes:
        shape: Of the matrix.
        columns: An orthonormal basis of the column space.
        rows: One of the row space.
        size: Root mean square of the singular values that are not zero; 0 for a matrix of zeros.
    """

    shape: tuple[int, int]
    columns: Tensor
    rows: Tensor
    size: float

    def outside(self, step: Tensor) -> Tensor:
        """The part of a flat step that is in neither space."""
        block = step.reshape(self.shape)
        block = block - self.columns @ (self.columns.T @ block)
        return (block - (block @ self.rows) @ self.rows.T).reshape(-1)


def unrounded(
    point: Tensor, shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype]
) -> tuple[Tensor, list[Spaces | None]]:
    """The point of weights with the ranks that its matrices have up to rounding, in double precision.

    Args:
        point: A flat vector of weights.
        shapes: Shapes of the tensors that lie one after another in it; the first axis is taken for rows.
        dtypes: In which each is stored; what is not in single precision is left as it is.

    Returns:
        The point, and for each tensor its spaces, None where it has full rank or is no matrix.

    Example:
        >>> chance = torch.Generator().manual_seed(0)
        >>> a, b = torch.randn(2, 30, 4, generator=chance, dtype=torch.float64)
        >>> stored = (a @ b.T).float()
        >>> int(torch.linalg.matrix_rank(stored.double(), rtol=1e-12))
        30
        >>> found, [spaces] = unrounded(stored.reshape(-1), [(30, 30)], [torch.float32])
        >>> int(torch.linalg.matrix_rank(found.reshape(30, 30), rtol=1e-12)), spaces.rows.shape[1]
        (4, 4)
        >>> bool((found - stored.reshape(-1)).abs().max() < 1e-6)
        True
    """
    parts, spaces = [], []
    sizes = [math.prod(s) for s in shapes]
    for part, shape, dtype in zip(torch.split(point.double(), sizes), shapes, dtypes, strict=True):
        found = _spaces(part.reshape(shape[0], -1)) if len(shape) > 1 else None
        if found is not None and dtype == torch.float32:
            part = (found.columns @ (found.columns.T @ part.reshape(found.shape))).reshape(-1)
        parts.append(part)
        spaces.append(found)
    return torch.cat(parts), spaces


def _spaces(matrix: Tensor) -> Spaces | None:
    rows, columns = matrix.shape
    turned = rows > columns
    wide = matrix.T if turned else matrix
    # Squares of singular values, ascending: those of rounding are at 1e-15, which double precision still shows.
    squares, axes = torch.linalg.eigh(wide @ wide.T)
    values = squares.clamp(min=0).sqrt()
    if float(values[-1]) > 0:
        none = int((values <= _ROUNDING * values[-1]).sum())
        if none == 0 or float(values[none]) < _APART * float(values[none - 1]):
            return None
    else:
        none = len(values)
    kept, left = values[none:], axes[:, none:]
    right = torch.linalg.qr(wide.T @ (left / kept)).Q
    size = float(kept.square().mean().sqrt()) if len(kept) else 0.0
    return Spaces((rows, columns), right if turned else left, left if turned else right, size)
