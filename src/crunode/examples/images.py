"""Images with labels, and the small set that comes with the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crunode.errors import InputError

__all__ = ["PACKAGED", "Images", "packaged_images"]

PACKAGED = Path(str(resources.files("crunode.examples") / "data_files" / "fashion_mnist_small.npz"))
"""The file of `packaged_images`."""


@dataclass(frozen=True)
class Images:
    """Images with labels, as bytes.

    Attributes:
        x_train: Training images, uint8, shape (examples, height, width) or (examples, 3, height, width).
        y_train: Their classes, uint8, from 0.
        x_test: Test images.
        y_test: Their classes.
        source: The file or folder they came from.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    source: str

    @property
    def classes(self) -> int:
        """Number of classes: one more than the largest."""
        return int(max(self.y_train.max(), self.y_test.max())) + 1

    def tensors(self, split: str = "train", pool: int = 1) -> tuple[Tensor, Tensor]:
        """Images as rows of numbers from 0 to 1, color by color, and classes, ready for a model.

        Args:
            split: "train" or "test".
            pool: Average over squares of this many pixels a side; 2 makes 14 × 14 of 28 × 28.

        Example:
            >>> x, y = packaged_images().tensors("test", pool=2)
            >>> tuple(x.shape), x.dtype, y.dtype
            ((1000, 196), torch.float32, torch.int64)
        """
        if split not in ("train", "test"):
            raise InputError(f"expected split as 'train' or 'test', got {split!r}")
        x, y = getattr(self, f"x_{split}"), getattr(self, f"y_{split}")
        if pool < 1 or x.shape[-1] % pool:
            raise InputError(f"expected pool to divide the {x.shape[-1]} pixels of a side, got {pool}")
        images = torch.from_numpy(np.ascontiguousarray(x)).float().div_(255)
        pooled = torch.nn.functional.avg_pool2d(images, pool) if pool > 1 else images
        return pooled.flatten(1), torch.from_numpy(y.astype(np.int64))


def packaged_images() -> Images:
    """5000 training and 1000 test images of Fashion-MNIST, the first of each class.

    Example:
        >>> packaged_images().x_train.shape
        (5000, 28, 28)

    References:
        Xiao, Rasul & Vollgraf 2017.
    """
    with np.load(PACKAGED, allow_pickle=False) as arrays:
        return Images(**{name: arrays[name] for name in arrays.files}, source=str(PACKAGED))
