"""How far a cooled chain goes in each direction: coordinates in which its prior is standard normal.

The prior is wide where the loss is flat for reasons of rank. Matrices of low rank get random entries of the size of
their own in the directions that they have nothing in; everything else moves by a small share of its size. Around such
matrices the valley of least loss is a cone in these directions, so that its codimension shows at any distance, and is
seen best from afar, where the curvatures of its directions differ least.

Within that, directions in which the loss is steep may be held closer. What a temperature shows and what it costs both
grow with the curvatures t kᵢ of directions, relative to the prior's: it shows those above 1 and takes a number of steps
that grows with the root of the largest. Multiplied by √(τ / (kᵢ + τ)), directions steeper than τ are all alike, and one
temperature shows what was spread over several. The kᵢ are taken for those of a Kronecker product for each tensor of
weights (`crunode.curvature.kronecker`), with gradients from all over the prior.

References:
    Martens & Grosse 2015; Girolami & Calderhead 2011 (metrics from the Fisher information).
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.rng import derived_seed, preserved_rng
from crunode.curvature.jacobian import Evaluation, NoOutputs
from crunode.curvature.kronecker import Kronecker, Whitening
from crunode.curvature.krylov import KrylovMap
from crunode.curvature.rounding import Spaces, unrounded
from crunode.errors import InputError

__all__ = ["PriorScale", "stiffness"]


class PriorScale:
    """S: how far each direction may go.

    Args:
        land: The landscape.
        share: How far weights move, relative to their size.
        reach: How far matrices of low rank move where they have nothing.

    Example:
        >>> land = Landscape.of_function(lambda w: w.square().sum(), 2 * torch.ones(3))
        >>> PriorScale(land, 0.1, 1.0)(torch.ones(3))
        tensor([0.2000, 0.2000, 0.2000])
    """

    def __init__(self, land: Landscape, share: float, reach: float) -> None:
        dtype = land.packing.dtype
        shapes = land.packing.shapes
        _, spaces = unrounded(land.center, shapes, land.packing.dtypes)
        self._sizes = land.packing.sizes
        parts = torch.split(land.center.double(), self._sizes)
        usual = [_entry(p, space) for p, space in zip(parts, spaces, strict=True)]
        known = sorted(u for u in usual if u > 0)
        typical = known[len(known) // 2] if known else 1.0
        scales: list[Tensor] = []
        self._far: dict[int, tuple[_Outside, float]] = {}
        self._even: Whitening | None = None
        for k, (size, own, space) in enumerate(zip(self._sizes, usual, spaces, strict=True)):
            unit = own or typical
            scales.append(torch.full((size,), share * unit, dtype=dtype))
            if space is not None:
                self._far[k] = _Outside.of(space).to(dtype), max(reach - share, 0.0) * unit
        self._near = torch.cat(scales).to(land.device)

    def evened(self, by: Whitening) -> PriorScale:
        """The same, with what is steep held closer."""
        found = copy.copy(self)
        found._even = by.to(self._near.dtype)
        return found

    def double(self) -> PriorScale:
        """The same for vectors in double precision."""
        found = copy.copy(self)
        found._near = self._near.double()
        found._far = {k: (outside.to(torch.float64), more) for k, (outside, more) in self._far.items()}
        found._even = None if self._even is None else self._even.to(torch.float64)
        return found

    def __call__(self, z: Tensor) -> Tensor:
        """S z. Differentiable."""
        return self._plain(z if self._even is None else self._even.push(z))

    def back(self, gradient: Tensor) -> Tensor:
        """Sᵀ times a gradient."""
        plain = self._plain(gradient)
        return plain if self._even is None else self._even.pull(plain)

    def _plain(self, z: Tensor) -> Tensor:
        """S without what holds it closer, the same to either side of a matrix."""
        found = self._near * z
        if not self._far:
            return found
        parts, given = list(torch.split(found, self._sizes)), torch.split(z, self._sizes)
        for k, (outside, more) in self._far.items():
            parts[k] = parts[k].add(outside(given[k]), alpha=more)
        return torch.cat(parts)


class _Outside:
    """The part of a flat step that is neither in the column nor in the row space of a matrix.

    Each of the two is projected by a basis of the space itself or of what is orthogonal to it, whichever has fewer
    vectors.
    """

    def __init__(self, shape: tuple[int, int], sides: tuple[tuple[Tensor, bool], tuple[Tensor, bool]]) -> None:
        self._shape, self._sides = shape, sides

    @classmethod
    def of(cls, space: Spaces) -> _Outside:
        return cls(space.shape, (_smaller(space.columns), _smaller(space.rows)))

    def to(self, dtype: torch.dtype) -> _Outside:
        (columns, first), (rows, second) = self._sides
        return _Outside(self._shape, ((columns.to(dtype), first), (rows.to(dtype), second)))

    def __call__(self, step: Tensor) -> Tensor:
        (columns, beside), (rows, also) = self._sides
        block = step.reshape(self._shape)
        if columns.shape[1]:  # a matrix of zeros has none
            along = columns @ (columns.T @ block)
            block = along if beside else block - along
            along = (block @ rows) @ rows.T
            block = along if also else block - along
        return block.reshape(-1)


def _smaller(basis: Tensor) -> tuple[Tensor, bool]:
    """A basis of what is orthogonal to a space, and True, where that has fewer vectors; otherwise its own."""
    length, count = basis.shape
    if 2 * count <= length:
        return basis, False
    return torch.linalg.qr(basis, mode="complete").Q[:, count:].contiguous(), True


def stiffness(land: Landscape, index: Tensor, scale: PriorScale, seed: int = 0) -> Kronecker:
    """Curvatures of the loss in the coordinates of a scale, as a Kronecker product for each tensor of weights.

    From gradients of random combinations of outputs, each at another random point of the prior: some directions only
    show away from the center.

    Args:
        land: A landscape whose labels are the model's predictions at the center.
        index: Examples to look at, ascending.
        scale: The coordinates.
        seed: Points and combinations come from it.

    Raises:
        NoOutputs: Outputs cannot be seen in double precision.

    Example:
        >>> from crunode.examples.toys import reduced_rank
        >>> land = reduced_rank(8, 6, 8, rank=3)
        >>> stiffness(land, torch.arange(40), PriorScale(land, 0.1, 1.0)).top > 0
        True
    """
    try:
        with preserved_rng():
            seen = Evaluation(land)
            if seen.dtype != torch.float64:
                raise NoOutputs("the model does not run in double precision")
            outputs, wide = KrylovMap(seen, index), scale.double()
            chance = torch.Generator(land.device).manual_seed(derived_seed(seed, 74))

            def random(count: int) -> Tensor:
                return torch.randn(count, generator=chance, dtype=torch.float64, device=land.device)

            def gradient() -> Tensor:
                return wide.back(outputs.pulled(seen.center + wide(random(land.dim)), random(outputs.rows)))

            found = Kronecker(land.packing.shapes, gradient)
    except (InputError, RuntimeError) as error:  # no memory, a derivative that is not implemented
        raise NoOutputs(str(error)) from error
    if not 0 < found.top < math.inf:
        raise NoOutputs("outputs do not change with the weights")
    return found


def _entry(part: Tensor, space: Spaces | None) -> float:
    """The size of entries that a matrix of full rank with singular values like these would have."""
    if space is None:
        return float(part.square().mean().sqrt())
    return float(space.size / (space.shape[0] ** 0.5 + space.shape[1] ** 0.5))
