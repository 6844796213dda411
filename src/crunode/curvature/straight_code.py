"""A traced linear function without its additions of zeros.

`torch.func.linearize` writes a derivative along a vector as straight code. The rules for activations and for data that
does not move leave sums in it of which one part is zero whatever the vector: in a convolutional network these fill and
read as many numbers as there are activations, for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

__all__ = ["without_zeros"]

_ZEROS = (torch.ops.aten.zeros_like.default, torch.ops.aten.zeros.default, torch.ops.aten.new_zeros.default)


def without_zeros(function: Callable[[Tensor], Tensor], probe: Tensor) -> Callable[[Tensor], Tensor]:
    """The same function with sums x + 0 replaced by x.

    Args:
        function: Does the same operations whatever numbers it is given, as traced functions do.
        probe: A vector that it takes.

    Returns:
        The function, to be called without gradients.

    Example:
        >>> code = without_zeros(lambda v: torch.zeros_like(v) + 2 * v, torch.ones(3))
        >>> [node.name for node in code.graph.nodes if node.op == "call_function"], code(torch.ones(3))
        (['mul'], tensor([2., 2., 2.]))
    """
    with torch.no_grad():
        code = make_fx(function)(probe)
    for node in list(code.graph.nodes):
        if node.target is not torch.ops.aten.add.Tensor or len(node.args) != 2 or node.kwargs:
            continue
        for zero, other in (node.args, node.args[::-1]):
            if _is_zero(zero, code) and _is_like(other, node) and not _is_written_to(node):
                node.replace_all_uses_with(other)
                break
    code.graph.eliminate_dead_code()
    return fx.GraphModule(code, code.graph)  # with those constants only that are still used


def _is_zero(value: Any, code: fx.GraphModule) -> bool:
    if not isinstance(value, fx.Node):
        return False
    if value.op == "get_attr":
        constant = getattr(code, str(value.target))
        return isinstance(constant, Tensor) and not bool(constant.any())
    return value.target in _ZEROS and not _is_written_to(value)


def _is_like(value: Any, node: fx.Node) -> bool:
    """Whether a value has the shape and the dtype of a sum."""
    if not isinstance(value, fx.Node) or "tensor_meta" not in value.meta or "tensor_meta" not in node.meta:
        return False
    one, other = value.meta["tensor_meta"], node.meta["tensor_meta"]
    return bool(one.shape == other.shape and one.dtype == other.dtype)


def _is_written_to(node: fx.Node) -> bool:
    return any(getattr(getattr(user.target, "_schema", None), "is_mutable", False) for user in node.users)
