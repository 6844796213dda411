"""Scalings of weights that even out the singular values of a Jacobian, tensor by tensor.

A rank is not changed by an invertible map B of the weights, while the number of products that it takes to tell zero
singular values from others is. For each tensor of weights, as a matrix of outputs by inputs, JᵀJ is taken for a
Kronecker product K of the second moments L = E ggᵀ and R = E gᵀg of gradients g = Jᵀu with random u, and B is
(K + τ)^(-1/2). In a deep linear network that is what the part of J that belongs to a layer is, JB is for τ → 0 a sum of
orthogonal projections that commute, and all its squared singular values are whole numbers.

References:
    Martens & Grosse 2015; Gupta, Koren & Singer 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["Factors", "Kronecker", "Moments", "Whitening"]

# The longest side whose second moments are taken.
_LONGEST = 4096
# Gradients to begin with and at most; how many vectors there have to be for each direction of a side.
_FEWEST, _MOST, _EACH = 12, 96, 3.0
# Where there are not, this much of the mean is mixed in; eigenvalues below this, relative to the largest, are rounding.
_MIXED, _ROUNDING = 0.1, 1e-12


class Kronecker:
    """K for a map whose gradients are given, and what is made of it.

    Args:
        shapes: Shapes of the tensors that lie one after another in the flat vector of weights.
        gradient: Gives the gradient of another random combination of the outputs.
        fewest: How many to take at least.

    Attributes:
        gradients: How many were taken.
        top: The largest eigenvalue of K.

    Example:
        >>> a, b = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> part = torch.kron(a[:, :3], b)  # the part of J of a 3 × 4 tensor
        >>> chance = torch.Generator().manual_seed(1)
        >>> scaling = Kronecker([(3, 4)], lambda: torch.randn(25, generator=chance, dtype=torch.float64) @ part)
        >>> values = torch.linalg.svdvals(torch.stack([scaling.pull(row, 1e-10) for row in part]))
        >>> bool(values[0] / values[-1] < 4), bool(torch.linalg.cond(part) > 8)
        (True, True)
    """

    def __init__(self, shapes: Sequence[Sequence[int]], gradient: Callable[[], Tensor], fewest: int = _FEWEST) -> None:
        self._begin(shapes)
        self.gradients, wanted = 0, fewest
        open_ = self._moments
        while self.gradients < wanted:
            parts = dict(zip(map(id, self._moments), torch.split(gradient(), self._sizes), strict=True))
            for moment in open_:
                moment.add(parts[id(moment)])
            self.gradients += 1
            if self.gradients == wanted:
                # What has enough now has enough later: it is left as it is.
                open_ = [moment for moment in open_ if any(moment.short())]
                wanted *= 2 if open_ and wanted < _MOST else 1
        self._finish()

    @classmethod
    def of_rows(cls, shapes: Sequence[Sequence[int]], jacobian: Tensor) -> Kronecker:
        """K from all rows of J: there is no chance in it."""
        found = cls.__new__(cls)
        found._begin(shapes)
        found.gradients = 0
        for part, moment in zip(torch.split(jacobian, found._sizes, dim=1), found._moments, strict=True):
            moment.add_rows(part)
        found._finish()
        return found

    def _begin(self, shapes: Sequence[Sequence[int]]) -> None:
        self._shapes = [(s[0], math.prod(s[1:])) if len(s) > 1 else (math.prod(s), 1) for s in shapes]
        self._sizes = [a * b for a, b in self._shapes]
        self._moments = self._gathered()

    def _gathered(self) -> Sequence[Moments]:
        return [Moments(shape) for shape in self._shapes]

    def _finish(self) -> None:
        self._parts = [moment.factors() for moment in self._moments]
        tops = [left.max() * right.max() for _, left, _, right in self._parts]
        self.top = float(torch.stack(tops).max()) if tops else 0.0
        del self._moments

    def pull(self, gradient: Tensor, damping: float) -> Tensor:
        """Bᵀ times a gradient, or each of many, for τ relative to the largest eigenvalue of K."""
        tau, found = damping * self.top + 1e-300, []
        for part, (a, b), (axes, left, others, right) in self._each(gradient):
            block = part.reshape(*part.shape[:-1], a, b)
            block = block if axes is None else axes.T @ block
            block = block if others is None else block @ others
            found.append((block * (left[:, None] * right + tau).rsqrt()).reshape(part.shape))
        return torch.cat(found, dim=-1)

    def push(self, step: Tensor, damping: float) -> Tensor:
        """B times a step."""
        tau, found = damping * self.top + 1e-300, []
        for part, shape, (axes, left, others, right) in self._each(step):
            block = part.reshape(shape) * (left[:, None] * right + tau).rsqrt()
            block = block if axes is None else axes @ block
            block = block if others is None else block @ others.T
            found.append(block.reshape(-1))
        return torch.cat(found)

    def whitening(self, damping: float) -> Whitening:
        """√τ B: what is steeper than τ becomes alike, what is flatter stays as it is."""
        tau = damping * self.top + 1e-300
        gains = [((tau / (left[:, None] * right + tau)).sqrt()).reshape(-1) for _, left, _, right in self._parts]
        axes = [(left, right) for left, _, right, _ in self._parts]
        return Whitening(tuple(self._shapes), torch.cat(gains), tuple(axes))

    def _each(self, vector: Tensor) -> list[tuple[Tensor, tuple[int, int], Factors]]:
        return list(zip(torch.split(vector, self._sizes, dim=-1), self._shapes, self._parts, strict=True))


@dataclass(frozen=True)
class Whitening:
    """A scaling for one τ that lengthens nothing.

    Attributes:
        shapes: Of the tensors as matrices.
        gains: By how much each coordinate counts, at most 1.
        axes: Those of the left and of the right side of each matrix; None for a side that is left as it is.

    Example:
        >>> gradient = torch.tensor([4.0, 0.0, 0.0, 0.01], dtype=torch.float64)
        >>> found = Kronecker([(2, 2)], lambda: gradient).whitening(1e-4)
        >>> bool(found.push(torch.ones(4, dtype=torch.float64)).norm() < 2)
        True
    """

    shapes: tuple[tuple[int, int], ...]
    gains: Tensor
    axes: tuple[tuple[Tensor | None, Tensor | None], ...]

    def to(self, dtype: torch.dtype) -> Whitening:
        """The same for vectors of another precision."""
        axes = tuple((_cast(left, dtype), _cast(right, dtype)) for left, right in self.axes)
        return replace(self, gains=self.gains.to(dtype), axes=axes)

    def push(self, step: Tensor) -> Tensor:
        """Weights of coordinates. Differentiable."""
        found = []
        for part, (left, right) in self._each(step * self.gains):
            block = part if left is None else left @ part
            found.append((block if right is None else block @ right.T).reshape(-1))
        return torch.cat(found)

    def pull(self, gradient: Tensor) -> Tensor:
        """The gradient in coordinates of one in weights."""
        found = []
        for part, (left, right) in self._each(gradient):
            block = part if left is None else left.T @ part
            found.append((block if right is None else block @ right).reshape(-1))
        return torch.cat(found) * self.gains

    def _each(self, vector: Tensor) -> list[tuple[Tensor, tuple[Tensor | None, Tensor | None]]]:
        parts = torch.split(vector, [a * b for a, b in self.shapes])
        return [(part.view(s), axes) for part, s, axes in zip(parts, self.shapes, self.axes, strict=True)]


def _cast(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype)


# Axes and eigenvalues of the left side, and of the right.
Factors = tuple[Tensor | None, Tensor, Tensor | None, Tensor]


class Moments:
    """Second moments of gradients of one tensor."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape, self.count, self._size = shape, 0, torch.zeros((), dtype=torch.float64)
        self._sums: list[Tensor | None] = [None, None]
        self._few = [False, False]
        self._sides: list[tuple[Tensor, Tensor] | None] | None = None

    @property
    def measured(self) -> bool:
        """Whether both sides are."""
        return min(self.shape) > 1 and max(self.shape) <= _LONGEST

    def forget(self) -> None:
        """Give up the memory that moments take."""
        self._sums, self._sides = [None, None], None

    def add(self, gradient: Tensor) -> None:
        """One more."""
        block = gradient.reshape(self.shape)
        self._size = block.square().sum() + self._size.to(block.device)
        self.count, self._sides = self.count + 1, None
        if min(self.shape) == 1:
            return
        for side, length in enumerate(self.shape):
            if length <= _LONGEST:
                product = block.T @ block if side else block @ block.T
                last = self._sums[side]
                self._sums[side] = product if last is None else last.add_(product)

    def add_rows(self, gradients: Tensor) -> None:
        """All of the given ones."""
        self._size = gradients.square().sum()
        self.count = len(gradients)
        if min(self.shape) == 1:
            return
        blocks = gradients.reshape(len(gradients), *self.shape)
        for side, length in enumerate(self.shape):
            if length <= _LONGEST:
                flat = blocks.movedim(1 + side, 0).reshape(length, -1)
                self._sums[side] = flat @ flat.T

    def _turned(self) -> list[tuple[Tensor, Tensor] | None]:
        """Eigenvalues and eigenvectors of both sides."""
        if self._sides is None:
            self._sides = [None if total is None else tuple(torch.linalg.eigh(total)) for total in self._sums]
        return self._sides

    def short(self) -> list[bool]:
        """Whether there are too few gradients for all directions of the left side to be met, and of the right."""
        if self._sums == [None, None]:
            return [False, False]
        ranks = [
            length if side is None else int((side[0] > _ROUNDING * side[0][-1]).sum())
            for side, length in zip(self._turned(), self.shape, strict=True)
        ]
        self._few = [self.count * ranks[1] < _EACH * ranks[0], self.count * ranks[0] < _EACH * ranks[1]]
        return self._few

    def factors(self) -> Factors:
        """Eigenvectors of both sides with eigenvalues whose products are those of K.

        Where gradients were too few for all directions, nine tenths are what they show and a tenth is the mean.
        """
        sides: list[tuple[Tensor | None, Tensor]] = []
        for side, length, few in zip(self._turned(), self.shape, self._few, strict=True):
            if side is None:
                sides.append((None, torch.full_like(self._size, 1 / length).expand(length)))
                continue
            values = side[0].clamp(min=0)
            values = values / values.sum().clamp(min=1e-300)
            sides.append((side[1], values * (1 - _MIXED) + _MIXED / length if few else values))
        (axes, left), (others, right) = sides
        return axes, left * (self._size / max(self.count, 1)), others, right
