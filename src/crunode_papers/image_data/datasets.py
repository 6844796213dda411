"""Image data sets from files on this machine; fetched from the network only when that is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from crunode import InputError
from crunode.examples import PACKAGED, Images
from crunode.store import digest
from crunode_papers.image_data.fetching import fetch_images
from crunode_papers.image_data.image_files import ARRAYS, as_idx, missing_files, read_image_file
from crunode_papers.image_data.published import NAMES, PUBLISHED

__all__ = ["NAMES", "data_summary", "find_images", "load_images", "read_images", "search_folders"]

_SHARED = Path("/usr/share/datasets")
_SMALL = {"train": 5000, "test": 1000}


def search_folders() -> list[Path]:
    """Where data files are looked for, in order: $CRUNODE_DATA, the user's cache, /usr/share/datasets.

    Example:
        >>> search_folders()[-1].name
        'datasets'
    """
    named = os.environ.get("CRUNODE_DATA")
    return [*([Path(named)] if named else []), _cache_folder(), _SHARED]


def find_images(name: str, size: str = "small") -> Path | None:
    """The file or folder that `load_images` would read, or None.

    Example:
        >>> find_images("fashion-mnist") is not None
        True
    """
    return next(_candidates(name, size), None)


def data_summary() -> dict[str, str | None]:
    """For each data set and size the file or folder it is read from, or None.

    Example:
        >>> list(data_summary())[:4]
        ['fashion-mnist small', 'fashion-mnist full', 'mnist small', 'mnist full']
    """
    found = {f"{name} {size}": find_images(name, size) for name in NAMES for size in ("small", "full")}
    return {key: None if path is None else str(path) for key, path in found.items()}


def load_images(name: str, size: str = "small", download: bool = False, check: bool = True) -> Images:
    """Read a data set by its name, and hold it against its published checksum.

    Files are looked for in the folder named by $CRUNODE_DATA, in the user's cache and in /usr/share/datasets: as
    fashion_mnist.npz, mnist.npz, cifar10.npz or cifar100.npz with the arrays x_train, y_train, x_test, y_test, with
    `_small` before the dot for a small set, or as the files that were published, in a folder below: idx files, gzip or
    plain, in fashion-mnist, mnist (or MNIST/raw, FashionMNIST/raw); binary files in cifar-10-batches-bin and
    cifar-100-binary. A small subset of Fashion-MNIST comes with the package.

    Args:
        name: "fashion-mnist", "mnist", "cifar10" or "cifar100".
        size: "small" for 5000 training and 1000 test images, balanced; "full" for all of them. A small set is cut from
            the full one where only that is found: the first of each class, in the order of the file.
        download: Fetch the published files into the user's cache where none are found. The network is not touched
            otherwise.
        check: Whether content other than the published one is refused. For CIFAR no checksums of the content are
            known: what is checked then is the archive, when it is fetched, and the number of images.

    Raises:
        InputError: There is no such file, or it is not what its name says.

    Example:
        >>> images = load_images("fashion-mnist")
        >>> images.x_train.shape, images.x_test.shape
        ((5000, 28, 28), (1000, 28, 28))

    References:
        Xiao, Rasul & Vollgraf 2017 (Fashion-MNIST); LeCun, Bottou, Bengio & Haffner 1998 (MNIST); Krizhevsky 2009
        (CIFAR).
    """
    path = find_images(name, size)
    if path is None and download:
        path = fetch_images(name, _cache_folder())
    if path is None:
        raise InputError(_absent(name, size))
    images = read_images(path)
    known = PUBLISHED[name]
    if images.x_train.shape[1:] != known.shape or images.classes > known.classes:
        raise InputError(
            f"expected images of shape {known.shape} with classes 0 to {known.classes - 1} in {path}, got shape "
            f"{images.x_train.shape[1:]} and classes up to {images.classes - 1}; replace the file"
        )
    cut = path.stem.endswith("_small")
    if check:
        _check(images, name, "small" if cut else "full")
    return _subset(images, known.classes) if size == "small" and not cut else images


def read_images(path: str | os.PathLike[str]) -> Images:
    """Read images of any kind and number from a file of yours.

    Args:
        path: An .npz file with the arrays x_train, y_train, x_test, y_test, or a folder with the four idx files of
            MNIST and its kin, gzip or plain, or with the binary files of CIFAR. Images are square, gray or in three
            colors, of bytes.

    Raises:
        InputError: Files are missing, truncated, corrupt or something else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     x, y = np.zeros((4, 32, 32, 3), np.uint8), np.arange(4)
        ...     np.savez(f"{folder}/mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        ...     images = read_images(f"{folder}/mine.npz")
        >>> images.x_train.shape, images.classes
        ((4, 3, 32, 32), 4)
    """
    home = Path(path)
    return Images(**read_image_file(home), source=str(home))


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
        yield from (folder / below for below in PUBLISHED[name].folders if missing_files(folder / below) == [])
    if size == "small" and PACKAGED.stem == f"{stem}_small":
        yield PACKAGED


def _absent(name: str, size: str) -> str:
    stem, known = name.replace("-", "_"), PUBLISHED[name]
    wanted = f"{stem}.npz" if size == "full" else f"{stem}_small.npz or {stem}.npz"
    folders = [f"{folder}{'' if folder.is_dir() else ' (not there)'}" for folder in search_folders()]
    partial = [folder / below for folder in search_folders() for below in known.folders]
    lacking = "".join(f" ({home} lacks {', '.join(files)})" for home in partial if (files := missing_files(home)))
    return (
        f"expected the data file {wanted}, or a folder {known.folders[0]} with the published files, in one of "
        f"{', '.join(folders)}, found none{lacking}; place it there by hand, name its folder in the environment "
        f"variable CRUNODE_DATA, or fetch {known.megabytes} MB with load_images({name!r}, {size!r}, download=True)"
    )


def _check(images: Images, name: str, size: str) -> None:
    known = PUBLISHED[name]
    counts = _SMALL if size == "small" else {"train": known.train, "test": known.test}
    found = {"train": len(images.y_train), "test": len(images.y_test)}
    wrong = [] if found == counts else [f"{found['train']} and {found['test']} images"]
    expected = known.digests.get(size, {})
    for array in ARRAYS if not wrong and expected else ():
        seen = digest(as_idx(getattr(images, array)))
        if seen != expected[array]:
            wrong.append(f"{array} with sha256 {seen[:16]}… in place of {expected[array][:16]}…")
    if wrong:
        raise InputError(
            f"expected the published content of {name} ({counts['train']} and {counts['test']} images) in "
            f"{images.source}, got {', '.join(wrong)}; replace the file, or pass check=False if it is meant to differ"
        )


def _subset(images: Images, classes: int) -> Images:
    """The first examples of each class, in the order of the file."""
    arrays = {}
    for split, count in _SMALL.items():
        y = getattr(images, f"y_{split}")
        rows = np.sort(np.concatenate([np.flatnonzero(y == c)[: count // classes] for c in range(classes)]))
        arrays[f"x_{split}"], arrays[f"y_{split}"] = getattr(images, f"x_{split}")[rows], y[rows]
    return Images(**arrays, source=images.source)
