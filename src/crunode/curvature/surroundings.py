"""Random points around a point of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from crunode.curvature.rounding import Spaces

__all__ = ["Surroundings"]

# Weights that are smaller than this are not the measure of how far away another point is.
_LEAST = 0.1
# What is moved in all directions where others are moved far.
_BESIDE = 0.5


class Surroundings:
    """How far other weights are from given ones, and random steps to them.

    Args:
        center: The flat vector of weights.
        shapes: Shapes of the tensors in it.
        spaces: Of each tensor that is a matrix of low rank.

    Attributes:
        sizes: Numbers of weights in the tensors.
        unit: The length of a step of the size of the weights.
        low: Whether some tensor has a low rank.

    Example:
        >>> around = Surroundings(torch.ones(6), [(2, 3)], [None])
        >>> step = around.step(0.1, torch.ones(1), lambda size: torch.arange(1.0, 1.0 + size))
        >>> round(float(step.square().mean().sqrt()), 3)
        0.1
    """

    def __init__(self, center: Tensor, shapes: Sequence[Sequence[int]], spaces: Sequence[Spaces | None]) -> None:
        self.sizes = [math.prod(s) for s in shapes]
        self.unit = max(float(center.square().mean().sqrt()), _LEAST) * len(center) ** 0.5
        self._spaces = spaces
        self.low = any(s is not None for s in spaces)
        known = [s.size for s in spaces if s is not None and s.size > 0]
        self._typical = sum(known) / len(known) if known else 1.0

    def step(self, share: float, factors: Tensor, random: Callable[[int], Tensor], reach: float = 0.0) -> Tensor:
        """A random step to another point.

        Args:
            share: Its length, relative to the size of the weights.
            factors: How much more each tensor is moved than others.
            random: Gives normal numbers.
            reach: How far to go in directions that matrices of low rank have nothing in, relative to their singular
                values; all others are moved less then.
        """
        weights = factors.tolist()
        step: Tensor = torch.cat([random(size) * f for size, f in zip(self.sizes, weights, strict=True)])
        step = step * ((_BESIDE if reach else 1.0) * share * self.unit / step.norm())
        if not reach:
            return step
        far = []
        for size, f, space in zip(self.sizes, weights, self._spaces, strict=True):
            if space is None:
                far.append(torch.zeros(size, dtype=step.dtype, device=step.device))
                continue
            # A random matrix of unit entries has singular values up to the sum of the roots of its sides.
            length = 2 * (space.size or self._typical) / (space.shape[0] ** 0.5 + space.shape[1] ** 0.5)
            far.append(space.outside(random(size)) * (reach * f * length))
        return step + torch.cat(far)
