"""A preconditioner for JJᵀ: its diagonal in a basis of products of directions of examples and of outputs.

In a network of linear layers JJᵀ is a sum over layers of products P_i ⊗ Q_i of a matrix for examples and one for
outputs. The basis are the eigenvectors of Σ P_i tr Q_i and of Σ Q_i tr P_i, in which the sum is nearly diagonal. Where
its parts are not known they are estimated: values of Jz for random z, as a matrix of examples by outputs, have the
covariance JJᵀ. That is much less sharp: what is small beside the rest is lost in chance.

References:
    George et al. 2018 (the same for the Fisher matrix of a layer).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["ProductBasis"]

# The longest side whose second moments are taken.
_LONGEST = 4096
# Probes that show whether parts are right, and by which factor they may be wrong.
_CHECKS, _RIGHT = 6, 2.0


class ProductBasis:
    """The diagonal of JJᵀ in a product basis.

    Args:
        push: Gives Jz for another random z.
        examples: Number of examples; values of one lie next to each other.
        probes: How many z to take where parts are not known.
        parts: Matrices a_i and d_i with JJᵀ = Σ a_i a_iᵀ ⊗ d_i d_iᵀ, or about that.

    Attributes:
        known: Whether the parts were right.

    Example:
        >>> chance = torch.Generator().manual_seed(0)
        >>> a, b = torch.randn(2, 6, 6, generator=chance, dtype=torch.float64)
        >>> rows = torch.kron(a, b)
        >>> gram = rows @ rows.T
        >>> basis = ProductBasis(lambda: rows @ torch.randn(36, generator=chance, dtype=torch.float64), 6, 400)
        >>> near = torch.stack([basis.solve(row, 1e-9) for row in gram])
        >>> bool(torch.linalg.cond(near) < 1e-2 * torch.linalg.cond(gram))
        True
        >>> basis = ProductBasis(lambda: rows @ torch.randn(36, generator=chance, dtype=torch.float64), 6, 0, [(a, b)])
        >>> near = torch.stack([basis.solve(row, 1e-12) for row in gram])
        >>> bool(torch.linalg.cond(near) < 1.001)
        True
    """

    def __init__(
        self,
        push: Callable[[], Tensor],
        examples: int,
        probes: int,
        parts: Sequence[tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.known = parts is not None and self._of_parts(push, examples, parts)
        if self.known:
            return
        values = torch.stack([push() for _ in range(probes)]).reshape(probes, examples, -1)
        self._shape = values.shape[1:]
        self._left = _axes(values.movedim(1, 0).reshape(self._shape[0], -1))
        self._right = _axes(values.movedim(2, 0).reshape(self._shape[1], -1))
        self._diagonal = self._turned(values).square().mean(0)

    def _of_parts(self, push: Callable[[], Tensor], examples: int, parts: Sequence[tuple[Tensor, Tensor]]) -> bool:
        """The diagonal from parts; whether a few probes agree with it."""
        self._shape = torch.Size((examples, len(parts[0][1])))
        if any(len(a) != examples or len(d) != self._shape[1] for a, d in parts):
            return False
        self._left = _axes(torch.cat([a * d.norm() for a, d in parts], dim=1))
        self._right = _axes(torch.cat([d * a.norm() for a, d in parts], dim=1))
        self._diagonal = sum(
            (torch.outer(_lengths(self._left, a), _lengths(self._right, d)) for a, d in parts),
            torch.zeros_like(parts[0][0][:1, :1]),
        )
        values = torch.stack([push() for _ in range(_CHECKS)]).reshape(_CHECKS, *self._shape)
        # Shares of the mean square in each axis of either side, which chance leaves nearly as they are.
        found = self._turned(values).square().mean(0)
        off = []
        for side in range(2):
            seen, meant = found.sum(side), self._diagonal.sum(side)
            counts = meant > 1e-10 * meant.max()
            off.append((seen[counts] / meant[counts]).log().abs().mean())
        return bool(torch.stack(off).max() <= math.log(_RIGHT))

    def _turned(self, values: Tensor) -> Tensor:
        values = values if self._left is None else self._left.T @ values
        return values if self._right is None else values @ self._right

    def solve(self, right: Tensor, mu: float) -> Tensor:
        """About (JJᵀ + μ)⁻¹ times a vector."""
        found = self._turned(right.reshape(self._shape)) / (self._diagonal + mu)
        found = found if self._left is None else self._left @ found
        return (found if self._right is None else found @ self._right.T).reshape(-1)


def _axes(side: Tensor) -> Tensor | None:
    return None if len(side) > _LONGEST else torch.linalg.eigh(side @ side.T).eigenvectors


def _lengths(axes: Tensor | None, side: Tensor) -> Tensor:
    """Squared lengths of the rows of a side in a basis."""
    return (side if axes is None else axes.T @ side).square().sum(1)
