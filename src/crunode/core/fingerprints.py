"""What makes two functions or modules the same, as far as can be seen from outside: code, settings, constants."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["identity", "tensor_bytes"]

_INTERNAL = {*vars(nn.Module()), "_parameters", "_buffers", "_modules"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, np.generic)


def identity(value: Any, *, weights: bool = True) -> str:
    """A hash of classes, code, defaults, closures and attributes.

    Functions of the same name and different code, losses with different options and modules with different settings
    differ in it. What it cannot see are changes in functions that these call by a global name.

    Args:
        value: A function, a module, or anything made of such.
        weights: Whether parameters and buffers of modules count.

    Example:
        >>> identity(lambda w: w**2) == identity(lambda w: w**4)
        False
    """
    digest = hashlib.sha256()
    for piece in _Walk(weights).pieces(value):
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return digest.hexdigest()


def tensor_bytes(tensor: Tensor) -> bytes:
    """The content of a tensor as bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


class _Walk:
    """Goes through everything a value refers to, each object once."""

    def __init__(self, weights: bool) -> None:
        self.weights = weights
        self.seen: dict[int, Any] = {}  # keeps the objects too, so that no number is used twice

    def pieces(self, value: Any) -> Iterator[bytes]:
        yield _name(type(value))
        if isinstance(value, _PLAIN):
            yield repr(value).encode()
        elif id(value) not in self.seen:
            self.seen[id(value)] = value
            yield from self._content(value)

    def _content(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, Tensor):
            yield f"{tuple(value.shape)} {value.dtype}".encode()
            if value.device.type != "meta":
                yield tensor_bytes(value)
        elif isinstance(value, np.ndarray):
            yield f"{value.shape} {value.dtype}".encode() + (b"" if value.dtype == object else value.tobytes())
        elif isinstance(value, nn.Module):
            yield from self._module(value)
        elif isinstance(value, Mapping):
            yield from self._named(value)
        elif isinstance(value, tuple | list):
            for item in value:
                yield from self.pieces(item)
        elif isinstance(value, set | frozenset):
            yield repr(sorted(map(repr, value))).encode()
        elif isinstance(value, types.CodeType):
            yield value.co_code + repr(value.co_names).encode()
            yield from self.pieces(value.co_consts)
        elif isinstance(value, types.FunctionType):
            yield _name(value)
            cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
            yield from self.pieces((value.__code__, value.__defaults__, value.__kwdefaults__, cells))
        elif isinstance(value, types.MethodType):
            yield from self.pieces((value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            yield from self.pieces((value.func, value.args, value.keywords))
        elif isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
            yield _name(value)
        else:
            yield from self._named(getattr(value, "__dict__", {}))

    def _module(self, module: nn.Module) -> Iterator[bytes]:
        for name, part in module.named_modules():
            yield name.encode() + _name(type(part))
            yield from self._named({k: v for k, v in vars(part).items() if k not in _INTERNAL})
        if self.weights:
            yield from self._named(dict(module.named_parameters()) | dict(module.named_buffers()))

    def _named(self, values: Mapping[Any, Any]) -> Iterator[bytes]:
        for key in sorted(values, key=str):
            yield str(key).encode()
            yield from self.pieces(values[key])


def _name(value: Any) -> bytes:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}".encode()


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
