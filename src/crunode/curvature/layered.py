"""The linear part of outputs by the factors of its rows: J = δaᵀ layer by layer, where all layers are linear.

J has a row for each output of each example, as long as all weights. Where layers are linear the row is a product of
what comes back to each layer and what the layer is given, so that JJᵀ, JᵀJ and products with them need no J.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crunode.core.data import map_tree
from crunode.curvature.gram import are_close, row_weights
from crunode.curvature.jacobian import Evaluation
from crunode.curvature.outputs import FEW, SCALED_CUT, STRONG, Dense, DenseMap, Random, counted, counted_rows, largest
from crunode.curvature.rank import clear_count
from crunode.curvature.signals import OuterRows, Recorder

__all__ = ["LayerPart", "Layered", "LayeredMap", "column_products", "row_products", "weighted_row_products"]

# Rows of JJᵀ that are made at once.
_PANEL = 256


@dataclass(frozen=True)
class LayerPart:
    """Columns of J that belong to one tensor of weights: rows δaᵀ.

    Attributes:
        start: The first column.
        left: δ, shape (examples, outputs of an example, outputs of the layer).
        right: a, shape (examples, inputs of the layer).
    """

    start: int
    left: Tensor
    right: Tensor

    @property
    def columns(self) -> slice:
        """Which they are."""
        return slice(self.start, self.start + self.left.shape[2] * self.right.shape[1])

    def turned(self) -> tuple[LayerPart, Tensor, Tensor]:
        """The same in the axes of the second moments of its rows, and what `Kronecker` takes for their eigenvalues."""
        flat, sizes = self.left.flatten(0, 1), self.right.square().sum(1)
        size = (self.left.square().sum((1, 2)) * sizes).sum() / len(flat)
        shape = (self.left.shape[2], self.right.shape[1])
        if min(shape) == 1:
            return self, (size / shape[0]).expand(shape[0]), torch.full_like(size, 1 / shape[1]).expand(shape[1])
        scaled = flat * sizes.sqrt().repeat_interleave(self.left.shape[1])[:, None]
        given = self.right * self.left.square().sum((1, 2)).sqrt()[:, None]
        (left, axes), (right, others) = torch.linalg.eigh(scaled.T @ scaled), torch.linalg.eigh(given.T @ given)
        left, right = (v.clamp(min=0) / v.clamp(min=0).sum().clamp(min=1e-300) for v in (left, right))
        return LayerPart(self.start, self.left @ axes, self.right @ others), left * size, right


def row_products(parts: Sequence[LayerPart]) -> Tensor:
    """JJᵀ: a sum over layers of (δ·δ')(a·a').

    Example:
        >>> part = LayerPart(0, torch.tensor([[[1.0], [2.0]]]), torch.tensor([[3.0, 4.0]]))  # rows (3, 4) and (6, 8)
        >>> row_products([part])
        tensor([[ 25.,  50.],
                [ 50., 100.]])
    """
    examples, width, _ = parts[0].left.shape
    factors = [(p.left.flatten(0, 1), p.right @ p.right.T) for p in parts]
    found = parts[0].left.new_empty(examples * width, examples * width)
    # Panel by panel, so that one stays in the processor's cache while all layers add to it; the rest is symmetric.
    for first in range(0, examples, max(1, _PANEL // width)):
        last = min(examples, first + max(1, _PANEL // width))
        start, stop = first * width, last * width
        panel = None
        for left, overlaps in factors:
            products = (left[start:stop] @ left[:stop].T).view(last - first, width, last, width)
            products.mul_(overlaps[first:last, None, :last, None])
            panel = products if panel is None else panel.add_(products)
        assert panel is not None
        found[start:stop, :stop] = panel.view(stop - start, stop)
        found[:start, start:stop] = found[start:stop, :start].T
    return found


def weighted_row_products(parts: Sequence[LayerPart], weights: Sequence[Tensor]) -> Tensor:
    """JWJᵀ for diagonal W, given for each layer as a matrix of outputs by inputs.

    Rows of example k with those of j are Σ_s δ_s δ'_s o_s with o = W(a ∘ a'), for all layers in one product.

    Example:
        >>> part = LayerPart(0, torch.tensor([[[1.0], [2.0]]]), torch.tensor([[3.0, 4.0]]))
        >>> weighted_row_products([part], [torch.tensor([[1.0, 0.0]])])
        tensor([[ 9., 18.],
                [18., 36.]])
    """
    left = torch.cat([p.left for p in parts], 2)
    examples, width, _ = left.shape
    found = left.new_empty(examples * width, examples * width)
    for k in range(examples):
        start, stop = k * width, (k + 1) * width
        pairs = zip(parts, weights, strict=True)
        overlaps = torch.cat([(p.right[k] * p.right[: k + 1]) @ weight.T for p, weight in pairs], 1)
        other = (left[: k + 1] * overlaps[:, None]).reshape(stop, -1)
        torch.mm(left[k], other.T, out=found[start:stop, :stop])
        found[:start, start:stop] = found[start:stop, :start].T
    return found


def column_products(parts: Sequence[LayerPart], size: int) -> Tensor:
    """JᵀJ: a sum over examples of Kronecker products of Σ δδᵀ over outputs and aaᵀ, for each pair of layers.

    Example:
        >>> part = LayerPart(0, torch.tensor([[[1.0], [2.0]]]), torch.tensor([[3.0, 4.0]]))
        >>> column_products([part], 2)
        tensor([[45., 60.],
                [60., 80.]])
    """
    found = parts[0].left.new_zeros(size, size)
    for k, one in enumerate(parts):
        for other in parts[: k + 1]:
            signals = (one.left.mT @ other.left).flatten(1)
            given = (one.right[:, :, None] * other.right[:, None]).flatten(1)
            (a, b), (c, d) = ((p.left.shape[2], p.right.shape[1]) for p in (one, other))
            block = (signals.T @ given).reshape(a, c, b, d).transpose(1, 2).reshape(a * b, c * d)
            found[one.columns, other.columns] = block
            if other is not one:
                found[other.columns, one.columns] = block.T
    return found


class LayeredMap(DenseMap):
    """F with its linear part by layers: factors of the rows of J where all layers are linear, J itself elsewhere.

    Args:
        seen: The evaluation of a landscape.
        examples: Indices of examples, ascending.

    Example:
        >>> from crunode import Landscape
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
        >>> land = Landscape(net, (torch.eye(3).double(), torch.zeros(3, 2).double()), "gaussian")
        >>> seen, examples = Evaluation(land), torch.arange(3)
        >>> by_layers, rows = (kind(seen, examples).at(seen.center) for kind in (LayeredMap, DenseMap))
        >>> type(by_layers).__name__, bool(torch.allclose(by_layers.gram, rows.gram))
        ('Layered', True)
    """

    def __init__(self, seen: Evaluation, examples: Tensor) -> None:
        super().__init__(seen, examples)
        self.width = self.rows // max(self.examples, 1)
        self._recorder = Recorder(seen.landscape.network, seen.landscape.packing.names)
        self._by_layers = self._recorder.covered
        self._kept: list[tuple[Tensor, Layered]] = []
        # An example is given once for each of its outputs, so that one backward pass has all rows in it.
        self._repeated = [
            (*map_tree(lambda t: t.repeat_interleave(self.width, 0), batch[:-1]), batch[-1]) for batch in self.batches
        ]

    def _chunk(self, seen: Evaluation) -> int:
        return max(1, min(super()._chunk(seen), seen.landscape.chunk_rows() // seen.outputs_per_example()))

    def by_layers(self) -> bool:
        """Whether the factors are had, as the center shows."""
        return self._parts(self.seen.center) is not None

    def at(self, w: Tensor) -> Dense:
        """J by layers and its products with itself at w; those of the last two points are kept.

        That takes no more memory than J at one of them. Where J is held, one point is kept as in `DenseMap`.
        """
        for kept in self._kept:
            if torch.equal(kept[0], w):
                return kept[1]
        parts = self._parts(w)
        if parts is None:
            self._kept.clear()
            return super().at(w)
        self._kept = [*self._kept[-1:], (w, Layered(self, w, parts))]
        self.gradients += 1 + self.width
        return self._kept[-1][1]

    def _parts(self, w: Tensor) -> list[LayerPart] | None:
        """The factors of all rows; None where a layer does not give them, or not those of the outputs."""
        if not self._by_layers:
            return None
        try:
            batches = [self._blocks(k, w) for k in range(len(self.batches))]
        except Exception:  # outputs that depend on no weight, or a model that minds how many examples it is given
            batches = []
        if len({tuple((b.weight, b.bias) for b in blocks) for blocks in batches}) != 1 or not batches[0]:
            self._by_layers = False
            return None
        columns, start = {}, 0
        packing = self.seen.landscape.packing
        for name, shape in zip(packing.names, packing.shapes, strict=True):
            columns[name] = start
            start += math.prod(shape)
        parts = []
        for blocks in zip(*batches, strict=True):
            left = torch.cat([b.signals[0].reshape(-1, self.width, b.signals.shape[-1]) for b in blocks]).double()
            right = torch.cat([b.given[:: self.width] for b in blocks]).double()
            if blocks[0].weight:
                parts.append(LayerPart(columns[blocks[0].weight], left, right))
            if blocks[0].bias:
                parts.append(LayerPart(columns[blocks[0].bias], left, right.new_ones(len(right), 1)))
        return parts

    def _blocks(self, k: int, w: Tensor) -> list[OuterRows]:
        """Those of the batch `k`; none where they are not had."""
        with torch.enable_grad():
            free = w.detach().clone().requires_grad_()
            with self._recorder:
                outputs = self.seen.outputs(free, self._repeated[k])
            root, count = self.roots[k], len(outputs) // self.width
            square = root * torch.eye(self.width, dtype=w.dtype, device=w.device) if root.ndim == 0 else root
            cotangent = square.expand(count, -1, -1).to(outputs.dtype)
            blocks = self._recorder.rows(outputs, [cotangent.reshape(outputs.shape)])
            self._recorder.forget()
            found = [b for b in blocks or () if isinstance(b, OuterRows)]
            if len(found) < len(blocks or (None,)):
                return []
            # Held against the gradient of the outputs themselves, with other weights for each of them.
            weights = row_weights(1, len(outputs), w.device)
            free = w.detach().clone().requires_grad_()
            value = self.part(k, free)
            (want,) = torch.autograd.grad(value, free, weights.reshape(-1).to(value.dtype))
        total: dict[str, Tensor] = {}
        for block in found:
            total.update(block.combined(weights))
        packing = self.seen.landscape.packing
        order = zip(packing.names, packing.shapes, strict=True)
        flat = torch.cat([total.get(n, w.new_zeros(s)).reshape(-1) for n, s in order])
        return found if are_close([flat], [want]) else []


class Layered(Dense):
    """The linear part of F at a point by the factors of its rows: JJᵀ, or JᵀJ where that is smaller.

    J is not held. All that it is asked for is the same as that of `Dense` up to rounding.
    """

    def __init__(self, outputs: LayeredMap, w: Tensor, parts: list[LayerPart]) -> None:
        self._outputs, self._w, self._parts = outputs, w, parts
        self.tall = outputs.rows > outputs.seen.dim
        self.gram = column_products(parts, len(w)) if self.tall else row_products(parts)
        self.top = largest(self.gram)
        self._factor = None

    def _push(self, step: Tensor) -> Tensor:
        """J times a step."""
        found = self._w.new_zeros(self._parts[0].left.shape[:2])
        for p in self._parts:
            moved = p.right @ step[p.columns].reshape(p.left.shape[2], -1).T
            found += (p.left @ moved[:, :, None])[:, :, 0]
        return found.reshape(-1)

    def _pull(self, u: Tensor) -> Tensor:
        """Jᵀ times one number for each row."""
        found = torch.zeros_like(self._w)
        for p in self._parts:
            mixed = (u.reshape(p.left.shape[0], 1, -1) @ p.left)[:, 0]
            found[p.columns] = (mixed.T @ p.right).reshape(-1)
        return found

    def solve(self, residual: Tensor, damping: float) -> Tensor:
        """Jᵀ(JJᵀ + μ)⁻¹ F, for μ relative to the largest eigenvalue."""
        if self.tall:
            return self._inverse(self._pull(residual), damping)
        return self._pull(self._inverse(residual, damping))

    def kernel(self, step: Tensor) -> Tensor:
        """The part of a step that J does not see."""
        for _ in range(2):  # the second time takes away what rounding left
            step = step - self._pull_inverse(step)
        return step

    def _pull_inverse(self, step: Tensor) -> Tensor:
        if self.tall:
            return self._inverse(self.gram @ step, 1e-12)
        return self._pull(self._inverse(self._push(step), 1e-12))

    def rank(self, cut: float, band: float, random: Random | None = None) -> tuple[float, float]:
        """Singular values of JB that stand above a gap, and how far that is uncertain; see `Dense`."""
        if not self.top > 0:
            return 0.0, 0.0
        gram = self._scaled()
        floor = 3 * math.sqrt(len(gram) * torch.finfo(gram.dtype).eps)
        clear = clear_count(gram, SCALED_CUT, floor)
        if clear is not None:
            return float(clear), 0.0
        found = counted(torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(0), SCALED_CUT, band, floor)
        if found[1] and len(gram) <= FEW:
            found = min(found, counted_rows(self._held(), cut, band), key=lambda pair: pair[1])
        return found

    def _scaled(self) -> Tensor:
        """JB(JB)ᵀ, or (JB)ᵀJB where that is smaller, for the scaling B of `Kronecker`.

        B multiplies the columns of J in the axes of the second moments. What the factors are off by through rounding is
        small relative to the columns, and so it is in products of them that are multiplied afterwards.
        """
        turned = [p.turned() for p in self._parts]
        tau = STRONG * max(float(left.max() * right.max()) for _, left, right in turned) + 1e-300
        parts = [p for p, _, _ in turned]
        weights = [(left[:, None] * right + tau).reciprocal() for _, left, right in turned]
        if self.tall:
            scale = self._w.new_zeros(len(self._w))
            for p, weight in zip(parts, weights, strict=True):
                scale[p.columns] = weight.sqrt().reshape(-1)
            return column_products(parts, len(scale)).mul_(scale).mul_(scale[:, None])
        return weighted_row_products(parts, weights)

    def _held(self) -> Tensor:
        """J."""
        found = self._w.new_zeros(self._outputs.rows, len(self._w))
        for p in self._parts:
            found[:, p.columns] = torch.einsum("nwa,nb->nwab", p.left, p.right).reshape(len(found), -1)
        return found
