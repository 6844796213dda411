"""Kronecker products of second moments, each side taken with the other one made even.

A few directions carry most of a random gradient g, by orders of magnitude. Plain moments E ggᵀ and E gᵀg then see one
side through what these few have on the other, and their product is wrong for all that is small on both. The product
L ⊗ R that is nearest to the second moments of g in likelihood solves R = E gᵀL⁻¹g / a and L = E gR⁻¹gᵀ / b, in which
every direction of the other side counts alike; taken in turn the two converge in a few rounds.

References:
    Dutilleul 1999 (the matrix normal distribution).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from crunode.curvature.kronecker import Factors, Kronecker, Moments

__all__ = ["Balanced"]

# Gradients to begin with, and rounds: from nothing, and from factors at a point close by.
_FEWEST, _ROUNDS, _AGAIN = 48, 4, 2
# Gradients that tell the size.
_SIZED = 8
# What is added to a side before it is divided by, relative to its size: below that it is rounding.
_LEAST, _TRIES, _TINY = 1e-14, 8, 1e-140


class Balanced(Kronecker):
    """K for a map whose gradients are given, all of which are held for it.

    Args:
        shapes: Shapes of the tensors that lie one after another in the flat vector of weights.
        gradient: Gives the gradient of another random combination of the outputs.
        like: K at a point close by, whose factors are begun with, and which has told how many gradients it takes.

    Example:
        >>> chance = torch.Generator().manual_seed(0)
        >>> sides = [torch.logspace(0, -4, 6, dtype=torch.float64), torch.logspace(0, -4, 5, dtype=torch.float64)]
        >>> def gradient():  # with second moments that are a product, of entries down to 1e-8 of the largest
        ...     normal = torch.randn(6, 5, generator=chance, dtype=torch.float64)
        ...     return (sides[0].sqrt()[:, None] * normal * sides[1].sqrt()).reshape(-1)
        >>> found = Balanced([(6, 5)], gradient)
        >>> even = torch.stack([found.pull(gradient(), 1e-12) for _ in range(400)]).square().mean(0)
        >>> bool(even.max() / even.min() < 30)
        True
    """

    def __init__(
        self, shapes: Sequence[Sequence[int]], gradient: Callable[[], Tensor], like: Balanced | None = None
    ) -> None:
        self._like = like
        super().__init__(shapes, gradient, _FEWEST)

    def _gathered(self) -> Sequence[Moments]:
        if self._like is None:
            self._held = [_Held(shape) for shape in self._shapes]
        else:
            self._held = [held.again() for held in self._like._held]
            self._like = None
        return self._held


class _Held(Moments):
    """Gradients of one tensor, and L and R."""

    def __init__(self, shape: tuple[int, int], wanted: int = 0, sides: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__(shape)
        self._blocks: list[Tensor] = []
        self._wanted, self._last = wanted, sides

    def again(self) -> _Held:
        """As many gradients at another point."""
        return _Held(self.shape, self.count, self._last)

    def add(self, gradient: Tensor) -> None:
        self._blocks.append(gradient.reshape(self.shape))
        if self._wanted:
            self.count += 1
        else:
            super().add(gradient)

    def short(self) -> list[bool]:
        return super().short() if not self._wanted else [self.count < self._wanted] * 2

    def factors(self) -> Factors:
        blocks, self._blocks = self._blocks, []
        if self.measured:
            self.forget()
            stack = torch.stack(blocks)
            self._last = _alternated(stack, self._last)
            return _turned(stack, *self._last)
        plain = Moments(self.shape)
        for block in blocks:
            plain.add(block)
        return plain.factors()


def _alternated(stack: Tensor, last: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """L and R by rounds in turn."""
    count, a, b = stack.shape
    left = torch.einsum("sij,skj->ik", stack, stack) if last is None else last[0]
    right = left
    flat = stack.movedim(1, 0).reshape(a, -1)
    across = stack.movedim(2, 0).reshape(b, -1)
    for _ in range(_ROUNDS if last is None else _AGAIN):
        even = _divided(left, flat).reshape(a, count, b).reshape(-1, b)
        right = even.T @ even / (count * a)
        even = _divided(right, across).reshape(-1, a)
        left = even.T @ even / (count * b)
    return left, right


def _divided(side: Tensor, columns: Tensor) -> Tensor:
    """C⁻¹ times columns, for a side CCᵀ."""
    more = _LEAST * side.diagonal().sum().clamp(min=1e-300)
    for _ in range(_TRIES):
        damped = side.clone()
        damped.diagonal().add_(more)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if not int(failed):
            found: Tensor = torch.linalg.solve_triangular(factor, columns, upper=False)
            return found
        more = more * 10
    raise torch.linalg.LinAlgError("expected second moments that are positive semidefinite, got others")  # type: ignore[attr-defined]


def _turned(stack: Tensor, left: Tensor, right: Tensor) -> Factors:
    """Axes and eigenvalues of both sides, scaled such that gradients divided by them have entries of mean square 1."""
    axes, values, ranks = [], [], []
    for side in (left, right):
        found, turned = torch.linalg.eigh(side)
        least = _LEAST * found.sum().clamp(min=1e-300)
        values.append((found.clamp(min=0) + least).clamp(min=_TINY))
        ranks.append((found.clamp(min=0) / values[-1]).sum())
        axes.append(turned)
    some = stack[:_SIZED]  # for one number
    even = (axes[0].T @ some @ axes[1]).square() / (values[0][:, None] * values[1])
    size = even.sum() / (len(some) * ranks[0] * ranks[1]).clamp(min=1e-300)
    return axes[0], values[0] * size, axes[1], values[1]
