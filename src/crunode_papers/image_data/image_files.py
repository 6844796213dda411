"""Files that images are distributed in: npz, idx (plain or gzip), and the binary files of CIFAR.

Readers give the arrays x_train, y_train, x_test, y_test: bytes, images as (examples, height, width) or (examples, 3,
height, width), classes as (examples,). Nothing that could run code is read.
"""

from __future__ import annotations

import gzip
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from crunode import InputError

__all__ = ["ARRAYS", "as_idx", "idx_name", "missing_files", "read_idx", "read_image_file"]

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
"""Names of the arrays that make a data set."""

_IDX = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
# Label bytes before each image, and files of both parts.
_CIFAR = (
    (1, tuple(f"data_batch_{k}.bin" for k in range(1, 6)), ("test_batch.bin",)),
    (2, ("train.bin",), ("test.bin",)),
)
_PIXELS = 3 * 32 * 32
_BYTES = 0x08


def idx_name(array: str) -> str:
    """The name of the idx file of an array.

    Example:
        >>> idx_name("x_test")
        't10k-images-idx3-ubyte'
    """
    return _IDX[array]


def as_idx(array: np.ndarray) -> bytes:
    """An array of bytes as an idx file: two zero bytes, the type, the number of axes, their lengths, the numbers.

    Example:
        >>> as_idx(np.array([7, 2], np.uint8)).hex()
        '00000801000000020702'
    """
    return struct.pack(f">HBB{array.ndim}I", 0, _BYTES, array.ndim, *array.shape) + array.tobytes()


def read_idx(path: Path) -> np.ndarray:
    """Read an idx file of bytes, gzip or plain.

    Raises:
        InputError: It is truncated, corrupt, or something else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "labels")
        ...     _ = path.write_bytes(as_idx(np.array([7, 2], np.uint8)))
        ...     read_idx(path)
        array([7, 2], dtype=uint8)
    """
    data = _content(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _BYTES or not data[3]:
        raise InputError(
            f"expected an idx file of bytes at {path}, got one that begins with {data[:4].hex()!r}; {_GET}"
        )
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise InputError(f"expected a whole idx file at {path}, got {len(data)} bytes, which end in its header; {_GET}")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    size = int(np.prod(shape, dtype=np.uint64))
    if len(data) - start != size:
        cut = "truncated" if len(data) - start < size else "too long"
        raise InputError(
            f"expected {size} numbers of shape {shape} in the idx file {path}, got {len(data) - start}: it is {cut}; "
            f"{_GET}"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


def missing_files(folder: Path) -> list[str] | None:
    """The idx or CIFAR files that a folder lacks; None where it has none of them.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(folder, "train.bin").touch()
        ...     missing_files(Path(folder))
        ['test.bin']
    """
    if not folder.is_dir():
        return None
    there = {path.name for path in folder.iterdir() if path.is_file()}
    there |= {name.removesuffix(".gz") for name in there}
    kinds = [tuple(_IDX.values()), *(train + test for _, train, test in _CIFAR)]
    lacking = [[name for name in kind if name not in there] for kind in kinds if there.intersection(kind)]
    return min(lacking, key=len, default=None)


def read_image_file(path: Path) -> dict[str, np.ndarray]:
    """Read an .npz file, or a folder of idx or CIFAR files, whatever images are in it.

    Raises:
        InputError: Files are missing, truncated, corrupt or something else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("train.bin", "test.bin"):
        ...         _ = Path(folder, name).write_bytes(bytes([3, 17]) + bytes(3072))
        ...     arrays = read_image_file(Path(folder))
        >>> arrays["x_test"].shape, arrays["y_test"].tolist()
        ((1, 3, 32, 32), [17])
    """
    if path.is_dir():
        kinds = [k for k in _CIFAR if any((path / name).is_file() for name in (*k[1], *k[2]))]
        arrays = _from_cifar(path, *kinds[0]) if kinds else _from_idx(path)
    else:
        arrays = _from_npz(path)
    for split in ("train", "test"):
        x, y = _channels_first(arrays[f"x_{split}"]), arrays[f"y_{split}"]
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        square = x.ndim in (3, 4) and x.shape[-1] == x.shape[-2] and (x.ndim == 3 or x.shape[1] in (1, 3))
        if x.dtype != np.uint8 or not square or y.dtype.kind not in "ui" or y.shape != x.shape[:1] or not len(y):
            raise InputError(
                f"expected square images of bytes, with or without three colors, and one class for each in {path}, got "
                f"{split} images {x.dtype} {x.shape} and classes {y.dtype} {y.shape}; {_GET}"
            )
        if y.min() < 0 or y.max() > 255:
            raise InputError(f"expected classes from 0 to 255 in {path}, got {y.min()} to {y.max()}; {_GET}")
        arrays[f"x_{split}"], arrays[f"y_{split}"] = x, y.astype(np.uint8)
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        shapes = arrays["x_train"].shape[1:], arrays["x_test"].shape[1:]
        raise InputError(f"expected training and test images of one shape in {path}, got {shapes[0]} and {shapes[1]}")
    return arrays


_GET = "replace the file by a fresh copy"


def _content(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"expected a readable file at {path}, got {type(error).__name__}: {error}; {_GET}") from error


def _from_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in ARRAYS}
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        AttributeError,
        TypeError,
    ) as error:
        raise InputError(
            f"expected an .npz file with the arrays {', '.join(ARRAYS)} at {path}, got {type(error).__name__}: "
            f"{error}; {_GET}"
        ) from error


def _from_idx(folder: Path) -> dict[str, np.ndarray]:
    found = {}
    for array, name in _IDX.items():
        paths = [folder / (name + end) for end in ("", ".gz") if (folder / (name + end)).is_file()]
        if not paths:
            raise InputError(f"expected {name} or {name}.gz in {folder}, found neither; put all four idx files there")
        found[array] = read_idx(paths[0])
    return found


def _from_cifar(folder: Path, labels: int, train: tuple[str, ...], test: tuple[str, ...]) -> dict[str, np.ndarray]:
    found = {}
    for split, names in (("train", train), ("test", test)):
        rows = []
        for name in names:
            path = folder / name
            if not path.is_file():
                raise InputError(f"expected {name} in {folder}, found none; put all files of the archive there")
            data = np.frombuffer(_content(path), np.uint8)
            if not len(data) or len(data) % (labels + _PIXELS):
                raise InputError(
                    f"expected records of {labels + _PIXELS} bytes in {path}, got {len(data)} bytes in all, which "
                    f"is no whole number of them: it is truncated or something else; {_GET}"
                )
            rows.append(data.reshape(-1, labels + _PIXELS))
        whole = np.concatenate(rows)
        # Of two labels the second is the finer one.
        found[f"x_{split}"] = whole[:, labels:].reshape(-1, 3, 32, 32)
        found[f"y_{split}"] = whole[:, labels - 1]
    return found


def _channels_first(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, 3, 1) if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] == x.shape[2] else x
