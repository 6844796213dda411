"""What goes into each linear layer of a model, and how its outputs move those of the model.

With a_i(x) what layer i is given on an example x, and d_i(x) the derivative of the outputs in what the layer gives,
JJᵀ between examples x and y is Σ_i a_i(x)·a_i(y) d_i(x)d_i(y)ᵀ. Where d_i is the same for all examples, as in a network
of linear layers, that is Σ_i P_i ⊗ Q_i with P_i = a_i a_iᵀ and Q_i = d_i d_iᵀ, without any chance in it.

References:
    Martens & Grosse 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from crunode.core.data import map_tree
from crunode.curvature.jacobian import Evaluation

__all__ = ["captured"]

# Numbers that may be held of one kind.
_MOST = 1 << 31


def captured(
    seen: Evaluation, w: Tensor, batches: Sequence[Any], roots: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor]] | None:
    """Matrices a_i (examples × inputs of the layer) and d_i (outputs of the model × outputs of the layer).

    Args:
        seen: The evaluation of a landscape.
        w: The point.
        batches: Examples; d_i is taken on the first one.
        roots: For each batch what multiplies the outputs: a scalar, or a matrix for each example.

    Returns:
        One pair for each layer; None where the model has no linear layers that see each example once.

    Example:
        >>> from crunode.core.landscape import Landscape
        >>> net = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False)).double()
        >>> land = Landscape(net, (torch.eye(2).double(), torch.zeros(2, 2).double()), "gaussian")
        >>> batch = next(land.passes())
        >>> pairs = captured(Evaluation(land), land.center, [batch], [torch.tensor(1.0)])
        >>> [(tuple(a.shape), tuple(d.shape)) for a, d in pairs]
        [((2, 2), (2, 3)), ((2, 3), (2, 2))]
        >>> bool(torch.allclose(pairs[0][1], net[1].weight))
        True
    """
    layers = [m for m in seen.landscape.network.modules() if isinstance(m, nn.Linear)]
    if not layers:
        return None
    try:
        given: list[list[Tensor]] = [[] for _ in layers]
        for batch in batches:
            with torch.no_grad():
                for k, (inside, _) in enumerate(_seen_by(layers, partial(seen.outputs, w, batch))[1]):
                    given[k].append(inside)
        ways = _ways(seen, w, layers, batches[0], roots[0])
    except _NotOnce:
        return None
    return [(torch.cat(parts), way) for parts, way in zip(given, ways, strict=True)]


class _NotOnce(Exception):
    pass


def _ways(seen: Evaluation, w: Tensor, layers: list[nn.Linear], batch: Any, root: Tensor) -> list[Tensor]:
    """d_i on the first example: that example as often as there are outputs, each time another one of them."""
    with torch.no_grad():
        width = seen.outputs(w, map_tree(lambda t: t[:1], batch)).numel()
    if width * sum(layer.in_features + layer.out_features for layer in layers) > _MOST:
        raise _NotOnce
    many = map_tree(lambda t: t[:1].expand(width, *t.shape[1:]), batch)
    with torch.enable_grad():
        free = w.detach().clone().requires_grad_()
        value, found = _seen_by(layers, lambda: seen.outputs(free, many))
        each = torch.eye(width, dtype=value.dtype, device=value.device)
        each = root * each if root.ndim == 0 else root[0].to(each)
        if len(each) != width:
            raise _NotOnce
        ways = torch.autograd.grad(value.reshape(width, -1), [after for _, after in found], each, allow_unused=True)
    return [
        torch.zeros_like(after).detach() if way is None else way.detach()
        for way, (_, after) in zip(ways, found, strict=True)
    ]


def _seen_by(layers: list[nn.Linear], run: Callable[[], Tensor]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """What the run gives, and what each layer is given in it and gives."""
    found: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def note(layer: nn.Module, given: tuple[Tensor, ...], after: Tensor) -> None:
        if layer in found or given[0].ndim != 2:
            raise _NotOnce
        found[layer] = (given[0].detach(), after)

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        value = run()
    finally:
        for handle in handles:
            handle.remove()
    if len(found) < len(layers):
        raise _NotOnce
    return value, [found[layer] for layer in layers]
