"""Where tensors lie in memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["filling", "memory", "smallest", "storage", "trailing", "viewable"]


def storage(tensor: Tensor) -> int:
    """Address of the memory that a tensor and all its views share."""
    return tensor.untyped_storage().data_ptr()


def memory(tensor: Tensor) -> Any:
    """Equal for tensors that are the very same view of the very same memory."""
    if tensor.numel() == 0:
        return id(tensor)
    return storage(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def viewable(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """True when the tensor can take the shape without a copy."""
    try:
        tensor.view(shape)
    except RuntimeError:
        return False
    return True


def smallest(tensor: Tensor) -> Tensor:
    """The same tensor, expanded from a smaller one along axes where it does not change."""
    small = tensor
    for axis in range(tensor.ndim):
        if small.shape[axis] > 1 and torch.equal(small.narrow(axis, 0, 1).expand_as(small), small):
            small = small.narrow(axis, 0, 1)
    return small.clone().expand_as(tensor)


def trailing(shape: tuple[int, ...], size: int) -> tuple[int, ...] | None:
    """The last axes of `shape` that together have `size` entries."""
    for start in range(len(shape), -1, -1):
        if math.prod(shape[start:]) == size:
            return shape[start:]
    return None


def filling(length: int) -> float:
    """The used part of vector registers of 16 numbers."""
    return length / (-(-length // 16) * 16) if length else 1.0
