"""The tensor operations that a function calls, below `torch.func` and autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Call", "Recorder", "Untapeable", "written_by"]

# An operator, its arguments, its keyword arguments and its result.
Call = tuple[Any, tuple[Any, ...], dict[str, Any], Any]
_REFUSED = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.nondeterministic_seeded)


class Untapeable(Exception):
    """The function cannot be replayed; the message says why."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps every call made while it is active, with the tensors, in `calls`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(tag in func.tags for tag in _REFUSED):
            raise Untapeable(f"{func} depends on values or on chance")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


def written_by(call: Call) -> list[Tensor]:
    """Tensors that a call changes in place."""
    func, args, kwargs, _ = call
    if not func._schema.is_mutable:
        return []
    found: list[Tensor] = []
    for k, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[k] if k < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return found
