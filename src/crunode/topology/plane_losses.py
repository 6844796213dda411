"""Losses at many points of a plane in weight space, by a layout that follows from the sizes of model and data.

At w = w₀ + Σ_k c_k d_k the values of a first linear layer are linear in c: for weights W and bias b of the point,

    W x + b = (W₀ x + b₀) + Σ_k c_k (D_k x + e_k),

with D_k and e_k the layer's part of d_k. So that layer costs k + 1 matrix products in all and not one for each point;
for images it is most of the work. What follows is evaluated at each point.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.core.rng import preserved_rng
from crunode.sampling.layout import memory_class, why_apart

__all__ = ["Layout", "first_layer", "plane_losses"]

# Numbers worked on at a time: on a processor what its second-level cache holds, for one point and for several together;
# on a GPU enough to keep it busy.
_ONE, _SEVERAL, _GPU = 1 << 18, 1 << 20, 1 << 28
# Numbers of first-layer values that are held for all points.
_HELD = 1 << 25
_FEW = 3
_AGREE = {torch.float64: 1e-9, torch.float32: 1e-3}


@dataclass(frozen=True)
class Layout:
    """How points are evaluated.

    Attributes:
        name: "affine": the first layer through its linear form, the rest point by point or together; "batched": whole
            models together, by `torch.func.vmap`; "sequential": whole models one by one.
        points: Points evaluated at once.
        rows: Examples evaluated at once.
    """

    name: str
    points: int
    rows: int


@dataclass(frozen=True)
class _Chain:
    """A model that is a chain of layers, cut at its first linear one.

    Attributes:
        before: Layers without parameters that come before it.
        weight: Name of the linear layer's weight.
        bias: Name of its bias, where it has one.
        rest: The layers that follow, with the names that their parameters have in the model.
        width: Numbers that all layers from the first on give for an example.
    """

    before: nn.Sequential
    weight: str
    bias: str | None
    rest: tuple[tuple[nn.Module, dict[str, str]], ...]
    width: int


def first_layer(land: Landscape) -> str | None:
    """Name of the weight of the linear layer that a chain of layers begins with; None where there is no such chain.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> first_layer(Landscape(net, (torch.ones(8, 2, 2), torch.ones(8, 1)), "gaussian"))
        '1.weight'
    """
    chain = _chain(land)
    return None if chain is None else chain.weight


def plane_losses(
    land: Landscape, origin: Tensor, directions: Tensor, coordinates: Tensor, layout: Layout | None = None
) -> tuple[np.ndarray, dict[str, Any]]:
    """L_n at `origin + coordinates @ directions`, all points in memory-bounded batches.

    Args:
        land: The landscape.
        origin: A flat vector of weights.
        directions: Rows of k directions.
        coordinates: One row of k numbers for each point.
        layout: How to evaluate; None chooses by the sizes of model and data.

    Returns:
        Losses in double precision, and the layout with the reason for it. Losses may be infinite or not numbers.

    Example:
        >>> land = Landscape.of_function(lambda w: w[0] ** 2 + w[1] ** 4, torch.zeros(2))
        >>> plane_losses(land, land.center, torch.eye(2), torch.tensor([[1.0, 1.0], [2.0, 0.0]]))[0]
        array([2., 4.])
    """
    origin, directions = origin.to(land.center), directions.to(land.center)
    at = coordinates.to(land.center)
    whole = _Whole(land, origin, directions)
    ways: dict[str, _Whole] = {"sequential": whole, "batched": whole}
    with torch.no_grad(), preserved_rng():
        chain = _chain(land)
        if chain is not None and (affine := _Affine(land, chain, origin, directions)).agrees(at):
            ways["affine"] = affine
        if layout is not None:
            why = "as asked for"
        else:
            layout, why = _chosen(land, ways, at)
        values = _all_points(ways[layout.name], at, layout)
    return values.cpu().numpy() / land.data.rows, {**asdict(layout), "why": why}


class _Whole:
    """Sums over examples of losses of whole models at points of a plane."""

    def __init__(self, land: Landscape, origin: Tensor, directions: Tensor) -> None:
        self.land, self.origin, self.directions = land, origin, directions
        self.per_example = land.activations

    def blocks(self) -> Iterator[Callable[[Tensor, int], Tensor]]:
        """Functions of coordinates and examples at once, whose sum over blocks of data is that over all examples."""
        yield self._sums

    def _sums(self, at: Tensor, rows: int) -> Tensor:
        points = self.origin + at @ self.directions
        total = torch.zeros(len(at), dtype=torch.float64, device=at.device)
        for batch in self.land.data.passes(rows):
            if len(at) == 1:
                means = self.land.batch_loss(points[0], batch)[None]
            else:
                means = vmap(lambda w, b=batch: self.land.batch_loss(w, b))(points)
            total += means.double() * leaves(batch)[0].shape[0]
        return total


class _Affine(_Whole):
    """The same for a chain of layers, with the first one evaluated once for all points."""

    def __init__(self, land: Landscape, chain: _Chain, origin: Tensor, directions: Tensor) -> None:
        super().__init__(land, origin, directions)
        self.chain, self.per_example = chain, chain.width
        fixed = land.fixed
        free = [land.packing.unravel(vector) for vector in (origin, *directions)]
        self._named = [fixed | free[0], *({k: torch.zeros_like(v) for k, v in fixed.items()} | f for f in free[1:])]
        # Weights of the rest as one vector, so that those of a point are one sum.
        names = [name for _, names in chain.rest for name in names.values()]
        self._shapes = {name: self._named[0][name].shape for name in names}
        self._rest = torch.stack([torch.cat([origin[:0], *(p[n].reshape(-1) for n in names)]) for p in self._named])

    def agrees(self, at: Tensor) -> bool:
        """Whether losses of a few examples are those of the whole model, at the first and at the last point."""
        rows = min(16, self.land.data.rows)
        batch = next(iter(self.land.data.passes(rows)))
        try:
            block = _Block(self, self._forms(batch), batch[-1])
            for point in (at[:1], at[-1:]):
                ours = block(point, rows)[0] / rows
                theirs = self.land.batch_loss((self.origin + point @ self.directions)[0], batch).double()
                tolerance = _AGREE[self.origin.dtype]
                if not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True):
                    return False
        except Exception:  # the whole model is there for whatever does not go
            return False
        return True

    def blocks(self) -> Iterator[Callable[[Tensor, int], Tensor]]:
        outputs = self._named[0][self.chain.weight].shape[0]
        held = max(16, _HELD // (outputs * len(self._named)))
        for batch in self.land.data.passes(held):
            yield _Block(self, self._forms(batch), batch[-1])

    def _forms(self, batch: Any) -> Tensor:
        """First-layer values at the origin and their slopes along the directions, shape (1 + k, examples, width)."""
        x = self.chain.before(self.land.protected(batch[0]))
        return torch.stack([self._linear(part, x) for part in self._named])

    def _linear(self, part: dict[str, Tensor], x: Tensor) -> Tensor:
        bias = None if self.chain.bias is None else part[self.chain.bias]
        return nn.functional.linear(x, part[self.chain.weight], bias)

    def weights(self, at: Tensor) -> dict[str, Tensor]:
        """Those of the layers after the first at some points, by name, with a leading axis of points."""
        flat = self._rest[0] + at @ self._rest[1:]
        parts = torch.split(flat, [shape.numel() for shape in self._shapes.values()], dim=1)
        return {n: p.view(-1, *shape) for (n, shape), p in zip(self._shapes.items(), parts, strict=True)}

    def loss(self, weights: dict[str, Tensor], z: Tensor, target: Tensor) -> Tensor:
        """Mean loss from first-layer values, which are overwritten."""
        for layer, names in self.chain.rest:
            own = {inner: weights[outer] for inner, outer in names.items()}
            if type(layer) is nn.Linear:  # without the time that functional_call takes
                z = nn.functional.linear(z, own["weight"], own.get("bias"))
            elif type(layer) is nn.ReLU:
                z = z.relu_()
            else:
                z = functional_call(layer, own, (z,)) if own else layer(z)
        losses: Tensor = self.land.loss_form.fn(z, target)
        return losses.mean()


class _Block:
    """Some of the examples with their first-layer values; maps coordinates to sums of losses."""

    def __init__(self, owner: _Affine, forms: Tensor, target: Tensor) -> None:
        self._owner, self._forms, self._target = owner, forms, target
        self._base: tuple[list[float], Tensor] = ([0.0] * (len(forms) - 2), forms[0])

    def __call__(self, at: Tensor, rows: int) -> Tensor:
        total = torch.zeros(len(at), dtype=torch.float64, device=at.device)
        weights = self._owner.weights(at)
        if len(at) == 1:
            weights = {name: value[0] for name, value in weights.items()}
            *before, last = at[0].tolist()
            base = self._based(before)
        for k in range(0, len(self._target), rows):
            target, slopes = self._target[k : k + rows], self._forms[1:, k : k + rows]
            if len(at) == 1:
                z = torch.add(base[k : k + rows], slopes[-1], alpha=last)
                means = self._owner.loss(weights, z, target)[None]
            else:
                column = at.T[(..., *[None] * (slopes.ndim - 1))]
                z = torch.addcmul(self._forms[0, k : k + rows], column[0], slopes[0])
                for c, slope in zip(column[1:], slopes[1:], strict=True):
                    z.addcmul_(c, slope)
                means = vmap(self._owner.loss, (0, 0, None))(weights, z, target)
            total += means.double() * len(target)
        return total

    def _based(self, before: list[float]) -> Tensor:
        """First-layer values with all coordinates but the last; they are the same along a line of the grid."""
        if self._base[0] != before:
            z = self._forms[0].clone()
            for c, slope in zip(before, self._forms[1:-1], strict=True):
                z.add_(slope, alpha=c)
            self._base = before, z
        return self._base[1]


def _chain(land: Landscape) -> _Chain | None:
    """The model as a chain of layers that begins with a linear one, where it is one."""
    template = next(iter(land.data.passes(1)))
    plain = land.data.stacked and land.pointwise and not land.loss_form.takes_model
    if not plain or not isinstance(template, tuple) or len(template) != 2:
        return None
    model = land.network
    shared = len(list(model.parameters())) != len(list(model.named_parameters(remove_duplicate=False)))
    parts = list(_leaves_in_order("", model))
    if shared or any(part is None for _, part in parts) or any(dtype != land.center.dtype for dtype in _dtypes(land)):
        return None
    known = [(name, part) for name, part in parts if part is not None]
    index = next((k for k, (_, part) in enumerate(known) if any(True for _ in part.parameters())), None)
    if index is None or type(known[index][1]) is not nn.Linear or any(True for _ in model.buffers()):
        return None
    name, first = known[index]
    rest = tuple(
        (part, {inner: _joined(outer, inner) for inner, _ in part.named_parameters()})
        for outer, part in known[index + 1 :]
    )
    widths = [part.out_features for _, part in known[index:] if isinstance(part, nn.Linear)]
    before = nn.Sequential(*(part for _, part in known[:index]))
    bias = None if first.bias is None else _joined(name, "bias")
    return _Chain(before, _joined(name, "weight"), bias, rest, sum(widths))


def _joined(name: str, inner: str) -> str:
    return f"{name}.{inner}" if name else inner


def _leaves_in_order(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module | None]]:
    """Layers in the order they are applied in; None where that is not known."""
    if module._forward_hooks or module._forward_pre_hooks:
        yield name, None
    elif type(module).forward is nn.Sequential.forward:
        for inner, part in module._modules.items():
            assert part is not None
            yield from _leaves_in_order(_joined(name, inner), part)
    else:
        # A layer with layers inside is taken as one, but the first one with weights has to be linear.
        yield name, module


def _dtypes(land: Landscape) -> Iterator[torch.dtype]:
    yield from land.packing.dtypes
    yield from (value.dtype for value in land.fixed.values())


def _chosen(land: Landscape, ways: dict[str, _Whole], at: Tensor) -> tuple[Layout, str]:
    """The first layer once for all points where that can be, and several points at once where they are small."""
    alone = Layout("sequential", 1, land.chunk_rows())
    if not land.data.stacked or len(at) <= _FEW:
        return alone, "few points" if land.data.stacked else "batches have unlike shapes"
    several = _several(land, ways.get("affine", ways["batched"]), len(at))
    if "affine" in ways:
        way, single = ways["affine"], Layout("affine", 1, _rows(land, ways["affine"]))
        if several.points > 1 and _goes(way, at, several):
            return several, "the first layer once for all points, the rest for several together"
        return single, "the first layer once for all points, the rest point by point"
    if several.points == 1:
        return alone, "one point fills the caches"
    against = why_apart(land, several.points, several.rows, shared=True)
    return (several, "several points together") if against is None else (alone, against)


def _rows(land: Landscape, way: _Whole) -> int:
    """Examples at once: equal parts of which none is small."""
    rows = max(16, (_ONE if land.device.type == "cpu" else _GPU) // way.per_example)
    return -(-land.data.rows // max(1, round(land.data.rows / rows))) if land.pointwise else land.chunk_rows()


def _several(land: Landscape, way: _Whole, count: int) -> Layout:
    """Several whole points at once, as many as caches and memory hold."""
    cpu, rows = land.device.type == "cpu", _rows(land, way)
    room = memory_class(land.device) / (16 * land.center.element_size())
    most = min(_SEVERAL if cpu else _GPU, int(room)) // (rows * way.per_example + land.dim)
    return Layout("affine" if isinstance(way, _Affine) else "batched", max(1, min(count, most)), rows)


def _goes(way: _Whole, at: Tensor, layout: Layout) -> bool:
    """Whether some points can be evaluated so."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an operation without a batching rule warns, and is slow
            next(iter(way.blocks()))(at[: layout.points], layout.rows)
    except Exception:
        return False
    return True


def _all_points(way: _Whole, at: Tensor, layout: Layout) -> Tensor:
    total = torch.zeros(len(at), dtype=torch.float64, device=at.device)
    with Progress(len(at), "points") as bar:
        for number, sums in enumerate(way.blocks()):
            for start in range(0, len(at), layout.points):
                some = at[start : start + layout.points]
                total[start : start + layout.points] += sums(some, layout.rows)
                if number == 0:
                    bar.advance(len(some))
    return total
