"""Image data sets from files on this machine; nothing is ever fetched."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crunode.errors import InputError

__all__ = ["NAMES", "Images", "data_summary", "find_images", "load_images", "search_folders"]

NAMES = ("fashion-mnist", "mnist")
"""Data sets that `load_images` knows."""

_SHARED = Path("/usr/share/datasets")
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_CLASSES = 10
_SMALL = {"train": 500, "test": 100}


@dataclass(frozen=True)
class Images:
    """Grayscale images with labels, as bytes.

    Attributes:
        x_train: Training images, uint8, shape (examples, 28, 28).
        y_train: Their classes, uint8, 0 to 9.
        x_test: Test images.
        y_test: Their classes.
        source: The file they came from.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    source: str

    def tensors(self, split: str = "train", pool: int = 1) -> tuple[Tensor, Tensor]:
        """Images as rows of numbers from 0 to 1, and classes, ready for a model.

        Args:
            split: "train" or "test".
            pool: Average over squares of this many pixels a side; 2 makes 14 × 14 of 28 × 28.

        Example:
            >>> x, y = load_images("fashion-mnist").tensors("test", pool=2)
            >>> tuple(x.shape), x.dtype, y.dtype
            ((1000, 196), torch.float32, torch.int64)
        """
        if split not in ("train", "test"):
            raise InputError(f"expected split as 'train' or 'test', got {split!r}")
        x, y = getattr(self, f"x_{split}"), getattr(self, f"y_{split}")
        if pool < 1 or x.shape[1] % pool:
            raise InputError(f"expected pool to divide the {x.shape[1]} pixels of a side, got {pool}")
        images = torch.from_numpy(np.ascontiguousarray(x)).float().unsqueeze(1) / 255
        pooled = torch.nn.functional.avg_pool2d(images, pool) if pool > 1 else images
        return pooled.flatten(1), torch.from_numpy(y.astype(np.int64))


def search_folders() -> list[Path]:
    """Where data files are looked for, in order: $CRUNODE_DATA, the user's cache, /usr/share/datasets.

    Example:
        >>> search_folders()[-1].name
        'datasets'
    """
    named = os.environ.get("CRUNODE_DATA")
    return [*([Path(named)] if named else []), _cache_folder(), _SHARED]


def find_images(name: str, size: str = "small") -> Path | None:
    """The file that `load_images` would read, or None.

    Example:
        >>> find_images("fashion-mnist") is not None
        True
    """
    return next(_candidates(name, size), None)


def data_summary() -> dict[str, str | None]:
    """For each data set and size the file it is read from, or None.

    Example:
        >>> list(data_summary())
        ['fashion-mnist small', 'fashion-mnist full', 'mnist small', 'mnist full']
    """
    found = {f"{name} {size}": find_images(name, size) for name in NAMES for size in ("small", "full")}
    return {key: None if path is None else str(path) for key, path in found.items()}


def load_images(name: str, size: str = "small", download: bool = False) -> Images:
    """Read a data set from a file on this machine.

    Files are called fashion_mnist.npz, mnist.npz, fashion_mnist_small.npz, mnist_small.npz and hold the arrays
    x_train, y_train, x_test, y_test (uint8). They are looked for in the folder named by $CRUNODE_DATA, in the user's
    cache and in /usr/share/datasets. A small subset of Fashion-MNIST comes with the package.

    Args:
        name: "fashion-mnist" or "mnist".
        size: "small" for 5000 training and 1000 test images, balanced; "full" for all 60 000 and 10 000. A small set
            is cut from the full file where only that is found.
        download: Not supported; True raises and says where to put the file.

    Raises:
        InputError: There is no such file, or it is not what its name says.

    Example:
        >>> images = load_images("fashion-mnist")
        >>> images.x_train.shape, images.x_test.shape
        ((5000, 28, 28), (1000, 28, 28))

    References:
        Xiao, Rasul & Vollgraf 2017 (Fashion-MNIST); LeCun, Bottou, Bengio & Haffner 1998 (MNIST).
    """
    path = find_images(name, size)
    if path is None:
        stem = name.replace("-", "_")
        wanted = f"{stem}.npz" if size == "full" else f"{stem}_small.npz or {stem}.npz"
        looked = ", ".join(str(folder) for folder in search_folders())
        note = "download=True is not supported, as no checksummed source is known; " if download else ""
        raise InputError(
            f"expected the data file {wanted} in one of {looked}, found none; {note}place it there by hand, or name "
            "its folder in the environment variable CRUNODE_DATA"
        )
    images = _read(path)
    return _subset(images) if size == "small" and not path.stem.endswith("_small") else images


def _cache_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "crunode"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "crunode" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "crunode"


def _candidates(name: str, size: str) -> Iterator[Path]:
    if name not in NAMES:
        raise InputError(f"expected a data set among {list(NAMES)}, got {name!r}")
    if size not in ("small", "full"):
        raise InputError(f"expected size as 'small' or 'full', got {size!r}")
    stem = name.replace("-", "_")
    files = [f"{stem}.npz"] if size == "full" else [f"{stem}_small.npz", f"{stem}.npz"]
    for folder in search_folders():
        yield from (folder / file for file in files if (folder / file).is_file())
    if size == "small":
        packaged = Path(str(resources.files("crunode") / "data_files" / f"{stem}_small.npz"))
        if packaged.is_file():
            yield packaged


def _read(path: Path) -> Images:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in _ARRAYS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise InputError(
            f"expected an .npz file with the arrays {', '.join(_ARRAYS)} at {path}, got {type(error).__name__}: "
            f"{error}; replace the file"
        ) from error
    for split in ("train", "test"):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
        kinds = x.dtype == np.uint8 and y.dtype == np.uint8
        if not kinds or x.shape[1:] != (28, 28) or y.shape != x.shape[:1] or not len(y) or y.max() >= _CLASSES:
            raise InputError(
                f"expected uint8 images of 28 × 28 pixels with classes 0 to 9 in {path}, got {split} images "
                f"{x.dtype} {x.shape} and classes {y.dtype} {y.shape}; replace the file"
            )
    return Images(**arrays, source=str(path))


def _subset(images: Images) -> Images:
    """The first examples of each class, in the order of the file."""
    arrays = {}
    for split, count in _SMALL.items():
        y = getattr(images, f"y_{split}")
        rows = np.sort(np.concatenate([np.flatnonzero(y == c)[:count] for c in range(_CLASSES)]))
        arrays[f"x_{split}"], arrays[f"y_{split}"] = getattr(images, f"x_{split}")[rows], y[rows]
    return Images(**arrays, source=images.source)
