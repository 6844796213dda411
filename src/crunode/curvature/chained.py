"""Second derivatives along vectors in a chain of linear layers, as matrix products of what is kept of one pass.

With z_l = W_l a_l + b_l, a_{l+1} = φ_l(z_l) by entries, and signals δ_l = ∂L/∂z_l, a step V of the weights moves

    ż_l = V_l a_l + W_l ȧ_l,            ȧ_{l+1} = φ_l' ż_l,
    δ̇_l = φ_l' (W_{l+1}ᵀ δ̇_{l+1} + V_{l+1}ᵀ δ_{l+1}) + φ_l'' ż_l W_{l+1}ᵀ δ_{l+1},

from δ̇ = S ż at the last layer, S the second derivative in what that layer gives. The product with the Hessian is
δ̇_l a_lᵀ + δ_l ȧ_lᵀ for each weight. a, δ, φ' and φ'' do not depend on the step: they are held, several steps go through
together, and nothing is left but the six products of matrices a layer (two for the first one).

References:
    Pearlmutter 1994, "Fast exact multiplication by the Hessian".
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from crunode.core.params import Packing
from crunode.curvature.gram import are_close
from crunode.curvature.signals import LayerSignals, Recorder
from crunode.errors import InputError

__all__ = ["LayerChain"]

# Numbers of activations that go through together: on a CPU as many as its caches hold.
_TOGETHER = {"cpu": 1 << 22, "cuda": 1 << 26}

# Outputs up to which their second derivatives are held as a matrix for each example.
_WIDE = 32


@dataclass(frozen=True)
class _Link:
    """A layer and what comes after it.

    Attributes:
        columns: Where its weight lies in the flat vector; None where it is fixed.
        bias: Likewise for its bias.
        weight: W, shape (outputs, inputs).
        given: a, shape (examples, inputs).
        signal: δ, shape (examples, outputs).
        slope: φ' of what follows; None where it is 1.
        bend: φ'' times the signal that comes back to φ; None where it is 0.
    """

    columns: slice | None
    bias: slice | None
    weight: Tensor
    given: Tensor
    signal: Tensor
    slope: Tensor | None
    bend: Tensor | None


class LayerChain:
    """Products with the second derivative of a value that comes from a chain of linear layers.

    Args:
        links: The layers, in order.
        top: Derivative of the value in what the last layer gives, with its graph.
        edge: Where that graph ends.
        dim: Length of the flat vector.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Tanh(), nn.Linear(2, 1, bias=False)).double()
        >>> packing, recorder = Packing.of(dict(net.named_parameters())), Recorder(net, ["0.weight", "2.weight"])
        >>> with recorder:
        ...     value = net(torch.ones(3, 2).double()).square().mean()
        >>> found = LayerChain.of(recorder, value, packing)(torch.eye(6).double())
        >>> found.shape, bool(torch.allclose(found, found.T))
        (torch.Size([6, 6]), True)
    """

    def __init__(self, links: Sequence[_Link], top: Tensor, edge: GradientEdge, dim: int) -> None:
        self._links, self._top, self._edge, self._dim = links, top, edge, dim
        numbers = sum(link.given.numel() + link.signal.numel() for link in links)
        self._together = max(1, _TOGETHER["cuda" if top.is_cuda else "cpu"] // numbers)
        self._versions = [link.given._version for link in links]
        self._curvature = self._by_examples()
        self._whole = sum(s.stop - s.start for link in links for s in (link.columns, link.bias) if s is not None) == dim

    @classmethod
    def of(cls, recorder: Recorder, value: Tensor, packing: Packing) -> LayerChain | None:
        """The chain that led to `value`; None where the layers seen by `recorder` are not one after another.

        What lies between two layers is taken to act on each entry alone: compare a product before others are used.

        Args:
            recorder: Around the pass, for all parameters of the model.
            value: A scalar.
            packing: Of the free parameters.
        """
        layers = recorder.called()
        if not layers or not value.requires_grad or not all(_fits(layer, packing.dtype) for layer in layers):
            return None
        try:
            return cls._of(layers, value, packing)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # no second derivative, or none that reaches the layer before: others say what is wrong
            return None

    @classmethod
    def _of(cls, layers: Sequence[LayerSignals], value: Tensor, packing: Packing) -> LayerChain | None:
        columns, start = {}, 0
        for name, size in zip(packing.names, packing.sizes, strict=True):
            columns[name] = slice(start, start + size)
            start += size
        edge = layers[-1].edge
        assert edge is not None
        (top,) = torch.autograd.grad(value, [edge], create_graph=True)
        signal, slope, bend = top.detach(), None, None
        links: list[_Link] = []
        for layer, before in zip(reversed(layers), [*reversed(layers[:-1]), None], strict=True):
            assert layer.given is not None
            assert layer.weight is not None
            weight, bias = (columns.get(layer.names.get(kind, "")) for kind in ("weight", "bias"))
            links.append(_Link(weight, bias, layer.weight, layer.given, signal, slope, bend))
            if before is None:
                break
            found = _between(before, layer)
            if found is None:
                return None
            slope, bend = found
            back = signal @ layer.weight
            bend = None if bend is None else bend * back
            signal = back if slope is None else slope * back
        if links[-1].columns is None and links[-1].bias is None:  # its weights are used outside of it
            return None
        return cls(links[::-1], top, edge, packing.dim)

    def __call__(self, vectors: Tensor) -> Tensor:
        """The products with `vectors`, one in each row.

        Raises:
            InputError: What a layer was given has been written to since.
        """
        if self._versions != [link.given._version for link in self._links]:
            raise InputError(
                "expected data as it was at the first product, got tensors that were written to since; make the "
                "operator again after a change of the data"
            )
        make = torch.empty if self._whole else torch.zeros
        found = make(len(vectors), self._dim, dtype=vectors.dtype, device=vectors.device)
        for part, into in zip(torch.split(vectors, self._together), torch.split(found, self._together), strict=True):
            self._product(part, into)
        return found

    def _product(self, vectors: Tensor, into: Tensor) -> None:
        with torch.no_grad():
            moved, tangents = self._forward(vectors)
        curved = self._curved(moved[-1])
        with torch.no_grad():
            self._backward(vectors, moved, tangents, curved, into)

    def _forward(self, vectors: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
        """ż and ȧ of each layer, shape (vectors, examples, numbers); ż only where it is asked for again."""
        moved: list[Tensor] = []
        tangents: list[Tensor | None] = []
        tangent: Tensor | None = None
        for link in self._links:
            tangents.append(tangent)
            moving = None if tangent is None else _times(tangent, link.weight.T)
            if link.columns is not None:
                step = torch.unflatten(vectors[:, link.columns], 1, link.weight.shape).mT
                given = _shared(link.given, vectors)
                moving = torch.bmm(given, step) if moving is None else moving.baddbmm_(given, step)
            if link.bias is not None:
                shift = vectors[:, None, link.bias]
                moving = shift.repeat(1, len(link.given), 1) if moving is None else moving.add_(shift)
            assert moving is not None
            moved.append(moving)
            tangent = moving
            if link.slope is not None:
                tangent = moving.mul_(link.slope) if link.bend is None else moving * link.slope
        return moved, tangents

    def _backward(
        self, vectors: Tensor, moved: list[Tensor], tangents: list[Tensor | None], curved: Tensor, into: Tensor
    ) -> None:
        for k in reversed(range(len(self._links))):
            link, tangent = self._links[k], tangents[k]
            if link.columns is not None:
                out = torch.unflatten(into[:, link.columns], 1, link.weight.shape)
                torch.bmm(curved.mT, _shared(link.given, vectors), out=out)
                if tangent is not None:
                    out.baddbmm_(_shared(link.signal.T, vectors), tangent)
            if link.bias is not None:
                torch.sum(curved, 1, out=into[:, link.bias])
            if tangent is None:
                break
            curved = _times(curved, link.weight, tangent)  # which is not used any more
            if link.columns is not None:
                step = torch.unflatten(vectors[:, link.columns], 1, link.weight.shape)
                curved.baddbmm_(_shared(link.signal, vectors), step)
            before = self._links[k - 1]
            if before.slope is not None:
                curved.mul_(before.slope)
            if before.bend is not None:
                curved.addcmul_(before.bend, moved[k - 1])

    def _by_examples(self) -> Tensor | None:
        """S as a matrix for each example; None where they are large, or the value couples examples."""
        examples, width = self._top.shape
        if width > _WIDE or not self._top.requires_grad:
            return None
        each = torch.eye(width, dtype=self._top.dtype, device=self._top.device)
        found = torch.stack([self._along(one.expand(examples, width)) for one in each], 2)
        signs = torch.randint(2, (examples, width), generator=torch.Generator().manual_seed(0)).to(found) * 2 - 1
        return found if are_close([(found @ signs[:, :, None])[..., 0]], [self._along(signs)]) else None

    def _curved(self, moved: Tensor) -> Tensor:
        """S ż for each vector."""
        if self._curvature is not None:
            with torch.no_grad():
                return (moved.transpose(0, 1) @ self._curvature).transpose(0, 1).contiguous()  # S is symmetric
        if not self._top.requires_grad or not len(moved):
            return torch.zeros_like(moved)
        if len(moved) > 1:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # an operation without a rule for several is slower, and as right
                    return self._pulled(self._top, moved, moved)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # an operation that cannot take several
                pass
        return torch.stack([self._along(one) for one in moved])

    def _along(self, moved: Tensor) -> Tensor:
        """S ż for one vector, by the graph."""
        # Weights as an argument of `grad` would have torch load a package for symbolic algebra at the first use.
        with torch.enable_grad():
            return self._pulled((self._top * moved).sum(), None, moved)

    def _pulled(self, value: Tensor, weights: Tensor | None, like: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(
            value,
            [self._edge],
            weights,
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=weights is not None,
        )
        return torch.zeros_like(like) if found is None else found.detach()


def _fits(layer: LayerSignals, dtype: torch.dtype) -> bool:
    given, weight = layer.given, layer.weight
    if not isinstance(layer.layer, nn.Linear) or given is None or weight is None:
        return False
    return given.ndim == 2 and given._version == layer.version and given.dtype == weight.dtype == dtype


def _between(before: LayerSignals, layer: LayerSignals) -> tuple[Tensor | None, Tensor | None] | None:
    """φ' and φ'' between two layers, None where they are 1 and 0; None at all where sizes change between them."""
    given, start, end = layer.given, before.edge, layer.inner
    assert given is not None
    assert before.weight is not None
    if start is None or end is None or given.shape[1] != before.weight.shape[0]:
        return None
    ones = torch.ones_like(given, requires_grad=True)  # or what is once differentiable would not notice
    (slope,) = torch.autograd.grad((end * ones).sum(), [start], create_graph=True)
    if slope.shape != given.shape:
        return None
    bend: Tensor | None = None
    if slope.requires_grad:
        (bend,) = torch.autograd.grad(slope.sum(), [start], retain_graph=True, allow_unused=True)
    if bend is not None and bool(bend.any()):
        return slope.detach(), bend
    return None if bool((slope == 1).all()) else slope.detach(), None


def _times(several: Tensor, matrix: Tensor, into: Tensor | None = None) -> Tensor:
    """Each of several matrices times one, as one product."""
    out = None if into is None else into.flatten(0, 1)
    return torch.unflatten(torch.mm(several.flatten(0, 1), matrix, out=out), 0, several.shape[:2])


def _shared(matrix: Tensor, vectors: Tensor) -> Tensor:
    return matrix.expand(len(vectors), *matrix.shape)
