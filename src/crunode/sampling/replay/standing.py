"""Standing memory for the large intermediate values of a replayed function.

Memory that is asked for and given back at every step comes as fresh pages from the system each time, and touching
those can cost more than the operation that fills them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

__all__ = ["give_standing"]

_LARGE = 1 << 16  # bytes


def give_standing(module: fx.GraphModule, tensors: Mapping[fx.Node, Any], *, first_too: bool) -> None:
    """Let operations with large results write into memory that is kept between calls.

    Results that are returned stay new tensors, apart from the first one if asked for: it is then overwritten by the
    next call.

    Args:
        module: A graph of calls.
        tensors: An example of what each node gives.
        first_too: The first result may be overwritten.
    """
    returned = list(module.graph.output_node().args[0])  # type: ignore[arg-type]
    if first_too and _is_join(returned[0], tensors):
        _write_through(module, returned[0], tensors)
        returned = list(module.graph.output_node().args[0])  # type: ignore[arg-type]
    for node in list(module.graph.nodes):
        if node not in returned and "out" not in node.kwargs and _large(tensors.get(node)):
            into = torch.empty_like(tensors[node])
            if _fits(node, into, tensors):
                _give(module, node, into)
    module.graph.lint()
    module.recompile()


def _is_join(node: Any, tensors: Mapping[fx.Node, Any]) -> bool:
    return node.target is torch.cat and _large(tensors.get(node))


def _write_through(module: fx.GraphModule, join: fx.Node, tensors: Mapping[fx.Node, Any]) -> None:
    """Let the parts of a concatenation be computed where they belong, so that nothing is left to be joined."""
    whole = torch.empty_like(tensors[join])
    parts: Any = join.args[0]
    axis: Any = join.args[1] if len(join.args) > 1 else 0
    start = 0
    place = _attribute(module, next(iter(module.graph.nodes)), whole)
    for part in parts:
        size = tensors[part].shape[axis]
        piece = whole.narrow(axis, start, size)
        source = part.args[0] if part.target is torch.reshape and len(part.users) == 1 else part
        into = _as_shape(piece, tuple(tensors[source].shape))
        if into is not None and len(source.users) == 1 and _fits(source, into, tensors):
            _give(module, source, into)
        else:
            target = _attribute(module, join, piece)
            with module.graph.inserting_before(join):
                module.graph.call_function(Tensor.copy_, (target, part))
        start += size
    join.replace_all_uses_with(place)
    module.graph.erase_node(join)


def _fits(node: fx.Node, into: Tensor, tensors: Mapping[fx.Node, Any]) -> bool:
    """True when the operation can write into a tensor, and gives the same result there."""
    if node.op != "call_function" or node.target in (operator.getitem, torch.reshape) or not _large(into):
        return False
    made = into.fill_(math.nan if into.is_floating_point() else 0)
    try:
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: tensors[n])
        made = node.target(*args, **kwargs, out=into)  # type: ignore[operator]
    except (TypeError, RuntimeError, KeyError, UserWarning):
        return False
    wanted = tensors[node]
    if made is not into or into.shape != wanted.shape or into.dtype != wanted.dtype:
        return False
    scale = float(torch.nan_to_num(wanted.abs(), posinf=0).max()) if into.is_floating_point() else 0.0
    return torch.allclose(into, wanted, rtol=1e-4, atol=1e-6 * scale, equal_nan=True)


def _give(module: fx.GraphModule, node: fx.Node, into: Tensor) -> None:
    node.kwargs = {**node.kwargs, "out": _attribute(module, node, into)}


def _attribute(module: fx.GraphModule, before: fx.Node, tensor: Tensor) -> fx.Node:
    name = f"standing_{sum(key.startswith('standing') for key in module._buffers)}"
    module.register_buffer(name, tensor)
    with module.graph.inserting_before(before):
        return module.graph.get_attr(name)


def _as_shape(piece: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    try:
        return piece.view(shape)
    except RuntimeError:
        return None


def _large(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.numel() * tensor.element_size() >= _LARGE
