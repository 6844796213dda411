"""Views of the arguments, made once for as long as the arguments stay where they are in memory."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx

from crunode.sampling.replay.memory import storage

__all__ = ["Bound"]


class Bound:
    """Equal to a module of tensor operations, whose views are made anew only when an argument lies elsewhere.

    Chains move in place and minibatches are copied to where the last one was, so at nearly every step the arguments
    are the same memory with other content, and so are all their views. Taking these is half of a small net's calls.

    Args:
        module: A graph of calls that changes none of its arguments. Those are always of the same shapes and strides.
        tensors: An example of what each node gives.
    """

    def __init__(self, module: fx.GraphModule, tensors: Mapping[fx.Node, Any]) -> None:
        fixed = _fixed(module.graph, tensors, _read_where_written(module.graph, tensors))
        needed = [
            node
            for node in fixed
            if not isinstance(tensors.get(node), tuple | list) and any(user not in fixed for user in node.users)
        ]
        self._views = _part(module, [node for node in module.graph.nodes if node in fixed], [], needed).forward
        rest = [node for node in module.graph.nodes if node not in fixed and node.op != "output"]
        returned: Any = module.graph.output_node().args[0]
        self._body = _part(module, rest, needed, returned).forward
        self._bound: tuple[Tensor, ...] = ()  # holds the arguments' memory, so that nothing else can take its place
        self._where: list[int] | None = None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """What the module gives for `inputs`."""
        where = [tensor.data_ptr() for tensor in inputs]
        if where != self._where:
            self._bound, self._where = self._views(*inputs), where
        result: tuple[Tensor, ...] = self._body(*self._bound)
        return result


def _read_where_written(graph: fx.Graph, tensors: Mapping[fx.Node, Any]) -> set[fx.Node]:
    """Let views of a result that lies in standing memory be views of that memory; returns those."""
    found = set()
    for node in graph.nodes:
        if "out" in node.kwargs:
            for user in [user for user in node.users if _is_view(user, tensors)]:
                user.replace_input_with(node, node.kwargs["out"])
                found.add(user)
    return found


def _fixed(graph: fx.Graph, tensors: Mapping[fx.Node, Any], known: set[fx.Node]) -> dict[fx.Node, None]:
    """Arguments, constants, and views of these, in order."""
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        given = node.op in ("placeholder", "get_attr")
        if given or (
            all(source in found for source in node.all_input_nodes) and (node in known or _is_view(node, tensors))
        ):
            found[node] = None
    return found


def _is_view(node: fx.Node, tensors: Mapping[fx.Node, Any]) -> bool:
    """True for a part of what another node gives, and for what shares memory with the one tensor it is made from."""
    if node.op != "call_function" or node.target is Tensor.copy_ or "out" in node.kwargs:
        return False
    if node.target is operator.getitem:
        return True
    if len(node.all_input_nodes) != 1:
        return False
    made, source = tensors.get(node), tensors.get(node.all_input_nodes[0])
    parts = made if isinstance(made, tuple | list) else [made]
    return isinstance(source, Tensor) and all(isinstance(p, Tensor) and storage(p) == storage(source) for p in parts)


def _part(module: fx.GraphModule, nodes: list[fx.Node], given: list[fx.Node], returned: Any) -> fx.GraphModule:
    """The module's `nodes` as a module of its own, a function of the nodes `given`."""
    graph, copies = fx.Graph(), {}
    for k, node in enumerate(given):
        copies[node] = graph.placeholder(f"given_{k}")
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(fx.node.map_arg(tuple(returned), lambda n: copies[n]))
    return fx.GraphModule(module, graph)
