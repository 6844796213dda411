"""Parameters as one flat vector: the coordinates in which everything is sampled and measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Packing"]


@dataclass(frozen=True)
class Packing:
    """How named parameter tensors lie in one flat vector.

    The vector has the widest dtype among the parameters and at least float32: Langevin steps are often smaller than
    the spacing of bfloat16 numbers and would vanish there. `unravel` casts back to each parameter's own dtype.

    Example:
        >>> p = Packing.of({"a": torch.ones(2, 2), "b": torch.zeros(3, dtype=torch.float16)})
        >>> p.dim, p.dtype
        (7, torch.float32)
        >>> p.unravel(torch.arange(7.0))["b"]
        tensor([4., 5., 6.], dtype=torch.float16)
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, params: Mapping[str, Tensor]) -> Packing:
        """The packing of `params`, in their order."""
        dtype = torch.float32
        for value in params.values():
            dtype = torch.promote_types(dtype, value.dtype)
        return cls(
            tuple(params),
            tuple(tuple(v.shape) for v in params.values()),
            tuple(v.dtype for v in params.values()),
            dtype,
        )

    @property
    def sizes(self) -> list[int]:
        """Number of entries of each parameter."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def dim(self) -> int:
        """Length of the flat vector."""
        return sum(self.sizes)

    def ravel(self, params: Mapping[str, Tensor]) -> Tensor:
        """The flat vector of `params`."""
        return torch.cat([params[name].reshape(-1).to(self.dtype) for name in self.names])

    def unravel(self, flat: Tensor) -> dict[str, Tensor]:
        """The named tensors inside `flat`, as views where the dtype allows."""
        parts = zip(self.names, torch.split(flat, self.sizes), self.shapes, self.dtypes, strict=True)
        return {name: part.view(shape).to(dtype) for name, part, shape, dtype in parts}
