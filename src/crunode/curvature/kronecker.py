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

import torch
from torch import Tensor

__all__ = ["Kronecker"]

# The longest side whose second moments are taken.
_LONGEST = 2048
# Gradients to begin with and at most; how many vectors there have to be for each direction of a side.
_FEWEST, _MOST, _EACH = 12, 96, 3.0
# Where there are not, this much of the mean is mixed in; eigenvalues below this, relative to the largest, are rounding.
_MIXED, _ROUNDING = 0.1, 1e-12


class Kronecker:
    """K for a map whose gradients are given, and what is made of it.

    Args:
        shapes: Shapes of the tensors that lie one after another in the flat vector of weights.
        gradient: Gives the gradient of another random combination of the outputs.

    Attributes:
        gradients: How many were taken.

    Example:
        >>> a, b = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> part = torch.kron(a[:, :3], b)  # the part of J of a 3 × 4 tensor
        >>> chance = torch.Generator().manual_seed(1)
        >>> scaling = Kronecker([(3, 4)], lambda: torch.randn(25, generator=chance, dtype=torch.float64) @ part)
        >>> values = torch.linalg.svdvals(torch.stack([scaling.pull(row, 1e-10) for row in part]))
        >>> bool(values[0] / values[-1] < 4), bool(torch.linalg.cond(part) > 8)
        (True, True)
    """

    def __init__(self, shapes: Sequence[Sequence[int]], gradient: Callable[[], Tensor]) -> None:
        self._shapes = [(s[0], math.prod(s[1:])) if len(s) > 1 else (math.prod(s), 1) for s in shapes]
        self._sizes = [a * b for a, b in self._shapes]
        moments = [_Moments(shape) for shape in self._shapes]
        self.gradients, wanted = 0, _FEWEST
        while self.gradients < wanted:
            for part, moment in zip(gradient().split(self._sizes), moments, strict=True):
                moment.add(part)
            self.gradients += 1
            if self.gradients == wanted < _MOST and any(any(moment.short()) for moment in moments):
                wanted *= 2
        self._parts = [moment.factors() for moment in moments]
        self._top = max((float(left.max() * right.max()) for _, left, _, right in self._parts), default=0.0)

    def pull(self, gradient: Tensor, damping: float) -> Tensor:
        """Bᵀ times a gradient, for τ relative to the largest eigenvalue of K."""
        tau, found = damping * self._top + 1e-300, []
        for part, shape, (axes, left, others, right) in self._each(gradient):
            block = part.reshape(shape)
            block = block if axes is None else axes.T @ block
            block = block if others is None else block @ others
            found.append((block * (left[:, None] * right + tau).rsqrt()).reshape(-1))
        return torch.cat(found)

    def push(self, step: Tensor, damping: float) -> Tensor:
        """B times a step."""
        tau, found = damping * self._top + 1e-300, []
        for part, shape, (axes, left, others, right) in self._each(step):
            block = part.reshape(shape) * (left[:, None] * right + tau).rsqrt()
            block = block if axes is None else axes @ block
            block = block if others is None else block @ others.T
            found.append(block.reshape(-1))
        return torch.cat(found)

    def _each(self, vector: Tensor) -> list[tuple[Tensor, tuple[int, int], _Factors]]:
        return list(zip(vector.split(self._sizes), self._shapes, self._parts, strict=True))


# Axes and eigenvalues of the left side, and of the right.
_Factors = tuple[Tensor | None, Tensor, Tensor | None, Tensor]


class _Moments:
    """Second moments of gradients of one tensor."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape, self._size, self._count = shape, 0.0, 0
        self._sums: list[Tensor | None] = [None, None]
        self._device = torch.device("cpu")

    def add(self, gradient: Tensor) -> None:
        block = gradient.reshape(self._shape)
        self._size += float(block.square().sum())
        self._count, self._device = self._count + 1, gradient.device
        if min(self._shape) == 1:
            return
        for side, length in enumerate(self._shape):
            if length <= _LONGEST:
                product = block.T @ block if side else block @ block.T
                last = self._sums[side]
                self._sums[side] = product if last is None else last.add_(product)

    def short(self) -> list[bool]:
        """Whether there are too few gradients for all directions of the left side to be met, and of the right."""
        if self._sums == [None, None] or not self._size > 0:
            return [False, False]
        found = []
        for total, length in zip(self._sums, self._shape, strict=True):
            values = None if total is None else torch.linalg.eigvalsh(total)
            found.append(length if values is None else int((values > _ROUNDING * values[-1]).sum()))
        return [self._count * found[1] < _EACH * found[0], self._count * found[0] < _EACH * found[1]]

    def factors(self) -> _Factors:
        """Eigenvectors of both sides with eigenvalues whose products are those of K."""
        sides: list[tuple[Tensor | None, Tensor]] = []
        for total, length, few in zip(self._sums, self._shape, self.short(), strict=True):
            if total is None or not self._size > 0:
                sides.append((None, torch.full((length,), 1 / length, dtype=torch.float64, device=self._device)))
                continue
            values, axes = torch.linalg.eigh(total)
            values = values.clamp(min=0) / float(values.clamp(min=0).sum())
            sides.append((axes, values * (1 - _MIXED) + _MIXED / length if few else values))
        (axes, left), (others, right) = sides
        return axes, left * (self._size / max(self._count, 1)), others, right
